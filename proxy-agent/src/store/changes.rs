//! What has changed, for the metrics.
//!
//! Corresponds to pkg/proxy/endpointschangetracker.go and servicechangetracker.go
//! of kubernetes/kubernetes.

use crate::model::{EndpointSlice, Family, ObjectName};
use std::collections::BTreeMap;

/// Changes of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of Services.
    pub services: u64,
    /// Of EndpointSlices.
    pub slices: u64,
    /// Whether anything is to be published.
    pub to_publish: bool,
}

/// When a change began that led to a slice's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    /// The slice's `addressType`.
    pub family: Family,
    /// [`EndpointSlice::triggered_ms`].
    pub triggered_ms: i64,
}

/// Counts until somebody asks.
#[derive(Debug, Default)]
pub(super) struct Tally {
    changes: Changes,
    triggers: BTreeMap<ObjectName, Vec<Trigger>>,
}

impl Tally {
    /// A Service has changed, come or gone.
    pub(super) fn service(&mut self) {
        self.changes.services += 1;
    }

    /// A slice has changed or come; `used` if its Service is there.
    pub(super) fn slice(&mut self, slice: &EndpointSlice, used: bool) {
        self.changes.slices += 1;
        if let (Some(service), Some(triggered_ms), true) =
            (&slice.service, slice.triggered_ms, used)
        {
            let family = slice.family;
            let triggers = self.triggers.entry(service.clone()).or_default();
            triggers.push(Trigger {
                family,
                triggered_ms,
            });
        }
    }

    /// What a deleted slice says of the time is about an earlier change, and what
    /// waits is no longer what the kernel gets.
    pub(super) fn slice_is_gone(&mut self, slice: &EndpointSlice) {
        self.changes.slices += 1;
        if let Some(service) = &slice.service {
            self.triggers.remove(service);
        }
    }

    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn take_triggers(&mut self) -> Vec<Trigger> {
        let triggers = std::mem::take(&mut self.triggers);
        triggers.into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{name, node, service, slice, store};
    use super::*;
    use crate::model::Kind;
    use crate::source::{Event, Object};
    use crate::store::Store;

    /// A slice of `web` with one endpoint, from a change at this time.
    fn triggered(slice_name: &str, address: &str, at_ms: i64) -> Event {
        let Object::Slice(made) = slice(slice_name, Some("web"), &[address], None) else {
            unreachable!("slice() makes slices")
        };
        Event::Apply(Object::Slice(EndpointSlice {
            triggered_ms: Some(at_ms),
            ..made
        }))
    }

    fn triggers_ms(store: &mut Store) -> Vec<i64> {
        let triggers = store.take_triggers().into_iter();
        triggers.map(|it| it.triggered_ms).collect()
    }

    /// Services, slices, and whether there is something to publish.
    fn counted(store: &mut Store) -> (u64, u64, bool) {
        let changes = store.take_changes();
        store.take_dirty();
        (changes.services, changes.slices, changes.to_publish)
    }

    #[test]
    fn only_what_changes_something_counts() {
        let mut store = store([]);
        let web = || Event::Apply(service("web", "10.96.0.1"));
        let one = || triggered("web-1", "10.244.1.1", 7);
        let gone = |kind, object: &str| Event::Delete(kind, name(object));
        let foreign = || Event::Apply(slice("x-1", None, &["10.244.1.1"], None));
        let node = |zone| Event::Apply(node("n1", zone));
        for (event, want) in [
            (web(), (1, 0, true)),
            (web(), (0, 0, false)),
            (one(), (0, 1, true)),
            (one(), (0, 0, false)),
            // The time alone is no change.
            (triggered("web-1", "10.244.1.1", 8), (0, 0, false)),
            (foreign(), (0, 0, false)),
            (node(Some("za")), (0, 0, false)),
            (Event::Begin(Kind::Service), (0, 0, false)),
            (gone(Kind::EndpointSlice, "x-1"), (0, 0, false)),
            (gone(Kind::EndpointSlice, "web-1"), (0, 1, true)),
            (gone(Kind::Service, "web"), (1, 0, true)),
            (gone(Kind::Service, "web"), (0, 0, false)),
            // It waits for its Service: nothing is published.
            (one(), (0, 1, false)),
        ] {
            store.apply(event.clone());
            assert_eq!(counted(&mut store), want, "{event:?}");
        }
    }

    #[test]
    fn each_change_of_a_slice_has_its_time_unless_a_slice_is_deleted() {
        let mut store = store([service("web", "10.96.0.1")]);
        store.apply(triggered("web-1", "10.244.1.1", 1));
        store.apply(triggered("web-1", "10.244.1.2", 2));
        store.apply(triggered("web-2", "10.244.1.3", 3));
        store.apply(Event::Apply(slice(
            "web-3",
            Some("web"),
            &["10.244.1.4"],
            None,
        )));
        assert_eq!(triggers_ms(&mut store), [1, 2, 3]);
        assert!(triggers_ms(&mut store).is_empty());
        store.apply(triggered("web-1", "10.244.1.5", 4));
        store.apply(Event::Delete(Kind::EndpointSlice, name("web-2")));
        assert!(triggers_ms(&mut store).is_empty());
    }

    #[test]
    fn a_node_that_is_gone_is_leaving_and_one_that_never_was_is_not() {
        let gone = || Event::Delete(Kind::Node, ObjectName::new("", "n1"));
        let mut store = store([]);
        store.apply(Event::Begin(Kind::Node));
        store.apply(Event::Done(Kind::Node));
        assert!(!store.is_leaving());
        store.apply(Event::Apply(node("n1", None)));
        assert!(!store.is_leaving());
        store.apply(gone());
        assert!(store.is_leaving());
        store.apply(Event::Apply(node("n1", None)));
        assert!(!store.is_leaving());
    }
}
