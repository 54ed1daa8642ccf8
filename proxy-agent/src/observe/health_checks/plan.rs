//! Which Service is told about on which port. Pure.

use crate::model::{Family, Kind, ObjectName, Reason, Warning};
use crate::resolve::HealthCheck;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// What a Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As [`crate::model::Service::created_s`].
    pub created_s: i64,
    /// The port, and what is told there.
    pub check: HealthCheck,
}

impl Claim {
    /// Whether the other differs in nothing but the endpoints.
    pub(super) fn stays(&self, other: &Self) -> bool {
        (self.created_s, self.check.port) == (other.created_s, other.check.port)
            && self.check.families == other.check.families
    }
}

/// A port in one family.
pub(super) type Site = (Family, u16);

/// What a load balancer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) service: ObjectName,
    pub(super) local_endpoints: usize,
}

impl Answer {
    /// Whether the load balancer may send clients of the Service to this node.
    pub(super) fn is_good(&self, proxy_healthy: bool) -> bool {
        self.local_endpoints > 0 && proxy_healthy
    }

    /// The body, with kube-proxy's fields (pkg/proxy/healthcheck/service_health.go).
    pub(super) fn body(&self, proxy_healthy: bool) -> Body<'_> {
        let ObjectName { namespace, name } = &self.service;
        Body {
            service: ServiceName { namespace, name },
            local_endpoints: self.local_endpoints,
            service_proxy_healthy: proxy_healthy,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Body<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Of Services that ask for one port the older has it, as with frontends; the
/// API server allows only one. The others come back as warnings.
pub(super) fn plan(
    claims: &BTreeMap<ObjectName, Claim>,
) -> (BTreeMap<Site, Answer>, BTreeSet<Warning>) {
    let mut by_age: Vec<(&ObjectName, &Claim)> = claims.iter().collect();
    by_age.sort_by_key(|(name, claim)| (claim.created_s, *name));
    let mut answers = BTreeMap::<Site, Answer>::new();
    let mut warnings = BTreeSet::new();
    for (service, Claim { check, .. }) in by_age {
        for (family, local_endpoints) in check.local_endpoints() {
            let site = (family, check.port);
            if let Some(Answer { service: owner, .. }) = answers.get(&site) {
                let why =
                    format!("belongs to Service {owner}, which is older, while that asks for it");
                warnings.insert(not_served(service, check.port, &why));
                continue;
            }
            let answer = Answer {
                service: service.clone(),
                local_endpoints,
            };
            answers.insert(site, answer);
        }
    }
    (answers, warnings)
}

/// Where to listen, on these addresses of the node.
pub(super) fn sockets<'a>(
    sites: impl Iterator<Item = &'a Site>,
    addresses: &BTreeSet<IpAddr>,
) -> BTreeSet<SocketAddr> {
    let on_addresses = |&(family, port): &Site| {
        let of_family = addresses
            .iter()
            .filter(move |it| Family::of(**it) == family);
        of_family.map(move |&address| SocketAddr::new(address, port))
    };
    sites.flat_map(on_addresses).collect()
}

/// All nodes meet the same, and share an Event: nothing of this node is named.
pub(super) fn not_served(service: &ObjectName, port: u16, why: &str) -> Warning {
    let message = format!("spec.healthCheckNodePort {port} {why}");
    let reason = Reason::HealthCheckPortTaken;
    Warning::new(Kind::Service, service, reason, message)
}
