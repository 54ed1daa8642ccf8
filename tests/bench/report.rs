//! Rows, verdicts, the table for people and the file for machines.

use crate::stats::Spread;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// What a figure must not cross.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// How a figure stands to its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The bound lies where the median may be: too few samples, or a busy machine.
    Unclear,
    /// There is no bound: for information.
    Shown,
}

impl Verdict {
    fn of(figure: &Figure, bound: Option<Bound>) -> Self {
        let Figure {
            value, from, to, ..
        } = *figure;
        let (met, sure) = match bound {
            None => return Self::Shown,
            // Nothing could be measured undisturbed.
            _ if value.is_nan() => return Self::Unclear,
            Some(Bound::AtMost(limit)) => (value <= limit, !(from <= limit && limit < to)),
            Some(Bound::AtLeast(limit)) => (value >= limit, !(from < limit && limit <= to)),
        };
        match (met, sure) {
            (_, false) => Self::Unclear,
            (true, true) => Self::Met,
            (false, true) => Self::Missed,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Unclear => "unclear",
            Self::Shown => "",
        }
    }
}

/// The figure that is judged.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    value: f64,
    p25: f64,
    p75: f64,
    /// 95 % confidence.
    from: f64,
    to: f64,
}

impl Figure {
    fn median(spread: &Spread) -> Self {
        Self {
            value: spread.median,
            p25: spread.p25,
            p75: spread.p75,
            from: spread.median_from,
            to: spread.median_to,
        }
    }

    /// A tail has no such interval here.
    fn p99(spread: &Spread) -> Self {
        Self {
            value: spread.p99,
            p25: spread.p25,
            p75: spread.p75,
            from: spread.p99,
            to: spread.p99,
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    what: String,
    unit: &'static str,
    baseline: Option<Spread>,
    fairlead: Option<Spread>,
    /// Where kube-proxy was measured in the same rounds.
    kube_proxy: Option<Spread>,
    judged: Figure,
    samples: usize,
    bound: Option<Bound>,
    verdict: Verdict,
}

impl Row {
    /// A comparison: `judged` was computed pair by pair.
    pub(crate) fn compared(
        name: &str,
        what: &str,
        unit: &'static str,
        [baseline, fairlead]: [Spread; 2],
        judged: Spread,
        bound: Option<Bound>,
    ) -> Self {
        let figure = Figure::median(&judged);
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            unit,
            baseline: Some(baseline),
            fairlead: Some(fairlead),
            kube_proxy: None,
            samples: judged.samples,
            verdict: Verdict::of(&figure, bound),
            judged: figure,
            bound,
        }
    }

    /// With what kube-proxy took in the same rounds.
    pub(crate) fn beside(mut self, kube_proxy: Option<Spread>) -> Self {
        self.kube_proxy = kube_proxy;
        self
    }

    /// A median by itself.
    pub(crate) fn plain(
        name: &str,
        what: &str,
        unit: &'static str,
        spread: &Spread,
        bound: Option<Bound>,
    ) -> Self {
        Self::of(name, what, unit, Figure::median(spread), spread, bound)
    }

    /// A mean of things that are counted, not timed: it is exact.
    pub(crate) fn mean(
        name: &str,
        what: &str,
        unit: &'static str,
        values: &[f64],
        bound: Bound,
    ) -> Self {
        let spread = Spread::of(values.to_vec());
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let judged = Figure {
            value: mean,
            from: mean,
            to: mean,
            ..Figure::median(&spread)
        };
        Self::of(name, what, unit, judged, &spread, Some(bound))
    }

    /// A 99th percentile.
    pub(crate) fn tail(
        name: &str,
        what: &str,
        unit: &'static str,
        spread: &Spread,
        bound: Option<Bound>,
    ) -> Self {
        Self::of(name, what, unit, Figure::p99(spread), spread, bound)
    }

    fn of(
        name: &str,
        what: &str,
        unit: &'static str,
        judged: Figure,
        spread: &Spread,
        bound: Option<Bound>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            unit,
            baseline: None,
            fairlead: None,
            kube_proxy: None,
            judged,
            samples: spread.samples,
            bound,
            verdict: Verdict::of(&judged, bound),
        }
    }

