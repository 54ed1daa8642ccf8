//! From one build or one set of sizes to another, without a gap (K82, invariant 6).

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Held, Lab, Load, Node, Peer, SERVICE_CIDRS, Transport, other_fairlead, story};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const TCP: &str = "10.96.13.1:80";
const UDP: &str = "10.96.13.1:53";

const NODE_PORT: u16 = 30130;

/// Programs of one agent, and so of one node.
const HOOKS: usize = 10;

/// Small maps, so that a step of a publish is a large part of it.
const SIZES: [&str; 8] = [
    "--service-cidrs",
    SERVICE_CIDRS,
    "--backends-max",
    "64",
    "--services-max",
    "64",
    "--frontends-max",
    "256",
];

/// A node whose agent the stories start, with Service `web` in front of two pods.
struct World<'a> {
    lab: &'a Lab,
    n1: &'a Node,
    backends: [Peer; 2],
    client: Peer,
}

/// Connections at 100 a second and more each, from host processes and a pod: to
/// the ClusterIP by both protocols, and to the NodePort on the node's address and
/// on loopback, which only the host's processes reach.
struct Loads([Load; 5]);

/// Sockets that were opened before the upgrade.
struct Sockets {
    tcp: Held,
    udp: Held,
    unconnected: Held,
}

fn two_nodes() -> Result<Lab> {
    Lab::new(2)
}

fn web(name: &str, ip: &str) -> lab::manifests::Service {
    service(name)
        .cluster_ip(ip)
        .udp_port("dns", 53, 8080)
        .port("http", 80, 8080)
}

fn web_slice(name: &str) -> lab::manifests::Slice {
    slice(name, name).port("http", 8080).udp_port("dns", 8080)
}

impl<'a> World<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let n1 = lab.node("n1");
        let backends = [
            n1.pod("b1")?.serve(8080)?,
            lab.node("n2").pod("b2")?.serve(8080)?,
        ];
        lab.apply(&web("web", "10.96.13.1").node_port(NODE_PORT))?;
        let [b1, b2] = &backends;
        lab.apply(&web_slice("web").ready_endpoints([b1, b2]))?;
        Ok(Self {
            lab,
            n1,
            client: n1.pod("client")?,
            backends,
        })
    }

    /// Starts an agent with these flags and waits until it is in force.
    fn start(&self, flags: &[&str]) -> Result<()> {
        self.n1.agent_flags(flags.iter().copied());
        self.n1.start_agent()?;
        self.arrived()
    }

    /// The agent has published, and what it found or built is in place.
    fn arrived(&self) -> Result<()> {
        self.n1.wait_healthy()?;
        self.lab.settle_on(&[self.n1])?;
        self.is_tidy()
    }

    fn loads(&self) -> Result<Loads> {
        let another = self.n1.process("load")?;
        let own = format!("{}:{NODE_PORT}", self.n1.v4());
        let loopback = format!("127.0.0.1:{NODE_PORT}");
        Ok(Loads([
            another.load(Transport::Tcp, &own, 100)?,
            another.load(Transport::Tcp, &loopback, 100)?,
            self.n1.host().load(Transport::Tcp, TCP, 150)?,
            self.client.load(Transport::Tcp, TCP, 150)?,
            another.load(Transport::Udp, UDP, 150)?,
        ]))
    }

    fn sockets(&self) -> Result<Sockets> {
        let unconnected = self.client.udp_socket("0.0.0.0:0")?;
        unconnected.ask(UDP, "hello")?.came_from(UDP)?;
        Ok(Sockets {
            tcp: self.client.hold_tcp(TCP)?,
            udp: self.client.hold_udp(UDP)?,
            unconnected,
        })
    }

    /// One program per hook, no pin but those of one set of maps, and no other
    /// map of ours in the kernel.
    fn is_tidy(&self) -> Result<()> {
        let cgroup = self.n1.cgroup();
        let cgroup = cgroup.to_str().context("a path of text")?;
        let programs = self.n1.bpftool(&["-j", "cgroup", "show", cgroup])?;
        let programs: Value = serde_json::from_str(&programs)?;
        let programs = programs.as_array().context("bpftool prints a list")?;
        let hooks: BTreeSet<&str> = programs
            .iter()
            .filter_map(|program| program["attach_type"].as_str())
            .collect();
        ensure!(
            programs.len() == HOOKS && hooks.len() == HOOKS,
            "{} programs on {hooks:?}",
            programs.len()
        );
        let pins = pins(&self.n1.pins())?;
        let unexpected = ["next", "ready", "moving", "next_link"];
        ensure!(
            !unexpected.iter().any(|name| pins.contains(*name)),
            "left over: {pins:?}"
        );
        Ok(())
    }
}

