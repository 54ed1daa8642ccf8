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
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: u32 = 9;

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
        }
    }
}
