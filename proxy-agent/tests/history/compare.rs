//! Compares what clients get with what the model says.

use crate::kernel::{Pinned, View};
use crate::model::{Client, Endpoint, Model, Outcome, Probe};
use crate::steps::Objects;
use proxy_agent::publish::Failures;
use proxy_common::decide::{BackendRef, Decision, Request, Target, decide};
use proxy_common::{BackendId, DropReason, Forwarding, Protocol, Scope};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

const PORT_NOT_IN_SERVICE: Outcome = Outcome::Refused(DropReason::PortNotInService, String::new());

/// What clients ask for.
pub(crate) struct Probes(pub(crate) Vec<Probe>);

impl Probes {
    pub(crate) fn of(addresses: &[&str], ports: &[u16]) -> Self {
        let mut probes = Vec::new();
        for address in addresses {
            for &port in ports {
                for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                    for client in Client::ALL {
                        probes.push(Probe {
                            address: address.parse().unwrap(),
                            port,
                            protocol,
                            client,
                        });
                    }
                }
            }
        }
        Self(probes)
    }
}

/// What is remembered from step to step.
pub(crate) struct Comparison<'p> {
    probes: &'p Probes,
    model: Model,
    /// With room for everything nothing may fail.
    plenty: bool,
    /// What each probe got, if anything was asked for with too little room.
    got: Vec<Outcome>,
    /// The endpoint that one client has affinity to, by service port and family.
    affinity: BTreeMap<(String, Protocol, bool), Endpoint>,
    /// The backend that one UDP socket has, by probe.
    kept: BTreeMap<Probe, (String, BackendRef, Endpoint)>,
}

