//! The rules, from the description alone.

use crate::world::{Client, Endpoint, World};
use proxy_common::decide::Request;
use proxy_common::{DropReason, EndpointSet, Protocol, SourceFilter};
use std::net::IpAddr;

/// What the model allows.
#[derive(Debug, PartialEq)]
pub(super) enum Allowed {
    NotOurs,
    Refused(DropReason),
    OneOf(Vec<Endpoint>),
}

/// The rules of semantics.md 7, 8, 13 to 18, 22, from the description alone.
pub(super) fn model(world: &World, request: &Request, client: &Client) -> Allowed {
    let is_host = client.is_host;
    let to = request.destination.to_ip();
    let asks = |port: u16, protocol: Protocol| port == request.port && protocol == request.protocol;
    let find = |wanted: Option<IpAddr>| {
        world.services.iter().find_map(|service| {
            let frontend = service
                .frontends
                .iter()
                .find(|it| it.0 == wanted && asks(it.1, it.2))?;
            Some((service, frontend.3))
        })
    };
    // A connect to the unspecified address is one to loopback (connect(2)).
    let is_own = to.is_loopback() || to.is_unspecified();
    let exact = if is_own { None } else { find(Some(to)) };
    let refused = |reason| Allowed::Refused(reason);
    let (service, set) = match exact {
        Some(found) => found,
        None if !is_own && world.cluster_ips.contains(&to) => {
            return refused(DropReason::PortNotInService);
        }
        None if (is_own && is_host) || (!is_own && world.node_addresses.contains(&to)) => {
            match find(None) {
                Some(found) => found,
                None => return Allowed::NotOurs,
            }
        }
        None if world.service_cidr == Some(to) => return refused(DropReason::UnassignedAddress),
        None => return Allowed::NotOurs,
    };
    let is_taken = match service.source_filter {
        SourceFilter::Anyone => true,
        SourceFilter::RangesAndHost if is_host => true,
        SourceFilter::Ranges | SourceFilter::RangesAndHost => {
            let same_family = |it: &&IpAddr| it.is_ipv4() == to.is_ipv4();
            match client.addresses.iter().find(same_family) {
                None => return Allowed::Refused(DropReason::SourceUnknown),
                Some(address) => service.allowed.contains(address),
            }
        }
    };
    if !is_taken {
        return Allowed::Refused(DropReason::SourceNotAllowed);
    }
    let family: Vec<Endpoint> = service
        .endpoints
        .iter()
        .filter(|it| it.address.is_ipv4() == to.is_ipv4())
        .copied()
        .collect();
    let usable: Vec<Endpoint> = family
        .iter()
        .filter(|it| {
            if set == EndpointSet::Local {
                it.local
            } else {
                it.cluster
            }
        })
        .copied()
        .collect();
    if !usable.is_empty() {
        return Allowed::OneOf(usable);
    }
    let elsewhere = set == EndpointSet::Local && family.iter().any(|it| it.cluster);
    Allowed::Refused(if elsewhere {
        DropReason::NoLocalEndpoint
    } else {
        DropReason::NoEndpoint
    })
}
