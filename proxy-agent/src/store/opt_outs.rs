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
