//! Takes complete lists from where the agent has them, and looks at the kernel twice.

use super::{Difference, Part, Wanted, at_both, node, services};
use crate::attach::{self, look_at_hooks, pinned_devices};
use crate::compile::maglev;
use crate::config::Config;
use crate::devices::{self, Network, Selection, select, slow_path};
use crate::publish::bpf::BpfKernel;
use crate::publish::{AddressSet, Kernel};
use crate::source::Event;
use crate::source::kube::{self, UidError};
use crate::store::Store;
use crate::sys;
use anyhow::{Context, Result, bail, ensure};
use proxy_common::Address;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// How long the first complete lists may take, and the cluster's UID.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks: by then the agent has what had just arrived at the first.
const PAUSE: Duration = Duration::from_secs(2);

/// Events that may wait between source and store.
const QUEUE: usize = 4096;

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What differed twice.
    pub differences: Vec<Difference>,
    /// Service ports that were compared.
    pub service_ports: usize,
    /// Their frontends.
    pub frontends: usize,
    /// Devices in the packet path.
    pub devices: usize,
    /// Whether an agent is making new maps, which were not looked at.
    pub upgrade_under_way: bool,
}

/// Compares what is pinned with what follows from the configuration, which must
/// be the agent's, and the objects. Fails if it could not look.
pub async fn verify(config: &Config) -> Result<Report> {
    let seed = timeout(PATIENCE, seed(config)).await;
    let seed = seed.context("asking the API server for the cluster's UID")??;
    let (sender, mut events) = mpsc::channel(QUEUE);
    let follow = config.clone();
    let source = tokio::spawn(async move {
        let (client, _) = watch::channel(None);
        follow.run_source(sender, &client).await
    });
    let (network_sender, mut networks) = watch::channel(None);
    let follower = tokio::spawn(devices::follow(network_sender));
    let mut observer = Observer {
        config,
        seed,
        store: Store::new(config.node_name.as_str().into()),
        network: Network::default(),
    };
    let outcome = observer.look_twice(&mut events, &mut networks).await;
    follower.abort();
    if source.is_finished() {
        source.await.context("the source of objects failed")??;
    } else {
        source.abort();
    }
    outcome
}

/// The seed that Maglev tables shall have, as the agent decides it.
async fn seed(config: &Config) -> Result<u32> {
    let (None, Some(options)) = (&config.maglev_seed, config.kube_options()) else {
        let text = config.maglev_seed.as_deref();
        return Ok(maglev::seed(text.unwrap_or(maglev::DEFAULT_SEED_TEXT)));
    };
    match kube::uid(&options).await {
        Ok(uid) => Ok(maglev::seed(&uid)),
        Err(UidError::Refused(_)) => Ok(maglev::seed(maglev::DEFAULT_SEED_TEXT)),
        Err(error) => Err(error).context("asking for the cluster's UID"),
    }
}

struct Observer<'a> {
    config: &'a Config,
    seed: u32,
    store: Store,
    network: Network,
}

