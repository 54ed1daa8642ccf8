//! What a load balancer is told when it asks whether this node serves a Service.
//!
//! Corresponds to `HealthCheckNodePorts` and `LocalReadyEndpoints` in pkg/proxy of
//! kubernetes/kubernetes.

use super::ResolveOptions;
use super::endpoints::Candidate;
use super::frontends::Addresses;
use crate::model::{Family, Service, ServiceType};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A `spec.healthCheckNodePort` that this node serves, and what it tells there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// The Service's families: on addresses of each the port is open.
    pub families: Vec<Family>,
    /// Addresses of the ready endpoints on this node. One that has several ports
    /// counts once; one that is terminating does not count, although clients
    /// may still be sent to it (KEP-1669).
    pub endpoints: BTreeSet<IpAddr>,
}

impl HealthCheck {
    /// A health check port is there for load balancers that must find out which
    /// nodes have endpoints: under `externalTrafficPolicy: Local` alone
    /// (k8s.io/component-helpers/service, `NeedsHealthCheck`). The other ports
    /// of the node, nodePorts, may be missing.
    pub(super) fn of(
        service: &Service,
        addresses: &Addresses,
        options: &ResolveOptions,
    ) -> Option<Self> {
        let asked_for = service.kind == ServiceType::LoadBalancer
            && service.external_local
            && service.health_check_node_port != 0;
        (asked_for && options.health_check_node_ports).then(|| Self {
            port: service.health_check_node_port,
            families: addresses.node_port_families.clone(),
            endpoints: BTreeSet::new(),
        })
    }

    /// Takes in the endpoints of one more port.
    pub(super) fn count(&mut self, candidates: &[Candidate<'_>]) {
        let ready = candidates.iter().filter(|it| it.local && it.ready);
        self.endpoints.extend(ready.map(|it| it.address));
    }

    /// Each of the Service's families with the number of its ready endpoints on
    /// this node (semantics 6).
    pub fn local_endpoints(&self) -> impl Iterator<Item = (Family, usize)> + '_ {
        self.families.iter().map(|&family| {
            let of_family = |it: &&IpAddr| Family::of(**it) == family;
            (family, self.endpoints.iter().filter(of_family).count())
        })
    }
}
