//! Connection life of TCP, and source ports: rules 25 and 29.

use crate::check::judged;
use crate::fault::Fault;
use crate::row::{Family, Row};
use crate::stage::{Stage, join, then_restore};
use anyhow::{Context, Result};
use lab::wire::Segment;
use lab::{BACKEND_PORT, Held, Peer, Transport};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = established();
    rows.extend(new());
    rows.extend(stray_resets());
    rows.extend(source_ports());
    rows
}

fn established() -> Vec<Row> {
    let row = |name, expected, source, story| {
        Row::new(25, name, expected, source, Fault::ConnectionsCut, story).cases(&["K62"])
    };
    let endpoint = "an established connection stays with its backend when that terminates, stops \
                    serving and leaves the slice";
    let policy = "an established connection stays with its backend when a traffic policy no \
                  longer allows it";
    let service = "an established connection goes on when its Service is deleted";
    let terminating = "KEP-1669; kubernetes pkg/proxy/conntrack: TCP entries are never cleared";
    let policies = "API ServiceSpec.internalTrafficPolicy and .externalTrafficPolicy: how new \
                    traffic is distributed";
    let kube_proxy = "kubernetes pkg/proxy/conntrack: TCP entries are never cleared";
    vec![
        row(
            "established-outlives-its-endpoint-from-inside",
            endpoint,
            terminating,
            |s| outlives_its_endpoint(s, &inside(s)),
        ),
        row(
            "established-outlives-its-endpoint-from-outside",
            endpoint,
            terminating,
            |s| outlives_its_endpoint(s, &outside(s)),
        ),
        row(
            "established-outlives-a-policy-from-inside",
            policy,
            policies,
            |s| outlives_a_policy(s, &inside(s)),
        ),
        row(
            "established-outlives-a-policy-from-outside",
            policy,
            policies,
            |s| outlives_a_policy(s, &outside(s)),
        ),
        row(
            "established-outlives-its-service-from-inside",
            service,
            kube_proxy,
            |s| outlives_its_service(s, &inside(s)),
        ),
        row(
            "established-outlives-its-service-from-outside",
            service,
            kube_proxy,
            |s| outlives_its_service(s, &outside(s)),
        ),
    ]
}

fn new() -> Vec<Row> {
    let row = |name, expected, story| {
        Row::new(
            25,
            name,
            expected,
            "RFC 9293, 3.6.1: a closed connection may be opened anew; EndpointConditions.ready",
            Fault::ChangesLost,
            story,
        )
    };
    let follow = "new connections go by the endpoints of now while older ones stay where they are";
    let anew = "a connection from the source port of a closed one goes by the endpoints of now";
    vec![
        row(
            "new-follow-while-established-stay-from-inside",
            follow,
            |s| new_follow(s, &inside(s)),
        )
        .cases(&["K62"]),
        row(
            "new-follow-while-established-stay-from-outside",
            follow,
            |s| new_follow(s, &outside(s)),
        )
        .cases(&["K62"]),
        row("closed-tuple-begins-anew-from-inside", anew, |s| {
            closed_begins_anew(s, &inside(s))
        }),
        row("closed-tuple-begins-anew-from-outside", anew, |s| {
            closed_begins_anew(s, &outside(s))
        }),
    ]
}

fn stray_resets() -> Vec<Row> {
    let row = |name, expected, story| {
        Row::new(
            25,
            name,
            expected,
            "RFC 5961, 3.2: a reset that is not at the next expected sequence number is none",
            Fault::ResetsFit,
            story,
        )
        .cases(&["K66"])
    };
    let backend = "a reset with a wrong sequence number from the backend's side does not end a \
                   connection";
    let client = "a reset with a wrong sequence number from the client's side does not end a \
                  connection";
    vec![
        row(
            "stray-reset-of-backend-ends-nothing-from-inside",
            backend,
            |s| reset_of_backend(s, &inside(s)),
        ),
        row(
            "stray-reset-of-backend-ends-nothing-from-outside",
            backend,
            |s| reset_of_backend(s, &outside(s)),
        ),
        row(
            "stray-reset-of-client-ends-nothing-from-outside",
            client,
            |s| reset_of_client(s, &outside(s)),
        ),
    ]
}

fn source_ports() -> Vec<Row> {
    let row = |name, expected, story| {
        Row::new(
            29,
            name,
            expected,
            "RFC 5382 REQ-1 and RFC 4787: a translator keeps flows of one source port apart",
            Fault::OneSourcePort,
            story,
        )
    };
    vec![
        row(
            "clients-may-share-a-source-port",
            "connections of many outside clients with one source port to one backend are kept \
             apart",
            clients_share_a_port,
        ),
        row(
            "one-source-port-through-two-frontends",
            "an outside client's connections from one source port to two frontends of one \
             backend are kept apart",
            two_frontends,
        )
        .cases(&["K16"]),
        row(
            "node-keeps-its-own-source-ports",
            "a connection of the node's own to a backend is not disturbed by outside clients \
             with its source port",
            node_keeps_its_ports,
        ),
    ]
}

/// A client and where it connects to.
pub(super) type Client<'s> = (&'s Peer, String);

/// Clients on a node, with every sort of frontend.
pub(super) fn inside<'s>(s: &'s Stage<'_>) -> Vec<Client<'s>> {
    vec![
        (&s.pod1, s.cluster_ip()),
        (&s.host1, s.cluster_ip()),
        (&s.pod1, s.lb_ip()),
        (&s.host1, s.node_port("n1")),
    ]
}

fn outside<'s>(s: &'s Stage<'_>) -> Vec<Client<'s>> {
    vec![
        (&s.c1, s.node_port("n1")),
        (&s.c1, s.lb_ip()),
        (&s.c2, s.lb_ip()),
    ]
}

