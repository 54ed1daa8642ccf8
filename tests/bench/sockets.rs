//! Rows about sockets: what a connection costs, and what a packet does not.

use crate::exchange::{BLOCK, Exchange, Sample};
use crate::report::{Bound, Report, Row};
use crate::scenery::{Crowd, Scenery};
use crate::stats::Spread;
use crate::worker::{Samples, Side};
use crate::{Options, kube_proxy, programs};
use anyhow::Result;
use std::net::SocketAddr;

/// What a connect() may cost more, µs.
const CONNECT_US: Bound = Bound::AtMost(2.0);
/// What an exchange on an unconnected socket may cost more, µs.
const UNCONNECTED_US: Bound = Bound::AtMost(0.5);
/// What must be left of requests and bytes per second.
const RATIO: Bound = Bound::AtLeast(0.99);
/// Services around the measured one, and endpoints of each.
const CROWD: (usize, usize) = (10_000, 10);
/// The lower number.
const FEW: (usize, usize) = (10, 10);

const FAMILIES: [&str; 2] = ["v4", "v6"];

/// Runs the rows of this file that are wanted.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    if !options.wants_any(&[
        "connect",
        "other",
        "requests",
        "bytes",
        "unconnected",
        "program",
    ]) {
        return Ok(());
    }
    let compared = ["connect", "requests", "bytes", "unconnected"];
    let program = kube_proxy::program().filter(|_| options.wants_any(&compared));
    let mut scenery = Scenery::new(&[], program.is_some())?;
    for (services, endpoints) in [FEW, CROWD] {
        let crowd = Crowd::even(services, endpoints);
        scenery.add(&crowd)?;
        let kube_proxy = match &program {
            Some(program) if options.full || services == FEW.0 => {
                let node = scenery.lab.node("n2");
                kube_proxy::program_rules(program, &scenery.lab, node, report)?;
                true
            }
            _ => false,
        };
        let mut stage = Stage {
            options,
            report,
            scenery: &mut scenery,
            services,
            kube_proxy,
        };
        stage.connects()?;
        stage.others()?;
        stage.spread(&crowd)?;
        // The number of Services is nothing to an open connection.
        if services == CROWD.0 {
            stage.exchanges()?;
            stage.programs()?;
        }
    }
    Ok(())
}

/// A part of a sample's time, µs.
type Part = fn(&Sample) -> f64;

struct Stage<'a> {
    options: &'a Options,
    report: &'a mut Report,
    scenery: &'a mut Scenery,
    services: usize,
    /// Whether kube-proxy serves so many on the other node.
    kube_proxy: bool,
}

/// What a comparison of two sides gave.
struct Compared {
    pairs: Samples<2>,
    /// What kube-proxy took in the same rounds, if it runs.
    kube_proxy: Option<Vec<Sample>>,
}

