//! Builders of the Kubernetes objects that a lab's agents read, as real JSON.

mod node;
mod service;
mod slice;

pub use node::{Node, node};
pub use service::{Service, service};
pub use slice::{Slice, slice};

use serde_json::Value;

/// Which file holds an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectId {
    /// `service`, `endpointslice` or `node`.
    pub kind: &'static str,
    /// Empty for a Node.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// One file per object.
    pub fn file_name(&self) -> String {
        format!("{}_{}_{}.json", self.kind, self.namespace, self.name)
    }
}

/// An object that can be written into a manifests directory.
pub trait Manifest {
    /// Which object it is.
    fn id(&self) -> ObjectId;
    /// The object as the API would give it.
    fn to_json(&self) -> Value;
}
