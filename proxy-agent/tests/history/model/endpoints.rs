//! The endpoints of a service port and its two sets [3, 4, 13 to 15].

use super::fields::{self, is_v4, list, port_number, protocol, text, usable};
use super::{Endpoint, OUR_NODE, Surroundings};
use proxy_common::Protocol;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// `forNodes` and `forZones`.
type Hints = (Vec<String>, Vec<String>);

/// What one slice says of an endpoint.
#[derive(Clone, Debug)]
struct Copy {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    /// `nodeName`, unless empty.
    node: Option<String>,
    hints: Option<Hints>,
    /// By annotation, of the slice before the Service.
    weight: u32,
}

/// The sets of one family, sorted.
#[derive(Debug, Default)]
pub(crate) struct Half {
    pub(crate) cluster: Vec<Endpoint>,
    pub(crate) local: Vec<Endpoint>,
    serving: Vec<Endpoint>,
    /// Of those, the ones on this node.
    here: Vec<Endpoint>,
    /// The Node of each.
    nodes: BTreeMap<Endpoint, String>,
}

/// The halves of a service port: each family is independent [6].
#[derive(Debug)]
pub(crate) struct Sets {
    v4: Half,
    v6: Half,
}

impl Sets {
    pub(super) fn of(around: &Surroundings<'_>, port: &str, of_port: Protocol) -> Self {
        let half = |v4: bool| {
            let mut copies: BTreeMap<Endpoint, Vec<Copy>> = BTreeMap::new();
            for slice in &around.slices {
                collect(slice, v4, port, of_port, around, &mut copies);
            }
            Half::of(copies, around.zone)
        };
        Self {
            v4: half(true),
            v6: half(false),
        }
    }

    pub(super) fn half(&self, v4: bool) -> &Half {
        if v4 { &self.v4 } else { &self.v6 }
    }

    /// Endpoints on this node that serve.
    pub(super) fn here(&self) -> impl Iterator<Item = Endpoint> {
        self.v4.here.iter().chain(&self.v6.here).copied()
    }

    /// The Node that an endpoint is on, if it says so.
    pub(super) fn node_of(&self, endpoint: &Endpoint) -> Option<&String> {
        self.half(is_v4(endpoint.0)).nodes.get(endpoint)
    }

    /// Endpoints that flows may stay with [26].
    pub(super) fn serving(&self) -> impl Iterator<Item = Endpoint> {
        self.v4.serving.iter().chain(&self.v6.serving).copied()
    }
}

/// Every copy of every endpoint in a slice.
fn collect(
    slice: &Value,
    v4: bool,
    port: &str,
    of_port: Protocol,
    around: &Surroundings<'_>,
    copies: &mut BTreeMap<Endpoint, Vec<Copy>>,
) {
    let family = if v4 { "IPv4" } else { "IPv6" };
    if text(&slice["addressType"]) != Some(family) {
        return;
    }
    for slice_port in list(&slice["ports"]) {
        let name = text(&slice_port["name"]).unwrap_or_default();
        let Some(number) = port_number(&slice_port["port"]) else {
            continue;
        };
        if name != port || protocol(slice_port) != Some(of_port) {
            continue;
        }
        for endpoint in list(&slice["endpoints"]) {
            let first = list(&endpoint["addresses"]).next();
            let Some(ip) = first.and_then(text).and_then(fields::address) else {
                continue;
            };
            if is_v4(ip) == v4 && usable(ip) && !around.cluster_ips.contains(&ip) {
                let weight = [slice, around.service]
                    .into_iter()
                    .find_map(|it| weight(it, ip, endpoint));
                let copy = read(endpoint, weight.unwrap_or(1));
                copies.entry((ip, number)).or_default().push(copy);
            }
        }
    }
}

/// The weight that an object's annotation gives to an endpoint, if all of it can
/// be read. Patterns end with their star here.
fn weight(object: &Value, ip: IpAddr, endpoint: &Value) -> Option<u32> {
    let annotation = text(&object["metadata"]["annotations"]["fairlead.io/weights"])?;
    let name = text(&endpoint["targetRef"]["name"]).unwrap_or_default();
    let mut entries = Vec::new();
    for entry in annotation.split(',') {
        let (target, weight) = entry.split_once('=')?;
        let is_address = target.contains(':') || !target.contains(char::is_alphabetic);
        if is_address && target != "*" {
            entries.push((fields::address(target)? == ip, weight.parse().ok()?));
        } else {
            let named = match target.split_once('*') {
                Some((start, _)) => !name.is_empty() && name.starts_with(start),
                None => name == target,
            };
            entries.push((named, weight.parse().ok()?));
        }
    }
    let found = entries.into_iter().find(|(names, _)| *names);
    found.map(|(_, weight)| weight)
}

