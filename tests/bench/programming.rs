//! Rows about the agent: one endpoint more, and everything at once.

use crate::Options;
use crate::exchange::PORT;
use crate::pinned::Frontends;
use crate::report::{Bound, Report, Row};
use crate::scenery::{self, Crowd, Scenery, metric};
use crate::stats::Spread;
use crate::worker::{CLIENT_CPU, pin, pin_process};
use anyhow::{Context, Result, ensure};
use lab::manifests::{Manifest, service, slice};
use lab::{Lab, Node, eventually};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Where the agent runs while one CPU watches the map.
const AGENT_CPU: usize = 1;
/// Between two changes.
const PAUSE: Duration = Duration::from_millis(50);
/// A change must not take that long.
const PATIENCE: Duration = Duration::from_secs(10);

/// One endpoint more, at 10,000 Services of 10 endpoints each.
pub(crate) fn one_more(options: &Options, report: &mut Report) -> Result<()> {
    if !options.wants("one-more") {
        return Ok(());
    }
    let scenery = Scenery::new(&["--log", "info,proxy_agent::agent=debug"], false)?;
    let lab = &scenery.lab;
    let node = lab.node("n1");
    let scaled = service("scaled").cluster_ip("10.96.0.11");
    lab.apply(&scaled.port("http", 80, PORT))?;
    let file = scale(lab, 10)?.1;
    scenery.add(&Crowd::even(10_000, 10))?;
    pin_process(node.agent_pid()?, AGENT_CPU)?;
    pin(0, CLIENT_CPU)?;

    let frontends = Frontends::open(&node.pins())?;
    let at: SocketAddr = "10.96.0.11:80".parse()?;
    let changes = if options.quick { 40 } else { 400 };
    let (mut seen_ms, mut agents_ms) = (Vec::new(), Vec::new());
    let mut log = Published::after(node)?;
    for change in 0..changes {
        let endpoints = if change % 2 == 0 { 11 } else { 10 };
        let (text, _) = scaled_slice(endpoints)?;
        let draft = scenery::draft(lab);
        fs::write(&draft, text)?;
        let target = lab.manifests_dir().join(&file);
        // What the last change left to do beside the loop is not this one's.
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        fs::rename(&draft, &target)?;
        while frontends.tcp(at)?.table.length != endpoints {
            ensure!(start.elapsed() < PATIENCE, "change {change} never came");
        }
        let took = start.elapsed();
        let waited_ms = eventually(PATIENCE, || log.next_ms())?;
        // What goes away waits for its readers, which is not the event's time.
        if endpoints == 11 {
            seen_ms.push(took.as_secs_f64() * 1000.0);
            agents_ms.push(waited_ms);
        }
    }
    let (p50, p99) = (Bound::AtMost(0.2), Bound::AtMost(1.0));
    let name = "one-more: event received → in the kernel";
    let agents = Spread::of(agents_ms);
    report.add(Row::plain(
        name,
        &format!("{name}, p50"),
        "ms",
        &agents,
        Some(p50),
    ));
    report.add(Row::tail(
        name,
        &format!("{name}, p99"),
        "ms",
        &agents,
        Some(p99),
    ));
    scrapes(node, report)?;
    let name = "one-more: file renamed → seen in map frontends";
    let seen = Spread::of(seen_ms);
    report.add(Row::plain(name, &format!("{name}, p50"), "ms", &seen, None));
    report.add(Row::tail(name, &format!("{name}, p99"), "ms", &seen, None));
    Ok(())
}

/// What a look at the metrics costs the agent, which does it beside its work.
fn scrapes(node: &Node, report: &mut Report) -> Result<()> {
    const SCRAPES: u32 = 20;
    let before = cpu_time_ms(node)?;
    let mut bytes = 0;
    for _ in 0..SCRAPES {
        bytes = node.metrics()?.len();
    }
    let each = (cpu_time_ms(node)? - before) / f64::from(SCRAPES);
    let name = format!(
        "scrape: CPU time for {:.1} MB of metrics",
        bytes as f64 / 1e6
    );
    report.add(Row::plain(
        "scrape",
        &name,
        "ms",
        &Spread::single(each),
        None,
    ));
    Ok(())
}

/// User and system time of the agent so far (proc_pid_stat(5), fields 14 and
/// 15, in ticks of 10 ms).
fn cpu_time_ms(node: &Node) -> Result<f64> {
    let path = format!("/proc/{}/stat", node.agent_pid()?);
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let (_, fields) = text.rsplit_once(") ").context("a stat line")?;
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|it| it.parse::<f64>().ok()).sum();
    Ok(ticks * 10.0)
}

/// What the agent logs of each publish: the same figure as in its metric
/// `fairlead_event_to_kernel_seconds`, but each by itself. A look at the
/// metrics between the changes would disturb the agent more than it tells.
struct Published {
    log: BufReader<File>,
    line: String,
}

impl Published {
    /// From now on.
    fn after(node: &Node) -> Result<Self> {
        let mut log = File::open(node.log()).context("open the agent's log")?;
        log.seek(SeekFrom::End(0))?;
        Ok(Self {
            log: BufReader::new(log),
            line: String::new(),
        })
    }

    /// Milliseconds from the next publish's first event to its end.
    fn next_ms(&mut self) -> Result<f64> {
        loop {
            self.log.read_line(&mut self.line)?;
            // The end may be half a line.
            ensure!(self.line.ends_with('\n'), "no line yet");
            let line = std::mem::take(&mut self.line);
            if let Some((_, waited)) = line.split_once("waited=")
                && let Some(text) = waited.split_whitespace().next()
            {
                return milliseconds(text).with_context(|| format!("a time in {line:?}"));
            }
        }
    }
}

