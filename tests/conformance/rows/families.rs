//! The IP families of a Service: rule 6.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join};
use anyhow::Result;
use lab::manifests::service;
use lab::{BACKEND_PORT, Transport};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            6,
            "families-serve-by-themselves",
            "of a dual-stack Service the family with endpoints serves and the other refuses, from inside",
            "API ServiceSpec.clusterIPs, ipFamilies; EndpointSlice.addressType",
            Fault::OnlyFirstFamily,
            families_serve_by_themselves,
        )
        .cases(&["K40"]),
        Row::new(
            6,
            "families-serve-by-themselves-outside",
            "of a dual-stack Service the family with endpoints serves and the other refuses, from outside",
            "API ServiceSpec.clusterIPs, ipFamilies; EndpointSlice.addressType",
            Fault::OnlyFirstFamily,
            families_serve_by_themselves_outside,
        )
        .cases(&["K40"]),
    ]
}

/// A dual-stack LoadBalancer with endpoints in the row's family, which is its
/// second one.
fn half_served(s: &Stage<'_>) -> Result<()> {
    let other = s.family.other();
    s.apply(
        &service("web")
            .cluster_ip(&s.own.cluster_ip(other))
            .cluster_ip(&s.own.cluster_ip(s.family))
            .port("http", 80, BACKEND_PORT)
            .node_port(s.own.node_port())
            .udp_port("udp", 80, BACKEND_PORT)
            .node_port(s.own.node_port())
            .lb_ip(&s.own.lb_ip(other))
            .lb_ip(&s.own.lb_ip(s.family)),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))
}

fn families_serve_by_themselves(s: &Stage<'_>) -> Result<()> {
    half_served(s)?;
    let other = s.family.other();
    for to in [s.cluster_ip(), s.node_port("n1"), s.lb_ip()] {
        s.only(&s.pod1, Transport::Tcp, &to, &["b1"])?;
        s.only(&s.host1, Transport::Udp, &to, &["b1"])?;
    }
    s.refused(&s.pod1, Transport::Tcp, &s.other_cluster_ip())?;
    let lb_ip = join(&s.own.lb_ip(other), 80);
    s.refused(&s.pod1, Transport::Udp, &lb_ip)
}

fn families_serve_by_themselves_outside(s: &Stage<'_>) -> Result<()> {
    half_served(s)?;
    let other = s.family.other();
    for to in [s.node_port("n1"), s.lb_ip()] {
        for transport in Transport::BOTH {
            s.only(&s.c1, transport, &to, &["b1"])?;
        }
    }
    let lb_ip = join(&s.own.lb_ip(other), 80);
    s.refused(&s.c1, Transport::Tcp, &lb_ip)?;
    s.refused(&s.c1, Transport::Udp, &lb_ip)
}