impl Stage<'_> {
    /// connect() through the ClusterIP against connect() to the pod.
    fn connects(&mut self) -> Result<()> {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            for (exchange, kind) in [(Exchange::TcpConnect, "tcp"), (Exchange::UdpConnect, "udp")] {
                let row = format!("connect-{kind}-{name}-{}", self.services);
                if !self.options.wants(&row) {
                    continue;
                }
                let samples = self.through_service(exchange, family, 100)?;
                self.add_microseconds(&row, &samples, CONNECT_US);
            }
        }
        Ok(())
    }

    /// connect() to what no Service has, with the programs and without.
    fn others(&mut self) -> Result<()> {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            for (exchange, kind) in [(Exchange::TcpConnect, "tcp"), (Exchange::UdpConnect, "udp")] {
                let row = format!("other-{kind}-{name}-{}", self.services);
                if !self.options.wants(&row) {
                    continue;
                }
                let target = self.scenery.endpoint[family];
                let sides = [self.without(target), self.at(target)];
                let samples = self.compare(exchange, sides, 100)?;
                self.add_microseconds(&row, &samples, CONNECT_US);
            }
        }
        Ok(())
    }

    /// connect() to one Service after the other: nothing of them is in a cache.
    fn spread(&mut self, crowd: &Crowd) -> Result<()> {
        let row = format!("connect-udp-each-{}", self.services);
        if !self.options.wants(&row) {
            return Ok(());
        }
        let sides = [
            crowd.first_endpoints().collect::<Vec<SocketAddr>>(),
            crowd.frontends().collect(),
        ]
        .map(|targets| Side {
            ends: 0,
            cgroup: self.scenery.served.clone(),
            targets,
        });
        let samples = self.compare(Exchange::UdpConnect, sides, 100)?;
        self.add_microseconds(&row, &samples, CONNECT_US);
        Ok(())
    }

    /// Requests and bytes through the ClusterIP against the pod itself.
    fn exchanges(&mut self) -> Result<()> {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            for (exchange, kind, batch) in [
                (Exchange::TcpRequest, "requests-tcp", 300),
                (Exchange::UdpRequest, "requests-udp", 400),
                (Exchange::TcpBlock, "bytes-tcp", 100),
                (Exchange::UdpUnconnected, "unconnected-udp", 400),
            ] {
                let row = format!("{kind}-{name}");
                if !self.options.wants(&row) {
                    continue;
                }
                let samples = self.through_service(exchange, family, batch)?;
                match exchange {
                    Exchange::UdpUnconnected => {
                        self.add_microseconds(&row, &samples, UNCONNECTED_US);
                        // Every datagram pays for the programs, so against none, too.
                        let sides = [
                            self.without(self.scenery.endpoint[family]),
                            self.at(self.scenery.service[family]),
                        ];
                        let samples = self.compare(exchange, sides, batch)?;
                        let row = format!("{row} against no programs");
                        self.add_microseconds(&row, &samples, UNCONNECTED_US);
                    }
                    Exchange::TcpBlock => {
                        let gigabits = |ns: f64| 8.0 * BLOCK as f64 / ns;
                        self.add_ratio(&row, &samples, "Gbit/s", gigabits);
                    }
                    _ => self.add_ratio(&row, &samples, "1000/s", |ns| 1e6 / ns),
                }
            }
        }
        Ok(())
    }

    /// What the kernel itself counts: the mean run time of each program, under
    /// all of the exchanges. Its two clock readings per run are in it.
    fn programs(&mut self) -> Result<()> {
        if !self.options.wants("program") {
            return Ok(());
        }
        let node = self.scenery.lab.node("n1");
        let hooks = programs::hooks(node)?;
        let _on = programs::Statistics::switch_on()?;
        for (exchange, to_service, text) in [
            (Exchange::TcpConnect, true, "connect, a Service"),
            (Exchange::TcpConnect, false, "connect, no Service"),
            (Exchange::UdpUnconnected, true, "unconnected, a Service"),
            (Exchange::UdpUnconnected, false, "unconnected, no Service"),
        ] {
            for family in 0..FAMILIES.len() {
                let target = if to_service {
                    self.scenery.service[family]
                } else {
                    self.scenery.endpoint[family]
                };
                let before = programs::run_times(&hooks)?;
                let sides = [self.at(target), self.at(target)];
                self.compare(exchange, sides, 200)?;
                let after = programs::run_times(&hooks)?;
                for (hook, time) in programs::means(&before, &after) {
                    let row = format!("program: {hook}, {text}");
                    let spread = Spread::single(time);
                    self.report.add(Row::plain(&row, &row, "ns", &spread, None));
                }
            }
        }
        Ok(())
    }

    fn at(&self, target: SocketAddr) -> Side {
        Side {
            ends: 0,
            cgroup: self.scenery.served.clone(),
            targets: vec![target],
        }
    }

    /// The same where no program of Fairlead runs.
    fn without(&self, target: SocketAddr) -> Side {
        Side {
            ends: 0,
            cgroup: self.scenery.outside.clone(),
            targets: vec![target],
        }
    }

    /// Through the Service against the pod itself; and through kube-proxy's, if
    /// it runs, to a pod of its node.
    fn through_service(
        &mut self,
        exchange: Exchange,
        family: usize,
        batch: u32,
    ) -> Result<Compared> {
        let sides = [
            self.at(self.scenery.endpoint[family]),
            self.at(self.scenery.service[family]),
        ];
        if !self.kube_proxy {
            return self.compare(exchange, sides, batch);
        }
        let [pod, service] = sides;
        let other = Side {
            ends: 1,
            ..self.without(self.scenery.other_service[family])
        };
        let size = [self.rounds(), batch];
        let worker = &mut self.scenery.worker;
        let samples = worker.compare(exchange, [pod, service, other], size)?;
        let (pairs, kube_proxy) = samples.into_iter().map(|[a, b, c]| ([a, b], c)).unzip();
        Ok(Compared {
            pairs,
            kube_proxy: Some(kube_proxy),
        })
    }

    fn compare(&mut self, exchange: Exchange, sides: [Side; 2], batch: u32) -> Result<Compared> {
        let size = [self.rounds(), batch];
        Ok(Compared {
            pairs: self.scenery.worker.compare(exchange, sides, size)?,
            kube_proxy: None,
        })
    }

    fn rounds(&self) -> u32 {
        if self.options.quick { 40 } else { 300 }
    }

    /// The difference in µs: of the call alone, and of all around it, where
    /// these are two things.
    fn add_microseconds(&mut self, row: &str, samples: &Compared, bound: Bound) {
        let parts: [(&str, Part); 2] = [
            ("", |sample| sample.call_ns / 1000.0),
            (" with socket() and close()", |sample| {
                sample.whole_ns / 1000.0
            }),
        ];
        let pairs = &samples.pairs;
        let connects = pairs
            .iter()
            .any(|pair| pair.iter().any(|it| it.call_ns < it.whole_ns));
        for (text, get) in &parts[..1 + usize::from(connects)] {
            let judged = pairs.iter().map(|[base, ours]| get(ours) - get(base));
            let judged = Spread::of(judged.collect());
            let name = format!("{row}{text}");
            let row = Row::compared(
                &name,
                &name,
                "µs more",
                each(pairs, get),
                judged,
                Some(bound),
            );
            self.report.add(row.beside(samples.beside(get)));
        }
    }

    /// The ratio of rates.
    fn add_ratio(&mut self, row: &str, samples: &Compared, unit: &str, rate: impl Fn(f64) -> f64) {
        let pairs = &samples.pairs;
        let judged = pairs
            .iter()
            .map(|[base, ours]| base.whole_ns / ours.whole_ns);
        let judged = Spread::of(judged.collect());
        let get = |sample: &Sample| rate(sample.whole_ns);
        let what = format!("{row} ({unit})");
        let row = Row::compared(row, &what, "of it", each(pairs, get), judged, Some(RATIO));
        self.report.add(row.beside(samples.beside(get)));
    }
}

impl Compared {
    fn beside(&self, get: impl Fn(&Sample) -> f64) -> Option<Spread> {
        let samples = self.kube_proxy.as_ref()?;
        Some(Spread::of(samples.iter().map(get).collect()))
    }
}

fn each(samples: &Samples<2>, get: impl Fn(&Sample) -> f64) -> [Spread; 2] {
    [0, 1].map(|side| Spread::of(samples.iter().map(|pair| get(&pair[side])).collect()))
}
