//! The rules as a model of their own, written from semantics and design and not
//! from the programs: which outcomes a packet may have, in a state of the node.
//! Where the programs may choose (an endpoint, a source port) it takes over
//! their choice, if that was allowed.

use std::collections::HashMap;
use std::net::SocketAddr;

use proxy_common::{BackendId, DropReason, Protocol};

use crate::node::{Outcome, REDIRECT, SHOT, SNAT_PORTS, UNSPEC, is_local};
use crate::packet::{ACK, FIN, Packet, RST, SYN, Transport};

/// Source, destination, protocol.
type Tuple = (SocketAddr, SocketAddr, Protocol);

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
struct Half {
    /// What its packets get.
    source: SocketAddr,
    destination: SocketAddr,
    to_client: bool,
    fin: bool,
    rst: bool,
    backend: BackendId,
}

/// An endpoint of the one Service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) id: BackendId,
    /// New flows may go there.
    pub(crate) usable: bool,
    /// Conversations that it has may stay.
    pub(crate) serving: bool,
}

pub(crate) struct Model {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) frontends: Vec<SocketAddr>,
    /// The address that the endpoint sees of packets to it, by endpoint.
    pub(crate) source: fn(SocketAddr) -> std::net::IpAddr,
    halves: HashMap<Tuple, Half>,
}

fn tuple(packet: &Packet) -> Tuple {
    (packet.source, packet.destination, packet.protocol())
}

fn flags(packet: &Packet) -> u8 {
    match packet.transport {
        Transport::Tcp { flags, .. } => flags,
        Transport::Udp { .. } => 0,
    }
}

impl Model {
    pub(crate) fn new(
        frontends: Vec<SocketAddr>,
        endpoints: Vec<Endpoint>,
        source: fn(SocketAddr) -> std::net::IpAddr,
    ) -> Self {
        Self {
            endpoints,
            frontends,
            source,
            halves: HashMap::new(),
        }
    }

    /// A client's packet comes in by the uplink.
    pub(crate) fn request(&mut self, packet: &Packet, seen: &Outcome) -> Result<(), String> {
        let known = self.halves.get(&tuple(packet)).copied();
        if let Some(half) = known.filter(|half| !half.to_client) {
            if !self.begins_anew(packet, &half) {
                self.note(packet);
                return self.forwarded(packet, half.source, half.destination, seen);
            }
            self.forget(packet, &half);
        }
        if !self.frontends.contains(&packet.destination) {
            return expect(seen, UNSPEC, Some(packet), None);
        }
        let opens = packet.protocol() != Protocol::Tcp || flags(packet) & (SYN | ACK | RST) == SYN;
        if !opens {
            return expect(seen, SHOT, None, Some(DropReason::NoFlow));
        }
        self.begin(packet, seen)
    }

    fn begin(&mut self, packet: &Packet, seen: &Outcome) -> Result<(), String> {
        let usable: Vec<_> = self
            .endpoints
            .iter()
            .copied()
            .filter(|it| it.usable)
            .collect();
        if usable.is_empty() {
            return expect(seen, REDIRECT, None, Some(DropReason::NoEndpoint));
        }
        // A packet that dies of its hops does not tell where it was bound for.
        if seen.counted == Some(DropReason::TtlExceeded) {
            return Err("the stories' packets have hops".into());
        }
        let (source, destination) = (seen.source(), seen.destination());
        let endpoint = usable.iter().find(|it| it.address == destination);
        let endpoint = endpoint.ok_or(format!("{destination} is no usable endpoint"))?;
        self.check_source(packet, endpoint, source)?;
        self.forwarded(packet, source, destination, seen)?;
        let half = Half {
            source,
            destination,
            to_client: false,
            fin: false,
            rst: false,
            backend: endpoint.id,
        };
        // What is over makes room.
        let back = (destination, source, packet.protocol());
        if let Some(old) = self.halves.remove(&back) {
            self.halves
                .remove(&(old.destination, old.source, packet.protocol()));
        }
        self.halves.insert(tuple(packet), half);
        let reply = Half {
            source: packet.destination,
            destination: packet.source,
            to_client: true,
            ..half
        };
        self.halves.insert(back, reply);
        self.note(packet);
        Ok(())
    }