/// A held connection of each client to b2, the only endpoint.
fn held(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<Vec<Held>> {
    s.apply(&s.load_balancer("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    let held = clients.iter().map(|(client, to)| {
        let held = s.hold(client, Transport::Tcp, to)?;
        judged(held.outcome.answered_by("b2"))?;
        Ok(held)
    });
    held.collect()
}

fn all_go_on(s: &Stage<'_>, held: &[Held]) -> Result<()> {
    held.iter().try_for_each(|held| s.goes_on(held, "b2"))
}

fn outlives_its_endpoint(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    let held = held(s, clients)?;
    let (b1, b2) = (&s.world.b1, &s.world.b2);
    s.apply(&s.ready("web", &[b1]).endpoint(b2).terminating())?;
    all_go_on(s, &held)?;
    s.apply(&s.ready("web", &[b1]).endpoint(b2).dead())?;
    all_go_on(s, &held)?;
    s.apply(&s.ready("web", &[b1]))?;
    all_go_on(s, &held)?;
    s.apply(&s.slice("web"))?;
    all_go_on(s, &held)
}

fn outlives_a_policy(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    let held = held(s, clients)?;
    s.apply(&s.load_balancer("web").internal_local().external_local())?;
    all_go_on(s, &held)
}

fn outlives_its_service(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    let held = held(s, clients)?;
    s.delete(&s.load_balancer("web"))?;
    all_go_on(s, &held)
}

fn new_follow(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    let held = held(s, clients)?;
    s.apply(
        &s.ready("web", &[&s.world.b1])
            .endpoint(&s.world.b2)
            .terminating(),
    )?;
    for (client, to) in clients {
        s.only(client, Transport::Tcp, to, &["b1"])?;
    }
    all_go_on(s, &held)
}

fn closed_begins_anew(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    for backend in [&s.world.b1, &s.world.b2, &s.world.b3] {
        s.apply(&s.ready("web", &[backend]))?;
        for (port, (client, to)) in (s.own.source_port()..).zip(clients) {
            let outcome = client.dial(s.dial_from(port, Transport::Tcp, to)?)?;
            judged(outcome.answered_by(backend.name()))?;
        }
    }
    Ok(())
}

/// A port that the fault leaves no other flow.
const SHARED_PORT: u16 = 4000;

/// A held connection to b2 from [`SHARED_PORT`] of this address.
fn hold_shared(s: &Stage<'_>, client: &Peer, address: &str, to: &str) -> Result<Held> {
    let mut dial = s.dial_from(SHARED_PORT, Transport::Tcp, to)?;
    dial.from = Some(join(address, SHARED_PORT).parse()?);
    let held = client.hold(dial)?;
    judged(held.outcome.answered_by("b2"))?;
    Ok(held)
}

fn clients_share_a_port(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    let more = (110..116).map(|number| match s.family {
        Family::V4 => format!("192.0.2.{number}"),
        Family::V6 => format!("2001:db8:2::{number}"),
    });
    let more = more.collect::<Vec<_>>();
    let each = |verb: &str, option: &str| {
        let commands = more.iter().map(|it| {
            let length = if it.contains(':') { 128 } else { 32 };
            format!("addr {verb} {it}/{length} dev eth0 {option}")
        });
        s.c1.ip(&commands.collect::<Vec<_>>().join("\n"))
    };
    // Without a lifetime nobody takes them who is not told to.
    let option = match s.family {
        Family::V4 => "",
        Family::V6 => "nodad preferred_lft 0",
    };
    then_restore(
        || {
            each("add", option)?;
            let to = s.node_port("n1");
            let mut held = vec![hold_shared(s, &s.c2, &s.address_of(&s.c2), &to)?];
            for address in &more {
                held.push(hold_shared(s, &s.c1, address, &to)?);
            }
            all_go_on(s, &held)?;
            all_go_on(s, &held)
        },
        || each("del", ""),
    )
}

fn two_frontends(s: &Stage<'_>) -> Result<()> {
    let service = s.load_balancer("web");
    s.apply(&service.external_ips(&[&s.own.external_ip(s.family)]))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    let mut held = Vec::new();
    for to in [
        s.node_port("n1"),
        s.lb_ip(),
        s.external_ip(),
        s.node_port("n2"),
    ] {
        held.push(hold_shared(s, &s.c1, &s.address_of(&s.c1), &to)?);
    }
    all_go_on(s, &held)?;
    all_go_on(s, &held)
}

fn node_keeps_its_ports(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    let backend = s.port_of(&s.world.b2, BACKEND_PORT);
    let own = hold_shared(s, &s.host1, &s.node_address("n1"), &backend)?;
    let outside = hold_shared(s, &s.c1, &s.address_of(&s.c1), &s.node_port("n1"))?;
    all_go_on(s, &[own, outside])
}

fn reset_of_backend(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    for held in held(s, clients)? {
        let segment = Segment {
            from: held.outcome.seen_local()?,
            to: held.outcome.seen_peer()?,
            sequence: held.sequences()?.next_expected,
        };
        s.stray_reset(&s.world.b2, segment)?;
        s.goes_on(&held, "b2")?;
    }
    Ok(())
}

fn reset_of_client(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    for ((client, to), held) in clients.iter().zip(held(s, clients)?) {
        let segment = Segment {
            from: held.outcome.dialed.local_name.context("a local address")?,
            to: to.parse()?,
            sequence: held.sequences()?.next_sent,
        };
        s.stray_reset(client, segment)?;
        s.goes_on(&held, "b2")?;
    }
    Ok(())
}
