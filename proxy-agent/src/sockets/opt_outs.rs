//! The network namespaces of Pods that opt out of translation (semantics 36).
//!
//! A process of a Pod is known by its cgroup, whose path has the Pod's UID. The
//! Pod's namespace is that of its oldest process, the sandbox: another may enter
//! namespaces that are not the Pod's. While any Pod opts out a thread looks twice
//! a second for those that it has not found, and once a second for all: a sandbox
//! may be made anew. What a Pod does earlier than that after its start is
//! translated; its sandbox is there well before its containers.

use super::netns;
use crate::model::ObjectName;
use crate::store::OptedOut;
use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a new Pod may stay unknown.
const PERIOD: Duration = Duration::from_millis(500);

/// How long a known Pod's new sandbox may.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long the first look may hold up the publish that waits for it.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);

/// Value of every element of map `opt_outs`.
const OPTED_OUT: u32 = 1;

/// The thread that looks.
#[derive(Debug)]
pub struct OptOuts {
    wanted: Arc<Mutex<OptedOut>>,
    thread: std::thread::JoinHandle<()>,
}

impl OptOuts {
    /// Starts the thread, which writes the map that is pinned in `maps`; returns
    /// after its first look.
    pub fn start(pin_dir: &Path, maps: &Path, opted_out: OptedOut) -> Self {
        let wanted = Arc::new(Mutex::new(opted_out));
        let (looked, first_look) = sync_channel(1);
        let thread = std::thread::spawn({
            let finder = Finder {
                pin_dir: pin_dir.to_owned(),
                maps: maps.to_owned(),
                map: None,
                host: None,
                found: BTreeMap::new(),
            };
            let wanted = wanted.clone();
            move || look_for_ever(finder, &wanted, &looked)
        });
        if first_look.recv_timeout(FIRST_LOOK_MAX).is_err() {
            tracing::warn!("Pods that opt out are not found yet; they are translated meanwhile");
        }
        Self { wanted, thread }
    }

    /// Sets who opts out.
    pub fn set(&self, opted_out: OptedOut) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted != opted_out {
            *wanted = opted_out;
            self.thread.thread().unpark();
        }
    }
}

fn look_for_ever(mut finder: Finder, wanted: &Mutex<OptedOut>, looked: &SyncSender<()>) {
    loop {
        let opted_out = wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let outcome = finder.look(&opted_out);
        // Only the first look is waited for.
        let _ = looked.try_send(());
        match outcome {
            Ok(()) if opted_out.is_empty() => std::thread::park(),
            Ok(()) if finder.found.len() == opted_out.len() => {
                std::thread::park_timeout(LOOK_AGAIN);
            }
            Ok(()) => std::thread::park_timeout(PERIOD),
            Err(error) => {
                tracing::error!("looking for Pods that opt out: {error:#}");
                std::thread::park_timeout(LOOK_AGAIN);
            }
        }
    }
}

/// Finds Pods, and keeps map `opt_outs`.
struct Finder {
    pin_dir: PathBuf,
    /// Where the map is pinned at first; it is opened once, since pins move.
    maps: PathBuf,
    map: Option<HashMap<MapData, u64, u32>>,
    /// Cookie of our own namespace, which is the host's.
    host: Option<u64>,
    /// The Pods that were found, by UID.
    found: BTreeMap<Box<str>, Found>,
}

/// The oldest process of a Pod, and its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    process: Process,
    cookie: u64,
}

/// A process: the older one is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// In clock ticks since boot.
    started: u64,
    id: u32,
}

impl Finder {
    fn look(&mut self, opted_out: &OptedOut) -> Result<()> {
        let host = match self.host {
            Some(host) => host,
            // Before the first namespace is entered.
            None => *self.host.insert(netns::cookie(&self.pin_dir)?),
        };
        let oldest = if opted_out.is_empty() {
            BTreeMap::new()
        } else {
            oldest_processes(opted_out)
        };
        let mut found = BTreeMap::new();
        for (uid, process) in oldest {
            let known = self.found.get(&uid).filter(|it| it.process == process);
            if let Some(known) = known {
                found.insert(uid, *known);
                continue;
            }
            // It may have ended since.
            let Ok(file) = File::open(format!("/proc/{}/ns/net", process.id)) else {
                continue;
            };
            let cookie = netns::enter(&file, &self.pin_dir)?;
            tell(&opted_out[&uid], cookie == host);
            found.insert(uid, Found { process, cookie });
        }
        self.found = found;
        let cookies = self.found.values().map(|it| it.cookie);
        let cookies = cookies.filter(|&cookie| cookie != host).collect();
        self.write(&cookies)
    }

