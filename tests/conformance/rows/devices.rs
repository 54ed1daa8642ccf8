//! The node's own network around the proxy: rule 38.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, then_restore};
use crate::world::run;
use anyhow::Result;
use lab::{Peer, Transport};

pub(super) fn rows() -> Vec<Row> {
    let uplink = "an outside client on a second uplink of the node is served by it";
    let filter = "strict reverse-path filters on the node's devices lose nothing";
    let strict = "RFC 3704, 2.2: strict reverse path forwarding";
    let cold =
        "the first connection and the first datagrams get through when no neighbour is known";
    let neighbour = "RFC 826; RFC 4861: packets wait for their neighbour";
    let lost = Fault::ServicesLost;
    vec![
        Row::new(
            38,
            "second-uplink-is-served",
            uplink,
            "API ServiceStatus.loadBalancer: whatever reaches the node for it",
            lost,
            second_uplink,
        )
        .alone(),
        Row::new(
            38,
            "strict-filters-lose-nothing-from-inside",
            filter,
            strict,
            lost,
            |s| {
                strict_filters(
                    s,
                    &[(&s.pod1, s.cluster_ip()), (&s.host1, s.node_port("n1"))],
                )
            },
        )
        .cases(&["K52"])
        .once()
        .alone(),
        Row::new(
            38,
            "strict-filters-lose-nothing-from-outside",
            filter,
            strict,
            lost,
            |s| strict_filters(s, &[(&s.c1, s.node_port("n1")), (&s.c1, s.lb_ip())]),
        )
        .cases(&["K52"])
        .once()
        .alone(),
        Row::new(
            38,
            "cold-neighbours-lose-nothing-from-inside",
            cold,
            neighbour,
            lost,
            |s| cold_neighbours(s, &[(&s.pod1, s.cluster_ip()), (&s.host1, s.cluster_ip())]),
        )
        .cases(&["K56"])
        .alone(),
        Row::new(
            38,
            "cold-neighbours-lose-nothing-from-outside",
            cold,
            neighbour,
            lost,
            |s| cold_neighbours(s, &[(&s.c1, s.node_port("n1")), (&s.c1, s.lb_ip())]),
        )
        .cases(&["K56"])
        .alone(),
    ]
}

/// A client and where it connects to.
type Client<'s> = (&'s Peer, String);

fn both_transports(s: &Stage<'_>, clients: &[Client<'_>], backend: &str) -> Result<()> {
    for (client, to) in clients {
        for transport in Transport::BOTH {
            s.only(client, transport, to, &[backend])?;
        }
    }
    Ok(())
}

fn second_uplink(s: &Stage<'_>) -> Result<()> {
    let c4 = s.world.c4()?;
    let ip = s.own.lb_ip(s.family);
    let n1 = if ip.contains(':') {
        "2001:db8:50::11"
    } else {
        "10.50.0.11"
    };
    c4.ip(&format!("route replace {ip} via {n1}"))?;
    s.apply(&s.load_balancer("web"))?;
    for backend in [&s.world.b1, &s.world.b2] {
        s.apply(&s.ready("web", &[backend]))?;
        both_transports(s, &[(&c4, s.lb_ip())], backend.name())?;
    }
    Ok(())
}

fn strict_filters(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    let filter = |value: &str| {
        for host in [&s.host1, &s.host2] {
            for device in ["all", "default", "eth0"] {
                host.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), value)?;
            }
        }
        Ok(())
    };
    then_restore(
        || {
            filter("1")?;
            s.apply(&s.load_balancer("web"))?;
            for backend in [&s.world.b1, &s.world.b2] {
                s.apply(&s.ready("web", &[backend]))?;
                both_transports(s, clients, backend.name())?;
            }
            Ok(())
        },
        || filter("0"),
    )
}

fn cold_neighbours(s: &Stage<'_>, clients: &[Client<'_>]) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    for backend in [&s.world.b1, &s.world.b2] {
        s.apply(&s.ready("web", &[backend]))?;
        s.settle()?;
        for client in clients {
            for host in [&s.host1, &s.host2] {
                run(host, "ip", &["neigh", "flush", "all"])?;
            }
            both_transports(s, std::slice::from_ref(client), backend.name())?;
        }
    }
    Ok(())
}
