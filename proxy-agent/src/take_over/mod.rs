//! Take-over from a kube-proxy: its connections go on.
//!
//! Whoever came by a frontend before Fairlead did is translated by the kernel's
//! connection tracking, by an entry that kube-proxy's rules made. Of such a connection
//! the packet path sees packets in mid-connection and has no flow. While there may be
//! any, the programs let these pass to the stack (`DeviceSettings::take_over`): as long
//! as rules of a kube-proxy are there, since those make new entries where packets do
//! not meet our programs first, and then until no entry is left that leads from a
//! frontend to somewhere else.

mod conntrack;
mod iptables;
mod netfilter;
mod rules;

use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use conntrack::Entry;
use proxy_common::{Address, Frontend, FrontendKey, Protocol, Scope};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;

/// Pause between two looks. Each asks for three objects; entries are listed while the
/// take-over goes on only, and no further than to the first one that counts.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether there may be connections to take over, before anybody has looked: packets in
/// mid-connection pass until then.
pub fn may_begin() -> bool {
    conntrack::count().is_some()
}

/// Starts the thread that looks, on the maps that are in force. It ends with what it
/// returns, which tells whether a take-over goes on; nothing until that is known.
pub fn follow(pin_dir: &Path) -> Result<watch::Receiver<Option<bool>>> {
    let (sender, receiver) = watch::channel(None);
    let pin_dir = pin_dir.to_owned();
    let run = move || {
        let mut look = Look {
            pin_dir,
            known: None,
            told: String::new(),
        };
        while !sender.is_closed() {
            let known = look.again();
            sender.send_if_modified(|it| std::mem::replace(it, known) != known);
            std::thread::sleep(PAUSE);
        }
    };
    let thread = std::thread::Builder::new().name("take-over".to_owned());
    thread
        .spawn(run)
        .context("starting the thread for the take-over")?;
    Ok(receiver)
}

struct Look {
    pin_dir: PathBuf,
    /// Whether a take-over goes on.
    known: Option<bool>,
    /// What was logged last.
    told: String,
}

impl Look {
    /// What could not be found out stays as it is.
    fn again(&mut self) -> Option<bool> {
        match self.goes_on() {
            Ok(goes_on) => {
                self.known = Some(goes_on);
                self.told.clear();
            }
            Err(error) => {
                let told = format!("{error:#}");
                if self.told != told {
                    tracing::warn!(
                        "whether connections of a kube-proxy are under way is not known: {told}"
                    );
                    self.told = told;
                }
            }
        }
        self.known
    }

    fn goes_on(&self) -> Result<bool> {
        let Some(entries) = conntrack::count() else {
            return Ok(false);
        };
        if rules::are_there()? {
            return Ok(true);
        }
        // Without rules nothing begins that is not there already.
        if entries == 0 || self.known == Some(false) {
            return Ok(false);
        }
        let frontends = Frontends::open(&self.pin_dir)?;
        conntrack::any(|entry| frontends.has(entry))
            .context("listing connection tracking's entries")
    }
}

/// The frontends, for single look-ups.
struct Frontends {
    frontends: HashMap<MapData, [u8; size_of::<FrontendKey>()], [u8; size_of::<Frontend>()]>,
    node_addresses: HashMap<MapData, [u8; size_of::<Address>()], u32>,
}

impl Frontends {
    fn open(pin_dir: &Path) -> Result<Self> {
        let open = |name| -> Result<aya::maps::Map> {
            let data = MapData::from_pin(pin_dir.join(name));
            let data = data.with_context(|| format!("opening map {name}"))?;
            Ok(aya::maps::Map::HashMap(data))
        };
        Ok(Self {
            frontends: open("frontends")?.try_into()?,
            node_addresses: open("node_addresses")?.try_into()?,
        })
    }

    /// Whether the connection was opened to a frontend, and leads elsewhere.
    fn has(&self, entry: &Entry) -> bool {
        let Entry { to, answered_by } = *entry;
        let address = Address::from(to.ip());
        to != answered_by
            && (self.has_key(address, to.port())
                || self.is_node_address(to.ip()) && self.has_key(address.wildcard(), to.port()))
    }

    fn has_key(&self, address: Address, port: u16) -> bool {
        let key = FrontendKey {
            address,
            port,
            protocol: Protocol::Tcp,
            scope: Scope::External,
        };
        let key: [u8; size_of::<FrontendKey>()] = zerocopy::transmute!(key);
        !matches!(self.frontends.get(&key, 0), Err(MapError::KeyNotFound))
    }

    fn is_node_address(&self, ip: IpAddr) -> bool {
        let address = Address::from(ip).bytes;
        !matches!(
            self.node_addresses.get(&address, 0),
            Err(MapError::KeyNotFound)
        )
    }
}
