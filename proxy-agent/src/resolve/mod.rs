//! Services, slices and a node to frontends and endpoint sets.
//!
//! Pure: no I/O, no clock, no globals. Every rule of the Service API about what
//! a client reaches, be it on this node or outside, is here and nowhere else. Three steps per
//! Service: [`endpoints`] joins the slices, [`topology`] decides the two sets,
//! [`frontends`] lists the addresses and the set that each uses.
//!
//! The design follows pkg/proxy of kubernetes/kubernetes; each file names the
//! one that it corresponds to.

mod address;
mod endpoints;
mod frontends;
mod health;
mod skip;
#[cfg(test)]
mod tests;
mod topology;

pub use health::HealthCheck;
pub use skip::{NoSkip, Skip};

use crate::model::{
    EndpointSlice, ForwardingMode, Kind, ObjectName, Reason, Service, ServicePort, Warning,
};
use ipnet::IpNet;
use proxy_common::{
    Address, Algorithm, EndpointSet, Forwarding, FrontendKind, Protocol, Scope, SourceFilter,
};
use std::net::IpAddr;
use std::sync::Arc;

/// The node on which traffic is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The name that slices call it by.
    pub name: Arc<str>,
    /// Its zone, if it has one.
    pub zone: Option<Arc<str>>,
    /// The addresses of its interfaces.
    pub addresses: Vec<IpAddr>,
}

/// What the operator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveOptions {
    /// Value of the label `service.kubernetes.io/service-proxy-name` that makes
    /// a Service ours besides those without the label.
    pub service_proxy_name: Option<Box<str>>,
    /// Whether `spec.externalIPs` are served (KEP-5707): whoever may write a
    /// Service can claim any address by them (CVE-2020-8554).
    pub external_ips: bool,
    /// Whether `spec.healthCheckNodePort`s are served.
    pub health_check_node_ports: bool,
    /// Frontends that are not served.
    pub skip: Vec<Skip>,
    /// How packets get to backends on other nodes, unless a Service says otherwise.
    pub forwarding: ForwardingMode,
}

/// A Service as this node serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedService {
    /// The Service's name.
    pub name: ObjectName,
    /// As [`Service::created_s`]: of two Services that claim one frontend the
    /// older wins, then the lesser name.
    pub created_s: i64,
    /// Its ClusterIPs that are served.
    pub cluster_ips: Vec<IpAddr>,
    /// Its ports in the order of the Service; empty if it is not ours.
    pub ports: Vec<ResolvedPort>,
    /// What load balancers are told about it, if they may ask.
    pub health_check: Option<HealthCheck>,
}

/// A service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPort {
    /// Name of the port, "" if it has none.
    pub name: Box<str>,
    /// Protocol of its frontends and endpoints.
    pub protocol: Protocol,
    /// Seconds of session affinity, 0 for none.
    pub affinity_timeout_s: u32,
    /// Whether the internal traffic policy is `Local`.
    pub internal_local: bool,
    /// Whether the external traffic policy is `Local`.
    pub external_local: bool,
    /// Clients that filtered frontends take.
    pub source_ranges: Vec<IpNet>,
    /// Each (scope, address, port) once.
    pub frontends: Vec<ResolvedFrontend>,
    /// Endpoints of both families that are ready or serving, sorted by address
    /// and port, each once. Those in no set get no new flows, but UDP flows that
    /// they have may stay (semantics 26).
    pub endpoints: Vec<ResolvedEndpoint>,
}

/// An address and port of a service port, for the clients of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedFrontend {
    /// The address; [`Address::ANY_V4`] or [`Address::ANY_V6`] for a NodePort.
    pub address: Address,
    /// The port.
    pub port: u16,
    /// Field that the address comes from.
    pub kind: FrontendKind,
    /// Where the clients stand.
    pub scope: Scope,
    /// Set that they get.
    pub set: EndpointSet,
    /// Clients that it takes.
    pub source_filter: SourceFilter,
    /// How backends are picked.
    pub algorithm: Algorithm,
    /// How packets get to backends on other nodes; SNAT for clients here, whose
    /// packets are not forwarded.
    pub forwarding: Forwarding,
}

/// An endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResolvedEndpoint {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// Its share beside the others of a set. In a set 0 stands only beside 0: then
    /// all have the same share.
    pub weight: u16,
    /// Whether it is on this node.
    pub local: bool,
    /// The Node that it is on, by name, be there such a Node or not.
    pub node: Option<Arc<str>>,
    /// Whether new flows under policy `Cluster` may use it.
    pub in_cluster_set: bool,
    /// Whether new flows under policy `Local` may use it.
    pub in_local_set: bool,
}

/// What this node does with a Service.
///
/// `slices` are those whose label names the Service, in any order.
/// `is_cluster_ip` tells whether an address is the ClusterIP of any Service.
pub fn resolve<'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    node: &NodeView,
    is_cluster_ip: impl Fn(IpAddr) -> bool,
    options: &ResolveOptions,
) -> (ResolvedService, Vec<Warning>) {
    let mut resolved = ResolvedService {
        name: service.name.clone(),
        created_s: service.created_s,
        cluster_ips: Vec::new(),
        ports: Vec::new(),
        health_check: None,
    };
    let mut warnings = Vec::new();
    if !service.is_ours(options.service_proxy_name.as_deref()) {
        return (resolved, warnings);
    }
    let addresses = frontends::Addresses::of(service, options, &mut warnings);
    let slices = endpoints::usable(service, slices, &is_cluster_ip, &mut warnings);
    warnings.extend(
        service
            .ports
            .iter()
            .filter_map(|port| unsupported(service, port)),
    );
    let mut health_check = HealthCheck::of(service, &addresses, options);
    let resolve_port = |port: &ServicePort| {
        let candidates = endpoints::join(port, &slices, node, &mut warnings);
        if let Some(check) = &mut health_check {
            check.count(&candidates);
        }
        ResolvedPort {
            name: port.name.clone(),
            protocol: port.protocol,
            affinity_timeout_s: service.affinity_timeout_s,
            internal_local: service.internal_local,
            external_local: service.external_local,
            source_ranges: service.source_ranges.to_vec(),
            frontends: addresses.frontends(service, port, node, options),
            endpoints: topology::assign(&candidates, node),
        }
    };
    resolved.ports = service.ports.iter().map(resolve_port).collect();
    resolved.health_check = health_check;
    // What else is asked of a ClusterIP that somebody else serves is not ours to refuse.
    let is_left_alone = |ip: &IpAddr| options.skip.iter().any(|skip| skip.address == *ip);
    resolved.cluster_ips = addresses.cluster_ips;
    resolved.cluster_ips.retain(|ip| !is_left_alone(ip));
    (resolved, warnings)
}

/// SCTP is in the maps, for those who look, and no program translates it yet.
fn unsupported(service: &Service, port: &ServicePort) -> Option<Warning> {
    if port.protocol != Protocol::Sctp {
        return None;
    }
    let message = format!(
        "port {:?}: SCTP is not served by this version, connections to it are left alone",
        port.name
    );
    let reason = Reason::UnsupportedProtocol;
    Some(Warning::new(Kind::Service, &service.name, reason, message))
}
