//! Where objects come from: an API server, or a directory of manifests.
//!
//! A source sends [`Event`]s into a bounded channel and stops when the receiver
//! is gone. Objects are converted on arrival; no full object is kept.

pub mod kube;
pub mod manifests;

use crate::model::{
    self, EndpointSlice, Interner, Kind, Node, ObjectName, RawEndpointSlice, RawNode, RawService,
    Service, Warning,
};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1 as core;

/// What a source tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A complete list of a kind starts.
    Begin(Kind),
    /// An object is there, new or changed.
    Apply(Object),
    /// An object is gone, or cannot be used any more.
    Delete(Kind, ObjectName),
    /// The list is complete: objects of the kind that were not applied since
    /// [`Event::Begin`] are gone.
    Done(Kind),
    /// The kind cannot be listed for now: what was known of it stays.
    Unavailable(Kind),
    /// Something in an object is not used.
    Warning(Warning),
}

/// A raw object of a known kind, from either source.
trait Raw: Sized {
    const KIND: Kind;

    /// The object's name; `None` if it has none, so that nobody can refer to it.
    fn name(&self, interner: &mut Interner) -> Option<ObjectName>;

    /// The object as we keep it; `None` if it cannot be used at all.
    fn into_object(
        self,
        name: ObjectName,
        interner: &mut Interner,
    ) -> (Option<Object>, Vec<Warning>);
}

impl Raw for RawService {
    const KIND: Kind = Kind::Service;

    fn name(&self, interner: &mut Interner) -> Option<ObjectName> {
        self.object_name(interner)
    }

    fn into_object(self, name: ObjectName, _: &mut Interner) -> (Option<Object>, Vec<Warning>) {
        let (service, warnings) = self.convert(name);
        (Some(Object::Service(service)), warnings)
    }
}

impl Raw for RawEndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;

    fn name(&self, interner: &mut Interner) -> Option<ObjectName> {
        self.object_name(interner)
    }

    fn into_object(
        self,
        name: ObjectName,
        interner: &mut Interner,
    ) -> (Option<Object>, Vec<Warning>) {
        let (slice, warnings) = self.convert(name, interner);
        (slice.map(Object::Slice), warnings)
    }
}

impl Raw for RawNode {
    const KIND: Kind = Kind::Node;

    fn name(&self, _: &mut Interner) -> Option<ObjectName> {
        self.object_name()
    }

    fn into_object(
        self,
        name: ObjectName,
        interner: &mut Interner,
    ) -> (Option<Object>, Vec<Warning>) {
        (Some(Object::Node(self.convert(name, interner))), Vec::new())
    }
}

impl Raw for PartialObjectMeta<core::Pod> {
    const KIND: Kind = Kind::Pod;

    fn name(&self, interner: &mut Interner) -> Option<ObjectName> {
        model::namespaced_name(&self.metadata, interner)
    }

    fn into_object(self, name: ObjectName, _: &mut Interner) -> (Option<Object>, Vec<Warning>) {
        let (pod, warning) = model::Pod::new(name, &self.metadata);
        (pod.map(Object::Pod), warning.into_iter().collect())
    }
}

impl Raw for PartialObjectMeta<core::Namespace> {
    const KIND: Kind = Kind::Namespace;

    fn name(&self, _: &mut Interner) -> Option<ObjectName> {
        model::cluster_name(&self.metadata)
    }

    fn into_object(self, name: ObjectName, _: &mut Interner) -> (Option<Object>, Vec<Warning>) {
        let (namespace, warning) = model::Namespace::new(name, &self.metadata);
        (
            Some(Object::Namespace(namespace)),
            warning.into_iter().collect(),
        )
    }
}

/// An object of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    Slice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A Pod, for its opt-out.
    Pod(model::Pod),
    /// A Namespace, for its opt-out.
    Namespace(model::Namespace),
}

impl Object {
    /// The object's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::Pod(_) => Kind::Pod,
            Self::Namespace(_) => Kind::Namespace,
        }
    }

    /// The object's name.
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.name,
            Self::Node(node) => &node.name,
            Self::Pod(pod) => &pod.name,
            Self::Namespace(namespace) => &namespace.name,
        }
    }
}
