//! Connection life of UDP: rules 26 and 27.

use crate::check::{holds, judged};
use crate::fault::Fault;
use crate::row::{Row, Why};
use crate::stage::{Stage, join};
use anyhow::{Result, ensure};
use lab::manifests::{Service, Slice};
use lab::{Load, Peer, Transport, eventually};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Within this time a connected socket leaves a backend that is gone.
const NOTICED: Duration = Duration::from_secs(5);

const CYCLES: &str = "kubernetes e2e \"should be able to preserve UDP traffic when server pod cycles for a ClusterIP service\"";
const INITIALLY: &str = "kubernetes e2e \"should be able to preserve UDP traffic when initial unready endpoints get ready\"";

const RECREATED: &str = "kubernetes e2e \"should work after the service has been recreated\"";

const NODE_PORT_FLOWS_STAY: Why = Why::Fault(
    "clears no conntrack entries of NodePorts without endpoints, which it cannot tell from \
     foreign ones (pkg/proxy/conntrack/cleanup.go; kubernetes#139629)",
);
const FLOWS_OF_DELETED_STAY: Why =
    Why::Fault("clears no conntrack entries of a deleted Service (kubernetes#141371, after 1.37)");

pub(super) fn rows() -> Vec<Row> {
    let mut rows = one_way_senders();
    rows.push(Row::new(
        27,
        "connected-udp-socket-leaves-a-gone-backend",
        "a connected UDP socket whose backend is gone is answered by another or fails within \
         5 s, in pods' namespaces and the host's",
        CYCLES,
        Fault::ChangesLost,
        connected_leaves,
    ));
    rows.push(Row::new(
        27,
        "connected-udp-socket-keeps-a-living-backend",
        "a connected UDP socket keeps its backend when another endpoint of the Service goes",
        "kubernetes pkg/proxy/conntrack: only flows to removed endpoints are cleared",
        Fault::ConnectionsCut,
        connected_keeps,
    ));
    rows
}

/// Senders that are never answered: nothing but the proxy can make them move.
fn one_way_senders() -> Vec<Row> {
    let row = |name, expected, source, fault, story| {
        Row::new(26, name, expected, source, fault, story).cases(&["K02"])
    };
    let moves = "a sender that is never answered reaches the new endpoint when the old one is \
                 replaced, which gets nothing more";
    let stops = "a sender that is never answered reaches nobody while there is no endpoint, and \
                 then the new one";
    let begins = "a sender that began while no endpoint was ready reaches the first one that is";
    let recreated = "a sender reaches the backends of a Service that was deleted and made anew";
    let gone = "a sender reaches nobody once the Service is deleted";
    let lost = Fault::ChangesLost;
    vec![
        row(
            "udp-moves-to-the-next-endpoint-from-inside",
            moves,
            CYCLES,
            lost,
            |s| moves_to_the_next(s, &inside(s)),
        ),
        row(
            "udp-moves-to-the-next-endpoint-from-outside",
            moves,
            CYCLES,
            lost,
            |s| moves_to_the_next(s, &outside(s)),
        ),
        row(
            "udp-stops-at-zero-endpoints-from-inside",
            stops,
            CYCLES,
            lost,
            |s| stops_at_zero(s, &but_node_ports(s, inside(s))),
        ),
        row(
            "udp-stops-at-zero-endpoints-from-outside",
            stops,
            CYCLES,
            lost,
            |s| stops_at_zero(s, &but_node_ports(s, outside(s))),
        ),
        row(
            "udp-to-node-port-stops-at-zero-endpoints-from-inside",
            stops,
            CYCLES,
            lost,
            |s| stops_at_zero(s, &only_node_ports(s, inside(s))),
        )
        .kube_proxy_differs(NODE_PORT_FLOWS_STAY),
        row(
            "udp-to-node-port-stops-at-zero-endpoints-from-outside",
            stops,
            CYCLES,
            lost,
            |s| stops_at_zero(s, &only_node_ports(s, outside(s))),
        )
        .kube_proxy_differs(NODE_PORT_FLOWS_STAY),
        row(
            "udp-begins-with-the-first-endpoint-from-inside",
            begins,
            INITIALLY,
            lost,
            |s| begins_with_the_first(s, &inside(s)),
        ),
        row(
            "udp-begins-with-the-first-endpoint-from-outside",
            begins,
            INITIALLY,
            lost,
            |s| begins_with_the_first(s, &outside(s)),
        ),
        row(
            "udp-reaches-a-recreated-service-from-inside",
            recreated,
            RECREATED,
            lost,
            |s| reaches_recreated(s, &inside(s)),
        ),
        row(
            "udp-reaches-a-recreated-service-from-outside",
            recreated,
            RECREATED,
            lost,
            |s| reaches_recreated(s, &outside(s)),
        ),
        row(
            "udp-ends-with-its-service-from-inside",
            gone,
            RECREATED,
            Fault::DeletionsLost,
            |s| ends_with_its_service(s, &inside(s)),
        )
        .kube_proxy_differs(FLOWS_OF_DELETED_STAY),
        row(
            "udp-ends-with-its-service-from-outside",
            gone,
            RECREATED,
            Fault::DeletionsLost,
            |s| ends_with_its_service(s, &outside(s)),
        )
        .kube_proxy_differs(FLOWS_OF_DELETED_STAY),
    ]
}

