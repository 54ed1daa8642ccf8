//! Rows about packets from outside: a NodePort whose backend is on another
//! node, beside plain routing and beside kube-proxy.

use crate::exchange::{Exchange, Sample};
use crate::programs::{self, Hook};
use crate::report::{Bound, Report, Row};
use crate::scenery::{self, Crowd, Measured, add, start_agent};
use crate::stats::Spread;
use crate::worker::{Samples, Side, Worker};
use crate::{Options, kube_proxy};
use anyhow::{Context, Result, ensure};
use lab::{DeviceHook, Foreign, Lab, Node, Peer, device_programs, eventually};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// What Fairlead may add to plain routing, of what kube-proxy adds.
const ADDED: Bound = Bound::AtMost(0.3);
/// What a device program may take for a packet of a known flow, ns.
const KNOWN_NS: Bound = Bound::AtMost(250.0);
/// And for the first one of a flow.
const NEW_NS: Bound = Bound::AtMost(900.0);

/// A program that does nothing, to see what the kernel's clock readings take.
const EMPTY: &str = "an empty program";

/// Services around the measured one, and endpoints of each.
const FEW: (usize, usize) = (10, 10);
const MORE: (usize, usize) = (1000, 10);
/// kube-proxy needs minutes for these.
const MANY: (usize, usize) = (10_000, 10);

const FAMILIES: [&str; 2] = ["v4", "v6"];
const NODE_PORT: u16 = 30080;
const MEASURED: Measured = Measured {
    name: "measured",
    octet: 10,
};

/// What is done through the NodePort.
struct Kind {
    name: &'static str,
    exchange: Exchange,
    rounds: u32,
    batch: u32,
}

/// Flows that may live when more are opened. All go to one backend, and each
/// takes one of the ports for SNAT towards it: nobody shall have to look for one.
const FLOWS_MAX: u64 = 2500;
/// Flows that nobody answers end after 30 s.
const FLOWS_END: Duration = Duration::from_secs(90);

const KINDS: [Kind; 4] = [
    Kind {
        name: "nodeport-udp-known",
        exchange: Exchange::UdpRequest,
        rounds: 300,
        batch: 200,
    },
    Kind {
        name: "nodeport-tcp-known",
        exchange: Exchange::TcpRequest,
        rounds: 300,
        batch: 150,
    },
    Kind {
        name: "nodeport-udp-new",
        exchange: Exchange::UdpFlow,
        rounds: 100,
        batch: 20,
    },
    Kind {
        name: "nodeport-tcp-new",
        exchange: Exchange::TcpConnect,
        rounds: 100,
        batch: 20,
    },
];

/// Runs the rows of this file that are wanted.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    if !options.wants_any(&["nodeport", "device"]) {
        return Ok(());
    }
    let kube_proxy = kube_proxy::program().context(
        "FAIRLEAD_CONTROL_PLANE names no folder with kube-proxy: let `cargo xtask` run this",
    )?;
    let mut stage = Stage::new()?;
    for (services, endpoints) in [FEW, if options.full { MANY } else { MORE }] {
        add(&stage.lab, &Crowd::even(services, endpoints))?;
        if options.wants_any(&["nodeport"]) {
            let node = stage.lab.node("n3");
            kube_proxy::program_rules(&kube_proxy, &stage.lab, node, report)?;
            stage.packets(options, report, services)?;
        }
    }
    stage.device_programs(options, report)
}

/// c1 reaches a pod of n2 in three ways, each with a node of its own between
/// them that differs in nothing but who serves there: n4 nobody, n1 Fairlead,
/// n3 kube-proxy. The pod's own node does nothing but route.
struct Stage {
    lab: Lab,
    worker: Worker,
    _server: Peer,
    outside: PathBuf,
    endpoint: [SocketAddr; 2],
}

