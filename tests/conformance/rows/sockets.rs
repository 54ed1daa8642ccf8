//! The ways in which programs use sockets: they all reach the frontends of
//! rule 7, and those of rule 18 that have no endpoint.

use crate::check::judged;
use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::row::{Row, Why};
use crate::stage::{Stage, join};
use crate::world::Numbers;
use anyhow::Result;
use lab::{BACKEND_PORT, Dial, Peer, Transport};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = without_endpoints();
    rows.extend(mapped());
    rows.extend(ways_to_connect());
    rows
}

fn without_endpoints() -> Vec<Row> {
    vec![
        Row::new(
            18,
            "frontends-without-endpoints-refuse-pods",
            "ClusterIP, NodePort, LoadBalancer IP and externalIP without endpoints refuse a pod",
            "kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::StrangerOn("n1"),
            refuse_pods,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "frontends-without-ready-endpoints-refuse-hosts",
            "ClusterIP and NodePort refuse a host process's TCP when no endpoint is ready",
            "kubernetes e2e \"should be rejected when no endpoints exist\"; API EndpointConditions.ready",
            Fault::ConditionsIgnored,
            refuse_hosts,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "external-frontends-without-ready-endpoints-refuse-hosts",
            "LoadBalancer IP and externalIP refuse a host process's TCP when no endpoint is ready",
            "kubernetes e2e \"should be rejected when no endpoints exist\"; API EndpointConditions.ready",
            Fault::ConditionsIgnored,
            external_refuse_hosts,
        )
        .cases(&["K04"])
        .differs(
            Proxy::KubeProxyIptables,
            Why::Fault(
                "iptables mode rejects what is for external frontends in FORWARD and INPUT, \
                 and a host's own packets leave by OUTPUT",
            ),
        ),
        Row::new(
            18,
            "frontends-without-endpoints-refuse-datagrams-of-hosts",
            "the four kinds of frontends refuse a host process's connected UDP with ECONNREFUSED",
            "udp(7); kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::StrangerOn("n1"),
            refuse_datagrams_of_hosts,
        )
        .cases(&["K04"])
        .kube_proxy_differs(Why::Fault(
            "netfilter's reject of a host's own datagram makes send say EPERM before ECONNREFUSED",
        )),
        Row::new(
            18,
            "frontends-without-endpoints-refuse-outside-clients",
            "NodePort, LoadBalancer IP and externalIP without endpoints refuse an outside client",
            "kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::StrangerOn("n1"),
            refuse_outside_clients,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "service-without-slices-refuses",
            "a Service of which there is no slice at all refuses",
            "kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::OwnersJoin,
            no_slices,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "unconnected-udp-without-endpoints-is-not-answered",
            "datagrams of an unconnected socket to a Service without endpoints fail or get no answer",
            "kubernetes e2e \"should be rejected when no endpoints exist\"; udp(7)",
            Fault::StrangerOn("n1"),
            unconnected_without_endpoints,
        )
        .cases(&["K04"]),
    ]
}

fn mapped() -> Vec<Row> {
    vec![
        Row::new(
            7,
            "ipv4-mapped-sockets-are-served",
            "an IPv6 socket that connects to ::ffff:CLUSTER-IP reaches a backend, and its peer is what it asked for",
            "RFC 3493, 3.7",
            Fault::EndpointsLost,
            mapped_is_served,
        )
        .cases(&["K08"])
        .once(),
        Row::new(
            18,
            "ipv4-mapped-sockets-are-refused-without-endpoints",
            "an IPv6 socket that connects to ::ffff:CLUSTER-IP of a Service without endpoints is refused",
            "RFC 3493, 3.7; kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::StrangerOn("n1"),
            mapped_is_refused,
        )
        .cases(&["K08"])
        .once(),
        Row::new(
            7,
            "ipv4-mapped-datagrams-are-answered-by-the-frontend",
            "an unconnected IPv6 socket gets its answer from ::ffff:CLUSTER-IP",
            "RFC 3493, 3.7",
            Fault::EndpointsLost,
            mapped_datagrams,
        )
        .cases(&["K08"])
        .once(),
    ]
}

