//! Runs a history through store, resolve and publish, and compares after each step.

use crate::compare::{Comparison, Probes};
use crate::kernel::{Died, FakeKernel};
use crate::model::{LEFT_ALONE, Model, OUR_NODE, OUR_PROXY};
use crate::random::Random;
use crate::steps::{History, Key, Kind, Objects, Op, Room, Step, change, key_of};
use proxy_agent::model::{self, Interner, ObjectName, RawEndpointSlice, RawNode, RawService};
use proxy_agent::publish::{Change, Failures, Publisher};
use proxy_agent::resolve::{ResolveOptions, resolve};
use proxy_agent::source::{Event, Object};
use proxy_agent::store::Store;
use proxy_agent::verify::{Wanted, compare};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Where a history went wrong, and how.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) step: usize,
    pub(crate) what: String,
}

/// Runs a history; a panic of the agent is a fault too. Returns how often a
/// Service found no room.
pub(crate) fn run(history: &History, probes: &Probes) -> Result<usize, Fault> {
    let mut at = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(history.room, probes);
        for (index, step) in history.steps.iter().enumerate() {
            at = index;
            world.step(step)?;
        }
        at = history.steps.len();
        world.finish()?;
        Ok(world.failed)
    }));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    });
    outcome.map_err(|what| Fault { step: at, what })
}

/// The cluster, the agent and the kernel.
struct World<'p> {
    room: Room,
    kernel: FakeKernel,
    agent: Agent,
    cluster: Objects,
    /// What the agent has been told.
    known: Objects,
    node_addresses: BTreeSet<IpAddr>,
    comparison: Comparison<'p>,
    failed: usize,
}

/// As agent.rs has it, but for time and I/O.
struct Agent {
    store: Store,
    publisher: Publisher<FakeKernel>,
    interner: Interner,
    pruned: bool,
    retry: BTreeSet<ObjectName>,
}

impl Agent {
    fn start(kernel: &FakeKernel) -> Self {
        Self {
            store: Store::new(OUR_NODE.into()),
            publisher: Publisher::restore(kernel.clone()).unwrap(),
            interner: Interner::default(),
            pruned: false,
            retry: BTreeSet::new(),
        }
    }

    fn tell(&mut self, event: Event) {
        self.store.apply(event);
    }

    /// As both sources do; `false` if the object cannot be read at all.
    fn tell_object(&mut self, value: &Value) -> bool {
        let event = self.event(value);
        let readable = event.is_some();
        event.into_iter().for_each(|event| self.store.apply(event));
        readable
    }

    fn event(&mut self, value: &Value) -> Option<Event> {
        let interner = &mut self.interner;
        let object = match value["kind"].as_str()? {
            "Service" => {
                let raw: RawService = serde_json::from_value(value.clone()).ok()?;
                let name = raw.object_name(interner)?;
                Object::Service(raw.convert(name).0)
            }
            "EndpointSlice" => {
                let raw: RawEndpointSlice = serde_json::from_value(value.clone()).ok()?;
                let name = raw.object_name(interner)?;
                match raw.convert(name.clone(), interner).0 {
                    Some(slice) => Object::Slice(slice),
                    None => return Some(Event::Delete(model::Kind::EndpointSlice, name)),
                }
            }
            _ => {
                let raw: RawNode = serde_json::from_value(value.clone()).ok()?;
                let name = raw.object_name()?;
                Object::Node(raw.convert(name, interner))
            }
        };
        Some(Event::Apply(object))
    }

    /// One turn of the agent's loop.
    fn publish(&mut self, node_addresses: &BTreeSet<IpAddr>) -> Failures {
        if !self.store.complete() {
            return Failures::new();
        }
        let changed = self.store.take_nodes_changed();
        let mut all_due = !self.pruned;
        if self.store.node_known() && (changed || !self.publisher.has_nodes()) {
            let outcome = self.publisher.set_nodes(self.store.nodes());
            all_due |= outcome.is_first;
            assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
            self.store.touch_on_nodes(&outcome.changed);
        }
        let mut dirty: BTreeSet<ObjectName> = self.store.take_dirty().into_iter().collect();
        dirty.append(&mut self.retry);
        if all_due {
            dirty.extend(self.publisher.known_services().cloned());
        }
        let changes = dirty.into_iter().map(|name| self.resolve(name)).collect();
        let failures = self.publisher.publish(changes);
        if !self.pruned {
            self.publisher.prune().unwrap();
            self.pruned = true;
        }
        self.publisher.set_node_addresses(node_addresses).unwrap();
        self.retry = failures.iter().map(|(name, _)| name.clone()).collect();
        failures
    }

