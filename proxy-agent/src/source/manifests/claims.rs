//! Which file each object comes from, and what changes with a file.

use crate::model::{Kind, ObjectName};
use crate::source::{Event, Object};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Name of a file in the directory.
pub(super) type FileName = Arc<str>;

/// What identifies an object.
pub(super) type Key = (Kind, ObjectName);

/// The objects of all files. Of an object only a hash is kept; the store has
/// the object.
#[derive(Debug, Default)]
pub(super) struct Claims {
    of: HashMap<Key, Claim>,
    files: BTreeMap<FileName, HashSet<Key>>,
}

#[derive(Debug, Default)]
struct Claim {
    /// Files that define the object; the first by name is used.
    files: BTreeSet<FileName>,
    /// Hash of the object that was sent last.
    sent: Option<u64>,
}

/// What follows from a changed file.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What to send.
    pub(super) events: Vec<Event>,
    /// Objects that are defined twice.
    pub(super) duplicates: Vec<Duplicate>,
    /// Files to read again, since an object now comes from them.
    pub(super) inherited: BTreeSet<FileName>,
}

/// An object that is defined twice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    pub(super) kind: Kind,
    pub(super) name: ObjectName,
    pub(super) used: FileName,
    /// The same as `used` if one file defines the object twice.
    pub(super) unused: FileName,
}

impl Claims {
    /// Puts the objects that a file has now in the place of those that it had.
    /// `unreadable` ones stay as they were, if they were.
    pub(super) fn replace(
        &mut self,
        file: &FileName,
        objects: Vec<Object>,
        unreadable: Vec<Key>,
    ) -> Outcome {
        let old = self.files.remove(file).unwrap_or_default();
        let mut outcome = Outcome::default();
        let mut keys: HashSet<Key> = unreadable
            .into_iter()
            .filter(|key| old.contains(key))
            .collect();
        for object in objects {
            let key = (object.kind(), object.name().clone());
            if !keys.insert(key.clone()) {
                let (kind, name) = key;
                outcome.duplicates.push(Duplicate {
                    kind,
                    name,
                    used: file.clone(),
                    unused: file.clone(),
                });
                continue;
            }
            self.claim(file, &key, object, !old.contains(&key), &mut outcome);
        }
        let mut dropped: Vec<Key> = old.difference(&keys).cloned().collect();
        dropped.sort();
        for key in dropped {
            self.release(file, key, &mut outcome);
        }
        if !keys.is_empty() {
            self.files.insert(file.clone(), keys);
        }
        outcome
    }

    fn claim(
        &mut self,
        file: &FileName,
        key: &Key,
        object: Object,
        new: bool,
        outcome: &mut Outcome,
    ) {
        let claim = self.of.entry(key.clone()).or_default();
        claim.files.insert(file.clone());
        let first = claim.files.first().cloned().unwrap_or_else(|| file.clone());
        let other = claim
            .files
            .iter()
            .find(|other| *other != file && (first == *file || **other == first));
        if let Some(other) = other.filter(|_| new) {
            let unused = if first == *file { other } else { file };
            let (kind, name) = key.clone();
            outcome.duplicates.push(Duplicate {
                kind,
                name,
                used: first.clone(),
                unused: unused.clone(),
            });
        }
        let hash = Some(hash(&object));
        if first == *file && claim.sent != hash {
            claim.sent = hash;
            outcome.events.push(Event::Apply(object));
        }
    }

    fn release(&mut self, file: &FileName, key: Key, outcome: &mut Outcome) {
        let Some(claim) = self.of.get_mut(&key) else {
            return;
        };
        let was_first = claim.files.first() == Some(file);
        claim.files.remove(file);
        match claim.files.first() {
            Some(next) if was_first => {
                outcome.inherited.insert(next.clone());
            }
            Some(_) => {}
            None => {
                self.of.remove(&key);
                outcome.events.push(Event::Delete(key.0, key.1));
            }
        }
    }
}

/// Only compared within this process, so the hasher's stability is no matter.
fn hash(object: &Object) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    hasher.finish()
}
