//! `v1/Service`.

use crate::model::{
    Family, ForwardingMode, Interner, Kind, ObjectName, Reason, Warning, Weights, annotation,
    forwarding, ip, meta,
};
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proxy_common::{Algorithm, Protocol};
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;

/// Label of Services and slices that have no frontends (core/v1, `IsHeadlessService`).
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// Label that gives a Service to another proxy (core/v1, `LabelServiceProxyName`).
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const AFFINITY_DEFAULT_S: i64 = 10_800;

/// Longest affinity that the API allows: one day.
const AFFINITY_MAX_S: i64 = 86_400;

/// `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also on the addresses of a load balancer.
    LoadBalancer,
    /// A DNS alias, nothing for a proxy.
    ExternalName,
}

/// What we keep of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// The Service's name.
    pub name: ObjectName,
    /// Seconds of `creationTimestamp` since the epoch, `i64::MAX` without one;
    /// the oldest Service wins an address that two claim.
    pub created_s: i64,
    /// `spec.type`.
    pub kind: ServiceType,
    /// Whether it has no frontends on purpose: `clusterIP: None`, or the label.
    pub headless: bool,
    /// The proxy that shall serve it, from the label.
    pub proxy_name: Option<Box<str>>,
    /// `spec.clusterIPs`, or `spec.clusterIP`; empty for a headless one.
    pub cluster_ips: Box<[IpAddr]>,
    /// Families that `spec.ipFamilies` names.
    pub ip_families: Box<[Family]>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` VIP (KEP-1860).
    pub load_balancer_ips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Box<[IpNet]>,
    /// Seconds of session affinity, 0 for none.
    pub affinity_timeout_s: u32,
    /// Whether `spec.internalTrafficPolicy` is `Local` (KEP-2086).
    pub internal_local: bool,
    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// `spec.healthCheckNodePort`, 0 for none.
    pub health_check_node_port: u16,
    /// How backends are picked.
    pub algorithm: Algorithm,
    /// How packets get to backends on other nodes; `None` if the node decides.
    pub forwarding: Option<ForwardingMode>,
    /// The shares of its endpoints.
    pub weights: Weights,
    /// `spec.ports`, each name once.
    pub ports: Box<[ServicePort]>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// `name`, "" if there is none.
    pub name: Box<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`, not 0.
    pub port: u16,
    /// `nodePort`, 0 for none.
    pub node_port: u16,
}

impl Service {
    /// Whether we serve this Service, under the name that the agent was given
    /// (semantics 1; pkg/proxy/util `ShouldSkipService` and the label selector
    /// of cmd/kube-proxy).
    pub fn is_ours(&self, own_proxy_name: Option<&str>) -> bool {
        self.kind != ServiceType::ExternalName
            && !self.headless
            && self
                .proxy_name
                .as_deref()
                .is_none_or(|name| Some(name) == own_proxy_name)
    }
}

