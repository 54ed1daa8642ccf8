//! Table and property tests of the rules.
//!
//! Endpoints are written as `flags@node[hints]`, numbered by their place from
//! address .1 on: flags `R` ready, `T` serving and terminating, `D` terminating
//! and no longer serving, `N` not ready, `S` serving only, `A` ready and
//! terminating (publishNotReadyAddresses); hints are zones, or nodes after a
//! colon: `R@n2[za,zb:n1]`. The node is n1 in zone za unless a row says otherwise.

mod frontends;
mod health;
mod join;
mod model;
mod sets;
mod weights;

use super::*;
use crate::model::{Endpoint, Family, Hints, ServicePort, ServiceType, SlicePort, Weights};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

pub(super) fn node() -> NodeView {
    NodeView {
        addresses: vec![IpAddr::from([192, 0, 2, 11])],
        name: "n1".into(),
        zone: Some("za".into()),
    }
}

pub(super) fn options() -> ResolveOptions {
    ResolveOptions {
        skip: Vec::new(),
        forwarding: ForwardingMode::Snat,
        service_proxy_name: None,
        external_ips: true,
        health_check_node_ports: true,
    }
}

/// One ClusterIP of each family, one TCP port 80 named "http".
pub(super) fn service() -> Service {
    Service {
        source_ranges: Box::default(),
        name: ObjectName::new("shop", "web"),
        created_s: 7,
        kind: ServiceType::ClusterIp,
        headless: false,
        proxy_name: None,
        cluster_ips: [ip("10.96.0.20"), ip("fd00:96::20")].into(),
        ip_families: Box::default(),
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        affinity_timeout_s: 0,
        internal_local: false,
        external_local: false,
        health_check_node_port: 0,
        algorithm: Algorithm::default(),
        forwarding: None,
        weights: Weights::default(),
        ports: [port("http", Protocol::Tcp, 80, 0)].into(),
    }
}

pub(super) fn port(name: &str, protocol: Protocol, port: u16, node_port: u16) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port,
        node_port,
    }
}

/// `flags@node[zones:nodes]`.
pub(super) fn endpoint(address: IpAddr, text: &str) -> Endpoint {
    let (rest, hints) = text
        .strip_suffix(']')
        .and_then(|it| it.split_once('['))
        .unwrap_or((text, ""));
    let (flags, node) = rest.split_once('@').unwrap_or((rest, ""));
    let (zones, nodes) = hints.split_once(':').unwrap_or((hints, ""));
    let names = |list: &str| {
        list.split(',')
            .filter(|it| !it.is_empty())
            .map(Arc::from)
            .collect::<Box<[Arc<str>]>>()
    };
    let hints = Hints {
        nodes: names(nodes),
        zones: names(zones),
    };
    let (ready, serving, terminating) = match flags {
        "R" => (true, true, false),
        "A" => (true, true, true),
        "T" => (false, true, true),
        "S" => (false, true, false),
        "D" => (false, false, true),
        "N" => (false, false, false),
        other => panic!("flags {other:?}"),
    };
    Endpoint {
        address,
        ready,
        serving,
        terminating,
        node: Some(node).filter(|it| !it.is_empty()).map(Arc::from),
        hints: (hints != Hints::default()).then(|| Box::new(hints)),
    }
}

pub(super) fn slice(
    name: &str,
    port: (&str, Protocol, u16),
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    EndpointSlice {
        triggered_ms: None,
        name: ObjectName::new("shop", name),
        service: Some(ObjectName::new("shop", "web")),
        family: endpoints
            .first()
            .map_or(Family::V4, |it| Family::of(it.address)),
        ports: [SlicePort {
            name: port.0.into(),
            protocol: port.1,
            port: port.2,
        }]
        .into(),
        endpoints: endpoints.into(),
        targets: "".into(),
        weights: Weights::default(),
    }
}

/// The endpoints of the first port, and the reasons of the warnings.
pub(super) fn endpoints_of(
    slices: &[EndpointSlice],
    node: &NodeView,
) -> (Vec<ResolvedEndpoint>, Vec<crate::model::Reason>) {
    let is_cluster_ip =
        |address: IpAddr| address == ip("10.96.0.20") || address == ip("fd00:96::99");
    let (mut resolved, warnings) = resolve(&service(), slices, node, is_cluster_ip, &options());
    (
        resolved.ports.remove(0).endpoints,
        warnings.into_iter().map(|it| it.reason).collect(),
    )
}