fn ways_to_connect() -> Vec<Row> {
    vec![
        Row::new(
            7,
            "unconnected-datagrams-are-answered-by-the-frontend",
            "an unconnected socket gets its answers from the frontends that it asked",
            "recvfrom(2), udp(7)",
            Fault::EndpointsLost,
            unconnected,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "peer-name-is-the-frontend",
            "getpeername says the frontend, also when the backend is gone from the slices",
            "getpeername(2)",
            Fault::EndpointsLost,
            peer_name,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "non-blocking-connect-completes",
            "a non-blocking connect is in progress at first, then done; refused without endpoints",
            "connect(2)",
            Fault::EndpointsLost,
            non_blocking,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "fast-open-is-served",
            "data sent with MSG_FASTOPEN to a ClusterIP reaches a backend, from one socket after the other",
            "RFC 7413; tcp(7)",
            Fault::EndpointsLost,
            fast_open,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "dissolved-socket-forgets-the-frontend",
            "after connect with AF_UNSPEC a socket reaches whom it connects to next, under that name",
            "connect(2)",
            Fault::EndpointsLost,
            dissolved,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "second-connect-goes-to-the-second-frontend",
            "a UDP socket that connects again reaches the second Service, under its name",
            "connect(2), udp(7)",
            Fault::EndpointsLost,
            connected_twice,
        )
        .cases(&["K80"]),
        Row::new(
            7,
            "bound-source-is-kept",
            "a socket that was bound before it connects keeps its address and port",
            "bind(2); kubernetes e2e \"should preserve source pod IP for traffic thru service cluster IP\"",
            Fault::Masquerade,
            bound_source,
        )
        .cases(&["K80"]),
    ]
}

fn all_frontends(s: &Stage<'_>) -> Result<[String; 4]> {
    let object = s.load_balancer("web");
    s.apply(&object.external_ips(&[&s.own.external_ip(s.family)]))?;
    Ok([
        s.cluster_ip(),
        s.node_port("n1"),
        s.lb_ip(),
        s.external_ip(),
    ])
}

fn refuse_pods(s: &Stage<'_>) -> Result<()> {
    let frontends = all_frontends(s)?;
    s.apply(&s.slice("web"))?;
    all_refuse(s, &s.pod1, &Transport::BOTH, &frontends)
}

fn refuse_hosts(s: &Stage<'_>) -> Result<()> {
    let frontends = all_frontends(s)?;
    s.apply(&s.slice("web").endpoint(&s.world.b1).not_ready())?;
    all_refuse(s, &s.host1, &[Transport::Tcp], &frontends[..2])
}

fn external_refuse_hosts(s: &Stage<'_>) -> Result<()> {
    let frontends = all_frontends(s)?;
    s.apply(&s.slice("web").endpoint(&s.world.b1).not_ready())?;
    all_refuse(s, &s.host1, &[Transport::Tcp], &frontends[2..])
}

fn refuse_outside_clients(s: &Stage<'_>) -> Result<()> {
    let frontends = all_frontends(s)?;
    s.apply(&s.slice("web").endpoint(&s.world.b2).not_ready())?;
    all_refuse(s, &s.c1, &Transport::BOTH, &frontends[1..])
}

fn refuse_datagrams_of_hosts(s: &Stage<'_>) -> Result<()> {
    let frontends = all_frontends(s)?;
    s.apply(&s.slice("web"))?;
    all_refuse(s, &s.host1, &[Transport::Udp], &frontends)
}

fn all_refuse(
    s: &Stage<'_>,
    client: &Peer,
    transports: &[Transport],
    frontends: &[String],
) -> Result<()> {
    for to in frontends {
        for &transport in transports {
            s.refused(client, transport, to)?;
        }
    }
    Ok(())
}

fn no_slices(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let others = s.ready("other", &[&s.world.b1]);
    s.apply(&super::slices::owned_by(&others, "web"))?;
    for transport in Transport::BOTH {
        s.refused(&s.pod1, transport, &s.cluster_ip())?;
    }
    Ok(())
}

/// Bound to any address and port of the row's family.
fn any(s: &Stage<'_>) -> &'static str {
    match s.family {
        crate::row::Family::V4 => "0.0.0.0:0",
        crate::row::Family::V6 => "[::]:0",
    }
}

fn unconnected_without_endpoints(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.slice("web"))?;
    s.settle()?;
    for client in [&s.pod1, &s.host1] {
        let socket = client.udp_socket(any(s))?;
        let sent = socket.send_to(&s.cluster_ip(), "hello")?;
        if sent.unanswered().is_err() {
            judged(socket.receive(500)?.unanswered())?;
        }
    }
    Ok(())
}

/// `::ffff:ADDRESS` with the port of the row's ClusterIP.
fn mapped_cluster_ip(s: &Stage<'_>) -> String {
    join(&format!("::ffff:{}", s.own.cluster_ip(s.family)), 80)
}

fn dial_mapped(s: &Stage<'_>, client: &Peer, transport: Transport) -> Result<lab::Outcome> {
    s.settle()?;
    client.dial(Dial {
        mapped: true,
        ..Dial::new(transport, s.cluster_ip().parse()?)
    })
}

fn mapped_is_served(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            let outcome = dial_mapped(s, client, transport)?;
            judged(outcome.answered_by("b2"))?;
            judged(outcome.peer_name_is(&mapped_cluster_ip(s)))?;
        }
    }
    Ok(())
}

fn mapped_is_refused(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.slice("web"))?;
    for transport in Transport::BOTH {
        judged(dial_mapped(s, &s.pod1, transport)?.failed_with("ECONNREFUSED"))?;
    }
    Ok(())
}

