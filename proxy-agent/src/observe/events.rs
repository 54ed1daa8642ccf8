//! Kubernetes Events on objects that are not used as written.
//!
//! Every node meets the same fault in the same object. So an Event's name is a
//! function of the fault and of the [`PERIOD`] in which it was met, the same on
//! all nodes: the first one creates it, and the API server answers all others
//! with 409, which is as good. (The recorder of the kube crate names Events by
//! the time: in a cluster of 1,000 nodes that would be 1,000 objects.) Each node
//! waits a time of its own within [`SPREAD`], so that a fault that 1,000 nodes
//! meet at once costs the API server 100 small requests a second, for 20 s.

use super::Metrics;
use crate::model::{Kind, ObjectName, Warning};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A fault is told at most once in this time.
const PERIOD: Duration = Duration::from_secs(600);

/// Faults of one object that are told in a [`PERIOD`].
const PER_OBJECT: u32 = 5;

/// Faults of all objects that a node tells in a [`PERIOD`].
const IN_TOTAL: usize = 60;

/// Nodes that meet a fault at the same time tell it spread over this time.
const SPREAD: Duration = Duration::from_secs(20);

/// How long the API server may take for one Event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The API's limits (staging/src/k8s.io/api/events/v1/types.go; names as DNS
/// subdomains, here with a dot and 16 digits behind the object's).
const NOTE_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 253 - 17;
const INSTANCE_BYTES_MAX: usize = 128;

const CONTROLLER: &str = "fairlead.io/agent";

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// Created by this node.
    Created,
    /// Another node, or an earlier start of this one, had created it.
    Exists,
    /// There is no such object any more.
    Obsolete,
    /// Above a limit.
    Limited,
    /// The API server did not take it.
    Failed,
}

impl EventOutcome {
    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Exists => "exists",
            Self::Obsolete => "obsolete",
            Self::Limited => "limited",
            Self::Failed => "failed",
        }
    }
}

/// Makes Events of warnings, beside the agent's loop.
pub struct EventWriter {
    client: watch::Receiver<Option<Client>>,
    node_name: String,
    metrics: Arc<Metrics>,
    limits: Limits,
    waiting: BTreeMap<(Instant, u64), Draft>,
    /// Whether the missing right was told.
    forbidden: bool,
}

/// A fault that is to be told.
struct Draft {
    kind: Kind,
    object: ObjectName,
    name: String,
    reason: &'static str,
    note: String,
    time: Timestamp,
}

