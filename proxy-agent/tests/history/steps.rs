//! Histories as data: they are generated, run, shrunk, printed and read back.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Kind {
    Service,
    EndpointSlice,
    Node,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];
}

/// Kind, namespace and name.
pub(crate) type Key = (Kind, String, String);

/// Objects as JSON.
pub(crate) type Objects = BTreeMap<Key, Value>;

/// The key of an object; `None` if nobody can refer to it.
pub(crate) fn key_of(object: &Value) -> Option<Key> {
    let kind = match object["kind"].as_str()? {
        "Service" => Kind::Service,
        "EndpointSlice" => Kind::EndpointSlice,
        "Node" => Kind::Node,
        _ => return None,
    };
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .filter(|it| !it.is_empty())
    };
    let namespace = match kind {
        Kind::Node => "",
        Kind::Service | Kind::EndpointSlice => text("namespace").unwrap_or("default"),
    };
    Some((kind, namespace.to_owned(), text("name")?.to_owned()))
}

/// What happens in the cluster, and whether the agent hears of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Op {
    /// An object is created or changed.
    Apply(Value),
    /// An object is deleted.
    Delete(Key),
    /// The same while no watch is running: only the next list tells.
    MissedApply(Value),
    /// The same.
    MissedDelete(Key),
    /// A complete list of a kind.
    List(Kind),
    /// A list that breaks off after so many objects.
    BrokenList(Kind, usize),
    /// The addresses of this node that serve NodePorts.
    NodeAddresses(Vec<IpAddr>),
}

/// What the agent takes as one batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Step {
    pub(crate) ops: Vec<Op>,
    /// The agent was away while `ops` happened, and starts now.
    pub(crate) restart: bool,
    /// The agent dies at this write of the publish, and is started again.
    pub(crate) crash_at: Option<usize>,
    /// What was retired is freed after the publish.
    pub(crate) free: bool,
    /// Order of the objects in lists.
    pub(crate) order: u64,
}

/// Room in the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    pub(crate) backends: usize,
    pub(crate) services: usize,
    pub(crate) frontends: usize,
}

impl Room {
    /// More than any history needs.
    pub(crate) const PLENTY: Self = Self {
        backends: 4096,
        services: 512,
        frontends: 4096,
    };
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) room: Room,
    pub(crate) steps: Vec<Step>,
}

impl History {
    /// The history as a file that `FAIRLEAD_REPLAY` reads: one step a line,
    /// behind a line with the room in the maps.
    pub(crate) fn to_lines(&self) -> String {
        let mut lines = json(&self.room);
        for step in &self.steps {
            lines += "\n";
            lines += &json(step);
        }
        lines
    }

    /// Reads what [`History::to_lines`] wrote.
    pub(crate) fn from_lines(text: &str) -> Self {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        Self {
            room: serde_json::from_str(lines.next().unwrap()).unwrap(),
            steps: lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        }
    }

    /// The objects of the end as a manifest for `fairlead agent --manifests`.
    pub(crate) fn last_manifest(&self) -> String {
        let mut objects = Objects::new();
        for op in self.steps.iter().flat_map(|step| &step.ops) {
            change(&mut objects, op);
        }
        let items: Vec<&Value> = objects.values().collect();
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
        serde_json::to_string_pretty(&list).unwrap()
    }
}

fn json(of: &impl Serialize) -> String {
    serde_json::to_string(of).unwrap()
}

/// What an operation does to the cluster.
pub(crate) fn change(objects: &mut Objects, op: &Op) {
    match op {
        Op::Apply(object) | Op::MissedApply(object) => {
            if let Some(key) = key_of(object) {
                objects.insert(key, object.clone());
            }
        }
        Op::Delete(key) | Op::MissedDelete(key) => {
            objects.remove(key);
        }
        Op::List(_) | Op::BrokenList(..) | Op::NodeAddresses(_) => {}
    }
}