/// A sender and where it sends to.
type Sender<'s> = (&'s Peer, String);

/// Pods and host processes, by every kind of frontend.
fn inside<'s>(s: &'s Stage<'_>) -> Vec<Sender<'s>> {
    vec![
        (&s.pod1, s.cluster_ip()),
        (&s.host1, s.cluster_ip()),
        (&s.pod1, s.lb_ip()),
        (&s.pod1, s.external_ip()),
        (&s.pod1, s.node_port("n1")),
        (&s.host1, s.node_port("n1")),
    ]
}

/// Outside clients, by every kind of frontend.
fn outside<'s>(s: &'s Stage<'_>) -> Vec<Sender<'s>> {
    vec![
        (&s.c1, s.node_port("n1")),
        (&s.c1, s.node_port("n2")),
        (&s.c1, s.lb_ip()),
        (&s.c1, s.external_ip()),
        (&s.c1, s.cluster_ip()),
    ]
}

fn only_node_ports<'s>(s: &Stage<'_>, senders: Vec<Sender<'s>>) -> Vec<Sender<'s>> {
    let is_node_port = |to: &str| to.ends_with(&format!(":{}", s.own.node_port()));
    let all = senders.into_iter();
    all.filter(|(_, to)| is_node_port(to)).collect()
}

fn but_node_ports<'s>(s: &Stage<'_>, senders: Vec<Sender<'s>>) -> Vec<Sender<'s>> {
    let node_ports = only_node_ports(s, senders.clone());
    let all = senders.into_iter();
    all.filter(|(_, to)| !node_ports.iter().any(|(_, it)| it == to))
        .collect()
}

/// Senders that run, and b1 and b2, which count on a port of the row's own.
struct Flows<'s> {
    s: &'s Stage<'s>,
    senders: Vec<Load>,
}

type Received = BTreeMap<SocketAddr, u64>;