impl EventWriter {
    /// Uses whatever client there is when an Event is due.
    pub fn new(
        client: watch::Receiver<Option<Client>>,
        node_name: &str,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            node_name: node_name.to_owned(),
            metrics,
            limits: Limits::default(),
            waiting: BTreeMap::new(),
            forbidden: false,
        }
    }

    /// Runs until nobody warns any more.
    pub async fn run(mut self, mut warnings: mpsc::Receiver<Warning>) {
        loop {
            let due = self.waiting.keys().next().map(|(at, _)| *at);
            tokio::select! {
                warning = warnings.recv() => match warning {
                    Some(warning) => self.admit(&warning),
                    None => return,
                },
                () = until(due) => self.write_next().await,
            }
        }
    }

    fn admit(&mut self, warning: &Warning) {
        // A manifest is no object of the API.
        let Some(kind) = warning.kind else {
            return;
        };
        let time = Timestamp::now();
        match self.limits.admit(kind, warning, time) {
            Verdict::Told => {}
            Verdict::TooMany => self.metrics.event(EventOutcome::Limited),
            Verdict::Tell(id) => {
                let at = Instant::now() + delay(&self.node_name, id);
                let draft = Draft {
                    kind,
                    object: warning.name.clone(),
                    name: event_name(&warning.name.name, id),
                    reason: warning.reason.as_str(),
                    note: cut(&warning.message, NOTE_BYTES_MAX).to_owned(),
                    time,
                };
                self.waiting.insert((at, id), draft);
            }
        }
    }

    async fn write_next(&mut self) {
        // Without an API server there is nobody to tell; an error is the agent's end.
        let client = self.client.wait_for(Option::is_some).await;
        let Some(client) = client.ok().and_then(|it| it.clone()) else {
            return std::future::pending().await;
        };
        let Some((_, draft)) = self.waiting.pop_first() else {
            return;
        };
        let written = tokio::time::timeout(WRITE_TIMEOUT, self.write(client, draft)).await;
        let written = written.context("no answer in time").flatten();
        let outcome = written.unwrap_or_else(|error| {
            self.tell(&error);
            EventOutcome::Failed
        });
        self.metrics.event(outcome);
    }

    async fn write(&self, client: Client, draft: Draft) -> Result<EventOutcome> {
        let Some(uid) = uid(&client, draft.kind, &draft.object).await? else {
            return Ok(EventOutcome::Obsolete);
        };
        let event = event(draft, uid, &self.node_name);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events = Api::<Event>::namespaced(client, &namespace);
        match events.create(&PostParams::default(), &event).await {
            Ok(_) => Ok(EventOutcome::Created),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(EventOutcome::Exists),
            Err(error) => Err(error).context("creating it"),
        }
    }

    fn tell(&mut self, error: &anyhow::Error) {
        let denied = |error: &kube::Error| matches!(error, kube::Error::Api(it) if it.code == 403);
        let denied = error.downcast_ref().is_some_and(denied);
        if denied && self.forbidden {
            return;
        }
        self.forbidden |= denied;
        tracing::warn!(
            "an Event could not be written; the log has what it would say (it takes verb create on events.events.k8s.io, and get on the object): {error:#}"
        );
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// By its UID people find an object's Events (kubectl describe); `None` if there
/// is no such object any more.
async fn uid(client: &Client, kind: Kind, name: &ObjectName) -> Result<Option<String>> {
    let version = kind.api_version();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.as_str()));
    let client = client.clone();
    let objects = if name.namespace.is_empty() {
        Api::<DynamicObject>::all_with(client, &resource)
    } else {
        Api::<DynamicObject>::namespaced_with(client, &name.namespace, &resource)
    };
    match objects.get_metadata(&name.name).await {
        Ok(object) => Ok(object.metadata.uid),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).context("asking for the object's UID"),
    }
}