impl Stage {
    fn new() -> Result<Self> {
        let lab = Lab::new(4)?;
        let client = lab.client("c1");
        let (backends, plain) = (lab.node("n2").host(), lab.node("n4").host());
        let server = lab.node("n2").pod("server")?;
        server.sysctl("net/ipv6/bindv6only", "1")?;
        MEASURED.apply(&lab, &server, Some(NODE_PORT))?;
        let endpoint = scenery::endpoints(&server);
        for way in ["all", "default", "eth0"] {
            // Its way is a detour on purpose, and nobody shall be told so.
            plain.sysctl(&format!("net/ipv4/conf/{way}/send_redirects"), "0")?;
        }
        for [there, back] in [
            [server.v4().into(), client.v4().into()],
            [server.v6().into(), client.v6().into()],
        ] as [[IpAddr; 2]; 2]
        {
            client.route(&there.to_string(), plain)?;
            backends.route(&back.to_string(), plain)?;
        }
        let outside = lab.traces()[0].join("outside/bench");
        let worker = Worker::start(&[[client, &server]], &outside)?;
        start_agent(&lab, &[])?;
        Ok(Self {
            worker,
            _server: server,
            outside,
            endpoint,
            lab,
        })
    }

    fn side(&self, target: SocketAddr) -> Side {
        Side {
            ends: 0,
            cgroup: self.outside.clone(),
            targets: vec![target],
        }
    }

    /// The NodePort of a node.
    fn node_port(&self, node: &str, family: usize) -> Side {
        let node = self.lab.node(node);
        let ips: [IpAddr; 2] = [node.v4().into(), node.v6().into()];
        self.side(SocketAddr::new(ips[family], NODE_PORT))
    }

    fn packets(&mut self, options: &Options, report: &mut Report, services: usize) -> Result<()> {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            for kind in &KINDS {
                let row = format!("{}-{name}-{services}", kind.name);
                if !options.wants(&row) {
                    continue;
                }
                let sides = [
                    self.side(self.endpoint[family]),
                    self.node_port("n1", family),
                    self.node_port("n3", family),
                ];
                let rounds = if options.quick { 40 } else { kind.rounds };
                let size = [rounds, kind.batch];
                self.wait_for_ports(kind.exchange)?;
                let samples = self
                    .worker
                    .compare(kind.exchange, sides, size)
                    .with_context(|| format!("{row}; {}", drops(self.lab.node("n1"))))?;
                add_rows(report, &row, kind.exchange, &samples);
            }
        }
        Ok(())
    }

    /// Waits until few flows live, if the exchange opens more.
    fn wait_for_ports(&self, exchange: Exchange) -> Result<()> {
        if exchange != Exchange::UdpFlow {
            return Ok(());
        }
        eventually(FLOWS_END, || {
            let flows = &status(self.lab.node("n1"))?["flows"];
            let alive = flows["new"].as_u64().context("status counts flows")?;
            ensure!(alive < FLOWS_MAX, "{alive} flows live");
            Ok(())
        })
    }

    /// What the kernel itself counts of the uplink's programs, while nothing
    /// but the measured flows is on it. Its two clock readings per run are in it.
    fn device_programs(&mut self, options: &Options, report: &mut Report) -> Result<()> {
        if !options.wants_any(&["device"]) {
            return Ok(());
        }
        let host = self.lab.node("n1").host();
        let empty = Foreign::passing()?;
        let _empty = empty.attach(host, "eth0", DeviceHook::Ingress, true)?;
        let mut hooks = Vec::new();
        for (hook, name) in [
            (DeviceHook::Ingress, "ingress"),
            (DeviceHook::Egress, "egress"),
        ] {
            for (program, called) in device_programs(host, "eth0", hook)? {
                let name = if called == "foreign" { EMPTY } else { name };
                hooks.push(Hook::new(name, program));
            }
        }
        let _on = programs::Statistics::switch_on()?;
        for (exchange, text, bound) in [
            (Exchange::UdpRequest, "udp-known", KNOWN_NS),
            (Exchange::TcpRequest, "tcp-known", KNOWN_NS),
            (Exchange::UdpFlow, "udp-new", NEW_NS),
        ] {
            for (family, name) in FAMILIES.into_iter().enumerate() {
                let row = format!("device-{text}-{name}");
                if options.wants(&row) {
                    let side = self.node_port("n1", family);
                    let times = self.run_times(options, &hooks, exchange, &side)?;
                    for (hook, times) in hooks.iter().zip(times) {
                        let row = format!("{row}: {}", hook.name());
                        let times = Spread::of(times);
                        let bound = (hook.name() != EMPTY).then_some(bound);
                        report.add(Row::plain(&row, &row, "ns", &times, bound));
                    }
                }
            }
        }
        Ok(())
    }

    /// Of each program, its mean run time of some comparisons.
    fn run_times(
        &mut self,
        options: &Options,
        hooks: &[Hook],
        exchange: Exchange,
        side: &Side,
    ) -> Result<Vec<Vec<f64>>> {
        let mut times = vec![Vec::new(); hooks.len()];
        self.wait_for_ports(exchange)?;
        let few = options.quick || exchange == Exchange::UdpFlow;
        for _ in 0..if few { 3 } else { 20 } {
            let before = programs::run_times(hooks)?;
            self.worker.compare(exchange, [side.clone()], [5, 200])?;
            let after = programs::run_times(hooks)?;
            for (times, mean) in times.iter_mut().zip(programs::each_mean(&before, &after)) {
                times.extend(mean);
            }
        }
        Ok(times)
    }
}

