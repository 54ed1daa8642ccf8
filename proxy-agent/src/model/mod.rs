//! Kubernetes objects as the agent keeps them: narrow, one file per object.
//!
//! Objects arrive as JSON from an API server or from manifests. Both go through
//! the `Raw…` structs here, whose fields are all optional, and then through one
//! conversion per object, which applies the API's defaults (semantics 3, 4) and
//! cannot fail: what it cannot use it leaves out, with a [`Warning`].
//! 10,000 EndpointSlices of 10 endpoints take 13 MiB with the indexes of the store
//! (resident memory, measured), and the names of their Pods once more.

mod annotation;
mod forwarding;
mod ip;
mod meta;
mod name;
mod node;
mod opt_out;
mod service;
mod slice;
#[cfg(test)]
mod tests;
mod warning;

pub use annotation::{ALGORITHM, WEIGHT_DEFAULT, WEIGHT_MAX, WEIGHTS, Weights};
pub use forwarding::{CILIUM_FORWARDING_MODE, FORWARDING_MODE, ForwardingMode};
pub use ip::Family;
pub(crate) use meta::{cluster_name, namespaced_name};
pub use name::{Interner, ObjectName};
pub use node::{Node, RawNode};
pub use opt_out::{Namespace, Pod, SOCKET_TRANSLATION, SocketTranslation};
pub use service::{RawService, Service, ServicePort, ServiceType};
pub use slice::{Endpoint, EndpointSlice, Hints, RawEndpointSlice, SlicePort};
pub use warning::{Kind, Reason, Warning};
