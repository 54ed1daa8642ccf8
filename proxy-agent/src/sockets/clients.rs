//! Which address a client on this node has: for Services with source ranges
//! (semantics 22), which are asked about a socket before it has an address.
//!
//! On the socket path a client is its network namespace. While any Service has
//! source ranges, a thread looks for namespaces twice a second and keeps map
//! `netns_addresses`. A pod that connects within that time of its start is
//! refused, and counted as `source_unknown`, rather than let in unseen.

use super::netns;
use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use nix::ifaddrs::getifaddrs;
use proxy_common::{Address, NetnsAddresses};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long a new namespace may stay unknown.
const PERIOD: Duration = Duration::from_millis(500);

/// How long a change of a known namespace's addresses may.
const REREAD: Duration = Duration::from_secs(10);

/// How long the first look may hold up the publish that waits for it.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);

/// The thread that looks.
#[derive(Debug)]
pub struct Clients {
    wanted: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Clients {
    /// Starts the thread, which writes the map that is pinned in `maps`; returns
    /// after its first look.
    pub fn start(pin_dir: &Path, maps: &Path) -> Self {
        let wanted = Arc::new(AtomicBool::new(true));
        let (looked, first_look) = sync_channel(1);
        let thread = std::thread::spawn({
            let mut seen = Seen {
                pin_dir: pin_dir.to_owned(),
                maps: maps.to_owned(),
                map: None,
                namespaces: BTreeMap::new(),
            };
            let wanted = wanted.clone();
            move || look_for_ever(&mut seen, &wanted, &looked)
        });
        if first_look.recv_timeout(FIRST_LOOK_MAX).is_err() {
            tracing::warn!(
                "clients' addresses are not known yet; Services with source ranges refuse them meanwhile"
            );
        }
        Self { wanted, thread }
    }

    /// Whether there are Services with source ranges.
    pub fn set_wanted(&self, wanted: bool) {
        if self.wanted.swap(wanted, Ordering::Relaxed) != wanted {
            self.thread.thread().unpark();
        }
    }
}

fn look_for_ever(seen: &mut Seen, wanted: &AtomicBool, looked: &SyncSender<()>) {
    loop {
        if wanted.load(Ordering::Relaxed) {
            if let Err(error) = seen.look() {
                tracing::error!("looking for clients' addresses: {error:#}");
            }
            // Only the first look is waited for.
            let _ = looked.try_send(());
            std::thread::park_timeout(PERIOD);
        } else {
            std::thread::park();
        }
    }
}

/// The namespaces that are known, by cookie: the inode of a namespace's file is
/// soon given to another.
struct Seen {
    pin_dir: PathBuf,
    /// Where the map is pinned at first; it is opened once, since pins move.
    maps: PathBuf,
    map: Option<Known>,
    namespaces: BTreeMap<u64, Namespace>,
}

#[derive(Clone, Copy)]
struct Namespace {
    addresses: NetnsAddresses,
    read: Instant,
}

impl Namespace {
    /// Whether its addresses are to be read again.
    fn is_due(&self) -> bool {
        self.addresses == NO_ADDRESSES || self.read.elapsed() > REREAD
    }
}

const NO_ADDRESSES: NetnsAddresses = NetnsAddresses {
    v4: Address::ANY_V4,
    v6: Address::ANY_V6,
};

/// Map `netns_addresses`.
type Known = HashMap<MapData, u64, [u8; size_of::<NetnsAddresses>()]>;

fn open(maps: &Path) -> Result<Known> {
    let map =
        MapData::from_pin(maps.join("netns_addresses")).context("opening map netns_addresses")?;
    Ok(aya::maps::Map::HashMap(map).try_into()?)
}

impl Seen {
    fn look(&mut self) -> Result<()> {
        let map = match &mut self.map {
            Some(map) => map,
            none => none.insert(open(&self.maps)?),
        };
        let mut alive = BTreeMap::new();
        netns::enter_each(&self.pin_dir, |cookie| {
            let known = self.namespaces.get(&cookie).filter(|it| !it.is_due());
            let namespace = match known {
                Some(known) => *known,
                None => Namespace {
                    addresses: addresses()?,
                    read: Instant::now(),
                },
            };
            alive.insert(cookie, namespace);
            Ok(ControlFlow::Continue(()))
        })?;
        for (cookie, namespace) in &alive {
            let before = self.namespaces.get(cookie).map(|it| it.addresses);
            if before != Some(namespace.addresses) {
                let bytes: [u8; size_of::<NetnsAddresses>()] =
                    zerocopy::transmute!(namespace.addresses);
                map.insert(cookie, bytes, 0)
                    .context("writing map netns_addresses")?;
            }
        }
        let gone: Vec<u64> = map
            .keys()
            .filter_map(Result::ok)
            .filter(|cookie| !alive.contains_key(cookie))
            .collect();
        self.namespaces = alive;
        for cookie in gone {
            match map.remove(&cookie) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("writing map netns_addresses"),
            }
        }
        Ok(())
    }
}

/// The addresses of the calling thread's namespace: of each family the first
/// that is neither loopback nor link-local, as the kernel would choose for a
/// pod with one interface.
fn addresses() -> Result<NetnsAddresses> {
    let mut found = NO_ADDRESSES;
    for interface in getifaddrs().context("reading addresses")? {
        let Some(address) = interface.address else {
            continue;
        };
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => continue,
        };
        match ip {
            IpAddr::V4(v4) if !v4.is_loopback() && found.v4 == Address::ANY_V4 => {
                found.v4 = ip.into()
            }
            IpAddr::V6(v6)
                if !v6.is_loopback()
                    && !v6.is_unicast_link_local()
                    && found.v6 == Address::ANY_V6 =>
            {
                found.v6 = ip.into();
            }
            _ => {}
        }
    }
    Ok(found)
}