/// What we read of a Service.
#[derive(Clone, Debug, Deserialize)]
pub struct RawService {
    /// `metadata`.
    #[serde(deserialize_with = "meta::narrow")]
    pub metadata: ObjectMeta,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

meta::resource!(
    RawService,
    k8s_openapi::api::core::v1::Service,
    k8s_openapi::NamespaceResourceScope
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    ip_families: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    load_balancer_source_ranges: Option<Vec<String>>,
    session_affinity: Option<String>,
    session_affinity_config: Option<RawAffinity>,
    internal_traffic_policy: Option<String>,
    external_traffic_policy: Option<String>,
    health_check_node_port: Option<i64>,
    ports: Option<Vec<RawPort>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<i64>,
    node_port: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawAffinity {
    #[serde(rename = "clientIP")]
    client_ip: Option<RawClientIp>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClientIp {
    timeout_seconds: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    load_balancer: Option<RawLoadBalancer>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawLoadBalancer {
    ingress: Option<Vec<RawIngress>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawIngress {
    ip: Option<String>,
    ip_mode: Option<String>,
}

impl RawService {
    /// The Service's name; `None` if it has none.
    pub fn object_name(&self, interner: &mut Interner) -> Option<ObjectName> {
        meta::namespaced_name(&self.metadata, interner)
    }

    /// The Service as we keep it.
    pub fn convert(&self, name: ObjectName) -> (Service, Vec<Warning>) {
        let mut warnings = Vec::new();
        let mut warn =
            |reason, message| warnings.push(Warning::new(Kind::Service, &name, reason, message));
        let nothing = RawSpec::default();
        let spec = self.spec.as_ref().unwrap_or(&nothing);
        let cluster_ips = spec.cluster_ips();
        let no_cluster_ip = cluster_ips.contains(&"None");
        let kind = spec.kind(&mut warn);
        let service = Service {
            created_s: meta::created_s(&self.metadata),
            kind,
            headless: no_cluster_ip || meta::has_label(&self.metadata, HEADLESS),
            proxy_name: self
                .metadata
                .labels
                .as_ref()
                .and_then(|it| it.get(PROXY_NAME))
                .map(|it| it.as_str().into()),
            cluster_ips: if no_cluster_ip || kind == ServiceType::ExternalName {
                Box::default()
            } else {
                addresses(cluster_ips.into_iter(), "spec.clusterIPs", &mut warn)
            },
            ip_families: spec
                .ip_families
                .iter()
                .flatten()
                .filter_map(|it| Family::parse(it))
                .collect(),
            external_ips: addresses(
                spec.external_ips.iter().flatten().map(String::as_str),
                "spec.externalIPs",
                &mut warn,
            ),
            load_balancer_ips: addresses(
                self.ingress_ips(),
                "status.loadBalancer.ingress[].ip",
                &mut warn,
            ),
            source_ranges: spec.source_ranges(&mut warn),
            affinity_timeout_s: spec.affinity_timeout_s(&mut warn),
            internal_local: is_local(
                spec.internal_traffic_policy.as_deref(),
                "internalTrafficPolicy",
                &mut warn,
            ),
            external_local: is_local(
                spec.external_traffic_policy.as_deref(),
                "externalTrafficPolicy",
                &mut warn,
            ),
            health_check_node_port: node_port(
                spec.health_check_node_port,
                format_args!("spec.healthCheckNodePort"),
                &mut warn,
            ),
            algorithm: annotation::algorithm(&self.metadata, &mut warn),
            forwarding: forwarding::forwarding(&self.metadata, &mut warn),
            weights: Weights::of_object(&self.metadata, &mut warn),
            ports: spec.ports(&mut warn),
            name: name.clone(),
        };
        (service, warnings)
    }

    /// Addresses that nodes shall serve; with `ipMode: Proxy` they belong to the
    /// load balancer alone, and an entry may have a hostname only (semantics 9).
    fn ingress_ips(&self) -> impl Iterator<Item = &str> {
        let ingress = self
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        ingress
            .into_iter()
            .flatten()
            .filter(|entry| entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
            .filter_map(|entry| entry.ip.as_deref())
    }
}

impl RawSpec {
    fn kind(&self, warn: &mut impl FnMut(Reason, String)) -> ServiceType {
        match self.kind.as_deref() {
            None | Some("" | "ClusterIP") => ServiceType::ClusterIp,
            Some("NodePort") => ServiceType::NodePort,
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("ExternalName") => ServiceType::ExternalName,
            Some(other) => {
                warn(
                    Reason::UnknownValue,
                    format!(
                        "spec.type {other:?} is unknown, ClusterIP is assumed; set ClusterIP, NodePort, LoadBalancer or ExternalName"
                    ),
                );
                ServiceType::ClusterIp
            }
        }
    }

    fn cluster_ips(&self) -> Vec<&str> {
        let list: Vec<&str> = self
            .cluster_ips
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        if list.is_empty() {
            self.cluster_ip.iter().map(String::as_str).collect()
        } else {
            list
        }
    }

    /// Blanks around a range are allowed (serviceport.go). A range that cannot be
    /// read lets nobody in, and still makes the list a filter.
    fn source_ranges(&self, warn: &mut impl FnMut(Reason, String)) -> Box<[IpNet]> {
        let mut ranges = Vec::new();
        for text in self.load_balancer_source_ranges.iter().flatten() {
            match text.trim().parse::<IpNet>() {
                Ok(range) => ranges.push(range.trunc()),
                Err(_) => {
                    // In their place, addresses that no client has.
                    let nobody = [[0xff; 4].into(), [0xff; 16].into()];
                    ranges.extend(nobody.map(|ip: IpAddr| IpNet::from(ip)));
                    warn(
                        Reason::InvalidAddress,
                        format!(
                            "spec.loadBalancerSourceRanges {text:?} is no CIDR and lets nobody in; write one such as 192.0.2.0/24"
                        ),
                    );
                }
            }
        }
        ranges.into()
    }

    fn affinity_timeout_s(&self, warn: &mut impl FnMut(Reason, String)) -> u32 {
        match self.session_affinity.as_deref() {
            Some("ClientIP") => {}
            None | Some("" | "None") => return 0,
            Some(other) => {
                warn(
                    Reason::UnknownValue,
                    format!(
                        "spec.sessionAffinity {other:?} is unknown, None is assumed; set ClientIP or None"
                    ),
                );
                return 0;
            }
        }
        let config = self
            .session_affinity_config
            .as_ref()
            .and_then(|config| config.client_ip.as_ref());
        let asked = config
            .and_then(|config| config.timeout_seconds)
            .unwrap_or(AFFINITY_DEFAULT_S);
        let used = asked.clamp(1, AFFINITY_MAX_S);
        if used != asked {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let message = format!(
                "{field} {asked} is not in 1 to {AFFINITY_MAX_S}, {used} is used; correct it"
            );
            warn(Reason::InvalidTimeout, message);
        }
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// The ports; the name identifies a port (semantics 2), so a second one of
    /// the same name, which the API server refuses, is left out.
    fn ports(&self, warn: &mut impl FnMut(Reason, String)) -> Box<[ServicePort]> {
        let mut ports = Vec::<ServicePort>::new();
        for raw in self.ports.iter().flatten() {
            let Some(port) = raw.convert(warn) else {
                continue;
            };
            if ports.iter().any(|known| known.name == port.name) {
                let message = format!(
                    "spec.ports[{:?}] is there twice, the second one is not used; rename it",
                    port.name
                );
                warn(Reason::DuplicatePort, message);
                continue;
            }
            ports.push(port);
        }
        ports.into()
    }
}

impl RawPort {
    fn convert(&self, warn: &mut impl FnMut(Reason, String)) -> Option<ServicePort> {
        let name = self.name.as_deref().unwrap_or_default();
        if name.contains('\0') {
            // Map `services` ends a name with NUL: two ports would look like one.
            let message =
                format!("spec.ports[{name:?}].name has a NUL, the port is not used; rename it");
            warn(Reason::InvalidPort, message);
            return None;
        }
        let number = self.port.unwrap_or_default();
        let Some(port) = port_number(number) else {
            let message = format!(
                "spec.ports[{name:?}].port {number} is not in 1 to 65535, the port is not used; correct it"
            );
            warn(Reason::InvalidPort, message);
            return None;
        };
        let protocol = protocol(
            self.protocol.as_deref(),
            format_args!("spec.ports[{name:?}].protocol"),
            warn,
        )?;
        let field = format_args!("spec.ports[{name:?}].nodePort");
        let node_port = node_port(self.node_port, field, warn);
        Some(ServicePort {
            name: name.into(),
            protocol,
            port,
            node_port,
        })
    }
}

/// A port of the node, 0 for none.
fn node_port(
    number: Option<i64>,
    field: fmt::Arguments<'_>,
    warn: &mut impl FnMut(Reason, String),
) -> u16 {
    match number.unwrap_or_default() {
        0 => 0,
        number => port_number(number).unwrap_or_else(|| {
            let message =
                format!("{field} {number} is not in 1 to 65535, there is none; correct it");
            warn(Reason::InvalidPort, message);
            0
        }),
    }
}

/// A port number that can be on the wire.
pub(super) fn port_number(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|&port| port != 0)
}

/// The protocol of a port; TCP if it does not say.
pub(super) fn protocol(
    text: Option<&str>,
    field: fmt::Arguments<'_>,
    warn: &mut impl FnMut(Reason, String),
) -> Option<Protocol> {
    match text {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(other) => {
            warn(
                Reason::UnknownValue,
                format!("{field} {other:?} is unknown, the port is not used; set TCP, UDP or SCTP"),
            );
            None
        }
    }
}

fn is_local(policy: Option<&str>, field: &str, warn: &mut impl FnMut(Reason, String)) -> bool {
    match policy {
        Some("Local") => true,
        None | Some("" | "Cluster") => false,
        Some(other) => {
            warn(
                Reason::UnknownValue,
                format!(
                    "spec.{field} {other:?} is unknown, Cluster is assumed; set Cluster or Local"
                ),
            );
            false
        }
    }
}

/// The addresses of a field, each once, in the field's order.
fn addresses<'a>(
    texts: impl Iterator<Item = &'a str>,
    field: &str,
    warn: &mut impl FnMut(Reason, String),
) -> Box<[IpAddr]> {
    let mut addresses = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        match ip::parse_ip(text) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(why) => warn(
                Reason::InvalidAddress,
                format!(
                    "{field} {text:?} {why} and is not used; write a plain IPv4 or IPv6 address"
                ),
            ),
        }
    }
    addresses.into()
}
