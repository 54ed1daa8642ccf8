//! Which Pods of this node opt out of socket translation (semantics 36).
//!
//! Labels cost next to nothing: the API server sends metadata of labelled
//! Namespaces, and of this node's Pods only those with the label. Once a Namespace
//! opts out its Pods must be known, too; then all running Pods of this node are
//! watched, in one watch, however many Namespaces there are.

use super::watch::Watch;
use crate::model::{Kind, ObjectName, SOCKET_TRANSLATION, SocketTranslation};
use crate::source::{Event, Object};
use ::kube::core::PartialObjectMeta;
use ::kube::runtime::watcher;
use ::kube::{Api, Client};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use std::collections::BTreeSet;
use tokio::sync::{Notify, mpsc, watch};

/// Events that may wait for the relay.
const QUEUE: usize = 64;

/// How to follow Pods and Namespaces.
pub(super) struct OptOuts<'a> {
    pub(super) client: &'a Client,
    pub(super) streaming: bool,
    pub(super) node_name: &'a str,
    pub(super) events: &'a mpsc::Sender<Event>,
    pub(super) trouble: &'a Notify,
}

impl OptOuts<'_> {
    /// Follows both kinds; returns when the receiver is gone.
    pub(super) async fn run(&self) {
        let (sender, namespaces) = mpsc::channel(QUEUE);
        let (any, any_changed) = watch::channel(false);
        tokio::select! {
            () = self.follow_namespaces(&sender) => {}
            () = relay(namespaces, self.events, &any) => {}
            () = self.follow_pods(any_changed) => {}
        }
    }

    async fn follow_namespaces(&self, events: &mpsc::Sender<Event>) {
        let watch = self.watch(
            watcher::Config::default().labels(SOCKET_TRANSLATION),
            events,
        );
        let api = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
        watch.run(api).await;
    }

    async fn follow_pods(&self, mut any: watch::Receiver<bool>) {
        loop {
            let config = watcher::Config::default().fields(&running_on(self.node_name));
            let config = if *any.borrow_and_update() {
                config
            } else {
                config.labels(SOCKET_TRANSLATION)
            };
            let watch = self.watch(config, self.events);
            let api = Api::<PartialObjectMeta<Pod>>::all(self.client.clone());
            tokio::select! {
                () = watch.run(api) => return,
                changed = any.changed() => if changed.is_err() { return },
            }
        }
    }

    fn watch<'a>(&'a self, config: watcher::Config, events: &'a mpsc::Sender<Event>) -> Watch<'a> {
        Watch {
            config,
            streaming: self.streaming,
            events,
            trouble: self.trouble,
        }
    }
}

/// Pods that have ended have no processes to look for.
fn running_on(node_name: &str) -> String {
    format!("spec.nodeName={node_name},status.phase!=Succeeded,status.phase!=Failed")
}

/// Passes events about Namespaces on, and tells whether any opts out.
async fn relay(
    mut namespaces: mpsc::Receiver<Event>,
    events: &mpsc::Sender<Event>,
    any: &watch::Sender<bool>,
) {
    let mut opted_out = BTreeSet::new();
    let mut listed = None;
    while let Some(event) = namespaces.recv().await {
        note(&event, &mut opted_out, &mut listed);
        any.send_if_modified(|any| {
            let now = !opted_out.is_empty();
            std::mem::replace(any, now) != now
        });
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Keeps the names of the Namespaces that opt out; `listed` has those of the list
/// under way.
fn note(
    event: &Event,
    opted_out: &mut BTreeSet<ObjectName>,
    listed: &mut Option<BTreeSet<ObjectName>>,
) {
    match event {
        Event::Begin(Kind::Namespace) => *listed = Some(BTreeSet::new()),
        Event::Apply(Object::Namespace(namespace))
            if namespace.translation == Some(SocketTranslation::Disabled) =>
        {
            opted_out.insert(namespace.name.clone());
            if let Some(listed) = listed {
                listed.insert(namespace.name.clone());
            }
        }
        Event::Apply(Object::Namespace(namespace)) => {
            opted_out.remove(&namespace.name);
        }
        Event::Delete(Kind::Namespace, name) => {
            opted_out.remove(name);
        }
        Event::Done(Kind::Namespace) => {
            if let Some(listed) = listed.take() {
                *opted_out = listed;
            }
        }
        _ => {}
    }
}
