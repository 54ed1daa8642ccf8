//! `discovery.k8s.io/v1/EndpointSlice`.

use crate::model::{
    Family, Interner, Kind, ObjectName, Reason, Warning, Weights, ip, meta, service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proxy_common::Protocol;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Label that names a slice's Service (discovery/v1, `LabelServiceName`).
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Annotation with the time of the change behind a slice's state (core/v1,
/// `EndpointsLastChangeTriggerTime`).
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Ends a name in [`EndpointSlice::targets`]. No name has it.
const TARGET_END: char = '\n';

/// What we keep of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// The slice's name.
    pub name: ObjectName,
    /// The Service that its label names, in its own namespace; `None` if it
    /// belongs to no Service or is marked headless (semantics 1, 3).
    pub service: Option<ObjectName>,
    /// `addressType`.
    pub family: Family,
    /// Ports that have a number.
    pub ports: Box<[SlicePort]>,
    /// Endpoints that have an address.
    pub endpoints: Box<[Endpoint]>,
    /// See [`EndpointSlice::target_names`]; one string, since only weights need it.
    pub targets: Box<str>,
    /// The shares of its endpoints.
    pub weights: Weights,
    /// Milliseconds since the epoch of the change of a Pod or Service that led
    /// to this state, as the EndpointSlice controller notes it.
    pub triggered_ms: Option<i64>,
}

impl EndpointSlice {
    /// Whether the other says the same of the same endpoints, be it at another time.
    pub fn is_alike(&self, other: &Self) -> bool {
        (&self.service, self.family) == (&other.service, other.family)
            && (&self.ports, &self.endpoints) == (&other.ports, &other.endpoints)
            && (&self.targets, &self.weights) == (&other.targets, &other.weights)
    }