fn pins(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("read {dir:?}"))?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

impl Loads {
    fn none_failed(self) -> Result<u64> {
        let mut answers = 0;
        for load in self.0 {
            let counts = load.stop()?;
            counts.none_failed()?;
            answers += counts.answers();
        }
        Ok(answers)
    }
}

impl Sockets {
    /// The connections go on, and applications see what they saw before.
    fn go_on(&self) -> Result<()> {
        self.tcp.talk("on")?.answered_by(&self.tcp.pod()?)?;
        self.tcp.peer_name_is(TCP)?;
        self.udp.talk("on")?.answered_by(&self.udp.pod()?)?;
        self.udp.peer_name_is(UDP)?;
        self.unconnected.ask(UDP, "again")?.came_from(UDP)
    }
}

/// `--flag value` instead of the one in [`SIZES`].
fn sizes_with(flag: &'static str, value: &'static str) -> Vec<&'static str> {
    let mut flags: Vec<&str> = SIZES.to_vec();
    match flags.iter().position(|it| *it == flag) {
        Some(at) => flags[at + 1] = value,
        None => flags.extend([flag, value]),
    }
    flags
}

/// Room in a map, as the kernel has it.
fn max_entries(node: &Node, map: &str) -> Result<u64> {
    let pin = node.pins().join(map);
    let pin = pin.to_str().context("a path of text")?;
    let shown: Value = serde_json::from_str(&node.bpftool(&["-j", "map", "show", "pinned", pin])?)?;
    shown["max_entries"].as_u64().context("no max_entries")
}

#[test]
fn maps_grow_and_shrink_under_load() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        let kept = sockets.unconnected.ask(UDP, "who")?.pod()?.to_owned();
        for (flag, value) in [
            ("--backends-max", "1024"),
            ("--backends-max", "64"),
            ("--frontends-max", "4096"),
            ("--frontends-max", "256"),
            ("--services-max", "128"),
            ("--affinity-max", "128"),
        ] {
            world.n1.terminate_agent()?;
            world.start(&sizes_with(flag, value))?;
            let map = flag.trim_start_matches("--").trim_end_matches("-max");
            let found = max_entries(world.n1, map)?;
            ensure!(found.to_string() == value, "{flag} {value}: {found}");
            sockets.go_on()?;
            // The very ids are the same, so this socket has no reason to move.
            sockets.unconnected.ask(UDP, "who")?.answered_by(&kept)?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn affinity_outlives_changes_of_size() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        lab.apply(
            &web("web", "10.96.13.1")
                .node_port(NODE_PORT)
                .affinity(10800),
        )?;
        world.start(&SIZES)?;
        let first = world.client.tcp(TCP)?.pod()?.to_owned();
        for (flag, value) in [("--affinity-max", "128"), ("--backends-max", "512")] {
            world.n1.kill_agent()?;
            world.start(&sizes_with(flag, value))?;
            world.client.many_tcp(TCP, 20)?.only_by(&[&first])?;
        }
        Ok(())
    });
}

#[test]
fn counters_outlive_changes_of_size() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        world.client.many_tcp(TCP, 30)?.none_failed()?;
        let opened = || -> Result<u64> {
            let ports: Value =
                serde_json::from_str(&world.n1.fairlead(&["backends", "-o", "json"])?)?;
            let ports = ports.as_array().context("a list")?;
            let port = ports.iter().find(|it| it["name"] == "default/web:http");
            let backends = port.context("no web:http")?["backends"].as_array();
            Ok(backends
                .context("no backends")?
                .iter()
                .filter_map(|it| it["opened"].as_u64())
                .sum())
        };
        ensure!(opened()? == 30, "{}", opened()?);
        world.n1.kill_agent()?;
        world.start(&sizes_with("--backends-max", "128"))?;
        ensure!(opened()? == 30, "{}", opened()?);
        Ok(())
    });
}

