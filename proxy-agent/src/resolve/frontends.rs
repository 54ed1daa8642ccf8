//! The addresses of a Service and the endpoint set behind each.
//!
//! Corresponds to pkg/proxy/serviceport.go of kubernetes/kubernetes.

use super::{NodeView, ResolveOptions, ResolvedFrontend, Skip, address};
use crate::model::{Family, Kind, Reason, Service, ServicePort, ServiceType, Warning};
use proxy_common::{Address, EndpointSet, Forwarding, FrontendKind, Scope, SourceFilter};
use std::net::IpAddr;

/// The addresses that all ports of a Service share.
pub(super) struct Addresses {
    pub(super) cluster_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    /// Families in which NodePorts are open.
    pub(super) node_port_families: Vec<Family>,
}

impl Addresses {
    /// The Service's addresses that can be used.
    ///
    /// A load balancer's address or externalIP of a family that the Service
    /// does not have is left alone: a load balancer may translate between
    /// families itself (serviceport.go, `newBaseServiceInfo`). The type decides
    /// which fields count, as in the API server, which clears the others.
    pub(super) fn of(
        service: &Service,
        options: &ResolveOptions,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let stated = |family: &Family| {
            service
                .cluster_ips
                .iter()
                .any(|&it| Family::of(it) == *family)
                || service.ip_families.contains(family)
        };
        let mut families: Vec<Family> = Family::ALL.into_iter().filter(stated).collect();
        if families.is_empty() {
            // Only a manifest can leave both fields open.
            families = Family::ALL.to_vec();
        }
        let mut pick = |field: &str, addresses: &[IpAddr], wanted: bool| -> Vec<IpAddr> {
            let ours = addresses
                .iter()
                .copied()
                .filter(|&it| wanted && families.contains(&Family::of(it)));
            ours.filter(|&it| usable(service, field, it, warnings))
                .collect()
        };
        let balanced = service.kind == ServiceType::LoadBalancer;
        Self {
            cluster_ips: pick("spec.clusterIPs", &service.cluster_ips, true),
            load_balancer_ips: pick(
                "status.loadBalancer.ingress[].ip",
                &service.load_balancer_ips,
                balanced,
            ),
            external_ips: pick(
                "spec.externalIPs",
                &service.external_ips,
                options.external_ips,
            ),
            node_port_families: match service.kind {
                ServiceType::NodePort | ServiceType::LoadBalancer => families,
                ServiceType::ClusterIp | ServiceType::ExternalName => Vec::new(),
            },
        }
    }

    /// The frontends of one port in both scopes, but for those to skip: what
    /// somebody else serves on this node is left to them, whoever the client is.
    pub(super) fn frontends(
        &self,
        service: &Service,
        port: &ServicePort,
        node: &NodeView,
        options: &ResolveOptions,
    ) -> Vec<ResolvedFrontend> {
        let mut sites = self.sites(port);
        sites.retain(|&(address, number, _)| {
            let address = address.to_ip();
            let is_covered = |it: &Skip| it.covers(address, number, port.protocol);
            !options.skip.iter().any(is_covered)
        });
        let mode = service.forwarding.unwrap_or(options.forwarding);
        let scopes = [Scope::Internal, Scope::External].into_iter();
        let frontend = |scope, (address, number, kind)| ResolvedFrontend {
            address,
            port: number,
            kind,
            scope,
            set: set(service, kind, scope),
            source_filter: source_filter(service, kind, scope, address, node),
            algorithm: service.algorithm,
            forwarding: match scope {
                Scope::Internal => Forwarding::Snat,
                Scope::External => mode.of(port.protocol),
            },
        };
        scopes
            .flat_map(|scope| sites.iter().map(move |&site| frontend(scope, site)))
            .collect()
    }