    /// `targetRef.name` of each endpoint, in their order; "" for none.
    pub fn target_names(&self) -> impl Iterator<Item = &str> {
        let named = self.targets.split(TARGET_END);
        named
            .chain(std::iter::repeat(""))
            .take(self.endpoints.len())
    }
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// `name`, "" if there is none.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`, not 0.
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `addresses[0]`; the API says that only this one counts.
    pub address: IpAddr,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints`, unless empty.
    pub hints: Option<Box<Hints>>,
}

/// Where an endpoint should be used (KEP-2433, KEP-3015).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hints {
    /// `forNodes`.
    pub nodes: Box<[Arc<str>]>,
    /// `forZones`.
    pub zones: Box<[Arc<str>]>,
}

/// What we read of an EndpointSlice.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RawEndpointSlice {
    /// `metadata`.
    #[serde(deserialize_with = "meta::narrow")]
    pub metadata: ObjectMeta,
    address_type: Option<String>,
    ports: Option<Vec<RawPort>>,
    endpoints: Option<Vec<RawEndpoint>>,
}

meta::resource!(
    RawEndpointSlice,
    k8s_openapi::api::discovery::v1::EndpointSlice,
    k8s_openapi::NamespaceResourceScope
);

#[derive(Clone, Debug, Deserialize)]
struct RawPort {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<RawConditions>,
    node_name: Option<String>,
    hints: Option<RawHints>,
    target_ref: Option<RawTarget>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawTarget {
    name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RawConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHints {
    for_nodes: Option<Vec<RawHint>>,
    for_zones: Option<Vec<RawHint>>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawHint {
    name: Option<String>,
}

impl RawEndpointSlice {
    /// The slice's name; `None` if it has none.
    pub fn object_name(&self, interner: &mut Interner) -> Option<ObjectName> {
        meta::namespaced_name(&self.metadata, interner)
    }

    /// The slice as we keep it; `None` for one that we cannot use at all.
    pub fn convert(
        &self,
        name: ObjectName,
        interner: &mut Interner,
    ) -> (Option<EndpointSlice>, Vec<Warning>) {
        let mut warnings = Vec::new();
        let mut warn = |reason, message| {
            warnings.push(Warning::new(Kind::EndpointSlice, &name, reason, message))
        };
        let Some(family) = self.family(&mut warn) else {
            return (None, warnings);
        };
        let service = meta::label(&self.metadata, SERVICE_NAME)
            .filter(|_| !meta::has_label(&self.metadata, service::HEADLESS))
            .map(|service| ObjectName::new(name.namespace.clone(), service));
        let ports = self
            .ports
            .iter()
            .flatten()
            .filter_map(|port| port.convert(interner, &mut warn))
            .collect();
        let mut endpoints = Vec::new();
        let mut targets = String::new();
        for raw in self.endpoints.iter().flatten() {
            if let Some(endpoint) = raw.convert(interner, &mut warn) {
                endpoints.push(endpoint);
                targets.push_str(raw.target_name());
                targets.push(TARGET_END);
            }
        }
        let weights = Weights::of_object(&self.metadata, &mut warn);
        (
            Some(EndpointSlice {
                name,
                service,
                family,
                ports,
                endpoints: endpoints.into(),
                targets: targets.trim_end_matches(TARGET_END).into(),
                weights,
                triggered_ms: meta::annotated_ms(&self.metadata, TRIGGER_TIME),
            }),
            warnings,
        )
    }

    fn family(&self, warn: &mut impl FnMut(Reason, String)) -> Option<Family> {
        let kind = self.address_type.as_deref().unwrap_or_default();
        let family = Family::parse(kind);
        match kind {
            _ if family.is_some() => {}
            "FQDN" => warn(
                Reason::FqdnSlice,
                "addressType FQDN: a Service cannot lead to host names; use a slice of IP addresses".into(),
            ),
            _ => warn(
                Reason::UnknownValue,
                format!("addressType {kind:?} is unknown, the slice is not used; set IPv4 or IPv6"),
            ),
        }
        family
    }
}

impl RawPort {
    /// A port without number would mean "all ports", which no Service can use.
    fn convert(
        &self,
        interner: &mut Interner,
        warn: &mut impl FnMut(Reason, String),
    ) -> Option<SlicePort> {
        let name = self.name.as_deref().unwrap_or_default();
        let number = self.port.filter(|&number| number != 0)?;
        let Some(port) = service::port_number(number) else {
            warn(
                Reason::InvalidPort,
                format!(
                    "ports[{name:?}].port {number} is not in 1 to 65535, the port is not used; correct it"
                ),
            );
            return None;
        };
        let field = format_args!("ports[{name:?}].protocol");
        let protocol = service::protocol(self.protocol.as_deref(), field, warn)?;
        Some(SlicePort {
            name: interner.intern(name),
            protocol,
            port,
        })
    }
}

impl RawEndpoint {
    /// "" for none, and for what cannot be one.
    fn target_name(&self) -> &str {
        let target = self.target_ref.as_ref();
        let name = target.and_then(|it| it.name.as_deref());
        name.filter(|it| !it.contains(TARGET_END))
            .unwrap_or_default()
    }

    /// An endpoint without address is left out silently: there is nothing to use.
    fn convert(
        &self,
        interner: &mut Interner,
        warn: &mut impl FnMut(Reason, String),
    ) -> Option<Endpoint> {
        let text = self.addresses.as_ref()?.first()?;
        let address = match ip::parse_ip(text) {
            Ok(address) => address,
            Err(why) => {
                let message = format!(
                    "endpoints[].addresses[0] {text:?} {why}, the endpoint is not used; write a plain IPv4 or IPv6 address"
                );
                warn(Reason::InvalidAddress, message);
                return None;
            }
        };
        let conditions = self.conditions.as_ref();
        let condition = |get: fn(&RawConditions) -> Option<bool>, default| {
            conditions.and_then(get).unwrap_or(default)
        };
        Some(Endpoint {
            address,
            ready: condition(|it| it.ready, true),
            serving: condition(|it| it.serving, true),
            terminating: condition(|it| it.terminating, false),
            node: self
                .node_name
                .as_deref()
                .filter(|node| !node.is_empty())
                .map(|node| interner.intern(node)),
            hints: self
                .hints
                .as_ref()
                .and_then(|hints| hints.convert(interner)),
        })
    }
}

impl RawHints {
    fn convert(&self, interner: &mut Interner) -> Option<Box<Hints>> {
        let hints = Hints {
            nodes: names(&self.for_nodes, interner),
            zones: names(&self.for_zones, interner),
        };
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}

fn names(hints: &Option<Vec<RawHint>>, interner: &mut Interner) -> Box<[Arc<str>]> {
    hints
        .iter()
        .flatten()
        .filter_map(|hint| hint.name.as_deref())
        .map(|name| interner.intern(name))
        .collect()
}

// 10,000 slices of 10 endpoints: 4.8 MB of endpoints.
const _: () = assert!(size_of::<Endpoint>() <= 48);