#[test]
fn another_layout_takes_over_and_gives_back_under_load() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        for round in 0..6 {
            world.n1.terminate_agent()?;
            let other = (round % 2 == 0).then(other_fairlead).transpose()?;
            world.n1.agent_program(other);
            world.start(&SIZES)?;
            sockets.go_on()?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn source_ranges_hold_through_changes_of_size_and_layout() {
    const TO: &str = "198.51.100.13:80";
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        let outside = world.n1.pod("outside")?;
        let range = format!("{}/32", world.client.v4());
        let service = web("ranges", "10.96.13.2").lb_ip("198.51.100.13");
        lab.apply(&service.source_ranges(&[range.as_str()]))?;
        let [b1, b2] = &world.backends;
        lab.apply(&web_slice("ranges").ready_endpoints([b1, b2]))?;
        world.start(&SIZES)?;
        world.client.tcp(TO)?.answered_by_one_of(&["b1", "b2"])?;
        let inside_load = world.client.load(Transport::Tcp, TO, 100)?;
        let outside_load = outside.load(Transport::Tcp, TO, 100)?;
        for (other, backends) in [(false, "128"), (true, "128"), (false, "64")] {
            world.n1.kill_agent()?;
            let other = other.then(other_fairlead).transpose()?;
            world.n1.agent_program(other);
            world.start(&sizes_with("--backends-max", backends))?;
        }
        inside_load.stop()?.none_failed()?;
        let refused = outside_load.stop()?;
        ensure!(
            refused.answers() == 0 && refused.failures() > 0,
            "{refused:?}"
        );
        Ok(())
    });
}

#[test]
fn a_foreign_layout_is_named_and_not_misread() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.n1.agent_program(Some(other_fairlead()?));
        world.start(&SIZES)?;
        for command in ["services", "backends", "status"] {
            let error = world.n1.fairlead(&[command]).err();
            let error = format!("{:#}", error.context("it printed a foreign layout")?);
            ensure!(error.contains("another build of Fairlead"), "{error}");
            ensure!(error.contains("layout version"), "{error}");
        }
        Ok(())
    });
}

#[test]
fn maps_that_somebody_removed_are_made_anew_beside_the_living_programs() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let loads = world.loads()?;
        for map in ["frontends", "settings", "udp_flows"] {
            world.n1.kill_agent()?;
            std::fs::remove_file(world.n1.pins().join(map))?;
            world.start(&SIZES)?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn without_an_api_server_the_old_programs_go_on_and_the_agent_waits() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let loads = world.loads()?;
        for program in [None, Some(other_fairlead()?)] {
            let foreign = program.is_some();
            world.n1.kill_agent()?;
            world.n1.agent_program(program);
            // Nobody listens there.
            let mut flags = sizes_with("--backends-max", "128");
            flags.extend([
                "--kubeconfig",
                "/nonexistent",
                "--master",
                "http://127.0.0.1:1",
            ]);
            let kubeconfig = lab.manifests_dir().with_file_name("kubeconfig");
            std::fs::write(&kubeconfig, KUBECONFIG)?;
            let kubeconfig = kubeconfig.to_str().context("a path of text")?.to_owned();
            let at = flags.iter().position(|it| *it == "/nonexistent");
            flags[at.context("the flag")?] = &kubeconfig;
            world.n1.agent_flags(flags);
            world.n1.start_agent()?;
            world.lab.within(Duration::from_secs(10), || {
                let ready = world.n1.pins().join("next/settings").exists();
                ensure!(ready, "no new maps yet: {:?}", pins(&world.n1.pins())?);
                let metrics = world.n1.metrics()?;
                ensure!(metrics.contains("fairlead_build"), "{metrics}");
                Ok(())
            })?;
            world.client.many_tcp(TCP, 50)?.only_by(&["b1", "b2"])?;
            let room = max_entries(world.n1, "backends")?;
            ensure!(room == 64, "the old maps are not in force: {room}");
            if !foreign {
                let status = world.n1.fairlead(&["status"])?;
                ensure!(status.contains("making new maps"), "{status}");
            }
        }
        world.n1.terminate_agent()?;
        world.is_tidy()?;
        world.n1.agent_program(None);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}

const KUBECONFIG: &str = "apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
clusters: [{name: lab, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: lab, user: {}}]
";

