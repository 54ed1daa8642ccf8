//! Who owns a frontend: the oldest Service that asks for it.
//!
//! Two Services may ask for one externalIP or LoadBalancer IP and port. The
//! winner is a function of the objects alone (creation time, then name), so no
//! order of events leaves a frontend missing or foreign (semantics 12).

use crate::compile::PortKey;
use crate::model::ObjectName;
use proxy_common::{FrontendKey, ServiceId};
use std::collections::{BTreeMap, HashMap};

/// Rank of a claim; the least wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Seconds of `metadata.creationTimestamp`.
    pub(super) created_s: i64,
    /// The Service.
    pub(super) service: ObjectName,
    /// Its port.
    pub(super) port: PortKey,
}

/// Every frontend that is asked for.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<FrontendKey, ServiceId>,
    /// All claimants of the few frontends that have more than one.
    contested: HashMap<FrontendKey, BTreeMap<ServiceId, Rank>>,
}

impl Claims {
    /// The frontend's owner.
    pub(super) fn owner(&self, key: &FrontendKey) -> Option<ServiceId> {
        self.owners.get(key).copied()
    }

    /// Adds a claim, or renews its rank; `rank_of` gives the rank of the present
    /// owner. Returns the new owner if the frontend changed hands.
    pub(super) fn add(
        &mut self,
        key: FrontendKey,
        id: ServiceId,
        rank: Rank,
        rank_of: impl Fn(ServiceId) -> Option<Rank>,
    ) -> Option<ServiceId> {
        let Some(owner) = self.owner(&key) else {
            self.owners.insert(key, id);
            return None;
        };
        if owner == id && !self.contested.contains_key(&key) {
            return None;
        }
        let claimants = self.contested.entry(key).or_default();
        if claimants.is_empty() {
            claimants.extend(rank_of(owner).map(|rank| (owner, rank)));
        }
        claimants.insert(id, rank);
        let winner = winner(claimants)?;
        if claimants.len() == 1 {
            self.contested.remove(&key);
        }
        self.owners.insert(key, winner);
        (winner != owner).then_some(winner)
    }

    /// Removes a claim; returns the new owner if the frontend changed hands.
    pub(super) fn remove(&mut self, key: &FrontendKey, id: ServiceId) -> Option<ServiceId> {
        let Some(claimants) = self.contested.get_mut(key) else {
            if self.owner(key) == Some(id) {
                self.owners.remove(key);
            }
            return None;
        };
        claimants.remove(&id);
        let winner = winner(claimants)?;
        if claimants.len() == 1 {
            self.contested.remove(key);
        }
        self.owners
            .insert(*key, winner)
            .filter(|&old| old != winner)
            .map(|_| winner)
    }

    /// Frontends that several Services ask for: the owner, and one who is not.
    pub(super) fn contests(&self) -> impl Iterator<Item = (&FrontendKey, &Rank, &Rank)> {
        self.contested.iter().flat_map(|(key, claimants)| {
            let owner = self.owner(key).and_then(|id| claimants.get(&id));
            let others = claimants.values().filter(move |it| Some(*it) != owner);
            others.filter_map(move |other| Some((key, owner?, other)))
        })
    }

    /// Number of frontends that several Services ask for.
    pub(super) fn contested(&self) -> usize {
        self.contested.len()
    }
}

fn winner(claimants: &BTreeMap<ServiceId, Rank>) -> Option<ServiceId> {
    claimants
        .iter()
        .min_by_key(|(_, rank)| *rank)
        .map(|(id, _)| *id)
}