    fn resolve(&self, name: ObjectName) -> Change {
        let options = options();
        let store = &self.store;
        let Some((service, slices)) = store.view(&name) else {
            return (name, None);
        };
        let is_cluster_ip = |ip| store.is_cluster_ip(ip);
        let (resolved, _) = resolve(service, slices, store.node(), is_cluster_ip, &options);
        (name, Some(resolved))
    }
}

fn options() -> ResolveOptions {
    ResolveOptions {
        health_check_node_ports: true,
        service_proxy_name: Some(OUR_PROXY.into()),
        external_ips: true,
        skip: vec![format!("{LEFT_ALONE}:53").parse().unwrap()],
        forwarding: model::ForwardingMode::Hybrid,
    }
}

impl<'p> World<'p> {
    fn new(room: Room, probes: &'p Probes) -> Self {
        let kernel = FakeKernel::new(room);
        let mut agent = Agent::start(&kernel);
        for kind in Kind::ALL {
            agent.tell(Event::Begin(agent_kind(kind)));
            agent.tell(Event::Done(agent_kind(kind)));
        }
        Self {
            room,
            kernel,
            agent,
            cluster: Objects::new(),
            known: Objects::new(),
            node_addresses: BTreeSet::new(),
            failed: 0,
            comparison: Comparison::new(probes, room == Room::PLENTY),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mut random = Random::new(step.order);
        for op in &step.ops {
            self.op(op, step.restart, &mut random);
        }
        if step.restart {
            self.restart(&mut random);
        }
        self.kernel.crash_in(step.crash_at);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let failures = self.agent.publish(&self.node_addresses);
            if step.free {
                free(&self.kernel, &mut self.agent.publisher);
            }
            failures
        }));
        self.kernel.crash_in(None);
        let failures = match outcome {
            Ok(failures) => {
                if step.free && failures.is_empty() {
                    self.verify()?;
                }
                failures
            }
            Err(panic) if panic.is::<Died>() => {
                self.sound("in a publish that was broken off")?;
                let model = Model::of(&self.known, &self.node_addresses);
                self.comparison
                    .after_crash(&self.kernel.0.borrow(), &model)?;
                self.restart(&mut random);
                self.agent.publish(&self.node_addresses)
            }
            Err(panic) => resume_unwind(panic),
        };
        self.failed += failures.len();
        self.sound("in a publish")?;
        self.comparison.after_step(
            &self.kernel.0.borrow(),
            &self.known,
            &self.node_addresses,
            &failures,
        )
    }

    /// `fairlead status --verify` finds nothing to complain of.
    fn verify(&self) -> Result<(), String> {
        if !self.agent.store.complete() {
            return Ok(());
        }
        let wanted = Wanted::of(&self.agent.store, &options());
        let differences = compare(&wanted, &self.kernel).map_err(|error| error.to_string())?;
        match differences.first() {
            Some(first) => Err(format!("verify: {first}")),
            None => Ok(()),
        }
    }

    /// What the fake kernel found at single writes.
    fn sound(&self, when: &str) -> Result<(), String> {
        match self.kernel.broken() {
            Some(what) => Err(format!("{when}: {what}")),
            None => Ok(()),
        }
    }

    fn op(&mut self, op: &Op, agent_is_away: bool, random: &mut Random) {
        change(&mut self.cluster, op);
        if let Op::NodeAddresses(addresses) = op {
            self.node_addresses = addresses.iter().copied().collect();
            self.agent.store.set_node_addresses(addresses.clone());
        }
        if agent_is_away {
            return;
        }
        match op {
            Op::Apply(value) => self.learn(value),
            Op::Delete(key) => {
                self.agent.tell(Event::Delete(agent_kind(key.0), name(key)));
                self.known.remove(key);
            }
            Op::List(kind) => self.list(*kind, None, random),
            Op::BrokenList(kind, length) => self.list(*kind, Some(*length), random),
            Op::MissedApply(_) | Op::MissedDelete(_) | Op::NodeAddresses(_) => {}
        }
    }

    fn learn(&mut self, value: &Value) {
        if self.agent.tell_object(value)
            && let Some(key) = key_of(value)
        {
            self.known.insert(key, value.clone());
        }
    }

    /// A list, in any order; one that breaks off tells nothing of deletions.
    fn list(&mut self, kind: Kind, breaks_off_after: Option<usize>, random: &mut Random) {
        let mut values: Vec<Value> = self
            .cluster
            .iter()
            .filter(|(key, _)| key.0 == kind)
            .map(|(_, value)| value.clone())
            .collect();
        random.shuffle(&mut values);
        values.truncate(breaks_off_after.unwrap_or(usize::MAX));
        self.agent.tell(Event::Begin(agent_kind(kind)));
        for value in &values {
            self.learn(value);
        }
        if breaks_off_after.is_none() {
            self.agent.tell(Event::Done(agent_kind(kind)));
            let cluster = &self.cluster;
            self.known
                .retain(|key, _| key.0 != kind || cluster.contains_key(key));
        }
    }

    /// A new process over the same pinned maps; all kinds are listed anew.
    fn restart(&mut self, random: &mut Random) {
        self.kernel.wait_for_readers();
        self.agent = Agent::start(&self.kernel);
        let addresses = self.node_addresses.iter().copied().collect();
        self.agent.store.set_node_addresses(addresses);
        self.known.clear();
        let mut kinds = Kind::ALL;
        random.shuffle(&mut kinds);
        for kind in kinds {
            // Nothing may be touched before the lists are complete [34].
            if self.agent.store.complete() && random.percent(50) {
                // The Node comes last and late: it is not needed for a publish.
                self.agent.publish(&self.node_addresses);
            }
            self.list(kind, None, random);
        }
    }

    /// Invariant 5: what could not be published is, once there is room, and
    /// nothing is left over when all is gone.
    fn finish(&mut self) -> Result<(), String> {
        let keys: Vec<Key> = self
            .known
            .keys()
            .filter(|key| key.0 == Kind::Service)
            .cloned()
            .collect();
        let mut random = Random::new(keys.len() as u64);
        self.settle()?;
        for some in keys.chunks(1 + keys.len() / 10) {
            for key in some {
                self.op(&Op::Delete(key.clone()), false, &mut random);
            }
            self.settle()?;
        }
        let in_use = self.kernel.0.borrow().in_use();
        if in_use != [0; 6] {
            return Err(format!(
                "left over of frontends, services, backends, vips, external addresses, ranges: {in_use:?}"
            ));
        }
        Ok(())
    }

    /// Retries until nothing fails, or no retry helps.
    fn settle(&mut self) -> Result<(), String> {
        let mut failures = Failures::new();
        for _ in 0..4 {
            failures = self.agent.publish(&self.node_addresses);
            free(&self.kernel, &mut self.agent.publisher);
            self.sound("in a retry")?;
        }
        let demand = Model::of(&self.known, &self.node_addresses).demand();
        let room = self.room;
        // A port's old backends stay until its new ones are in force.
        let fits = demand[0] <= room.frontends
            && demand[1] < room.services
            && 2 * demand[2] < room.backends;
        if fits && !failures.is_empty() {
            return Err(format!("there is room for {demand:?}, but {failures:?}"));
        }
        if failures.is_empty() {
            self.verify()?;
        }
        self.comparison.after_step(
            &self.kernel.0.borrow(),
            &self.known,
            &self.node_addresses,
            &failures,
        )
    }
}

fn free(kernel: &FakeKernel, publisher: &mut Publisher<FakeKernel>) {
    if let Some((retired, _)) = publisher.take_retired() {
        kernel.wait_for_readers();
        publisher.free(retired).unwrap();
    }
}

fn name((_, namespace, name): &Key) -> ObjectName {
    ObjectName::new(namespace.as_str(), name.as_str())
}

fn agent_kind(kind: Kind) -> model::Kind {
    match kind {
        Kind::Service => model::Kind::Service,
        Kind::EndpointSlice => model::Kind::EndpointSlice,
        Kind::Node => model::Kind::Node,
    }
}
