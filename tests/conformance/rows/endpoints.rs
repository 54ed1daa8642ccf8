//! Which endpoints get traffic: rules 13 and 14.

use crate::check::judged;
use crate::fault::Fault;
use crate::row::{Family, Row};
use crate::stage::Stage;
use anyhow::{Context, Result};
use lab::manifests::{Slice, slice};
use lab::wire::Request;
use lab::{Counts, Transport};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            13,
            "cluster-set-is-every-node",
            "a ClusterIP leads to the ready endpoints of all nodes, from pods and host processes",
            "API ServiceSpec.clusterIPs; EndpointConditions.ready",
            Fault::FirstEndpointOnly,
            cluster_set_is_every_node,
        ),
        Row::new(
            13,
            "no-node-name-is-never-local",
            "an endpoint without nodeName gets traffic, but none that must stay on a node",
            "API Endpoint.nodeName; ServiceSpec.internalTrafficPolicy",
            Fault::EveryEndpointOn("n1"),
            no_node_name_is_never_local,
        ),
        Row::new(
            13,
            "large-service-uses-every-slice",
            "1500 endpoints in 15 slices have even shares; 7 slices deleted at once get nothing more",
            "API EndpointSlice.endpoints (at most 1000 each, no bound of a Service's slices)",
            Fault::DeletionsLost,
            large_service_uses_every_slice,
        )
        .cases(&["K68"]),
        Row::new(
            14,
            "not-ready-gets-nothing",
            "an endpoint that is not ready gets nothing while another is ready",
            "API EndpointConditions.ready; KEP-1669",
            Fault::ConditionsIgnored,
            not_ready_gets_nothing,
        ),
        Row::new(
            14,
            "terminating-gets-nothing-while-one-is-ready",
            "an endpoint that terminates gets nothing new while another is ready, on any frontend",
            "API EndpointConditions.terminating; KEP-1669",
            Fault::ConditionsIgnored,
            terminating_gets_nothing_while_one_is_ready,
        ),
        Row::new(
            14,
            "terminating-serves-when-none-is-ready",
            "with no ready endpoint those that serve while they terminate get the traffic, others none",
            "KEP-1669; kubernetes e2e \"should fallback to terminating endpoints when there are no \
             ready endpoints with internalTrafficPolicy=Cluster\"",
            Fault::TerminatingLost,
            terminating_serves_when_none_is_ready,
        ),
        Row::new(
            14,
            "fallback-ends-when-one-is-ready",
            "terminating endpoints get nothing new as soon as one is ready again",
            "KEP-1669",
            Fault::ChangesLost,
            fallback_ends_when_one_is_ready,
        ),
        Row::new(
            14,
            "local-fallback-inside",
            "with internalTrafficPolicy Local a node whose own endpoints all terminate uses those, \
             though another node has a ready one",
            "KEP-1669; kubernetes e2e \"should fallback to local terminating endpoints when there \
             are no ready endpoints with internalTrafficPolicy=Local\"",
            Fault::TerminatingLost,
            local_fallback_inside,
        ),
        Row::new(
            14,
            "local-fallback-outside",
            "with externalTrafficPolicy Local a node whose own endpoints all terminate uses those, \
             though another node has a ready one",
            "KEP-1669; kubernetes e2e \"should fallback to local terminating endpoints when there \
             are no ready endpoints with externalTrafficPolicy=Local\"",
            Fault::TerminatingLost,
            local_fallback_outside,
        )
        .cases(&["K20"]),
        Row::new(
            14,
            "cluster-set-has-no-local-fallback",
            "with externalTrafficPolicy Local the ClusterIP leads to the ready endpoint of another \
             node, though the node's own serve while they terminate",
            "KEP-1669",
            Fault::ConditionsIgnored,
            cluster_set_has_no_local_fallback,
        ),
    ]
}

fn cluster_set_is_every_node(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2, &s.world.b3]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.pod2, &s.host3] {
            s.only(client, transport, &s.cluster_ip(), &["b1", "b2", "b3"])?;
        }
    }
    Ok(())
}

fn no_node_name_is_never_local(s: &Stage<'_>) -> Result<()> {
    let slice = s.slice("web").endpoint(&s.world.b1).ready().without_node();
    s.apply(&s.service("web"))?;
    s.apply(&slice)?;
    for transport in Transport::BOTH {
        s.only(&s.pod2, transport, &s.cluster_ip(), &["b1"])?;
    }
    s.apply(&s.service("web").internal_local())?;
    s.all_unanswered(&[&s.pod1, &s.host1], &Transport::BOTH, &[s.cluster_ip()])
}