impl Observer<'_> {
    async fn look_twice(
        &mut self,
        events: &mut mpsc::Receiver<Event>,
        networks: &mut watch::Receiver<Option<Network>>,
    ) -> Result<Report> {
        self.wait_for_lists(events).await?;
        let network = timeout(PATIENCE, networks.wait_for(Option::is_some)).await;
        drop(network.context("reading the devices of this node")??);
        self.take_network(networks);
        let mut report = self.look()?;
        if !report.differences.is_empty() {
            self.follow_until(Instant::now() + PAUSE, events).await?;
            self.take_network(networks);
            let second = self.look()?;
            report.differences = at_both(report.differences, &second.differences);
        }
        Ok(report)
    }

    async fn wait_for_lists(&mut self, events: &mut mpsc::Receiver<Event>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !(self.store.complete() && self.store.node_known()) {
            tokio::select! {
                event = events.recv() => self.take(event)?,
                () = sleep_until(deadline) => bail!(
                    "no complete lists of Services, EndpointSlices and Nodes within {PATIENCE:?}: is the source of objects right, and reachable?"
                ),
            }
        }
        Ok(())
    }

    async fn follow_until(
        &mut self,
        end: Instant,
        events: &mut mpsc::Receiver<Event>,
    ) -> Result<()> {
        loop {
            tokio::select! {
                event = events.recv() => self.take(event)?,
                () = sleep_until(end) => return Ok(()),
            }
        }
    }

    fn take(&mut self, event: Option<Event>) -> Result<()> {
        let event = event.context("the source of objects ended")?;
        if let Event::Warning(warning) = &event {
            tracing::debug!("{warning}");
        }
        self.store.apply(event);
        Ok(())
    }

    fn take_network(&mut self, networks: &mut watch::Receiver<Option<Network>>) {
        self.network = networks.borrow_and_update().clone().unwrap_or_default();
        self.store.set_node_addresses(self.network.ips());
    }

    fn look(&self) -> Result<Report> {
        let pin_dir = &self.config.attach.pin_dir;
        let kernel =
            BpfKernel::open(pin_dir).context("reading the maps: does an agent pin them there?")?;
        let wanted = Wanted::of(&self.store, &self.config.resolve);
        let internal_ips = self.store.internal_ips();
        let chosen = select(&self.network, internal_ips, &self.config.devices);
        let mut differences = self.hooks_and_devices(&chosen)?;
        differences.extend(self.settings(!chosen.devices.is_empty())?);
        differences.extend(self.node_addresses(&kernel)?);
        differences.extend(services::compare(&wanted, &kernel)?);
        Ok(Report {
            differences,
            service_ports: wanted.ports.len(),
            frontends: wanted.owners.len(),
            devices: chosen.devices.len(),
            upgrade_under_way: attach::upgrade_is_under_way(pin_dir),
        })
    }

    fn hooks_and_devices(&self, chosen: &Selection) -> Result<Vec<Difference>> {
        let attach = &self.config.attach;
        let name = |index| match self.network.links.get(&index) {
            Some(link) => link.name.clone(),
            None => format!("device {index}"),
        };
        let indices = self.network.links.keys().copied();
        let states = look_at_hooks(&attach.pin_dir, &attach.cgroup_root, indices)?;
        let mut differences = node::hooks(&states, &chosen.devices, name);
        let found = pinned_devices(&attach.pin_dir)?;
        differences.extend(node::devices(&chosen.devices, &found, name));
        Ok(differences)
    }

    fn node_addresses(&self, kernel: &BpfKernel) -> Result<Vec<Difference>> {
        let selector = &self.config.node_port_addresses;
        let local = self.network.ips();
        // Until the Node is there the agent leaves them as they are.
        let Some(serving) = selector.select(&local, self.store.internal_ips()) else {
            return Ok(Vec::new());
        };
        let wanted: BTreeSet<Address> = serving.into_iter().map(Address::from).collect();
        let found = kernel.addresses(AddressSet::NodeAddresses)?;
        let found = found.into_iter().collect();
        Ok(node::addresses(Part::NodeAddresses, &wanted, &found))
    }

    fn settings(&self, has_devices: bool) -> Result<Vec<Difference>> {
        let attach = &self.config.attach;
        let found = attach::pinned_device_settings(&attach.pin_dir)?;
        let slow_path = match slow_path::near_end()? {
            _ if !has_devices => "none".to_owned(),
            Some(index) => format!("device {index}"),
            None => "a pair of devices fairlead0 and fairlead1".to_owned(),
        };
        let found_slow_path = match found.slow_path {
            0 => "none".to_owned(),
            index => format!("device {index}"),
        };
        let ports = |first: u16, last: u16| format!("{first}-{last}");
        let (first, last) = (*attach.snat_ports.start(), *attach.snat_ports.end());
        let rows = [
            ("seed", self.seed.to_string(), found.seed.to_string()),
            (
                "source ports",
                ports(first, last),
                ports(found.snat_first_port, found.snat_last_port),
            ),
            ("slow path", slow_path, found_slow_path),
        ];
        let mut differences = node::values(Part::DeviceSettings, rows);
        let found = attach::pinned_settings(&attach.pin_dir)?;
        let host_only = (found.host_only != 0).to_string();
        let mut rows = vec![("host_only", attach.host_only.to_string(), host_only)];
        if let Some(cookie) = netns_cookie()? {
            let found = found.host_netns_cookie.to_string();
            rows.push(("cookie of the host's namespace", cookie.to_string(), found));
        }
        differences.extend(node::values(Part::Settings, rows));
        let wanted = attach::service_ranges(attach);
        let found = attach::pinned_service_ranges(&attach.pin_dir)?;
        differences.extend(node::service_ranges(&wanted, &found));
        Ok(differences)
    }
}

/// The cookie of this process's network namespace (Linux 5.14).
fn netns_cookie() -> Result<Option<u64>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("opening a socket")?;
    let cookie = sys::socket_option(socket.as_fd(), libc::SO_NETNS_COOKIE).ok();
    ensure!(cookie != Some(0), "this network namespace has no cookie");
    Ok(cookie)
}
