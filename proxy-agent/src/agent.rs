//! The one loop: events in, maps out.
//!
//! Events only mark Services dirty in the store. The loop takes whatever has
//! arrived, resolves the marked Services and publishes them as one batch: at
//! once when idle, and in a burst as many together as arrived during the last
//! publish. The kernel's waits for readers run beside the loop.

mod devices;
mod health_checks;
mod hooks;
mod nodes;
mod opt_outs;
mod report;
mod retry;
mod seed;
mod stop;
mod take_over;
mod upgrade;

use crate::attach;
use crate::config::Config;
use crate::devices::{self as network, Network};
use crate::flows::Collector;
use crate::model::{ObjectName, Warning};
use crate::observe::{EventWriter, Health, HealthChecks, Metrics, serve_health, serve_metrics};
use crate::publish::bpf::BpfKernel;
use crate::publish::{Change, Contest, KernelError, Publisher, Retired};
use crate::resolve;
use crate::sockets::{self, Clients, OptOuts};
use crate::source::{self, Event};
use crate::store::Store;
use anyhow::{Context, Result, bail};
use devices::Devices;
use hooks::Hooks;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use retry::Retry;
use seed::Seeds;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::Stop;
use take_over::TakeOver;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use upgrade::PendingUpgrade;

/// Events that may wait between source and loop.
const QUEUE: usize = 4096;

/// Events that are taken in before a publish, so that a flood cannot hold it up.
const EVENTS_PER_PUBLISH: usize = 65_536;

/// Warnings that may wait for the task that makes Events of them.
const EVENTS_QUEUE: usize = 256;

/// Pause before sockets that could not be ended are looked at again.
const SWEEP_AGAIN: Duration = Duration::from_secs(5);

type Freed = (Retired, Result<(), KernelError>);

/// Runs until SIGTERM or SIGINT. The data path stays in place afterwards.
pub async fn run(config: Config) -> Result<()> {
    for flag in &config.unused {
        tracing::warn!(
            "--{flag} is accepted as for kube-proxy and does nothing: routes and devices decide"
        );
    }
    // From here on a signal ends the agent in good order, however early it comes.
    let stop = Stop::listen()?;
    // Before anything is touched: a start that cannot go on changes nothing.
    if let Some(options) = config.kube_options() {
        source::kube::check(&options)
            .await
            .context("configuring the connection to the API server")?;
    }
    let attached = attach::attach(&config.attach)?;
    let _lock = attached.lock;
    let publisher = Publisher::restore(attached.kernel).context("reading the pinned maps")?;
    let metrics = Arc::new(Metrics::new(&config.attach.pin_dir, &config.attach.sizes));
    let health = Arc::new(Health::default());
    if let Some(address) = config.healthz {
        serve_health(address, health.clone(), metrics.clone()).await?;
    }
    if let Some(address) = config.metrics {
        serve_metrics(address, metrics.clone()).await?;
    }
    let (event_sender, events) = mpsc::channel(QUEUE);
    let (network_sender, networks) = watch::channel(None);
    let follower = tokio::spawn(network::follow(network_sender));
    let seeds = Seeds::start(&config);
    let (client_sender, client) = watch::channel(None);
    let (object_events, event_writer) = start_events(&config, client, &metrics).unzip();
    let follow = config.clone();
    let source = tokio::spawn(async move { follow.run_source(event_sender, &client_sender).await });
    let agent = Agent {
        store: Store::new(config.node_name.as_str().into()),
        publisher,
        metrics,
        health_checks: HealthChecks::new(health.clone()),
        health,
        pruned: false,
        all_due: false,
        devices: Devices::new(config.devices.clone(), attached.devices),
        hooks: attached.sockets.map(Hooks::new),
        flows: None,
        take_over: TakeOver::default(),
        upgrade: attached.upgrade.map(PendingUpgrade::new),
        waiting_since: None,
        retry: Retry::default(),
        freed: None,
        sweep: None,
        sweep_due: false,
        swept: sockets::Outcome::default(),
        sweep_at: None,
        clients: None,
        opt_outs: None,
        reported: BTreeMap::new(),
        contests: BTreeSet::new(),
        object_events,
        nodes_failed: BTreeSet::new(),
        local_addresses: None,
        serving: None,
        started: Timestamp::now(),
        config,
    };
    let outcome = agent.run(events, networks, seeds, stop).await;
    follower.abort();
    event_writer.iter().for_each(JoinHandle::abort);
    if source.is_finished() {
        source.await.context("the source of objects failed")??;
    } else {
        source.abort();
    }
    outcome
}