    /// Where a port is reachable. An address that several fields have counts
    /// once, as the first of ClusterIP, load balancer, externalIP.
    fn sites(&self, port: &ServicePort) -> Vec<Site> {
        let mut sites = Vec::<Site>::new();
        let fields = [
            (FrontendKind::ClusterIp, &self.cluster_ips),
            (FrontendKind::LoadBalancer, &self.load_balancer_ips),
            (FrontendKind::ExternalIp, &self.external_ips),
        ];
        for (kind, addresses) in fields {
            for &address in addresses {
                let address = Address::from(address);
                if !sites.iter().any(|site| site.0 == address) {
                    sites.push((address, port.port, kind));
                }
            }
        }
        // A nodePort of 0 is none (allocateLoadBalancerNodePorts: false).
        if port.node_port != 0 {
            sites.extend(self.node_port_families.iter().map(|family| {
                let address = match family {
                    Family::V4 => Address::ANY_V4,
                    Family::V6 => Address::ANY_V6,
                };
                (address, port.node_port, FrontendKind::NodePort)
            }));
        }
        sites
    }
}

/// Address, port and the field that the address comes from.
type Site = (Address, u16, FrontendKind);

/// The set that clients get (semantics 16, 17, 23).
///
/// `spec.internalTrafficPolicy` binds the ClusterIP and nothing else (KEP-2086),
/// also for clients outside that route to it: kube-proxy sends them through the
/// same chain (nftables/proxier.go, `internalTrafficChain`).
/// `spec.externalTrafficPolicy` binds the other addresses. To clients on this
/// node those of a load balancer and externalIPs count as internal to the cluster,
/// so that policy `Local` does not bind them (the chain `external-…` of the same
/// file goes to the cluster's endpoints for them first).
fn set(service: &Service, kind: FrontendKind, scope: Scope) -> EndpointSet {
    let local = match (kind, scope) {
        (FrontendKind::ClusterIp, Scope::Internal | Scope::External) => service.internal_local,
        (FrontendKind::NodePort, Scope::Internal | Scope::External) => service.external_local,
        (FrontendKind::LoadBalancer | FrontendKind::ExternalIp, Scope::Internal) => false,
        (FrontendKind::LoadBalancer | FrontendKind::ExternalIp, Scope::External) => {
            service.external_local
        }
    };
    if local {
        EndpointSet::Local
    } else {
        EndpointSet::Cluster
    }
}

/// Which clients an address takes (semantics 22; serviceport.go and the chains of
/// nftables/proxier.go): `spec.loadBalancerSourceRanges` bind load balancer
/// addresses only. Those of the other family do not count: a list of nothing else
/// is no filter here. A packet from outside is never the node's own.
fn source_filter(
    service: &Service,
    kind: FrontendKind,
    scope: Scope,
    address: Address,
    node: &NodeView,
) -> SourceFilter {
    let v4 = address.is_v4();
    let mut ranges = service
        .source_ranges
        .iter()
        .filter(|range| range.addr().is_ipv4() == v4)
        .peekable();
    if kind != FrontendKind::LoadBalancer || ranges.peek().is_none() {
        return SourceFilter::Anyone;
    }
    let (mut all, mut node_is_in) = (false, false);
    for range in ranges {
        all |= range.prefix_len() == 0;
        node_is_in |= node.addresses.iter().any(|ip| range.contains(ip));
    }
    match (all, node_is_in, scope) {
        (true, ..) => SourceFilter::Anyone,
        (false, true, Scope::Internal) => SourceFilter::RangesAndHost,
        (false, true, Scope::External) | (false, false, _) => SourceFilter::Ranges,
    }
}

/// A frontend on loopback or the like would take traffic that is none of the
/// Service's business.
fn usable(service: &Service, field: &str, address: IpAddr, warnings: &mut Vec<Warning>) -> bool {
    let Some(why) = address::unusable(address) else {
        return true;
    };
    let message = format!(
        "{field} {address} is {why} and is not served; give a unicast address that clients can route"
    );
    warnings.push(Warning::new(
        Kind::Service,
        &service.name,
        Reason::UnusableFrontend,
        message,
    ));
    false
}
