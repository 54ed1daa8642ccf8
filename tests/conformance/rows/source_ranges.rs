//! `loadBalancerSourceRanges`: rule 22.

use crate::fault::Fault;
use crate::row::{Family, Row};
use crate::stage::Stage;
use anyhow::Result;
use lab::{Peer, Transport};

const FIELD: &str = "API ServiceSpec.loadBalancerSourceRanges";
const NOT_READ: Fault = Fault::FieldIgnored("loadBalancerSourceRanges");

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            22,
            "only-clients-in-a-range-are-served-inside",
            "a pod in a source range reaches the LoadBalancer IP, other pods and processes do not",
            "API ServiceSpec.loadBalancerSourceRanges; kubernetes e2e \"should only allow access \
             from service loadbalancer source ranges\"",
            NOT_READ,
            only_in_range_inside,
        ),
        Row::new(
            22,
            "only-clients-in-a-range-are-served-outside",
            "an outside client in a source range reaches the LoadBalancer IP, another gets no \
             answer",
            FIELD,
            NOT_READ,
            only_in_range_outside,
        ),
        Row::new(
            22,
            "source-ranges-hold-with-external-local-inside",
            "with externalTrafficPolicy Local pods and processes are held to the ranges as well",
            FIELD,
            NOT_READ,
            ranges_with_external_local,
        ),
        Row::new(
            22,
            "source-ranges-concern-load-balancer-ips-only-inside",
            "who is in no range still reaches the ClusterIP, the NodePort and the externalIP",
            FIELD,
            Fault::ExternalIpsAreLbIps,
            other_frontends_inside,
        ),
        Row::new(
            22,
            "source-ranges-concern-load-balancer-ips-only-outside",
            "an outside client in no range still reaches the NodePort and the externalIP",
            FIELD,
            Fault::ExternalIpsAreLbIps,
            other_frontends_outside,
        ),
        Row::new(
            22,
            "blanks-around-a-source-range-do-not-matter",
            "a range between blanks lets its clients in and keeps others out",
            "API ServiceSpec.loadBalancerSourceRanges (blanks are valid by its validation)",
            NOT_READ,
            blanks,
        ),
        Row::new(
            22,
            "source-ranges-of-the-other-family-are-no-filter",
            "ranges of the other family alone keep nobody out; beside one of this family only that \
             one counts",
            "kpng service-proxy.md (families are independent); API \
             ServiceSpec.loadBalancerSourceRanges",
            Fault::RangesOfNobody,
            other_family,
        ),
        Row::new(
            22,
            "a-range-of-everybody-is-no-filter",
            "a list with 0.0.0.0/0 or ::/0 lets everybody in",
            FIELD,
            Fault::RangesOfNobody,
            everybody,
        ),
        Row::new(
            22,
            "a-range-with-the-nodes-address-lets-the-node-in",
            "with the node's address in a range its processes reach the LoadBalancer IP, its pods \
             do not",
            "API ServiceSpec.loadBalancerSourceRanges; kubernetes#33586",
            NOT_READ,
            node_in_range,
        ),
        Row::new(
            22,
            "changed-source-ranges-hold-for-new-connections",
            "ranges that are added, changed and removed hold for new connections at once",
            FIELD,
            Fault::ChangesLost,
            changed_ranges,
        ),
    ]
}

/// The range of one peer.
fn range_of(s: &Stage<'_>, peer: &Peer) -> String {
    let length = match s.family {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    format!("{}/{length}", s.address_of(peer))
}

/// These clients reach the LoadBalancer IP.
fn served(s: &Stage<'_>, clients: &[&Peer]) -> Result<()> {
    for transport in Transport::BOTH {
        for client in clients {
            s.only(client, transport, &s.lb_ip(), &["b1"])?;
        }
    }
    Ok(())
}

fn only_in_range_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &s.load_balancer("web")
            .source_ranges(&[&range_of(s, &s.pod1)]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.pod1])?;
    s.all_unanswered(&[&s.pod2, &s.host1], &Transport::BOTH, &[s.lb_ip()])
}

fn only_in_range_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web").source_ranges(&[&range_of(s, &s.c1)]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.c1])?;
    s.all_silent(&[&s.c2], &Transport::BOTH, &[s.lb_ip()])
}

fn ranges_with_external_local(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &s.load_balancer("web")
            .external_local()
            .source_ranges(&[&range_of(s, &s.pod2)]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.pod2])?;
    s.all_unanswered(&[&s.pod1, &s.host1], &Transport::BOTH, &[s.lb_ip()])
}

fn other_frontends_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &s.full_service("web")
            .source_ranges(&[&range_of(s, &s.pod2)]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            for frontend in [s.cluster_ip(), s.node_port("n1"), s.external_ip()] {
                s.only(client, transport, &frontend, &["b1"])?;
            }
        }
    }
    Ok(())
}

fn other_frontends_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").source_ranges(&[&range_of(s, &s.c2)]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for transport in Transport::BOTH {
        for frontend in [s.node_port("n1"), s.external_ip()] {
            s.only(&s.c1, transport, &frontend, &["b1"])?;
        }
    }
    Ok(())
}

fn blanks(s: &Stage<'_>) -> Result<()> {
    let range = format!("  {} ", range_of(s, &s.pod1));
    s.apply(&s.load_balancer("web").source_ranges(&[&range]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.pod1])?;
    s.all_unanswered(&[&s.pod2], &Transport::BOTH, &[s.lb_ip()])
}

fn other_family(s: &Stage<'_>) -> Result<()> {
    let other = match s.family {
        Family::V4 => "2001:db8:99::/64",
        Family::V6 => "198.51.100.0/24",
    };
    let service = s.load_balancer("web");
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.apply(&service.clone().source_ranges(&[other]))?;
    served(s, &[&s.pod1, &s.pod2, &s.host1])?;
    s.apply(&service.source_ranges(&[other, &range_of(s, &s.pod1)]))?;
    served(s, &[&s.pod1])?;
    s.all_unanswered(&[&s.host2], &Transport::BOTH, &[s.lb_ip()])
}

fn everybody(s: &Stage<'_>) -> Result<()> {
    let all = match s.family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    s.apply(
        &s.load_balancer("web")
            .source_ranges(&[&range_of(s, &s.pod1), all]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.pod1, &s.pod2, &s.host1])
}

fn node_in_range(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &s.load_balancer("web")
            .source_ranges(&[&range_of(s, &s.host1)]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    served(s, &[&s.host1])?;
    s.all_unanswered(&[&s.pod1], &Transport::BOTH, &[s.lb_ip()])
}

fn changed_ranges(s: &Stage<'_>) -> Result<()> {
    let open = s.load_balancer("web");
    let connects = |client: &Peer| s.only(client, Transport::Tcp, &s.lb_ip(), &["b1"]);
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.apply(&open)?;
    connects(&s.pod1)?;
    connects(&s.pod2)?;
    for (inside, outside) in [(&s.pod1, &s.pod2), (&s.pod2, &s.pod1)] {
        s.apply(&open.clone().source_ranges(&[&range_of(s, inside)]))?;
        connects(inside)?;
        s.all_unanswered(&[outside], &[Transport::Tcp], &[s.lb_ip()])?;
    }
    s.apply(&open)?;
    connects(&s.pod1)?;
    connects(&s.pod2)
}
