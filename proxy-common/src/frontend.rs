//! Map `frontends`: where a service port is reachable, and what happens there.

use crate::{Address, ServiceId, TableRef};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Transport protocol of a frontend; the values are IANA's protocol numbers.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum Protocol {
    /// TCP, RFC 9293.
    Tcp = 6,
    /// UDP, RFC 768.
    Udp = 17,
    /// SCTP, RFC 9260.
    Sctp = 132,
}

impl Protocol {
    /// The protocol with this IANA number, if services can have it.
    #[inline(always)]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The name that the Service API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// Where the client of a frontend stands.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum Scope {
    /// A pod or process of this node.
    Internal = 0,
    /// A packet that came in by an uplink.
    External = 1,
}

/// Which field of the Service gave the frontend its address.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp = 0,
    /// `spec.ports[].nodePort`, on the wildcard address of a family.
    NodePort = 1,
    /// `status.loadBalancer.ingress[].ip`.
    LoadBalancer = 2,
    /// `spec.externalIPs`.
    ExternalIp = 3,
}

impl FrontendKind {
    /// The kind for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalIp => "ExternalIP",
        }
    }
}

/// Which endpoints a policy allows: all of the cluster, or those of this node.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum EndpointSet {
    /// Policy `Cluster`.
    Cluster = 0,
    /// Policy `Local`.
    Local = 1,
}

/// Which clients a frontend takes (`spec.loadBalancerSourceRanges`).
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum SourceFilter {
    /// Everybody.
    Anyone = 0,
    /// Those whose address is in map `source_ranges`.
    Ranges = 1,
    /// Those, and processes of this node: one of its addresses is in a range.
    RangesAndHost = 2,
}

/// How a frontend picks a backend from its table.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum Algorithm {
    /// By a hash of the packet's tuple, alike on every node. A socket has no
    /// tuple yet: for clients on this node it is chance.
    #[default]
    Maglev = 0,
    /// By chance.
    Random = 1,
    /// Of two by chance the one to which this node has fewer connections, for its
    /// weight.
    LeastConnections = 2,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::Maglev, Self::Random, Self::LeastConnections];

    /// The name that annotations use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Random => "random",
            Self::LeastConnections => "least-connections",
        }
    }
}

/// How packets from outside get to a backend on another node.
#[repr(u8)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub enum Forwarding {
    /// With an address of this node as their source: answers come back here.
    #[default]
    Snat = 0,
    /// As they are, in a tunnel to the backend's node, which answers the client by
    /// itself (direct server return). By SNAT if that node is not known.
    Dsr = 1,
}

impl Forwarding {
    /// The name that options and annotations use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Dsr => "dsr",
        }
    }
}

/// Key of `frontends`.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub struct FrontendKey {
    /// The frontend's address; [`Address::ANY_V4`] and [`Address::ANY_V6`]
    /// stand for every NodePort address of this node in that family.
    pub address: Address,
    /// Host byte order.
    pub port: u16,
    /// TCP, UDP or SCTP: the same number in two protocols is two frontends.
    pub protocol: Protocol,
    /// Whose traffic the entry is for.
    pub scope: Scope,
}

impl FrontendKey {
    /// Equality by words, cheap in BPF.
    #[inline(always)]
    pub fn same(&self, other: &Self) -> bool {
        self.address.same(other.address)
            && self.port == other.port
            && self.protocol as u8 == other.protocol as u8
            && self.scope as u8 == other.scope as u8
    }
}

/// Value of `frontends`.
///
/// ```text
/// # bpftool map dump pinned /sys/fs/bpf/fairlead/frontends
/// [{ "key": { "address": { "bytes": [0,0,0,0,0,0,0,0,0,0,255,255,10,96,0,20] },
///             "port": 80, "protocol": "Tcp", "scope": "Internal" },
///    "value": { "key": { … }, "generation": 7, "service": 3,
///               "table": { "chunk": 0, "first_line": 12, "length": 2 },
///               "affinity_timeout_s": 0, "kind": "ClusterIp", "set": "Cluster",
///               "elsewhere": 0, "source_filter": "Anyone", "algorithm": "Maglev",
///               "forwarding": "Snat" } }]
/// ```
///
/// The key is repeated and a generation added since the kernel may recycle a
/// hash element while a program on another CPU still reads it: the reader
/// copies out, then compares both with what it read first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Frontend {
    /// The element's own key.
    pub key: FrontendKey,
    /// Differs in every write of this map.
    pub generation: u32,
    /// A word that only the tests' foreign layout has.
    #[cfg(feature = "other-layout")]
    pub other: u32,
    /// The service port that owns this frontend.
    pub service: ServiceId,
    /// Where the usable backends are listed; length 0 when there is none.
    pub table: TableRef,
    /// Session affinity in seconds; 0 when the service has none.
    pub affinity_timeout_s: u32,
    /// Field of the Service that the address comes from.
    pub kind: FrontendKind,
    /// Endpoint set that `table` lists.
    pub set: EndpointSet,
    /// 1 if `set` is `Local`, has no endpoint, and the cluster set has some:
    /// tells "no local endpoint" from "no endpoint" in the counters.
    pub elsewhere: u8,
    /// Which clients are taken.
    pub source_filter: SourceFilter,
    /// How one of `table` is picked.
    pub algorithm: Algorithm,
    /// How packets from outside get to a backend on another node.
    pub forwarding: Forwarding,
    /// Always 0.
    pub _reserved: [u8; 2],
}

impl Frontend {
    /// No frontend, where one is to be copied to.
    pub const NONE: Self = Self {
        key: FrontendKey {
            address: Address::ANY_V6,
            port: 0,
            protocol: Protocol::Tcp,
            scope: Scope::Internal,
        },
        generation: 0,
        #[cfg(feature = "other-layout")]
        other: 0,
        service: 0,
        table: TableRef {
            chunk: 0,
            first_line: 0,
            length: 0,
        },
        affinity_timeout_s: 0,
        kind: FrontendKind::ClusterIp,
        set: EndpointSet::Cluster,
        elsewhere: 0,
        source_filter: SourceFilter::Anyone,
        algorithm: Algorithm::Maglev,
        forwarding: Forwarding::Snat,
        _reserved: [0; 2],
    };
}

const _: () = assert!(size_of::<FrontendKey>() == 20);
const _: () =
    assert!(size_of::<Frontend>() == 52 + if cfg!(feature = "other-layout") { 4 } else { 0 });