    fn cells(&self) -> [String; 8] {
        let median = |spread: &Option<Spread>| {
            let cell = |it: &Spread| number(it.median);
            spread.as_ref().map_or_else(String::new, cell)
        };
        let spread = if self.samples > 1 {
            format!("{} … {}", number(self.judged.p25), number(self.judged.p75))
        } else {
            String::new()
        };
        let bound = match self.bound {
            None => String::new(),
            Some(Bound::AtMost(limit)) => format!("≤ {limit}"),
            Some(Bound::AtLeast(limit)) => format!("≥ {limit}"),
        };
        [
            self.what.clone(),
            median(&self.baseline),
            median(&self.fairlead),
            median(&self.kube_proxy),
            format!("{} {}", number(self.judged.value), self.unit),
            spread,
            bound,
            self.verdict.as_str().to_owned(),
        ]
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// All of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    rows: Vec<Row>,
    /// What else was seen.
    notes: Vec<String>,
}

/// Where it ran.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    /// Of the sources, as the caller said.
    commit: String,
    load_before: String,
    load_after: String,
    quick: bool,
}

impl Report {
    pub(crate) fn new(quick: bool) -> Self {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(String::new, |(_, name)| name.to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            machine: Machine {
                cpu,
                cpus: std::thread::available_parallelism().map_or(1, usize::from),
                kernel: kernel.trim().to_owned(),
                commit: std::env::var("FAIRLEAD_COMMIT").unwrap_or_default(),
                load_before: load(),
                load_after: String::new(),
                quick,
            },
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row and shows it, since the next one may take long.
    pub(crate) fn add(&mut self, row: Row) {
        let [what, _, _, _, value, spread, bound, verdict] = row.cells();
        eprintln!("bench:   {what}: {value} ({spread}) {bound} {verdict}");
        self.rows.push(row);
    }

    /// Adds what fits no row.
    pub(crate) fn note(&mut self, note: String) {
        eprintln!("bench:   {note}");
        self.notes.push(note);
    }

    /// Writes the file, prints the table; whether no bound is missed.
    pub(crate) fn conclude(mut self, json: Option<&Path>) -> Result<bool> {
        self.machine.load_after = load();
        if let Some(path) = json {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir).with_context(|| format!("make {dir:?}"))?;
            }
            let text = serde_json::to_string_pretty(&self)?;
            fs::write(path, text + "\n").with_context(|| format!("write {path:?}"))?;
        }
        self.print();
        Ok(self.rows.iter().all(|row| row.verdict != Verdict::Missed))
    }

    fn print(&self) {
        let Machine {
            cpu,
            cpus,
            kernel,
            commit,
            load_before,
            load_after,
            ..
        } = &self.machine;
        println!("{cpus} × {cpu}, Linux {kernel}, commit {commit}");
        println!("load average {load_before} before, {load_after} after\n");
        let head = [
            "",
            "baseline",
            "Fairlead",
            "kube-proxy",
            "judged",
            "p25 … p75",
            "bound",
            "verdict",
        ]
        .map(str::to_owned);
        let mut lines = vec![head];
        lines.extend(self.rows.iter().map(Row::cells));
        print_columns(&lines);
        for note in &self.notes {
            println!("{note}");
        }
        let named = |wanted| {
            let rows = self.rows.iter().filter(move |row| row.verdict == wanted);
            let names: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
            names.join(", ")
        };
        for (verdict, text) in [
            (Verdict::Missed, "Missed bounds"),
            (Verdict::Unclear, "Unclear, run again on an idle machine"),
        ] {
            let names = named(verdict);
            if !names.is_empty() {
                println!("\n{text}: {names}");
            }
        }
    }
}

/// Left column to the left, the others to the right.
fn print_columns<const N: usize>(lines: &[[String; N]]) {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in lines {
        let mut text = format!("{:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(widths).skip(1) {
            text += &format!("  {cell:>width$}");
        }
        println!("{}", text.trim_end());
    }
    println!();
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
