//! Complete lists: what was seen in the one under way, and whether any ended.

use crate::model::{Kind, ObjectName};
use std::collections::HashSet;

/// The lists of all kinds.
#[derive(Debug, Default)]
pub(super) struct Listings {
    services: Listing,
    slices: Listing,
    nodes: Listing,
    pods: Listing,
    namespaces: Listing,
}

#[derive(Debug, Default)]
struct Listing {
    /// Names seen since the list began; `None` between lists.
    seen: Option<HashSet<ObjectName>>,
    complete: bool,
    unavailable: bool,
}

impl Listings {
    /// A list begins; one that was under way was broken off and counts for nothing.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.of_mut(kind).seen = Some(HashSet::new());
    }

    /// An object is there.
    pub(super) fn see(&mut self, kind: Kind, name: &ObjectName) {
        if let Some(seen) = &mut self.of_mut(kind).seen {
            seen.insert(name.clone());
        }
    }

    /// The list is complete: the names in it; `None` if none was under way.
    pub(super) fn finish(&mut self, kind: Kind) -> Option<HashSet<ObjectName>> {
        let listing = self.of_mut(kind);
        let seen = listing.seen.take()?;
        listing.complete = true;
        Some(seen)
    }

    /// Whether a list of this kind was ever complete.
    pub(super) fn complete(&self, kind: Kind) -> bool {
        self.of(kind).complete
    }

    /// The kind cannot be listed for now.
    pub(super) fn unavailable(&mut self, kind: Kind) {
        self.of_mut(kind).unavailable = true;
    }

    /// Whether a list of this kind was ever complete, or found to be unavailable.
    pub(super) fn settled(&self, kind: Kind) -> bool {
        self.of(kind).complete || self.of(kind).unavailable
    }

    fn of(&self, kind: Kind) -> &Listing {
        match kind {
            Kind::Service => &self.services,
            Kind::EndpointSlice => &self.slices,
            Kind::Node => &self.nodes,
            Kind::Pod => &self.pods,
            Kind::Namespace => &self.namespaces,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut Listing {
        match kind {
            Kind::Service => &mut self.services,
            Kind::EndpointSlice => &mut self.slices,
            Kind::Node => &mut self.nodes,
            Kind::Pod => &mut self.pods,
            Kind::Namespace => &mut self.namespaces,
        }
    }
}