fn mapped_datagrams(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    for client in [&s.pod1, &s.host1] {
        let socket = client.udp_socket("[::]:0")?;
        let answer = socket.ask(&s.cluster_ip(), "hello")?;
        judged(answer.answered_by("b2"))?;
        judged(answer.came_from(&mapped_cluster_ip(s)))?;
    }
    Ok(())
}

/// `web` with b1, and `other` with b2, whose addresses it returns.
fn two_services(s: &Stage<'_>) -> Result<Numbers> {
    let other = s.world.numbers();
    s.apply(&s.service("web"))?;
    s.apply(&s.service_at("other", &other))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.apply(&s.ready("other", &[&s.world.b2]))?;
    s.settle()?;
    Ok(other)
}

fn unconnected(s: &Stage<'_>) -> Result<()> {
    let other = two_services(s)?;
    for client in [&s.pod1, &s.host1] {
        let socket = client.udp_socket(any(s))?;
        for _ in 0..2 {
            for (to, backend) in [(s.cluster_ip(), "b1"), (s.cluster_ip_of(&other), "b2")] {
                let answer = socket.ask(&to, "hello")?;
                judged(answer.answered_by(backend))?;
                judged(answer.came_from(&to))?;
            }
        }
    }
    Ok(())
}

fn peer_name(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.settle()?;
    let to = s.cluster_ip();
    let tcp = [s.pod1.hold_tcp(&to)?, s.host1.hold_tcp(&to)?];
    let udp = s.pod1.hold_udp(&to)?;
    judged(udp.outcome.peer_name_is(&to))?;
    for held in &tcp {
        judged(held.outcome.answered_by("b1"))?;
        judged(held.peer_name_is(&to))?;
    }
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    for held in &tcp {
        judged(held.peer_name_is(&to))?;
        judged(held.talk("still here")?.answered_by("b1"))?;
    }
    Ok(())
}

fn non_blocking(s: &Stage<'_>) -> Result<()> {
    let other = s.world.numbers();
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.apply(&s.service_at("empty", &other))?;
    s.settle()?;
    for client in [&s.pod1, &s.host1] {
        let dial = |to: String| -> Result<_> {
            client.dial(Dial {
                nonblocking: true,
                ..Dial::new(Transport::Tcp, to.parse()?)
            })
        };
        let outcome = dial(s.cluster_ip())?;
        judged(outcome.answered_by("b2"))?;
        crate::check::holds(
            outcome.dialed.first_errno.as_deref() == Some("EINPROGRESS"),
            || format!("connect said {:?} at first", outcome.dialed.first_errno),
        )?;
        judged(dial(s.cluster_ip_of(&other))?.failed_with("ECONNREFUSED"))?;
    }
    Ok(())
}

fn fast_open(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    s.settle()?;
    for client in [&s.pod1, &s.host1] {
        // The first one gets the cookie that the next ones use.
        let dial = Dial {
            fast_open: true,
            ..Dial::new(Transport::Tcp, s.cluster_ip().parse()?)
        };
        judged(client.dial(dial.clone())?.answered_by_one_of(&["b1", "b2"]))?;
        judged(client.many(dial, 40)?.only_by(&["b1", "b2"]))?;
    }
    Ok(())
}

fn dissolved(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.settle()?;
    let direct = s.port_of(&s.world.b2, BACKEND_PORT);
    for client in [&s.pod1, &s.host1] {
        for transport in Transport::BOTH {
            let held = client.hold(Dial::new(transport, s.cluster_ip().parse()?))?;
            judged(held.outcome.answered_by("b1"))?;
            held.dissolve()?;
            let again = held.redial(&direct)?;
            judged(again.answered_by("b2"))?;
            judged(again.peer_name_is(&direct))?;
            judged(held.peer_name_is(&direct))?;
        }
    }
    Ok(())
}

fn connected_twice(s: &Stage<'_>) -> Result<()> {
    let other = two_services(s)?;
    for client in [&s.pod1, &s.host1] {
        let held = client.hold_udp(&s.cluster_ip())?;
        judged(held.outcome.answered_by("b1"))?;
        judged(held.redial(&s.cluster_ip_of(&other))?.answered_by("b2"))?;
        judged(held.peer_name_is(&s.cluster_ip_of(&other)))?;
    }
    Ok(())
}

fn bound_source(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    for transport in Transport::BOTH {
        // A pod's own ports are nobody else's.
        let from = s.port_of(&s.pod1, 20_001);
        let outcome = s.pod1.dial(Dial {
            from: Some(from.parse()?),
            ..Dial::new(transport, s.cluster_ip().parse()?)
        })?;
        judged(outcome.answered_by("b2"))?;
        let seen = join(
            &outcome.seen_peer()?.ip().to_canonical().to_string(),
            outcome.seen_peer()?.port(),
        );
        crate::check::holds(seen == from, || format!("b2 saw {seen}, not {from}"))?;
    }
    Ok(())
}