fn large_service_uses_every_slice(s: &Stage<'_>) -> Result<()> {
    const PARTS: u8 = 15;
    const REMOVED: u8 = 7;
    // The switch answers at all of these addresses, and at a port for each slice.
    let (all, wildcard): (_, IpAddr) = match s.family {
        Family::V4 => ("10.245.0.0/20", Ipv4Addr::UNSPECIFIED.into()),
        Family::V6 => ("fd00:245::/64", Ipv6Addr::UNSPECIFIED.into()),
    };
    s.world
        .switch()
        .ip(&format!("route replace local {all} dev lo"))?;
    let server = s.world.switch().beside(&s.space)?;
    for part in 0..PARTS {
        server.ask(&Request::Listen {
            name: format!("part-{part:02}"),
            transport: Transport::Tcp,
            address: wildcard,
            port: part_port(part),
        })?;
    }
    s.apply(&s.service("large"))?;
    let parts: Vec<Slice> = (0..PARTS).map(|part| large_slice(s, part)).collect();
    parts.iter().try_for_each(|part| s.apply(part))?;
    shares(s, 0..PARTS)?;
    let (removed, _) = parts.split_at(REMOVED.into());
    removed.iter().try_for_each(|part| s.delete(part))?;
    shares(s, REMOVED..PARTS)
}

/// Every part answers, and as often as any other.
fn shares(s: &Stage<'_>, parts: std::ops::Range<u8>) -> Result<()> {
    let names: Vec<String> = parts.map(|part| format!("part-{part:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let counts: Counts = s.dials(&s.host1, Transport::Tcp, &s.cluster_ip(), 1500)?;
    judged(counts.only_by(&names))?;
    // A share has 100 or more, so that this is five times its deviation.
    judged(counts.even_within(0.5)).context("a part of a slice is missing, or counts twice")
}

fn large_slice(s: &Stage<'_>, part: u8) -> Slice {
    let named = slice(&format!("large-{part}"), "large");
    let named = match s.family {
        Family::V4 => named,
        Family::V6 => named.v6(),
    };
    (1..=100).fold(named.port("http", part_port(part)), |slice, number| {
        let address = match s.family {
            Family::V4 => format!("10.245.{part}.{number}"),
            Family::V6 => format!("fd00:245::{:x}:{number:x}", part + 1),
        };
        slice.raw_endpoint(json!({ "addresses": [address] }))
    })
}

fn part_port(part: u8) -> u16 {
    8100 + u16::from(part)
}

fn not_ready_gets_nothing(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.ready("web", &[&s.world.b1])
            .endpoint(&s.world.b2)
            .not_ready()
            .endpoint(&s.world.b3)
            .dead(),
    )?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.pod2] {
            s.only(client, transport, &s.cluster_ip(), &["b1"])?;
        }
    }
    Ok(())
}

fn terminating_gets_nothing_while_one_is_ready(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(
        &s.ready("web", &[&s.world.b2])
            .endpoint(&s.world.b1)
            .terminating()
            .endpoint(&s.world.b3)
            .terminating(),
    )?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
            for frontend in s.external("n1") {
                s.only(client, transport, &frontend, &["b2"])?;
            }
        }
    }
    Ok(())
}

fn terminating_serves_when_none_is_ready(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .terminating()
            .endpoint(&s.world.b2)
            .terminating()
            .endpoint(&s.world.b3)
            .dead()
            .endpoint(&s.world.strangers[0])
            .not_ready(),
    )?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b1", "b2"])?;
            for frontend in s.external("n1") {
                s.only(client, transport, &frontend, &["b1", "b2"])?;
            }
        }
    }
    Ok(())
}

fn fallback_ends_when_one_is_ready(s: &Stage<'_>) -> Result<()> {
    let terminating = s.slice("web").endpoint(&s.world.b1).terminating();
    s.apply(&s.service("web"))?;
    s.apply(&terminating)?;
    for transport in Transport::BOTH {
        s.only(&s.pod2, transport, &s.cluster_ip(), &["b1"])?;
    }
    s.apply(&terminating.endpoint(&s.world.b2).ready())?;
    // Other clients: a UDP flow may stay with b1.
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
        }
    }
    Ok(())
}

/// n1's endpoint terminates, n2's is ready.
fn apart(s: &Stage<'_>) -> Slice {
    s.ready("web", &[&s.world.b2])
        .endpoint(&s.world.b1)
        .terminating()
}

fn local_fallback_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&apart(s))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b1"])?;
        }
        for client in [&s.pod2, &s.host2] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
        }
    }
    Ok(())
}

fn local_fallback_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&apart(s))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1"])?;
        }
        for frontend in s.external("n2") {
            s.only(&s.c2, transport, &frontend, &["b2"])?;
        }
    }
    Ok(())
}

fn cluster_set_has_no_local_fallback(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web").external_local())?;
    s.apply(&apart(s))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
        }
    }
    Ok(())
}