#[test]
fn kills_at_any_moment_of_the_change_are_missed_by_nobody() {
    kill_at_random(40);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --tier lab --long"]
fn a_thousand_kills_at_any_moment_are_missed_by_nobody() {
    kill_at_random(1000);
}

/// K82
fn kill_at_random(kills: usize) {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        let other = other_fairlead()?;
        // How long a start takes on this machine, by which the kills are spread.
        let started = Instant::now();
        world.n1.kill_agent()?;
        world.n1.agent_program(Some(other.clone()));
        world.start(&SIZES)?;
        let whole = started.elapsed();
        let mut seed = u64::from(std::process::id());
        for round in 0..kills {
            world.n1.kill_agent()?;
            let foreign = round % 3 != 0;
            world.n1.agent_program(foreign.then(|| other.clone()));
            let sizes = ["64", "128", "1024"][round % 3];
            world.n1.agent_flags(sizes_with("--backends-max", sizes));
            world.n1.start_agent()?;
            // xorshift64 (Marsaglia 2003).
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            std::thread::sleep(whole.mul_f64((seed % 1000) as f64 / 1000.0));
        }
        world.n1.kill_agent()?;
        for program in [Some(other), None] {
            world.n1.agent_program(program);
            world.start(&SIZES)?;
            sockets.go_on()?;
            world.n1.kill_agent()?;
        }
        loads.none_failed().map(drop)
    });
}

/// Runs the agent that dies before its nth write, for the given n; whether it lived.
fn run_until_it_dies(world: &World<'_>, point: usize) -> Result<bool> {
    world
        .n1
        .agent_environment(&[("FAIRLEAD_TEST_DIE_AT", point.to_string())]);
    world.n1.start_agent()?;
    let lives = world.lab.within(Duration::from_secs(20), || {
        if world.n1.agent_has_ended()? {
            return Ok(false);
        }
        let answer = world
            .n1
            .http_get(&format!("http://{}/readyz", lab::HEALTHZ))?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(true)
    })?;
    world.n1.kill_agent()?;
    Ok(lives)
}

#[test]
fn a_crash_between_any_two_writes_leaves_every_service_working() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.n1.agent_program(Some(other_fairlead()?));
        world.start(&SIZES)?;
        let loads = world.loads()?;
        world.n1.kill_agent()?;
        let [b1, b2] = &world.backends;
        let mut point = 0;
        loop {
            point += 1;
            ensure!(point < 200, "it never publishes");
            // Something to publish each time: endpoints, a Service that comes, one that goes.
            let slice = web_slice("web");
            lab.apply(&match point % 3 {
                0 => slice.ready_endpoints([b1, b2]),
                1 => slice.ready_endpoints([b1]),
                _ => slice.ready_endpoints([b2]),
            })?;
            let (comes, goes) = (point % 2, 1 - point % 2);
            lab.apply(&web(
                &format!("more-{comes}"),
                &format!("10.96.13.{}", 10 + comes),
            ))?;
            lab.apply(&web_slice(&format!("more-{comes}")).ready_endpoints([b1]))?;
            if point > 1 {
                lab.delete(&web(&format!("more-{goes}"), ""))?;
                lab.delete(&web_slice(&format!("more-{goes}")))?;
            }
            let lived = run_until_it_dies(&world, point)?;
            world.client.many_tcp(TCP, 10)?.none_failed()?;
            if lived {
                break;
            }
        }
        ensure!(point > 15, "only {point} writes: what was tested?");
        world.n1.agent_environment(&[]);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}

#[test]
fn a_crash_during_the_change_is_finished_by_the_next_start() {
    crash_during_the_change(4);
}

#[test]
#[ignore = "takes a minute: cargo xtask test --tier lab --long"]
fn a_crash_at_every_single_step_of_the_change_is_finished_by_the_next_start() {
    crash_during_the_change(1);
}

/// Crashes while maps are made, and then at every `stride`th step of the change.
fn crash_during_the_change(stride: usize) {
    const COARSE: usize = 30;
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        let other = other_fairlead()?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        world.n1.kill_agent()?;
        let (mut point, mut step, mut crashes) = (1, COARSE, 0);
        loop {
            world.n1.agent_program(Some(other.clone()));
            world.n1.agent_flags(SIZES);
            if run_until_it_dies(&world, point)? {
                break;
            }
            let changing = !pins(&world.n1.pins())?.contains("next");
            world.client.many_tcp(TCP, 10)?.none_failed()?;
            // Back to our own layout, whichever of the two is in force now.
            world.n1.agent_environment(&[]);
            world.n1.agent_program(None);
            world.start(&SIZES)?;
            sockets.go_on()?;
            world.n1.kill_agent()?;
            if changing && step == COARSE {
                // Its first steps were passed over.
                (point, step) = (point - COARSE, stride);
            }
            crashes += usize::from(changing);
            point += step;
        }
        ensure!(
            crashes * stride >= 25,
            "only {crashes} crashes during the change"
        );
        world.n1.agent_environment(&[]);
        world.n1.agent_program(None);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}