/// What the agent's programs have dropped, to explain what did not arrive.
fn drops(node: &Node) -> String {
    let status = match status(node) {
        Ok(status) => status,
        Err(error) => return format!("no status: {error:#}"),
    };
    let drops = status["drops"].as_array().into_iter().flatten();
    let some = drops.filter(|it| it["count"] != 0);
    let named = some.map(|it| format!(" {} {},", it["reason"], it["count"]));
    let drops: String = named.collect();
    format!("n1 has dropped{drops} its flows are {}", status["flows"])
}

fn status(node: &Node) -> Result<Value> {
    let text = node.fairlead(&["status", "-o", "json"])?;
    serde_json::from_str(&text).context("the answer of status")
}

fn add_rows(report: &mut Report, row: &str, exchange: Exchange, samples: &Samples<3>) {
    let connects = exchange == Exchange::TcpConnect;
    let unit = match exchange {
        Exchange::TcpConnect => "µs per connection",
        Exchange::UdpFlow => "µs per packet",
        _ => "µs there and back",
    };
    let us = |sample: &Sample| sample.whole_ns / 1000.0;
    let added = samples.iter().map(|[plain, ours, theirs]| {
        (ours.whole_ns - plain.whole_ns) / (theirs.whole_ns - plain.whole_ns)
    });
    let added = Spread::of(added.collect());
    let [plain, ours, theirs] = each(samples, us);
    let what = format!("{row} ({unit})");
    let unit = "of what it adds";
    let judged = Row::compared(row, &what, unit, [plain, ours], added, Some(ADDED));
    report.add(judged.beside(Some(theirs)));
    if connects {
        let rate = |sample: &Sample| 1e6 / sample.whole_ns;
        let [plain, ours, theirs] = each(samples, rate);
        let ratio = samples
            .iter()
            .map(|[_, ours, theirs]| theirs.whole_ns / ours.whole_ns);
        let ratio = Spread::of(ratio.collect());
        let name = format!("{row} rate");
        let what = format!("{row} (1000 connections/s)");
        let shown = Row::compared(&name, &what, "of its", [plain, ours], ratio, None);
        report.add(shown.beside(Some(theirs)));
    }
}

fn each(samples: &Samples<3>, get: impl Fn(&Sample) -> f64) -> [Spread; 3] {
    [0, 1, 2].map(|side| Spread::of(samples.iter().map(|round| get(&round[side])).collect()))
}