/// Starts the task that writes Events on objects, if those come from an API server.
fn start_events(
    config: &Config,
    client: watch::Receiver<Option<Client>>,
    metrics: &Arc<Metrics>,
) -> Option<(mpsc::Sender<Warning>, JoinHandle<()>)> {
    config.kube_options()?;
    let (sender, warnings) = mpsc::channel(EVENTS_QUEUE);
    let writer = EventWriter::new(client, config.node_name.as_str(), metrics.clone());
    Some((sender, tokio::spawn(writer.run(warnings))))
}

struct Agent {
    config: Config,
    store: Store,
    publisher: Publisher<BpfKernel>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    health_checks: HealthChecks,
    /// Whether what no Service asks for was removed since the start.
    pruned: bool,
    /// Whether every Service must be published anew.
    all_due: bool,
    devices: Devices,
    /// Once our socket programs are in force.
    hooks: Option<Hooks>,
    /// Once our maps are in force.
    flows: Option<Collector>,
    take_over: TakeOver,
    /// The change-over to new maps, until the first complete publish.
    upgrade: Option<PendingUpgrade>,
    /// When the first change that the kernel does not have arrived.
    waiting_since: Option<Instant>,
    retry: Retry,
    /// The wait for readers that is under way.
    freed: Option<JoinHandle<Freed>>,
    /// The look at connected UDP sockets that is under way, and whether another is due.
    sweep: Option<JoinHandle<Result<sockets::Outcome>>>,
    sweep_due: bool,
    /// What came of the last one.
    swept: sockets::Outcome,
    /// When sockets that could not be ended are looked at again.
    sweep_at: Option<tokio::time::Instant>,
    /// Once a Service has source ranges.
    clients: Option<Clients>,
    /// Once it is known which Pods opt out.
    opt_outs: Option<OptOuts>,
    /// Warnings of the last resolve by Service, so that each is told once.
    reported: BTreeMap<ObjectName, Vec<Warning>>,
    /// Contests that were told.
    contests: BTreeSet<Contest>,
    /// To whom Events on objects are given; nobody while they come from manifests.
    object_events: Option<mpsc::Sender<Warning>>,
    /// Nodes that are not published as they should be, told once.
    nodes_failed: BTreeSet<Arc<str>>,
    /// `None` until they have been read.
    local_addresses: Option<Vec<IpAddr>>,
    /// Addresses that serve NodePorts, as last published.
    serving: Option<BTreeSet<IpAddr>>,
    started: Timestamp,
}