/// A `Duration` as `Debug` writes it.
fn milliseconds(text: &str) -> Option<f64> {
    let units = [("ns", 1e-6), ("µs", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    })
}

fn scaled_slice(endpoints: u32) -> Result<(String, lab::manifests::Slice)> {
    let mut slice = slice("scaled", "scaled").port("http", PORT);
    for number in 1..=endpoints {
        slice = slice
            .address(&format!("10.143.0.{number}"))
            .on("n2")
            .ready();
    }
    Ok((serde_json::to_string(&slice.to_json())?, slice))
}

/// Applies the slice; its text and file name.
fn scale(lab: &Lab, endpoints: u32) -> Result<(String, String)> {
    let (text, slice) = scaled_slice(endpoints)?;
    lab.apply(&slice)?;
    Ok((text, slice.id().file_name()))
}

/// A first full programming.
struct First {
    name: &'static str,
    crowd: Crowd,
    flags: &'static [&'static str],
    time_s: Option<Bound>,
    anonymous_mib: Option<Bound>,
    repeats: usize,
}

/// First full programming of various clusters.
pub(crate) fn first(options: &Options, report: &mut Report) -> Result<()> {
    // 250,011 endpoints: 5,000 Services of 50, and six small ones.
    let mut sizes = vec![50; 5000];
    sizes.extend([1, 2, 2, 2, 2, 2]);
    let cases = [
        First {
            name: "first-10000x10",
            crowd: Crowd::even(10_000, 10),
            flags: &[],
            time_s: Some(Bound::AtMost(0.5)),
            anonymous_mib: Some(Bound::AtMost(60.0)),
            repeats: 5,
        },
        First {
            name: "first-5006/250011",
            crowd: Crowd { sizes },
            flags: &[],
            time_s: Some(Bound::AtMost(2.0)),
            anonymous_mib: None,
            repeats: 3,
        },
        First {
            name: "first-1000000",
            crowd: Crowd::even(10_000, 100),
            flags: &["--backends-max", "1048576"],
            time_s: None,
            anonymous_mib: None,
            repeats: 1,
        },
    ];
    for case in cases {
        if options.wants(case.name) && !(options.quick && case.repeats == 1) {
            run_first(options, report, &case)?;
        }
    }
    Ok(())
}

fn run_first(options: &Options, report: &mut Report, case: &First) -> Result<()> {
    let First {
        name,
        crowd,
        flags,
        time_s,
        anonymous_mib,
        repeats,
    } = case;
    let (lab, bytes) = scenery::listed(crowd)?;
    let node = lab.node("n1");
    node.agent_flags(flags.iter().copied());
    let repeats = if options.quick { 1 } else { *repeats };
    let (mut seconds, mut startup) = (Vec::new(), Vec::new());
    let (mut unscraped, mut scraped) = (Vec::new(), Vec::new());
    for repeat in 0..repeats {
        if repeat > 0 {
            node.terminate_agent()?;
        }
        scenery::unpin(&node.pins())?;
        let start = Instant::now();
        node.start_agent()?;
        wait_for_first_publish(node, repeat + 1)?;
        startup.push(start.elapsed().as_secs_f64());
        unscraped.push(anonymous_mib_of(node)?);
        seconds.push(metric(node, "fairlead_first_publish_seconds")?);
        let entries = metric(node, "fairlead_map_entries{map=\"backends\"}")?;
        ensure!(
            entries >= crowd.endpoints() as f64,
            "only {entries} of {} endpoints are in the kernel",
            crowd.endpoints()
        );
        scraped.push(anonymous_mib_of(node)?);
    }
    let seconds = Spread::of(seconds);
    let label = format!("{name}: lists complete → all in the kernel");
    report.add(Row::plain(&label, &label, "s", &seconds, *time_s));
    for (when, memory) in [("then", unscraped), ("after two scrapes", scraped)] {
        let label = format!("{name}: anonymous memory of the agent, {when}");
        let memory = Spread::of(memory);
        report.add(Row::plain(&label, &label, "MiB", &memory, *anonymous_mib));
    }
    let label = format!("{name}: memory of all maps");
    let maps = Spread::single(map_memory_mib(node)?);
    report.add(Row::plain(&label, &label, "MiB", &maps, None));
    report.note(format!(
        "{name}: the agent came up in {:.1} s, most of it to read and parse {:.0} MB of manifests",
        Spread::of(startup).median,
        bytes as f64 / 1e6
    ));
    Ok(())
}

/// Until the log of the node's agents tells of so many first publishes: to ask
/// the agent for its metrics would change its memory.
fn wait_for_first_publish(node: &Node, times: usize) -> Result<()> {
    eventually(Duration::from_secs(300), || {
        let log = fs::read_to_string(node.log()).context("read the agent's log")?;
        let seen = log.matches("first complete publish").count();
        ensure!(seen >= times, "not published yet");
        Ok(())
    })
}

/// Memory that nothing but the agent has: no file, no map.
fn anonymous_mib_of(node: &Node) -> Result<f64> {
    let path = format!("/proc/{}/smaps_rollup", node.agent_pid()?);
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|it| it.strip_prefix("Anonymous:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("smaps_rollup without Anonymous")? / 1024.0)
}

fn map_memory_mib(node: &Node) -> Result<f64> {
    let status: Value = serde_json::from_str(&node.fairlead(&["status", "-o", "json"])?)?;
    let maps = status["maps"].as_array().context("status has no maps")?;
    let bytes: u64 = maps
        .iter()
        .filter_map(|it| it["memory_bytes"].as_u64())
        .sum();
    Ok(bytes as f64 / 1_048_576.0)
}
