//! Which Pods opt out of socket translation.

use crate::model::{Kind, Namespace, ObjectName, Pod, SocketTranslation};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Pods that opt out, by UID.
pub type OptedOut = BTreeMap<Box<str>, ObjectName>;

/// The Pods and Namespaces that the source tells of.
#[derive(Debug, Default)]
pub(super) struct OptOuts {
    pods: HashMap<ObjectName, Pod>,
    namespaces: HashMap<Arc<str>, Namespace>,
}

impl OptOuts {
    pub(super) fn apply_pod(&mut self, pod: Pod) {
        self.pods.insert(pod.name.clone(), pod);
    }

    pub(super) fn apply_namespace(&mut self, namespace: Namespace) {
        self.namespaces
            .insert(namespace.name.name.clone(), namespace);
    }

    pub(super) fn delete(&mut self, kind: Kind, name: &ObjectName) {
        if kind == Kind::Pod {
            self.pods.remove(name);
        } else {
            self.namespaces.remove(&name.name);
        }
    }

    /// The names of the objects of a kind.
    pub(super) fn names(&self, kind: Kind) -> Vec<ObjectName> {
        if kind == Kind::Pod {
            return self.pods.keys().cloned().collect();
        }
        let namespaces = self.namespaces.values();
        namespaces.map(|it| it.name.clone()).collect()
    }

    /// The Pods that opt out; a Pod's own label wins over that of its Namespace.
    pub(super) fn opted_out(&self) -> OptedOut {
        let opts_out = |pod: &&Pod| {
            let namespace = self.namespaces.get(&pod.name.namespace);
            let translation = pod
                .translation
                .or_else(|| namespace.and_then(|it| it.translation));
            translation == Some(SocketTranslation::Disabled)
        };
        let pods = self.pods.values().filter(opts_out);
        pods.map(|pod| (pod.uid.clone(), pod.name.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::source::{Event, Object};

    fn list(store: &mut Store, kind: Kind, objects: Vec<Object>) {
        store.apply(Event::Begin(kind));
        for object in objects {
            store.apply(Event::Apply(object));
        }
        store.apply(Event::Done(kind));
    }

    fn pod(namespace: &str, pod: &str, translation: Option<SocketTranslation>) -> Object {
        Object::Pod(Pod {
            name: ObjectName::new(namespace, pod),
            uid: format!("uid-{pod}").into(),
            translation,
        })
    }

    fn namespace(namespace: &str, translation: Option<SocketTranslation>) -> Object {
        let name = ObjectName::new("", namespace);
        Object::Namespace(Namespace { name, translation })
    }

    fn opted_out(store: &Store) -> Vec<String> {
        let opted_out = store.opted_out().expect("both lists are complete");
        opted_out.values().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pods_own_label_wins_over_that_of_its_namespace() {
        use SocketTranslation::{Disabled, Enabled};
        let mut store = Store::new("n1".into());
        // Before the list that is complete; not in it.
        store.apply(Event::Apply(pod("mesh", "gone", Some(Disabled))));
        let pods = [
            pod("mesh", "a", None),
            pod("mesh", "b", Some(Enabled)),
            pod("shop", "c", None),
            pod("shop", "d", Some(Disabled)),
        ];
        list(&mut store, Kind::Pod, pods.to_vec());
        assert!(store.opted_out().is_none() && !store.opt_outs_settled());
        let mesh = namespace("mesh", Some(Disabled));
        list(&mut store, Kind::Namespace, vec![mesh]);
        assert_eq!(opted_out(&store), ["mesh/a", "shop/d"]);
        store.apply(Event::Apply(namespace("mesh", None)));
        assert_eq!(opted_out(&store), ["shop/d"]);
        store.apply(Event::Apply(namespace("shop", Some(Disabled))));
        store.apply(Event::Apply(pod("shop", "d", None)));
        assert_eq!(opted_out(&store), ["shop/c", "shop/d"]);
        list(&mut store, Kind::Namespace, Vec::new());
        assert!(opted_out(&store).is_empty());
    }

    #[test]
    fn kinds_that_cannot_be_listed_hold_nothing_up() {
        let mut store = Store::new("n1".into());
        store.apply(Event::Unavailable(Kind::Pod));
        store.apply(Event::Unavailable(Kind::Namespace));
        assert!(store.opt_outs_settled() && store.opted_out().is_none());
    }
}