    fn write(&mut self, cookies: &BTreeSet<u64>) -> Result<()> {
        let map = match &mut self.map {
            Some(map) => map,
            none => {
                let map = MapData::from_pin(self.maps.join("opt_outs"));
                let map = map.context("opening map opt_outs")?;
                none.insert(aya::maps::Map::HashMap(map).try_into()?)
            }
        };
        let written: BTreeSet<u64> = map
            .keys()
            .collect::<Result<_, _>>()
            .context("reading map opt_outs")?;
        for cookie in cookies.difference(&written) {
            map.insert(cookie, OPTED_OUT, 0)
                .context("writing map opt_outs")?;
        }
        for cookie in written.difference(cookies) {
            match map.remove(cookie) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("writing map opt_outs"),
            }
        }
        Ok(())
    }
}

fn tell(pod: &ObjectName, is_host: bool) {
    if is_host {
        tracing::warn!(%pod, "this Pod uses the host's network and cannot opt out of socket translation: the host would with it");
    } else {
        tracing::info!(%pod, "this Pod opts out of socket translation");
    }
}

/// The oldest process of each of these Pods that runs.
fn oldest_processes(opted_out: &OptedOut) -> BTreeMap<Box<str>, Process> {
    let mut oldest: BTreeMap<Box<str>, Process> = BTreeMap::new();
    for directory in netns::processes() {
        // Processes end while we look.
        let Ok(cgroups) = fs::read_to_string(directory.join("cgroup")) else {
            continue;
        };
        let uids = pod_uids(&cgroups).find(|uid| opted_out.contains_key(uid.as_str()));
        let (Some(uid), Some(process)) = (uids, process(&directory)) else {
            continue;
        };
        oldest
            .entry(uid.into())
            .and_modify(|it| *it = process.min(*it))
            .or_insert(process);
    }
    oldest
}

fn process(directory: &Path) -> Option<Process> {
    let id = directory.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    let started = started(&stat)?;
    Some(Process { started, id })
}

/// Field 22 of proc_pid_stat(5); the second may hold blanks and parentheses.
fn started(stat: &str) -> Option<u64> {
    let (_, from_the_third) = stat.rsplit_once(')')?;
    from_the_third.split_whitespace().nth(19)?.parse().ok()
}

/// What may be UIDs of Pods in /proc/PID/cgroup, of cgroup v1 or v2: directories
/// `pod<uid>`, and with systemd `kubepods-burstable-pod<uid>.slice`, where
/// underscores stand for hyphens (pkg/kubelet/cm/cgroup_manager_linux.go).
fn pod_uids(cgroups: &str) -> impl Iterator<Item = String> {
    let parts = cgroups.lines().flat_map(|line| line.split('/'));
    parts.filter_map(|part| {
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.strip_suffix(".slice").unwrap_or(uid);
        Some(uid.replace('_', "-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

    #[test]
    fn a_pod_is_known_by_any_of_its_cgroups() {
        for cgroups in [
            "0::/kubepods/burstable/pod0f8fad5b-d9cb-469f-a165-70867728950e/4b1d\n",
            "0::/kubepods.slice/kubepods-pod0f8fad5b_d9cb_469f_a165_70867728950e.slice/cri-containerd-4b1d.scope\n",
            // As seen from a container with a cgroup namespace of its own.
            "0::/../../kubepods-besteffort-pod0f8fad5b_d9cb_469f_a165_70867728950e.slice/crio-4b1d.scope/container\n",
            "12:cpu,cpuacct:/\n4:memory:/kubepods/pod0f8fad5b-d9cb-469f-a165-70867728950e/4b1d\n1:name=systemd:/x\n0::/\n",
            // A node that is itself a container.
            "0::/docker/4b1d/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod0f8fad5b_d9cb_469f_a165_70867728950e.slice\n",
        ] {
            assert!(pod_uids(cgroups).any(|it| it == UID), "{cgroups}");
        }
        for cgroups in [
            "0::/\n",
            "0::/kubepods.slice\n",
            "0::/user.slice/podman\n",
            "",
        ] {
            assert!(!pod_uids(cgroups).any(|it| it == UID), "{cgroups}");
        }
    }

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2\n";
        assert_eq!(started(stat), Some(4711));
        assert_eq!(started("12 (a"), None);
        let ours = process(Path::new(&format!("/proc/{}", std::process::id())));
        assert!(ours.unwrap().started > 0);
    }
}