impl<'s> Flows<'s> {
    /// Each sender has one source port all the time.
    fn start(s: &'s Stage<'s>, senders: &[Sender<'_>]) -> Result<Self> {
        let mut flows = Self {
            s,
            senders: Vec::new(),
        };
        for backend in flows.backends() {
            backend.collect(s.own.backend_port())?;
        }
        s.settle()?;
        for (port, (peer, to)) in (s.own.source_port()..).zip(senders) {
            flows
                .senders
                .push(peer.one_way(&join(s.any_address(), port), to, 100)?);
        }
        Ok(flows)
    }

    fn backends(&self) -> [&'s Peer; 2] {
        [&self.s.world.b1, &self.s.world.b2]
    }

    fn received(&self) -> Result<[Received; 2]> {
        let [b1, b2] = self.backends();
        let port = self.s.own.backend_port();
        Ok([b1.received(port)?, b2.received(port)?])
    }

    /// Each sender tries so many more times.
    fn let_send(&self, times: u64) -> Result<()> {
        for sender in &self.senders {
            let tried = || -> Result<u64> {
                let counts = sender.so_far()?;
                Ok(counts.answers() + counts.failures())
            };
            let before = tried()?;
            eventually(Duration::from_secs(10), || {
                let now = tried()?;
                ensure!(now >= before + times, "{} datagrams sent", now - before);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// So many senders reach b1, and so many reach b2.
    fn reach(&self, b1: usize, b2: usize) -> Result<()> {
        self.s.settle()?;
        let before = self.received()?;
        self.let_send(10)?;
        let now = self.received()?;
        let arriving = [0, 1].map(|backend| {
            let counts = now[backend].iter();
            let new = counts.filter(|(from, count)| before[backend].get(*from) != Some(*count));
            new.count()
        });
        holds(arriving == [b1, b2], || {
            format!(
                "of {} senders {} reach b1 and {} b2, not {b1} and {b2}",
                self.senders.len(),
                arriving[0],
                arriving[1]
            )
        })
    }

    fn all(&self) -> usize {
        self.senders.len()
    }
}

impl Drop for Flows<'_> {
    fn drop(&mut self) {
        for backend in self.backends() {
            // The row's verdict does not depend on it, and the port is its own.
            let _ = backend.unlisten(Transport::Udp, self.s.own.backend_port());
        }
    }
}

/// A Service with every kind of frontend.
fn service(s: &Stage<'_>) -> Service {
    s.load_balancer("web")
        .external_ips(&[&s.own.external_ip(s.family)])
}

/// Its slice, without endpoints.
fn slice(s: &Stage<'_>) -> Slice {
    s.bare_slice("web", "web")
        .udp_port("udp", s.own.backend_port())
}

fn moves_to_the_next(s: &Stage<'_>, senders: &[Sender<'_>]) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&slice(s).endpoint(&s.world.b1).ready())?;
    let flows = Flows::start(s, senders)?;
    flows.reach(flows.all(), 0)?;
    s.apply(&slice(s).endpoint(&s.world.b2).ready())?;
    flows.reach(0, flows.all())
}

fn stops_at_zero(s: &Stage<'_>, senders: &[Sender<'_>]) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&slice(s).endpoint(&s.world.b1).ready())?;
    let flows = Flows::start(s, senders)?;
    flows.reach(flows.all(), 0)?;
    s.apply(&slice(s))?;
    flows.reach(0, 0)?;
    s.apply(&slice(s).endpoint(&s.world.b2).ready())?;
    flows.reach(0, flows.all())
}

fn begins_with_the_first(s: &Stage<'_>, senders: &[Sender<'_>]) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&slice(s))?;
    let flows = Flows::start(s, senders)?;
    flows.reach(0, 0)?;
    s.apply(&slice(s).endpoint(&s.world.b1).not_ready())?;
    flows.reach(0, 0)?;
    s.apply(&slice(s).endpoint(&s.world.b1).ready())?;
    flows.reach(flows.all(), 0)
}

fn reaches_recreated(s: &Stage<'_>, senders: &[Sender<'_>]) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&slice(s).endpoint(&s.world.b1).ready())?;
    let flows = Flows::start(s, senders)?;
    flows.reach(flows.all(), 0)?;
    s.delete(&service(s))?;
    s.delete(&slice(s))?;
    s.apply(&service(s))?;
    s.apply(&slice(s).endpoint(&s.world.b2).ready())?;
    flows.reach(0, flows.all())
}

fn ends_with_its_service(s: &Stage<'_>, senders: &[Sender<'_>]) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&slice(s).endpoint(&s.world.b1).ready())?;
    let flows = Flows::start(s, senders)?;
    flows.reach(flows.all(), 0)?;
    s.delete(&service(s))?;
    flows.reach(0, 0)
}

fn connected_leaves(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let mut held = Vec::new();
    for (client, to) in inside(s) {
        let socket = s.hold(client, Transport::Udp, &to)?;
        judged(socket.outcome.answered_by("b1"))?;
        held.push(socket);
    }
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    for socket in held {
        s.within(NOTICED, "the socket has left b1", || {
            let outcome = socket.talk("anybody?")?;
            judged(match &outcome.dialed.failure {
                // It can connect anew.
                Some(failure) if failure.errno != "TIMEOUT" => Ok(()),
                _ => outcome.answered_by("b2"),
            })
        })?;
    }
    Ok(())
}

fn connected_keeps(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for client in [&s.pod1, &s.host1] {
        s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
        let mut kept = Vec::new();
        // None of 16 sockets is b1's with odds of 1 to 65536.
        for _ in 0..16 {
            let socket = s.hold(client, Transport::Udp, &s.cluster_ip())?;
            if judged(socket.pod())? == "b1" {
                kept.push(socket);
            }
        }
        ensure!(!kept.is_empty(), "no socket chose b1");
        s.apply(&s.ready("web", &[&s.world.b1]))?;
        for socket in kept {
            s.goes_on(&socket, "b1")?;
        }
    }
    Ok(())
}
