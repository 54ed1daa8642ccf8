//! Why a Service is not published as asked.

use super::KernelError;
use proxy_common::limits::CHUNKS_MAX;

/// Why a Service could not be published as asked. The others go on, and this
/// one keeps what it had, but for endpoints that are gone.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The kernel refused a write.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// No backend id is left.
    #[error(
        "map backends is full ({capacity} endpoints): start the agent with a larger --backends-max"
    )]
    BackendsFull {
        /// Backends that fit.
        capacity: u32,
    },
    /// No service id is left.
    #[error(
        "map services is full ({capacity} service ports): start the agent with a larger --services-max"
    )]
    ServicesFull {
        /// Service ports that fit.
        capacity: u32,
    },
    /// No id of a Node is left.
    #[error("map nodes is full ({capacity} Nodes): packets are not handed to this one by DSR")]
    NodesFull {
        /// Nodes that fit.
        capacity: u32,
    },
    /// A table is larger than a chunk.
    #[error("{length} endpoints are more than a table can hold ({max})")]
    TableTooLarge {
        /// Endpoints of the set.
        length: u32,
        /// Endpoints that fit.
        max: u32,
    },
    /// No chunk can be added to `tables`.
    #[error("map tables is full ({CHUNKS_MAX} chunks): there are too many endpoints")]
    TablesFull,
    /// The name does not fit into map `services`.
    #[error("its name with that of port {port:?} is longer than the API allows")]
    NameTooLong {
        /// `spec.ports[].name`.
        port: Box<str>,
    },
}

impl PublishError {
    /// Whether it is for lack of room.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Kernel(error) => error.error.raw_os_error() == Some(libc::E2BIG),
            Self::BackendsFull { .. }
            | Self::ServicesFull { .. }
            | Self::NodesFull { .. }
            | Self::TablesFull => true,
            Self::TableTooLarge { .. } | Self::NameTooLong { .. } => false,
        }
    }
}
