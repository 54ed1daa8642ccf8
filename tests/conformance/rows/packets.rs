//! What becomes of single packets: rules 28 and 30.

use super::connections::{Client, inside};
use crate::check::{holds, judged};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::Stage;
use crate::world::SMALL_MTU;
use anyhow::Result;
use lab::wire::Probe;
use lab::{Dial, Peer, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = intact();
    rows.push(sctp());
    rows.extend(icmp());
    rows
}

fn intact() -> Vec<Row> {
    let fragments = "datagrams of 4000 bytes arrive whole and once, and so do answers of that size";
    let ip = "RFC 791 and RFC 8200: fragmentation and reassembly";
    let bulk = "40 kB go there and back on a connection, unchanged";
    let tcp = "RFC 9293, 3.1: checksum";
    let without = "a datagram without a checksum arrives";
    let udp = "RFC 768: an all zero checksum means that there is none";
    let changed = Fault::BytesChanged;
    vec![
        Row::new(
            28,
            "fragments-arrive-from-inside",
            fragments,
            ip,
            changed,
            |s| fragments_arrive(s, &inside(s)),
        )
        .cases(&["K14"]),
        Row::new(
            28,
            "fragments-arrive-from-outside",
            fragments,
            ip,
            changed,
            |s| fragments_arrive(s, &outside(s)),
        )
        .cases(&["K14"]),
        Row::new(
            28,
            "bulk-arrives-intact-from-inside",
            bulk,
            tcp,
            changed,
            |s| bulk_arrives(s, &inside(s)),
        ),
        Row::new(
            28,
            "bulk-arrives-intact-from-outside",
            bulk,
            tcp,
            changed,
            |s| bulk_arrives(s, &outside(s)),
        ),
        Row::new(
            28,
            "udp-without-checksum-arrives-from-inside",
            without,
            udp,
            Fault::ChecksumsBroken,
            |s| without_checksum(s, &inside(s)),
        )
        .once(),
        Row::new(
            28,
            "udp-without-checksum-arrives-from-outside",
            without,
            udp,
            Fault::ChecksumsBroken,
            |s| without_checksum(s, &outside(s)),
        )
        .once(),
    ]
}

fn sctp() -> Row {
    Row::new(
        28,
        "sctp-port-harms-no-other",
        "a Service's TCP and UDP ports work beside an SCTP port, also one with another number at \
         the backend",
        "API ServicePort.protocol: TCP, UDP and SCTP",
        Fault::EndpointsLost,
        sctp_harms_no_other,
    )
    .cases(&["K74"])
    .alone()
}

fn icmp() -> Vec<Row> {
    let closed =
        "a backend's port that is closed is told to the client as ECONNREFUSED, TCP and UDP";
    let translated = "RFC 5508 REQ-4: ICMP errors are translated, the packet in them too";
    let backend = "a backend learns of a smaller link towards the client: 40 kB come back on a \
                   connection";
    let client = "a client learns of a smaller link towards the backend: 40 kB go there on a \
                  connection, and a datagram that must not be fragmented is answered by ICMP \
                  with the MTU";
    let lost = Fault::IcmpLost;
    vec![
        Row::new(
            30,
            "closed-backend-port-is-told-from-inside",
            closed,
            translated,
            lost,
            |s| closed_port(s, &inside(s)),
        ),
        Row::new(
            30,
            "closed-backend-port-is-told-from-outside",
            closed,
            translated,
            lost,
            |s| closed_port(s, &outside(s)),
        ),
        Row::new(
            30,
            "path-mtu-is-learnt-by-backends",
            backend,
            "RFC 1191; RFC 8201; RFC 5508 REQ-4",
            lost,
            backends_learn,
        )
        .cases(&["K12"]),
        Row::new(
            30,
            "path-mtu-is-learnt-by-clients-from-inside",
            client,
            "RFC 1191; RFC 8201",
            lost,
            |s| clients_learn(s, &[(&s.pod1, s.cluster_ip())]),
        ),
        Row::new(
            30,
            "path-mtu-is-learnt-by-clients-from-outside",
            client,
            "RFC 1191; RFC 8201; RFC 5508 REQ-4",
            lost,
            |s| clients_learn(s, &[(&s.c1, s.node_port("n1")), (&s.c1, s.lb_ip())]),
        )
        .cases(&["K12"]),
    ]
}

fn outside<'s>(s: &'s Stage<'_>) -> Vec<Client<'s>> {
    vec![(&s.c1, s.node_port("n1")), (&s.c1, s.lb_ip())]
}

