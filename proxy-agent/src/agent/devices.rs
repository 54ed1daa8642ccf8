//! The programs on devices follow what the kernel has and what the Node says.

use crate::attach::{Applied, DeviceHooks};
use crate::devices::{Chosen, DeviceNames, Network, obstacles, select};
use crate::observe::Metrics;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How often hooks are looked at although nothing has changed: others may have
/// removed our programs.
const RECHECK: Duration = Duration::from_secs(30);

/// The programs on devices.
pub(super) struct Devices {
    names: DeviceNames,
    hooks: DeviceHooks,
    network: Network,
    /// The Node's InternalIPs, and whether they can be taken for all.
    node: (Vec<IpAddr>, bool),
    chosen: BTreeMap<u32, Chosen>,
    /// What was logged and still holds.
    told: BTreeSet<String>,
    /// When there is something to do.
    pub(super) due: Option<Instant>,
}

impl Devices {
    pub(super) fn new(names: DeviceNames, hooks: DeviceHooks) -> Self {
        Self {
            names,
            hooks,
            network: Network::default(),
            node: (Vec::new(), false),
            chosen: BTreeMap::new(),
            told: BTreeSet::new(),
            due: None,
        }
    }

    /// What the kernel has.
    pub(super) fn set_network(&mut self, network: Network) {
        self.network = network;
        self.due = Some(Instant::now());
    }

    /// The hooks, whose programs have just come into force or shall.
    pub(super) fn hooks(&mut self) -> &mut DeviceHooks {
        self.due = Some(Instant::now());
        &mut self.hooks
    }

    /// Puts programs where they belong, if there is something to do. Until the
    /// Node is known nothing is removed: its addresses may be why it is there.
    pub(super) fn follow(&mut self, internal_ips: &[IpAddr], node_known: bool, metrics: &Metrics) {
        if self.node.0 != internal_ips || self.node.1 != node_known {
            self.node = (internal_ips.to_vec(), node_known);
            self.due = Some(Instant::now());
        }
        if self.due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        let selection = select(&self.network, internal_ips, &self.names);
        if self.chosen != selection.devices {
            for (index, Chosen { name, device }) in &selection.devices {
                tracing::info!(device = name, index, ?device, "in the packet path");
            }
        }
        self.chosen = selection.devices;
        let mut problems = selection.skipped;
        let mut pause = RECHECK;
        match self.hooks.apply(&self.chosen, node_known) {
            Ok(Applied { failures, restored }) => {
                super::hooks::tell_restored(&restored, metrics);
                if !failures.is_empty() {
                    pause = RETRY;
                }
                problems.extend(failures.iter().map(|error| format!("{error:#}")));
            }
            Err(error) => {
                pause = RETRY;
                problems.insert(format!("{error:#}"));
            }
        }
        let devices = self.chosen.values();
        problems.extend(obstacles(devices.map(|it| (it.name.as_str(), &it.device))));
        for problem in problems.difference(&self.told) {
            tracing::warn!("clients elsewhere may not be served: {problem}");
        }
        self.told = problems;
        self.due = Some(Instant::now() + pause);
    }
}
