//! Which endpoints new flows use: the `cluster` and the `local` set.
//!
//! Corresponds to pkg/proxy/topology.go of kubernetes/kubernetes, with one
//! difference in form: both sets are always decided, whatever the policies, and
//! the frontend says which it uses.

use super::endpoints::Candidate;
use super::{NodeView, ResolvedEndpoint};
use crate::model::Family;

/// Which endpoints a set takes; a set never mixes two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Ready ones.
    Ready,
    /// None is ready: those that still serve while they terminate (KEP-1669).
    Draining,
}

impl Tier {
    /// The tier of the set that `members` form.
    fn of<'a>(mut members: impl Iterator<Item = &'a Candidate<'a>>) -> Self {
        if members.any(|it| it.ready) {
            Self::Ready
        } else {
            Self::Draining
        }
    }

    fn takes(self, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::Ready => candidate.ready,
            Self::Draining => candidate.draining,
        }
    }
}

/// Which hints narrow the cluster set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hinting<'n> {
    Off,
    /// `forNodes` (KEP-3015, PreferSameNode).
    Node(&'n str),
    /// `forZones` (KEP-2433).
    Zone(&'n str),
}

impl<'n> Hinting<'n> {
    /// Hints of one sort count only if every ready endpoint has some and one
    /// names us: a half-written set of hints must not leave a node or zone with
    /// too few endpoints. Node hints come first. The Service's
    /// `trafficDistribution` and annotations are not looked at. Without a ready
    /// endpoint hints are off, so the fallback to draining ones is never narrowed.
    fn of<'a>(
        candidates: impl Iterator<Item = &'a Candidate<'a>> + Clone,
        node: &'n NodeView,
    ) -> Self {
        let zone = node.zone.as_deref().unwrap_or_default();
        let sorts = [
            Some(Self::Node(&node.name)),
            (!zone.is_empty()).then_some(Self::Zone(zone)),
        ];
        let ready = candidates.filter(|it| it.ready);
        let complete = |hinting: &Self| ready.clone().all(|it| hinting.has_some(it));
        let for_us = |hinting: &Self| ready.clone().any(|it| hinting.takes(it));
        sorts
            .into_iter()
            .flatten()
            .find(|hinting| complete(hinting) && for_us(hinting))
            .unwrap_or(Self::Off)
    }

    fn has_some(self, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::Off => true,
            Self::Node(_) => candidate.hints.is_some_and(|hints| !hints.nodes.is_empty()),
            Self::Zone(_) => candidate.hints.is_some_and(|hints| !hints.zones.is_empty()),
        }
    }

    fn takes(self, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::Off => true,
            Self::Node(us) => candidate
                .hints
                .is_some_and(|hints| hints.nodes.iter().any(|name| &**name == us)),
            Self::Zone(us) => candidate
                .hints
                .is_some_and(|hints| hints.zones.iter().any(|name| &**name == us)),
        }
    }
}

/// Decides the sets of each family by itself (semantics 6, 13 to 15). At the end
/// those with weight 0 leave a set, unless nobody else would be left.
pub(super) fn assign(candidates: &[Candidate<'_>], node: &NodeView) -> Vec<ResolvedEndpoint> {
    let mut endpoints = Vec::with_capacity(candidates.len());
    // Sorted by address: IPv4 first, so the families' results concatenate.
    for family in Family::ALL {
        let half = candidates
            .iter()
            .filter(|it| Family::of(it.address) == family);
        let cluster = Tier::of(half.clone());
        let local = Tier::of(half.clone().filter(|it| it.local));
        let hinting = Hinting::of(half.clone(), node);
        let in_cluster = |it: &Candidate<'_>| cluster.takes(it) && hinting.takes(it);
        let in_local = |it: &Candidate<'_>| it.local && local.takes(it);
        let cluster_weighs = half.clone().any(|it| in_cluster(it) && it.weight > 0);
        let local_weighs = half.clone().any(|it| in_local(it) && it.weight > 0);
        endpoints.extend(half.map(|it| ResolvedEndpoint {
            address: it.address,
            port: it.port,
            weight: it.weight,
            local: it.local,
            node: it.node.cloned(),
            in_cluster_set: in_cluster(it) && (it.weight > 0 || !cluster_weighs),
            in_local_set: in_local(it) && (it.weight > 0 || !local_weighs),
        }));
    }
    endpoints
}