impl Agent {
    async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut networks: watch::Receiver<Option<Network>>,
        mut seeds: Seeds,
        mut stop: Stop,
    ) -> Result<()> {
        loop {
            let (retry_at, sweep_at) = (self.retry.at, self.sweep_at);
            let devices_at = self.devices.due.filter(|_| self.can_publish());
            let hooks_at = self.hooks.as_ref().map(|it| it.due);
            let health_checks_at = self.health_checks.due().filter(|_| self.can_publish());
            let remind_at = self.upgrade.as_ref().map(|it| it.remind_at);
            tokio::select! {
                biased;
                () = stop.asked() => break,
                changed = networks.changed() => {
                    changed.context("the watch of this node's devices and addresses ended")?;
                    let network = networks.borrow_and_update().clone().unwrap_or_default();
                    self.take_network(network);
                }
                seed = seeds.next() => self.take_seed(seed)?,
                goes_on = self.take_over.told() => {
                    take_over::set(&self.config.attach.pin_dir, goes_on)?;
                }
                () = wait_until(devices_at) => {}
                () = wait_until(hooks_at) => {
                    self.hooks.iter_mut().for_each(|it| it.follow(&self.metrics));
                    continue;
                }
                () = wait_until(health_checks_at) => {}
                () = wait_until(retry_at) => {}
                () = wait_until(sweep_at) => self.sweep_due = true,
                () = wait_until(remind_at) => self.upgrade.iter_mut().for_each(PendingUpgrade::remind),
                freed = finished(&mut self.freed) => self.free(freed)?,
                outcome = finished(&mut self.sweep) => self.tell_sweep(outcome),
                // Last: a flood of events must not hold up what gives room back.
                event = events.recv() => match event {
                    Some(event) => self.take_events(event, &mut events),
                    None => bail!("the source of objects ended"),
                },
            }
            self.publish()?;
            self.start_freeing();
            self.start_sweep();
        }
        if let Some(pending) = self.upgrade {
            pending.upgrade.abandon();
        }
        tracing::info!("stopping; connections go on being translated");
        Ok(())
    }

    fn take_network(&mut self, network: Network) {
        let addresses = network.ips();
        self.devices.set_network(network);
        self.store.set_node_addresses(addresses.clone());
        self.local_addresses = Some(addresses);
    }

    fn take_seed(&mut self, seed: u32) -> Result<()> {
        if seed != self.publisher.seed() {
            self.publisher
                .set_seed(seed)
                .context("telling the programs the seed of Maglev tables")?;
            self.all_due = true;
        }
        Ok(())
    }

    /// Whether the first complete lists are in, the addresses of this node, and
    /// the seed of Maglev tables.
    fn can_publish(&self) -> bool {
        let listed = self.store.complete() && self.store.opt_outs_settled();
        listed && self.local_addresses.is_some() && self.publisher.seed() != 0
    }

    /// Takes in the event and all that have arrived behind it.
    fn take_events(&mut self, first: Event, more: &mut mpsc::Receiver<Event>) {
        self.waiting_since.get_or_insert_with(Instant::now);
        self.take_event(first);
        for _ in 1..EVENTS_PER_PUBLISH {
            match more.try_recv() {
                Ok(event) => self.take_event(event),
                Err(_) => break,
            }
        }
        self.metrics.changed(self.store.take_changes());
    }

    fn take_event(&mut self, event: Event) {
        if let Event::Warning(warning) = &event {
            self.warn(warning);
        }
        self.store.apply(event);
    }

    /// Publishes what is marked, once the first complete lists are in, and the
    /// addresses of this node: without them NodePorts would go for an instant.
    /// Who opts out comes first: nothing of theirs is translated.
    fn publish(&mut self) -> Result<()> {
        self.health.set_node_leaving(self.store.is_leaving());
        if !self.can_publish() {
            return Ok(());
        }
        self.health.pending();
        self.follow_opt_outs();
        self.publish_nodes();
        let mut dirty: BTreeSet<ObjectName> = self.store.take_dirty().into_iter().collect();
        dirty.extend(self.retry.take_due(tokio::time::Instant::now()));
        if std::mem::take(&mut self.all_due) || !self.pruned {
            dirty.extend(self.publisher.known_services().cloned());
        }
        if !dirty.is_empty() || !self.pruned {
            self.find_clients();
            self.publish_services(dirty)?;
        }
        self.publish_node_addresses();
        self.follow_health_checks();
        self.follow_devices();
        self.finish_upgrade()?;
        if self.flows.is_none() && self.upgrade.is_none() {
            let collector = Collector::start(&self.config.attach.pin_dir, self.metrics.clone())?;
            self.flows = Some(collector);
            self.take_over.follow(&self.config.attach.pin_dir)?;
        }
        self.waiting_since = None;
        self.tell_up_to_date();
        Ok(())
    }

    fn publish_services(&mut self, names: BTreeSet<ObjectName>) -> Result<()> {
        let started = Instant::now();
        let waited_from = self.waiting_since.unwrap_or(started);
        let changes: Vec<Change> = names.into_iter().map(|name| self.resolve(name)).collect();
        let services = changes.len();
        let claims = self.health_check_claims(&changes);
        let failures = self.publisher.publish(changes);
        for (service, error) in &failures {
            self.tell_failure(service, error);
        }
        self.tell_contests();
        // Once the kernel has it: a load balancer acts at once on what it is told.
        for (service, claim) in claims {
            self.health_checks.set(service, claim);
        }
        if !self.pruned {
            self.publisher
                .prune()
                .context("removing what no Service asks for")?;
            self.pruned = true;
            // Backends may have gone while no agent was there.
            self.sweep_due = true;
            self.metrics.first_published(started.elapsed());
            tracing::info!(services, took = ?started.elapsed(), "first complete publish");
        }
        let (took, waited) = (started.elapsed(), waited_from.elapsed());
        tracing::debug!(services, ?took, ?waited, "published");
        self.metrics
            .published(took, waited, failures.len(), self.publisher.sizes());
        self.tell_programming_latency();
        let failed = failures.into_iter().map(|(service, _)| service).collect();
        self.retry.schedule(failed, tokio::time::Instant::now());
        Ok(())
    }

    /// Clients' addresses must be known before a Service asks for them.
    fn find_clients(&mut self) {
        let wanted = self.store.has_source_ranges();
        match &self.clients {
            Some(clients) => clients.set_wanted(wanted),
            None if wanted => {
                let (pin_dir, maps) = self.map_dirs();
                self.clients = Some(Clients::start(&pin_dir, &maps));
            }
            None => {}
        }
    }

    /// The pin directory, and where the maps that are published into are pinned
    /// now. A map stays the same when its pin moves.
    fn map_dirs(&self) -> (PathBuf, PathBuf) {
        let pin_dir = self.config.attach.pin_dir.clone();
        let upgrade = self.upgrade.as_ref();
        let maps = upgrade.map_or_else(|| pin_dir.clone(), |it| it.upgrade.maps());
        (pin_dir, maps)
    }

    /// Changes over to new maps once they are complete.
    fn finish_upgrade(&mut self) -> Result<()> {
        let failed = self.retry.services.len();
        let complete = failed == 0 && self.serving.is_some();
        let Some(pending) = self.upgrade.take_if(|it| it.is_due(complete)) else {
            return Ok(());
        };
        let started = Instant::now();
        let sockets = pending
            .upgrade
            .finish(self.publisher.kernel_mut(), self.devices.hooks())
            .context("changing over to the new maps (the next start goes on with it)")?;
        self.hooks = Some(Hooks::new(sockets));
        self.follow_devices();
        tracing::info!(took = ?started.elapsed(), failed, "the new maps are in force");
        Ok(())
    }

    /// What this node shall do with a Service; new warnings are told.
    fn resolve(&mut self, name: ObjectName) -> Change {
        let Some((service, slices)) = self.store.view(&name) else {
            self.reported.remove(&name);
            return (name, None);
        };
        let is_cluster_ip = |ip| self.store.is_cluster_ip(ip);
        let (resolved, warnings) = resolve::resolve(
            service,
            slices,
            self.store.node(),
            is_cluster_ip,
            &self.config.resolve,
        );
        let known = self.reported.get(&name).map_or(&[][..], Vec::as_slice);
        for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
            self.warn(warning);
        }
        if warnings.is_empty() {
            self.reported.remove(&name);
        } else {
            self.reported.insert(name.clone(), warnings);
        }
        (name, Some(resolved))
    }

    /// Not before the first lists, nor before our Node if it decides: until then
    /// what an earlier agent wrote stays in force.
    fn publish_node_addresses(&mut self) {
        let selector = &self.config.node_port_addresses;
        let Some(local) = &self.local_addresses else {
            return;
        };
        let Some(serving) = selector.select(local, self.store.internal_ips()) else {
            return;
        };
        if self.serving.as_ref() == Some(&serving) {
            return;
        }
        if let Err(error) = self.publisher.set_node_addresses(&serving) {
            tracing::error!("NodePorts are not served on every address of this node: {error}");
        }
        self.serving = Some(serving);
    }

    fn follow_devices(&mut self) {
        let known = self.store.node_known();
        let internal_ips = self.store.internal_ips();
        self.devices.follow(internal_ips, known, &self.metrics);
    }

    /// Starts the wait for readers of what was retired, unless one is under way.
    fn start_freeing(&mut self) {
        if self.freed.is_none()
            && let Some((retired, grace)) = self.publisher.take_retired()
        {
            self.freed = Some(tokio::task::spawn_blocking(move || (retired, grace())));
        }
    }

    fn free(&mut self, (retired, waited): Freed) -> Result<()> {
        waited.context("waiting for readers of replaced tables")?;
        // Only now has the last program that could connect a socket to them ended.
        self.sweep_due |= retired.concerns_udp_sockets();
        self.publisher
            .free(retired)
            .context("freeing what no program reads any more")?;
        self.retry.hurry();
        Ok(())
    }

    fn start_sweep(&mut self) {
        // The old maps, which may be foreign, are what is pinned before an upgrade.
        if self.sweep_due && self.sweep.is_none() && self.upgrade.is_none() {
            self.sweep_due = false;
            self.sweep_at = None;
            let options = self.config.attach.clone();
            self.sweep = Some(tokio::task::spawn_blocking(move || {
                sockets::end_stale(&options)
            }));
        }
    }

    fn tell_sweep(&mut self, outcome: Result<sockets::Outcome>) {
        match outcome {
            Ok(outcome) => {
                self.metrics.swept(outcome);
                if outcome.left + outcome.guarded > 0 {
                    self.sweep_at = Some(tokio::time::Instant::now() + SWEEP_AGAIN);
                }
                let news = outcome != self.swept && outcome != sockets::Outcome::default();
                if outcome.destroyed > 0 || news {
                    tracing::info!(
                        destroyed = outcome.destroyed,
                        guarded = outcome.guarded,
                        left = outcome.left,
                        "connected UDP sockets whose backend is gone"
                    );
                }
                self.swept = outcome;
            }
            Err(error) => tracing::error!("looking for UDP sockets of gone backends: {error:#}"),
        }
    }
}

async fn wait_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The result of a task, once there is one.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> T {
    let Some(running) = task else {
        return std::future::pending().await;
    };
    let outcome = running.await;
    *task = None;
    outcome.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}