/// The story once with a backend on n1 and once with one on n2.
fn with_each_backend(s: &Stage<'_>, story: impl Fn(&str) -> Result<()>) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    for backend in [&s.world.b1, &s.world.b2] {
        s.apply(&s.ready("web", &[backend]))?;
        story(backend.name())?;
    }
    Ok(())
}

fn fragments_arrive(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    with_each_backend(s, |_| {
        for (client, to) in clients {
            let mut probe = Probe::datagram(to.parse()?, 4000);
            probe.dont_fragment = false;
            judged(s.probe(client, probe)?.came_back())?;
        }
        Ok(())
    })
}

/// Sends 40 kB on a connection and has them back.
fn bulk(s: &Stage<'_>, client: &Peer, to: &str, backend: &str) -> Result<()> {
    let held = s.hold(client, Transport::Tcp, to)?;
    judged(held.outcome.answered_by(backend))?;
    let line = "a".repeat(40_000);
    let expected = format!("{backend} {line}");
    let answer = held.talk(&line)?.dialed;
    let got = answer.line.unwrap_or_default();
    holds(got == expected, || {
        // The line itself says little.
        let at = got.bytes().zip(expected.bytes()).position(|(a, b)| a != b);
        format!(
            "{} → {to}: {} bytes came back, other ones from {at:?} on; {:?}",
            client.name(),
            got.len(),
            answer.failure
        )
    })
}

fn bulk_arrives(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    with_each_backend(s, |backend| {
        let mut clients = clients.iter();
        clients.try_for_each(|(client, to)| bulk(s, client, to, backend))
    })
}

fn without_checksum(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    with_each_backend(s, |backend| {
        s.settle()?;
        for (client, to) in clients {
            let mut dial = Dial::new(Transport::Udp, to.parse()?);
            dial.no_checksum = true;
            dial.timeout_ms = 1500;
            judged(client.dial(dial)?.answered_by(backend))?;
        }
        Ok(())
    })
}

fn closed_port(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    let port = s.own.backend_port();
    for backend in [&s.world.b1, &s.world.b2] {
        let slice = s.bare_slice("web", "web");
        s.apply(
            &slice
                .port("http", port)
                .udp_port("udp", port)
                .endpoint(backend)
                .ready(),
        )?;
        for (client, to) in clients {
            for transport in Transport::BOTH {
                s.refused(client, transport, to)?;
            }
        }
    }
    Ok(())
}

fn backends_learn(s: &Stage<'_>) -> Result<()> {
    let c3 = s
        .world
        .c3()?
        .beside(&format!("c3-{}", s.own.backend_port()))?;
    s.apply(&s.load_balancer("web"))?;
    for node in ["n1", "n2"] {
        // Others have not heard of the path yet.
        let backend = s.world.new_backend(node, false)?;
        s.apply(&s.ready("web", &[&backend]))?;
        for to in [s.node_port("n1"), s.lb_ip()] {
            bulk(s, &c3, &to, backend.name())?;
        }
    }
    Ok(())
}

fn clients_learn(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    for node in ["n1", "n2"] {
        let backend = s.world.new_backend(node, true)?;
        s.apply(&s.ready("web", &[&backend]))?;
        for (client, to) in clients {
            let large = s.probe(client, Probe::datagram(to.parse()?, 1440))?;
            let mtu = judged(large.icmp())?.mtu;
            holds(mtu == u32::from(SMALL_MTU), || {
                format!("{} → {to}: an MTU of {mtu} was told", client.name())
            })?;
            judged(
                s.probe(client, Probe::datagram(to.parse()?, 1300))?
                    .came_back(),
            )?;
            bulk(s, client, to, backend.name())?;
        }
    }
    Ok(())
}

fn sctp_harms_no_other(s: &Stage<'_>) -> Result<()> {
    s.apply_with(&s.service("amf"), |service| {
        let port = json!({ "name": "n2", "protocol": "SCTP", "port": 7777, "targetPort": 8888 });
        if let Some(ports) = service["spec"]["ports"].as_array_mut() {
            ports.push(port);
        }
    })?;
    let port = json!({ "name": "n2", "protocol": "SCTP", "port": 8888 });
    s.apply(&s.ready("amf", &[&s.world.b1]).raw_port(port))?;
    for client in [&s.pod1, &s.host1] {
        for transport in Transport::BOTH {
            s.only(client, transport, &s.cluster_ip(), &["b1"])?;
        }
    }
    Ok(())
}