/// [4]
fn read(endpoint: &Value, weight: u32) -> Copy {
    let condition = |name: &str, unset| endpoint["conditions"][name].as_bool().unwrap_or(unset);
    let names = |field: &str| -> Vec<String> {
        list(&endpoint["hints"][field])
            .filter_map(|it| text(&it["name"]))
            .map(str::to_owned)
            .collect()
    };
    let hints = (names("forNodes"), names("forZones"));
    Copy {
        ready: condition("ready", true),
        serving: condition("serving", true),
        terminating: condition("terminating", false),
        local: text(&endpoint["nodeName"]) == Some(OUR_NODE),
        node: text(&endpoint["nodeName"])
            .filter(|it| !it.is_empty())
            .map(str::to_owned),
        hints: (hints != Hints::default()).then_some(hints),
        weight,
    }
}

/// The copy that counts [3]: a ready one, then one that serves and terminates,
/// then one that serves; of equals the one with the greatest hints.
fn merge(copies: &[Copy]) -> Option<Copy> {
    let tests: [fn(&Copy) -> bool; 3] = [
        |it| it.ready,
        |it| it.serving && it.terminating,
        |it| it.serving,
    ];
    let test = tests.into_iter().find(|test| copies.iter().any(test))?;
    let usable = copies.iter().filter(|it| test(it));
    let mut chosen = usable
        .max_by_key(|it| {
            let draining = it.serving && it.terminating;
            let node = it.node.clone();
            (draining, it.serving, it.hints.clone(), it.weight, node)
        })?
        .clone();
    chosen.local = copies.iter().any(|it| it.local);
    if chosen.local {
        chosen.node = Some(OUR_NODE.to_owned());
    }
    Some(chosen)
}

/// The endpoints whose copy is wanted.
fn those(all: &[(Endpoint, Copy)], wanted: impl Fn(&Copy) -> bool) -> Vec<Endpoint> {
    let kept = all.iter().filter(|(_, copy)| wanted(copy));
    kept.map(|(endpoint, _)| *endpoint).collect()
}

impl Half {
    fn of(copies: BTreeMap<Endpoint, Vec<Copy>>, zone: Option<&str>) -> Self {
        let mut all: Vec<(Endpoint, Copy)> = Vec::new();
        for (endpoint, copies) in copies {
            all.extend(merge(&copies).map(|copy| (endpoint, copy)));
        }
        let ready = those(&all, |it| it.ready);
        let mut cluster = if ready.is_empty() {
            those(&all, |it| it.serving && it.terminating)
        } else {
            hinted(&ready, &all, zone)
        };
        let mut local = those(&all, |it| it.ready && it.local);
        if local.is_empty() {
            local = those(&all, |it| it.serving && it.terminating && it.local);
        }
        let heavy = those(&all, |it| it.weight > 0);
        for set in [&mut cluster, &mut local] {
            if set.iter().any(|it| heavy.contains(it)) {
                set.retain(|it| heavy.contains(it));
            }
        }
        Self {
            cluster,
            local,
            serving: those(&all, |it| it.ready || it.serving),
            here: those(&all, |it| it.local && (it.ready || it.serving)),
            nodes: all
                .iter()
                .filter_map(|(endpoint, it)| Some((*endpoint, it.node.clone()?)))
                .collect(),
        }
    }
}

/// [15]
fn hinted(ready: &[Endpoint], all: &[(Endpoint, Copy)], zone: Option<&str>) -> Vec<Endpoint> {
    let nodes = |it: &Copy| it.hints.clone().unwrap_or_default().0;
    let zones = |it: &Copy| it.hints.clone().unwrap_or_default().1;
    let has = |names: Vec<String>, us: &str| names.iter().any(|name| name == us);
    if those(all, |it| it.ready && !nodes(it).is_empty()) == ready {
        let ours = those(all, |it| it.ready && has(nodes(it), OUR_NODE));
        if !ours.is_empty() {
            return ours;
        }
    }
    if let Some(zone) = zone
        && those(all, |it| it.ready && !zones(it).is_empty()) == ready
    {
        let ours = those(all, |it| it.ready && has(zones(it), zone));
        if !ours.is_empty() {
            return ours;
        }
    }
    ready.to_vec()
}