impl<'p> Comparison<'p> {
    pub(crate) fn new(probes: &'p Probes, plenty: bool) -> Self {
        Self {
            probes,
            model: Model::default(),
            plenty,
            got: vec![Outcome::NotOurs; probes.0.len()],
            affinity: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    /// Between two writes each client gets what the model said before the step
    /// or what it says after it, and nothing else.
    pub(crate) fn after_crash(&self, pinned: &Pinned, new: &Model) -> Result<(), String> {
        if !self.plenty {
            return Ok(());
        }
        let old = &self.model;
        for probe in &self.probes.0 {
            let is_new = |set: fn(&Model) -> &BTreeSet<IpAddr>| {
                set(old).contains(&probe.address) != set(new).contains(&probe.address)
            };
            // Two elements decide together, each of which may be old or new.
            let falls_through = old.is_exact(probe) != new.is_exact(probe)
                && new.node_addresses.contains(&probe.address);
            if is_new(|it| &it.node_addresses) || falls_through {
                continue;
            }
            let got = outcome(pinned, probe)?;
            let (before, after) = (old.outcome(probe), new.outcome(probe));
            // A ClusterIP goes after its frontends.
            let closing = is_new(|it| &it.vips) && got == PORT_NOT_IN_SERVICE;
            if got != before && got != after && !closing {
                return Err(format!(
                    "in the middle of a publish: {probe:?}\n  got    {got:?}\n  before {before:?}\n  after  {after:?}"
                ));
            }
        }
        Ok(())
    }

    /// Each client gets what the model says.
    pub(crate) fn after_step(
        &mut self,
        pinned: &Pinned,
        known: &Objects,
        node_addresses: &BTreeSet<IpAddr>,
        failures: &Failures,
    ) -> Result<(), String> {
        if self.plenty && !failures.is_empty() {
            return Err(format!("not published: {failures:?}"));
        }
        let failed: BTreeSet<String> = failures.iter().map(|(name, _)| name.to_string()).collect();
        let model = Model::of(known, node_addresses);
        let has_failed =
            |outcome: &Outcome| service_of(outcome).is_some_and(|service| failed.contains(service));
        for (index, probe) in self.probes.0.iter().enumerate() {
            let got = outcome(pinned, probe)?;
            let wanted = model.outcome(probe);
            // Who finds no room keeps what was there, wholly or in part, or
            // leaves it to another claimant, or to nobody.
            let excused = || {
                (has_failed(&wanted) || has_failed(&got))
                    && (got == self.got[index]
                        || service_of(&got) == service_of(&wanted)
                        || got == model.unclaimed(probe)
                        || model
                            .claimants(probe)
                            .any(|it| model.through(it, probe) == got))
            };
            if got != wanted && !excused() {
                return Err(format!(
                    "{probe:?}\n  got    {got:?}\n  wanted {wanted:?}\n  failed {failures:?}\n  before {:?}",
                    self.got[index]
                ));
            }
            if got == wanted && !has_failed(&wanted) {
                ways(pinned, &model, probe)?;
            }
            if !self.plenty {
                self.got[index] = got;
            }
        }
        if self.plenty {
            self.remembered(pinned, &model)?;
            on_this_node(pinned, &model)?;
        }
        self.model = model;
        Ok(())
    }

    /// [24] and [26]: affinity holds while the endpoint is in the set, a UDP
    /// socket's backend while it serves.
    fn remembered(&mut self, pinned: &Pinned, model: &Model) -> Result<(), String> {
        let serves = |owner: &String, protocol, endpoint: &Endpoint| {
            let serving = model.serving.get(&(owner.clone(), protocol));
            serving.is_some_and(|it| it.contains(endpoint))
        };
        self.affinity
            .retain(|(owner, protocol, _), endpoint| serves(owner, *protocol, endpoint));
        self.kept
            .retain(|probe, (owner, _, endpoint)| serves(owner, probe.protocol, endpoint));
        for (index, probe) in self.probes.0.iter().enumerate() {
            let Outcome::Forwarded(owner, set) = model.outcome(probe) else {
                continue;
            };
            let has_affinity = model.front(probe).is_some_and(|it| it.affinity);
            if has_affinity {
                let random = index as u32;
                let target = ask(pinned, probe, 1, random, BackendRef::NONE)?;
                let record = (owner.clone(), probe.protocol, probe.address.is_ipv4());
                let last = self.affinity.insert(record, endpoint(&target));
                let wanted = last.filter(|it| set.contains(it));
                if wanted.is_some_and(|it| it != endpoint(&target)) {
                    return Err(format!(
                        "affinity: {probe:?} got {target:?}, had {wanted:?}"
                    ));
                }
            }
            if probe.client != Client::Host {
                continue;
            }
            let kept = self.kept.get(probe).filter(|kept| kept.0 == owner);
            let reference = kept.map_or(BackendRef::NONE, |kept| kept.1);
            let target = ask(pinned, probe, 0, index as u32, reference)?;
            if kept.is_some_and(|kept| kept.2 != endpoint(&target)) {
                return Err(format!(
                    "a socket's backend: {probe:?} got {target:?}, had {kept:?}"
                ));
            }
            let keeps = (owner, target.backend, endpoint(&target));
            self.kept.insert(*probe, keeps);
        }
        Ok(())
    }
}

/// `namespace/name` of the Service that an outcome comes from.
fn service_of(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Refused(_, owner) | Outcome::Forwarded(owner, _) => {
            owner.split_once(':').map(|(service, _)| service)
        }
        Outcome::NotOurs => None,
    }
}

fn endpoint(target: &Target) -> Endpoint {
    (target.address.to_ip(), target.port)
}

fn view<'a>(pinned: &'a Pinned, probe: &Probe, client: u64, random: u32) -> View<'a> {
    View {
        pinned,
        from: probe.client,
        client,
        random,
        table: Cell::default(),
        forwarding: Cell::default(),
    }
}

fn request(probe: &Probe) -> Request {
    Request {
        destination: probe.address.into(),
        port: probe.port,
        protocol: probe.protocol,
        scope: match probe.client {
            Client::Host | Client::Pod => Scope::Internal,
            Client::Outside => Scope::External,
        },
    }
}

