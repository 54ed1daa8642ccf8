//! The endpoints of a service port: slices joined, doubles removed.
//!
//! Corresponds to pkg/proxy/endpointslicecache.go of kubernetes/kubernetes.

use super::{NodeView, address};
use crate::model::{
    Endpoint, EndpointSlice, Family, Hints, Kind, Reason, Service, ServicePort, WEIGHT_DEFAULT,
    Warning,
};
use std::net::IpAddr;
use std::sync::Arc;

/// A slice and those of its endpoints that may be used as backends.
pub(super) struct UsableSlice<'a> {
    slice: &'a EndpointSlice,
    /// Each with its weight.
    endpoints: Vec<(&'a Endpoint, u16)>,
}

/// An endpoint of a service port before the sets are decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) local: bool,
    pub(super) node: Option<&'a Arc<str>>,
    pub(super) ready: bool,
    /// Serving and terminating: used while nothing is ready (KEP-1669).
    pub(super) draining: bool,
    serving: bool,
    pub(super) weight: u16,
    pub(super) hints: Option<&'a Hints>,
}

/// Leaves out the endpoints that cannot be backends (semantics 5), once per
/// Service however many ports it has.
pub(super) fn usable<'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    is_cluster_ip: &impl Fn(IpAddr) -> bool,
    warnings: &mut Vec<Warning>,
) -> Vec<UsableSlice<'a>> {
    let mut usable: Vec<_> = slices
        .into_iter()
        .map(|slice| {
            let mut keep =
                |endpoint: &&Endpoint| match unusable(slice, endpoint.address, is_cluster_ip) {
                    None => true,
                    Some(why) => {
                        warnings.push(rejected(slice, endpoint.address, why));
                        false
                    }
                };
            let weighed = weighed(service, slice);
            UsableSlice {
                slice,
                endpoints: weighed.filter(|(it, _)| keep(it)).collect(),
            }
        })
        .collect();
    // Warnings must not depend on the order in which slices arrived.
    usable.sort_by(|a, b| a.slice.name.cmp(&b.slice.name));
    warnings.sort();
    usable
}

/// The endpoints of a slice with their weights: by the slice's own annotation if
/// that names them, else by the Service's.
fn weighed<'a>(
    service: &Service,
    slice: &'a EndpointSlice,
) -> impl Iterator<Item = (&'a Endpoint, u16)> {
    let weight = |(endpoint, name): (&'a Endpoint, &str)| {
        let own = slice.weights.of(endpoint.address, name);
        let weight = own.or_else(|| service.weights.of(endpoint.address, name));
        (endpoint, weight.unwrap_or(WEIGHT_DEFAULT))
    };
    slice.endpoints.iter().zip(slice.target_names()).map(weight)
}

fn unusable(
    slice: &EndpointSlice,
    endpoint: IpAddr,
    is_cluster_ip: &impl Fn(IpAddr) -> bool,
) -> Option<&'static str> {
    if Family::of(endpoint) != slice.family {
        return Some("not of the family that addressType names");
    }
    address::unusable(endpoint).or_else(|| {
        // One translation per connection: a backend that is a frontend again
        // would need a second one, and could form a loop.
        is_cluster_ip(endpoint).then_some("the ClusterIP of a Service")
    })
}

fn rejected(slice: &EndpointSlice, endpoint: IpAddr, why: &str) -> Warning {
    let message = format!(
        "endpoint address {endpoint} is {why}, the endpoint is not used; give the address of a pod, node or outside server"
    );
    Warning::new(
        Kind::EndpointSlice,
        &slice.name,
        Reason::UnusableEndpoint,
        message,
    )
}

/// The endpoints of one port, sorted by address and port, each once; those that
/// are neither ready nor serving are left out.
///
/// Slices join by port name and protocol (semantics 3). Of doubles the usable
/// copy counts (the API lets an endpoint be in two slices while it moves), and
/// if any is on this node, the endpoint is.
pub(super) fn join<'a>(
    port: &ServicePort,
    slices: &[UsableSlice<'a>],
    node: &NodeView,
    warnings: &mut Vec<Warning>,
) -> Vec<Candidate<'a>> {
    let mut all = Vec::with_capacity(slices.iter().map(|it| it.endpoints.len()).sum());
    for UsableSlice { slice, endpoints } in slices {
        for slice_port in slice.ports.iter().filter(|it| *it.name == *port.name) {
            if slice_port.protocol != port.protocol {
                warnings.push(mismatch(slice, port, slice_port.protocol.as_str()));
                continue;
            }
            all.extend(endpoints.iter().map(|(endpoint, weight)| {
                Candidate::new(endpoint, *weight, slice_port.port, node)
            }));
        }
    }
    all.sort_unstable_by(|a, b| {
        (a.address, a.port)
            .cmp(&(b.address, b.port))
            .then(b.rank().cmp(&a.rank()))
    });
    all.dedup_by(|later, first| {
        let same = (later.address, later.port) == (first.address, first.port);
        if same && later.local && !first.local {
            (first.local, first.node) = (true, later.node);
        }
        same
    });
    all.retain(|it| it.ready || it.serving);
    all
}

type Rank<'a> = (
    bool,
    bool,
    bool,
    Option<&'a Hints>,
    u16,
    Option<&'a Arc<str>>,
);

impl<'a> Candidate<'a> {
    fn new(endpoint: &'a Endpoint, weight: u16, port: u16, node: &NodeView) -> Self {
        Self {
            address: endpoint.address,
            port,
            local: endpoint.node.as_deref() == Some(&*node.name),
            node: endpoint.node.as_ref(),
            ready: endpoint.ready,
            draining: endpoint.serving && endpoint.terminating,
            serving: endpoint.serving,
            weight,
            hints: endpoint.hints.as_deref(),
        }
    }

    /// Which of two copies counts: the greater. Hints, weights and nodes only make
    /// the choice between equal ones independent of the slices' order.
    fn rank(&self) -> Rank<'a> {
        let Self {
            ready,
            draining,
            serving,
            hints,
            weight,
            node,
            ..
        } = *self;
        (ready, draining, serving, hints, weight, node)
    }
}

fn mismatch(slice: &EndpointSlice, port: &ServicePort, protocol: &str) -> Warning {
    let message = format!(
        "port {:?} is {protocol} here and {} in the Service, the slice is not used for it; correct the slice",
        port.name,
        port.protocol.as_str()
    );
    Warning::new(
        Kind::EndpointSlice,
        &slice.name,
        Reason::ProtocolMismatch,
        message,
    )
}