    /// A local endpoint sees the client's address, and its port unless that is
    /// taken; a remote one sees an address of ours.
    fn check_source(
        &self,
        packet: &Packet,
        endpoint: &Endpoint,
        source: SocketAddr,
    ) -> Result<(), String> {
        let is_local = is_local(endpoint.address);
        if is_local && !self.is_taken(packet, endpoint) {
            let is_kept = source == packet.source;
            return is_kept
                .then_some(())
                .ok_or(format!("a local endpoint sees {source}"));
        }
        let address = if is_local {
            packet.source.ip()
        } else {
            (self.source)(endpoint.address)
        };
        let in_range = (SNAT_PORTS.0..=SNAT_PORTS.1).contains(&source.port());
        if source.ip() != address || !in_range {
            return Err(format!("an endpoint sees {source}"));
        }
        let back = (endpoint.address, source, packet.protocol());
        if self.halves.contains_key(&back) {
            return Err(format!("{source} has a connection with the endpoint"));
        }
        Ok(())
    }

    /// Whether the client's port has a connection with a local endpoint already, by
    /// another frontend.
    fn is_taken(&self, packet: &Packet, endpoint: &Endpoint) -> bool {
        let back = (endpoint.address, packet.source, packet.protocol());
        let Some(reply) = self.halves.get(&back) else {
            return false;
        };
        let there = self
            .halves
            .get(&(packet.source, reply.source, packet.protocol()));
        reply.source != packet.destination && there.is_some_and(|there| !is_over(there, reply))
    }

    /// A packet comes from an endpoint, or a stranger.
    pub(crate) fn reply(&mut self, packet: &Packet, seen: &Outcome) -> Result<(), String> {
        let known = self.halves.get(&tuple(packet)).copied();
        match known.filter(|half| half.to_client) {
            Some(half) => {
                self.note(packet);
                let wanted = packet.clone().from(half.source).to(half.destination);
                if is_local(packet.source) {
                    return expect(seen, UNSPEC, Some(&wanted), None);
                }
                expect(seen, REDIRECT, Some(&wanted.hop()), None)
            }
            None => expect(seen, UNSPEC, Some(packet), None),
        }
    }

    fn forwarded(
        &self,
        packet: &Packet,
        source: SocketAddr,
        destination: SocketAddr,
        seen: &Outcome,
    ) -> Result<(), String> {
        let wanted = packet.clone().from(source).to(destination);
        if is_local(destination) {
            return expect(seen, UNSPEC, Some(&wanted), None);
        }
        expect(seen, REDIRECT, Some(&wanted.hop()), None)
    }

    fn begins_anew(&self, packet: &Packet, half: &Half) -> bool {
        if packet.protocol() != Protocol::Tcp {
            let endpoint = self.endpoints.iter().find(|it| it.id == half.backend);
            return !endpoint.is_some_and(|it| it.serving);
        }
        let back = (half.destination, half.source, packet.protocol());
        flags(packet) & (SYN | ACK | RST) == SYN
            && self
                .halves
                .get(&back)
                .is_some_and(|reply| is_over(half, reply))
    }

    fn forget(&mut self, packet: &Packet, half: &Half) {
        self.halves.remove(&tuple(packet));
        self.halves
            .remove(&(half.destination, half.source, packet.protocol()));
    }

    /// FIN stays; a RST is forgotten when something follows it.
    fn note(&mut self, packet: &Packet) {
        if let Some(half) = self.halves.get_mut(&tuple(packet)) {
            half.fin |= flags(packet) & FIN != 0;
            half.rst = flags(packet) & RST != 0;
        }
    }

    /// How many halves there are.
    pub(crate) fn len(&self) -> usize {
        self.halves.len()
    }

    /// What the endpoints may send: each connection's reply tuple.
    pub(crate) fn replies(&self) -> Vec<Tuple> {
        let replies = self.halves.iter().filter(|it| it.1.to_client);
        let mut replies: Vec<_> = replies.map(|it| *it.0).collect();
        replies.sort_by_key(|it| (it.0, it.1));
        replies
    }
}

/// Closed from both sides, or reset from one.
fn is_over(half: &Half, other: &Half) -> bool {
    half.rst || other.rst || (half.fin && other.fin)
}

fn expect(
    seen: &Outcome,
    verdict: i32,
    packet: Option<&Packet>,
    counted: Option<DropReason>,
) -> Result<(), String> {
    if (seen.verdict, seen.counted) != (verdict, counted) {
        return Err(format!("verdict {verdict} and {counted:?} were right"));
    }
    match packet.map(Packet::frame) {
        Some(frame) if frame != seen.frame => Err(format!("this was right: {frame:?}")),
        _ => Ok(()),
    }
}
