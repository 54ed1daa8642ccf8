//! What the agent does about the sockets of this node's clients.
//!
//! Connected UDP sockets whose backend is gone are made to notice (semantics 27).
//! The socket programs list connected UDP sockets in map `udp_sockets`. One that
//! points at a backend which no longer serves is destroyed in its own network
//! namespace, as `ss -K` does: its owner's calls fail and it connects anew. Where
//! the kernel cannot do that, a program on the way out refuses what such sockets
//! send, as long as there are any. TCP sockets are never touched.

mod clients;
mod diag;
mod netns;
mod opt_outs;

pub use clients::Clients;
pub use opt_outs::OptOuts;

use crate::attach::{self, AttachOptions};
use crate::publish::bpf::BpfKernel;
use crate::publish::{Kernel, KernelError};
use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use diag::Destroyed;
use proxy_common::UdpSocket;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use zerocopy::IntoBytes;

/// Sockets by cookie.
type Sockets = BTreeMap<u64, UdpSocket>;

/// What became of the sockets whose backend is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Sockets that were destroyed.
    pub destroyed: usize,
    /// Sockets that could not be, since the kernel cannot do that: what they send
    /// is refused.
    pub guarded: usize,
    /// Sockets that could not be for another reason: their namespace was not found.
    pub left: usize,
}

/// Destroys the sockets of the agent's pins whose backend is gone, or guards
/// against what they send. Blocks; run it beside the loop.
pub fn end_stale(options: &AttachOptions) -> Result<Outcome> {
    let pin_dir = &options.pin_dir;
    let table = Table::open(pin_dir)?;
    let stale = table.stale()?;
    if stale.is_empty() {
        if attach::guard_is_up(pin_dir) {
            attach::take_down_guard(pin_dir)?;
            tracing::info!("no UDP socket sends to a backend that is gone any more");
        }
        return Ok(Outcome::default());
    }
    let destroyed = destroy(pin_dir, &table, &stale);
    let left = stale.len().saturating_sub(destroyed.count);
    if !destroyed.unsupported {
        return Ok(Outcome {
            destroyed: destroyed.count,
            guarded: 0,
            left,
        });
    }
    if !attach::guard_is_up(pin_dir) {
        attach::put_up_guard(options).context("refusing what they send")?;
        tracing::info!(
            sockets = stale.len(),
            "this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY, module udp_diag): what UDP sockets send to backends that are gone is refused, by a program that all packets pass until they are closed"
        );
    }
    Ok(Outcome {
        destroyed: destroyed.count,
        guarded: left,
        left: 0,
    })
}

/// Destroys these sockets, each in its network namespace.
fn destroy(pin_dir: &Path, table: &Table, stale: &Sockets) -> Destroyed {
    let mut by_netns: BTreeMap<u64, Sockets> = BTreeMap::new();
    for (cookie, socket) in stale {
        by_netns
            .entry(socket.netns)
            .or_default()
            .insert(*cookie, *socket);
    }
    let mut destroyed = Destroyed::default();
    // Entering a namespace is a thread's matter: this one ends with it.
    let result = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            netns::enter_each(pin_dir, |cookie| {
                if let Some(sockets) = by_netns.remove(&cookie) {
                    let here =
                        diag::destroy(&sockets, |cookie, socket| table.is_still(cookie, socket))?;
                    destroyed.count += here.count;
                    destroyed.unsupported |= here.unsupported;
                }
                Ok(if by_netns.is_empty() || destroyed.unsupported {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Err(error) = result {
        tracing::warn!(
            "UDP sockets of backends that are gone may hang until they time out: {error:#}"
        );
    }
    destroyed
}

/// Map `udp_sockets`, and the backends that it names.
struct Table {
    sockets: HashMap<MapData, u64, [u8; size_of::<UdpSocket>()]>,
    kernel: BpfKernel,
}

impl Table {
    fn open(pin_dir: &Path) -> Result<Self> {
        let map =
            MapData::from_pin(pin_dir.join("udp_sockets")).context("opening map udp_sockets")?;
        let kernel =
            BpfKernel::open(pin_dir).map_err(|error: KernelError| anyhow::anyhow!(error))?;
        Ok(Self {
            sockets: aya::maps::Map::HashMap(map).try_into()?,
            kernel,
        })
    }

    fn stale(&self) -> Result<Sockets> {
        let mut stale = Sockets::new();
        for element in self.sockets.iter() {
            let (cookie, bytes) = element.context("reading map udp_sockets")?;
            let socket: UdpSocket = zerocopy::transmute!(bytes);
            let backend = self.kernel.backend(socket.backend);
            if backend.generation != socket.generation || !backend.is_serving() {
                stale.insert(cookie, socket);
            }
        }
        Ok(stale)
    }

    /// Whether the socket has not been connected elsewhere since it was found.
    fn is_still(&self, cookie: u64, socket: &UdpSocket) -> Result<bool> {
        match self.sockets.get(&cookie, 0) {
            Ok(bytes) => Ok(bytes == socket.as_bytes()),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(error) => Err(error).context("reading map udp_sockets"),
        }
    }
}
