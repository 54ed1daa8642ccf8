//! What a story puts into the lab for a while: addresses and listeners that
//! are nobody else's. They go with their handles.

use crate::row::Family;
use crate::stage::Stage;
use anyhow::Result;
use lab::{Peer, Transport};
use std::net::IpAddr;

/// One more address of a peer.
#[must_use]
pub(crate) struct Address {
    peer: Peer,
    /// As `ip address` takes it.
    what: String,
}

/// A listener on one address and port, TCP and UDP.
#[must_use]
pub(crate) struct Listener {
    peer: Peer,
    port: u16,
}

impl Stage<'_> {
    /// The switch plays this address: who sends something there, and no proxy
    /// takes it, reaches the switch, which answers on ports 7 and 80.
    pub(crate) fn played_by_switch(&self, ip: &str) -> Result<Address> {
        Address::new(self.world.switch(), ip, "br0")
    }

    /// One more address of a node.
    pub(crate) fn address_on(&self, node: &str, ip: &str, device: &str) -> Result<Address> {
        Address::new(self.world.node(node).host(), ip, device)
    }

    /// A peer answers here.
    pub(crate) fn listener(&self, peer: &Peer, ip: &str, port: u16) -> Result<Listener> {
        let ip: IpAddr = ip.parse()?;
        // Made first: what it has begun ends with it.
        let listener = Listener {
            peer: peer.clone(),
            port,
        };
        for transport in Transport::BOTH {
            peer.listen(transport, ip, port)?;
        }
        Ok(listener)
    }

    /// A peer's own loopback address.
    pub(crate) fn loopback(&self) -> &'static str {
        match self.family {
            Family::V4 => "127.0.0.1",
            Family::V6 => "::1",
        }
    }
}

impl Address {
    fn new(peer: &Peer, ip: &str, device: &str) -> Result<Self> {
        let (length, options) = if ip.contains(':') {
            (128, "nodad")
        } else {
            (32, "")
        };
        peer.ip(&format!("addr add {ip}/{length} dev {device} {options}"))?;
        Ok(Self {
            peer: peer.clone(),
            what: format!("{ip}/{length} dev {device}"),
        })
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // The lab may be gone already.
        let _ = self.peer.ip(&format!("addr del {}", self.what));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for transport in Transport::BOTH {
            // The lab may be gone already.
            let _ = self.peer.unlisten(transport, self.port);
        }
    }
}
