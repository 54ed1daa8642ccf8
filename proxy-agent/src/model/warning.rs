//! What is wrong with an object, for the log and the metric.

use crate::model::ObjectName;

/// Kind of an object that the agent takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1/Service`.
    Service,
    /// `discovery.k8s.io/v1/EndpointSlice`.
    EndpointSlice,
    /// `v1/Node`.
    Node,
    /// `v1/Pod`.
    Pod,
    /// `v1/Namespace`.
    Namespace,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::Pod,
        Self::Namespace,
    ];

    /// The kind as manifests spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
        }
    }

    /// The group and version that manifests name.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::Service | Self::Node | Self::Pod | Self::Namespace => "v1",
        }
    }
}

/// Why something in an object is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The object cannot be read at all.
    UnreadableObject,
    /// A field has a value that the API does not know.
    UnknownValue,
    /// Text that is no IP address.
    InvalidAddress,
    /// An IP address that cannot be a frontend.
    UnusableFrontend,
    /// An IP address that cannot be a backend (semantics 5).
    UnusableEndpoint,
    /// A port number outside 1 to 65535.
    InvalidPort,
    /// Two ports of one object with one name.
    DuplicatePort,
    /// Service and slice give one port name different protocols.
    ProtocolMismatch,
    /// A slice of host names.
    FqdnSlice,
    /// An affinity timeout outside 1 to 86400 seconds.
    InvalidTimeout,
    /// A list of weights that cannot be read.
    InvalidWeights,
    /// Two manifests define one object.
    DuplicateObject,
    /// A manifest cannot be read.
    UnreadableManifest,
    /// A protocol that this version does not serve.
    UnsupportedProtocol,
    /// A frontend that an older Service has.
    FrontendTaken,
    /// A map of this node has no room for the object.
    MapFull,
    /// The kernel does not take the object as it is.
    NotPublished,
    /// A `healthCheckNodePort` on which this node cannot listen.
    HealthCheckPortTaken,
}

impl Reason {
    /// The metric label, and a field of the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnreadableObject => "UnreadableObject",
            Self::UnknownValue => "UnknownValue",
            Self::InvalidAddress => "InvalidAddress",
            Self::UnusableFrontend => "UnusableFrontend",
            Self::UnusableEndpoint => "UnusableEndpoint",
            Self::InvalidPort => "InvalidPort",
            Self::DuplicatePort => "DuplicatePort",
            Self::ProtocolMismatch => "ProtocolMismatch",
            Self::FqdnSlice => "FqdnSlice",
            Self::InvalidTimeout => "InvalidTimeout",
            Self::InvalidWeights => "InvalidWeights",
            Self::DuplicateObject => "DuplicateObject",
            Self::UnreadableManifest => "UnreadableManifest",
            Self::UnsupportedProtocol => "UnsupportedProtocol",
            Self::FrontendTaken => "FrontendTaken",
            Self::MapFull => "MapFull",
            Self::NotPublished => "NotPublished",
            Self::HealthCheckPortTaken => "HealthCheckPortTaken",
        }
    }
}

/// Something in an object that is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// Kind of the object; of a manifest that cannot be read, none.
    pub kind: Option<Kind>,
    /// Name of the object, or of the manifest in no namespace.
    pub name: ObjectName,
    /// Why.
    pub reason: Reason,
    /// Field, value and what to do.
    pub message: String,
}

impl Warning {
    /// A warning about an object.
    pub fn new(kind: Kind, name: &ObjectName, reason: Reason, message: String) -> Self {
        Self {
            kind: Some(kind),
            name: name.clone(),
            reason,
            message,
        }
    }

    /// A warning about a manifest file.
    pub fn manifest(file: &str, reason: Reason, message: String) -> Self {
        Self {
            kind: None,
            name: ObjectName::new("", file),
            reason,
            message,
        }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.kind.map_or("manifest", Kind::as_str),
            self.name,
            self.message
        )
    }
}