/// Where one client goes whom the model lets go somewhere.
fn ask(
    pinned: &Pinned,
    probe: &Probe,
    client: u64,
    random: u32,
    kept: BackendRef,
) -> Result<Target, String> {
    match decide(&view(pinned, probe, client, random), &request(probe), kept) {
        Decision::Forward(target) => Ok(target),
        other => Err(format!("{probe:?}: {other:?}")),
    }
}

/// How a frontend forwards, and the Nodes of its backends.
fn ways(pinned: &Pinned, model: &Model, probe: &Probe) -> Result<(), String> {
    let (Some(front), Outcome::Forwarded(_, endpoints)) =
        (model.front(probe), model.outcome(probe))
    else {
        return Ok(());
    };
    let view = view(pinned, probe, 0, 0);
    decide(&view, &request(probe), BackendRef::NONE);
    let is_dsr = view.forwarding.get() == Forwarding::Dsr;
    if is_dsr != (front.dsr && probe.client == Client::Outside) {
        return Err(format!("{probe:?}: by DSR: {is_dsr}"));
    }
    let ids: BTreeSet<BackendId> = pinned.ids(view.table.get()).collect();
    let got = ids
        .iter()
        .map(|&id| (pinned.endpoint(id), pinned.node_of(id)));
    let (got, wanted) = (got.collect(), model.nodes_of(front, &endpoints));
    if wanted != got {
        return Err(format!(
            "Nodes: {probe:?}\n  got    {got:?}\n  wanted {wanted:?}"
        ));
    }
    Ok(())
}

/// From whom packets are taken, and for which backends.
fn on_this_node(pinned: &Pinned, model: &Model) -> Result<(), String> {
    let here = pinned.here();
    if here != model.here {
        return Err(format!("on this node: {here:?}\n  wanted {:?}", model.here));
    }
    let friends: BTreeSet<IpAddr> = pinned.nodes.friends().into_iter().collect();
    let wanted: BTreeSet<IpAddr> = model.nodes.values().flatten().copied().collect();
    if friends != wanted {
        return Err(format!("from Nodes: {friends:?}\n  wanted {wanted:?}"));
    }
    Ok(())
}

/// Entries of a long table that are asked for one by one.
const SAMPLES: u32 = 40;

/// What becomes of a new client: every entry of its table is looked at.
fn outcome(pinned: &Pinned, probe: &Probe) -> Result<Outcome, String> {
    let mut view = view(pinned, probe, 0, 0);
    let owner_of = |id| {
        if id == 0 {
            String::new()
        } else {
            pinned.owner(id)
        }
    };
    let first = match decide(&view, &request(probe), BackendRef::NONE) {
        Decision::NotOurs => return Ok(Outcome::NotOurs),
        Decision::Refuse(refusal) => {
            return Ok(Outcome::Refused(refusal.reason, owner_of(refusal.service)));
        }
        Decision::Forward(target) => target,
    };
    let table = view.table.get();
    let stride = if probe.client == Client::Outside {
        table.length.div_ceil(SAMPLES)
    } else {
        1
    };
    for index in (0..table.length).step_by(stride as usize) {
        view.random = index;
        let id = pinned.id_at(table, index);
        match decide(&view, &request(probe), BackendRef::NONE) {
            Decision::Forward(target) if target.backend.id == id => {}
            other => return Err(format!("{probe:?}: {other:?} at {index}, and not {id}")),
        }
    }
    let mut slots = BTreeMap::new();
    for id in pinned.ids(table) {
        *slots.entry(pinned.endpoint(id)).or_insert(0) += 1;
    }
    let (least, most) = (slots.values().min(), slots.values().max());
    let uneven = least.zip(most).is_none_or(|(least, most)| {
        let longest = if probe.client == Client::Outside {
            least + 1
        } else {
            1
        };
        *most > longest
    });
    if uneven {
        return Err(format!("{probe:?}: uneven shares of a table: {slots:?}"));
    }
    let owner = owner_of(pinned.service_of(first.backend.id));
    Ok(Outcome::Forwarded(owner, slots.into_keys().collect()))
}
