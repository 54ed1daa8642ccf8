//! Why traffic was refused or dropped: one list for counter, label and docs.

/// Why a connection or datagram was refused or dropped.
///
/// The number is the index into `drop_stats`; [`DropReason::as_str`] is the
/// metric label and what `fairlead status` prints; [`DropReason::help`] is the
/// text in the docs.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The service port has no usable endpoint anywhere.
    NoEndpoint = 0,
    /// A `Local` policy, and all usable endpoints are on other nodes.
    NoLocalEndpoint = 1,
    /// A ClusterIP on a port that its Service does not define.
    PortNotInService = 2,
    /// An address of the service CIDRs that no Service has.
    UnassignedAddress = 3,
    /// A frontend changed twice while it was read; the caller may try again.
    FrontendUnstable = 4,
    /// A table or backend that a frontend names is missing. Never in a sound
    /// set of maps.
    BackendMissing = 5,
    /// The client is in none of the Service's source ranges.
    SourceNotAllowed = 6,
    /// The Service has source ranges, and the client's address is not known (yet).
    SourceUnknown = 7,
    /// A connected UDP socket sends to a backend that is gone, and the kernel
    /// cannot end the socket.
    BackendGone = 8,
    /// The kernel has no route to the backend, or forwarding is off.
    NoRoute = 9,
    /// The device towards the backend has no address of its family.
    NoSourceAddress = 10,
    /// No source port is free towards the backend.
    SnatPortsExhausted = 11,
    /// The map of flows has no room.
    FlowsFull = 12,
    /// A packet in mid-connection of which no flow is known.
    NoFlow = 13,
    /// A packet whose hops are used up.
    TtlExceeded = 14,
    /// Larger than the way to the backend takes; the client is told.
    TooBig = 15,
    /// A fragment that came before the first one of its packet.
    FragmentUnknown = 16,
    /// The kernel could not change the packet.
    RewriteFailed = 17,
    /// The client's address and port already have a connection with that backend
    /// through another frontend.
    TupleTaken = 18,
    /// A packet in a tunnel of ours whose sender is no Node.
    TunnelFromStranger = 19,
    /// A packet in a tunnel of ours for a backend that this node does not have.
    TunnelToStranger = 20,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: u32 = 21;

    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::NoEndpoint,
        Self::NoLocalEndpoint,
        Self::PortNotInService,
        Self::UnassignedAddress,
        Self::FrontendUnstable,
        Self::BackendMissing,
        Self::SourceNotAllowed,
        Self::SourceUnknown,
        Self::BackendGone,
        Self::NoRoute,
        Self::NoSourceAddress,
        Self::SnatPortsExhausted,
        Self::FlowsFull,
        Self::NoFlow,
        Self::TtlExceeded,
        Self::TooBig,
        Self::FragmentUnknown,
        Self::RewriteFailed,
        Self::TupleTaken,
        Self::TunnelFromStranger,
        Self::TunnelToStranger,
    ];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEndpoint => "no_endpoint",
            Self::NoLocalEndpoint => "no_local_endpoint",
            Self::PortNotInService => "port_not_in_service",
            Self::UnassignedAddress => "unassigned_address",
            Self::FrontendUnstable => "frontend_unstable",
            Self::BackendMissing => "backend_missing",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::SourceUnknown => "source_unknown",
            Self::BackendGone => "backend_gone",
            Self::NoRoute => "no_route",
            Self::NoSourceAddress => "no_source_address",
            Self::SnatPortsExhausted => "snat_ports_exhausted",
            Self::FlowsFull => "flows_full",
            Self::NoFlow => "no_flow",
            Self::TtlExceeded => "ttl_exceeded",
            Self::TooBig => "too_big",
            Self::FragmentUnknown => "fragment_unknown",
            Self::RewriteFailed => "rewrite_failed",
            Self::TupleTaken => "tuple_taken",
            Self::TunnelFromStranger => "tunnel_from_stranger",
            Self::TunnelToStranger => "tunnel_to_stranger",
        }
    }

    /// What the reason means, for an operator.
    pub fn help(self) -> &'static str {
        match self {
            Self::NoEndpoint => "the Service has no usable endpoint",
            Self::NoLocalEndpoint => "policy Local, and no usable endpoint on this node",
            Self::PortNotInService => "a ClusterIP on a port that its Service does not define",
            Self::UnassignedAddress => "an address of the service CIDRs that no Service has",
            Self::FrontendUnstable => "a frontend changed twice while it was read",
            Self::BackendMissing => "a table or backend that a frontend names is missing",
            Self::SourceNotAllowed => "the client is in none of the Service's source ranges",
            Self::SourceUnknown => {
                "the Service has source ranges, the client's address is not known"
            }
            Self::BackendGone => {
                "a datagram to a backend that is gone, on a kernel that cannot end its socket"
            }
            Self::NoRoute => {
                "the kernel has no route to the backend or the client, or forwarding is off"
            }
            Self::NoSourceAddress => {
                "the device towards a remote backend has no address of that family"
            }
            Self::SnatPortsExhausted => "every port tried for SNAT is taken towards that backend",
            Self::FlowsFull => "the map of flows has no room for one more",
            Self::NoFlow => "a packet in mid-connection of which no flow is known",
            Self::TtlExceeded => "a packet whose time to live is used up",
            Self::TooBig => "larger than the way to the backend takes (the client is told)",
            Self::FragmentUnknown => "a fragment that came before its packet's first one",
            Self::RewriteFailed => "the kernel could not change the packet",
            Self::TupleTaken => {
                "the client's port already talks to that backend by another frontend"
            }
            Self::TunnelFromStranger => "a packet in a tunnel of DSR from an address of no Node",
            Self::TunnelToStranger => {
                "a packet in a tunnel of DSR for a backend that is not on this node"
            }
        }
    }
}