fn event(draft: Draft, uid: String, node_name: &str) -> Event {
    let namespace = draft.object.namespace.to_string();
    let namespace = Some(namespace).filter(|it| !it.is_empty());
    Event {
        metadata: ObjectMeta {
            name: Some(draft.name),
            // Of an object in no namespace the API takes it in this one only
            // (pkg/apis/core/validation/events.go).
            namespace: namespace.clone().or(Some("default".to_owned())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(draft.time)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(cut(node_name, INSTANCE_BYTES_MAX).to_owned()),
        action: Some("Publish".to_owned()),
        reason: Some(draft.reason.to_owned()),
        note: Some(draft.note),
        type_: Some("Warning".to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(draft.kind.api_version().to_owned()),
            kind: Some(draft.kind.as_str().to_owned()),
            namespace,
            name: Some(draft.object.name.to_string()),
            uid: Some(uid),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

/// What was told in the period under way.
#[derive(Debug, Default)]
struct Limits {
    period: i64,
    told: BTreeSet<u64>,
    of_object: BTreeMap<(Kind, ObjectName), u32>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// To be told, under this number.
    Tell(u64),
    /// It was, in this period.
    Told,
    /// Above a limit.
    TooMany,
}

impl Limits {
    fn admit(&mut self, kind: Kind, warning: &Warning, now: Timestamp) -> Verdict {
        let period = now.as_second() / PERIOD.as_secs() as i64;
        if period != self.period {
            *self = Self {
                period,
                ..Self::default()
            };
        }
        let id = id(kind, warning, period);
        if self.told.contains(&id) {
            return Verdict::Told;
        }
        let object = (kind, warning.name.clone());
        let of_object = self.of_object.get(&object).copied().unwrap_or_default();
        if of_object >= PER_OBJECT || self.told.len() >= IN_TOTAL {
            return Verdict::TooMany;
        }
        self.of_object.insert(object, of_object + 1);
        self.told.insert(id);
        Verdict::Tell(id)
    }
}

/// The same on all nodes and in all builds.
fn id(kind: Kind, warning: &Warning, period: i64) -> u64 {
    hash(&[
        kind.as_str(),
        &warning.name.namespace,
        &warning.name.name,
        warning.reason.as_str(),
        &warning.message,
        &period.to_string(),
    ])
}

/// FNV-1a, with a byte between the parts that no text has.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|it| it.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn delay(node_name: &str, id: u64) -> Duration {
    let share = hash(&[node_name, &id.to_string()]) % SPREAD.as_millis() as u64;
    Duration::from_millis(share)
}

fn event_name(object: &str, id: u64) -> String {
    let object = cut(object, NAME_BYTES_MAX).trim_end_matches(['.', '-']);
    format!("{object}.{id:016x}")
}

/// The beginning of a text, not more than so many bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut ends = (0..=bytes_max.min(text.len())).rev();
    let end = ends.find(|&it| text.is_char_boundary(it));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Reason;

    fn warning(object: &str, message: &str) -> Warning {
        let name = ObjectName::new("shop", object);
        let reason = Reason::InvalidAddress;
        Warning::new(Kind::Service, &name, reason, message.to_owned())
    }

    /// So many seconds after the beginning of a period.
    fn at(seconds: u64) -> Timestamp {
        let begin = 2_000_000 * PERIOD.as_secs();
        Timestamp::from_second((begin + seconds) as i64).unwrap()
    }

    fn admit(limits: &mut Limits, warning: &Warning, seconds: u64) -> Verdict {
        limits.admit(Kind::Service, warning, at(seconds))
    }

    #[test]
    fn all_nodes_name_a_fault_the_same_and_tell_it_once_in_a_period() {
        let (mut one, mut other) = (Limits::default(), Limits::default());
        let fault = warning("web", "bad");
        let Verdict::Tell(id) = admit(&mut one, &fault, 1) else {
            panic!("not told")
        };
        assert_eq!(admit(&mut other, &fault, 599), Verdict::Tell(id));
        assert_eq!(admit(&mut one, &fault, 599), Verdict::Told);
        let Verdict::Tell(later) = admit(&mut one, &fault, 600) else {
            panic!("not told again")
        };
        assert_ne!(id, later);
        for (message, object) in [("bad", "api"), ("worse", "web")] {
            let verdict = admit(&mut other, &warning(object, message), 2);
            assert!(matches!(verdict, Verdict::Tell(it) if it != id));
        }
    }

    #[test]
    fn neither_one_object_nor_all_of_them_flood_the_api_server() {
        let mut limits = Limits::default();
        let mut told = |object: &str, seconds| {
            let faults = (0..20).map(|it| warning(object, &it.to_string()));
            let verdicts = faults.map(|it| admit(&mut limits, &it, seconds));
            verdicts.filter(|it| matches!(it, Verdict::Tell(_))).count()
        };
        assert_eq!(told("web", 0), PER_OBJECT as usize);
        let rest: usize = (0..100).map(|it| told(&it.to_string(), 1)).sum();
        assert_eq!(rest, IN_TOTAL - PER_OBJECT as usize);
        assert_eq!(told("web", 600), PER_OBJECT as usize);
    }

    #[test]
    fn nodes_spread_over_the_time() {
        let delays: Vec<u128> = (0..1000)
            .map(|node| delay(&format!("node-{node}"), 7).as_millis())
            .collect();
        for tenth in 0..10 {
            let begin = tenth * SPREAD.as_millis() / 10;
            let part = begin..begin + SPREAD.as_millis() / 10;
            let count = delays.iter().filter(|it| part.contains(it)).count();
            assert!((50..200).contains(&count), "{tenth}: {count}");
        }
    }

    #[test]
    fn names_and_notes_are_what_the_api_takes() {
        assert_eq!(event_name("web", 255), "web.00000000000000ff");
        let long = event_name(&"a.".repeat(130), 1);
        assert!(long.len() <= 253 && !long.contains(".."), "{long}");
        assert_eq!(cut("éé", 3), "é");
        let draft = |namespace: &str| Draft {
            kind: Kind::Namespace,
            object: ObjectName::new(namespace, "mesh"),
            name: "mesh.1".into(),
            reason: "UnknownValue",
            note: "bad".into(),
            time: at(0),
        };
        let made = event(draft(""), "u".into(), "n1");
        assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(made.regarding.unwrap().namespace, None);
        let made = event(draft("shop"), "u".into(), "n1");
        assert_eq!(made.metadata.namespace.as_deref(), Some("shop"));
    }
}
