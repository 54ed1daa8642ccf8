//! Direct server return: a remote backend's node gets the client's packets as they
//! are, in a tunnel that names the backend, and answers the client by itself.
//!
//! There they take the way of packets that came in directly, but for the choice of
//! the backend: so a client whose packets suddenly come in at that node, since a
//! router has moved them, finds its connection.

use super::{Arrival, Before, route};
use crate::{
    maps::{
        self, BACKENDS, LOCAL_BACKENDS, NODE_IDS, NODES, PATH_MTUS, PROGRAMS, Work, device_settings,
    },
    packet::{Fragment, Packet, Quoted, UDP, geneve, told_mtu},
};
use aya_ebpf::programs::TcContext;
use proxy_common::{
    Address, Device, DropReason, Flow, Forwarding, LocalBackendKey, NodeId, PathMtu,
    decide::{BackendRef, Target},
};

/// Index of program `ingress` in map `programs`.
const INGRESS: u32 = 0;

/// What every way takes: anyone may send errors that tell less (RFC 791, RFC 8200).
const MTU_MIN_V4: u32 = 576;
const MTU_MIN_V6: u32 = 1280;

/// Takes a packet out of its tunnel, if it is in one of ours, notes for which backend
/// it is, and begins anew with it. Anyone can send such packets, but only Nodes may.
#[inline(always)]
pub fn unwrap(ctx: &TcContext, packet: &Packet, work: &mut Work) -> Result<(), DropReason> {
    if packet.protocol != UDP || !matches!(packet.fragment, Fragment::Whole) {
        return Ok(());
    }
    let Some(settings) = device_settings() else {
        return Ok(());
    };
    if settings.dsr_port != packet.destination_port as u32
        || settings.dsr_port == 0
        || !packet
            .destination
            .same(settings.node.in_family(packet.is_v4()))
    {
        return Ok(());
    }
    let Some((address, port)) = geneve::backend(ctx, packet) else {
        return Ok(());
    };
    if NODE_IDS.get_ptr(packet.source).is_none() {
        return Err(DropReason::TunnelFromStranger);
    }
    work.tunnel_to = address;
    work.tunnel_port = port as u32;
    geneve::unwrap(ctx, packet).map_err(|_| DropReason::RewriteFailed)?;
    Before::Unwrapped.note(ctx);
    // SAFETY: nothing here needs to be dropped.
    unsafe { PROGRAMS.tail_call(ctx, INGRESS) };
    // Only if the agent has not put the program there.
    Err(DropReason::RewriteFailed)
}

/// The backend for which the packet came by tunnel.
#[inline(always)]
pub fn target(work: &Work) -> Result<Target, DropReason> {
    let key = LocalBackendKey {
        address: work.tunnel_to,
        port: work.tunnel_port,
        service: work.frontend.service,
    };
    let stranger = DropReason::TunnelToStranger;
    let id = LOCAL_BACKENDS.get_ptr(&key).ok_or(stranger)?;
    // SAFETY: the element is valid while the program runs.
    let id = unsafe { *id };
    let backend = BACKENDS.get(id).ok_or(stranger)?;
    if backend.service != key.service || !backend.address.same(key.address) || backend.local == 0 {
        return Err(stranger);
    }
    Ok(Target {
        backend: BackendRef {
            id,
            generation: backend.generation,
        },
        address: backend.address,
        port: backend.port,
    })
}

/// Makes of a new flow to a remote backend one that its node answers by itself, if
/// the frontend asks for it and that node is known. `false`: by SNAT, then.
#[inline(always)]
pub fn hand_over(arrival: &mut Arrival<'_>, target: &Target) -> bool {
    if arrival.scratch.frontend.forwarding as u8 != Forwarding::Dsr as u8 {
        return false;
    }
    let v4 = arrival.packet.is_v4();
    let Some(own) = own_address(v4) else {
        return false;
    };
    let Some(backend) = maps::current_backend(target.backend) else {
        return false;
    };
    let Some(node) = NODES.get(backend.node) else {
        return false;
    };
    let address = node.in_family(v4);
    if address.same(address.wildcard()) || address.same(own) || is_behind(arrival, backend.node) {
        return false;
    }
    let flow = &mut arrival.scratch.flow;
    flow.kind = Flow::DSR;
    flow.source = address;
    true
}

/// Whether the client is on a Node, or a pod of its: then replies of a backend there
/// would not leave it, nor be translated. A client behind an overlay may be.
#[inline(always)]
fn is_behind(arrival: &Arrival<'_>, node: NodeId) -> bool {
    let client = arrival.packet.source;
    let is_it = |address: &Address| {
        let id = NODE_IDS.get_ptr(address);
        // SAFETY: the element is valid while the program runs.
        id.map(|id| unsafe { *id } == node)
    };
    if let Some(is_it) = is_it(&client) {
        return is_it;
    }
    let Some((index, next_hop)) = route::way_to(arrival, client) else {
        return false;
    };
    is_it(&next_hop)
        .unwrap_or_else(|| maps::device(index).is_some_and(|it| it.role & Device::UPLINK == 0))
}

/// The address from which this node hands packets over, if it does.
#[inline(always)]
pub fn own_address(v4: bool) -> Option<Address> {
    let settings = device_settings()?;
    let address = settings.node.in_family(v4);
    (settings.dsr_port != 0 && !address.same(address.wildcard())).then_some(address)
}

/// What the way to a Node takes, if a router has told.
#[inline(always)]
pub fn path_mtu(node: &Address) -> Option<u32> {
    let element = PATH_MTUS.get_ptr(node)?;
    // SAFETY: the element is valid while the program runs.
    let told = unsafe { *element };
    (maps::now_s().wrapping_sub(told.told_s) < PathMtu::LIFE_S).then_some(told.mtu)
}

/// Notes what a router tells of the way to a Node, if it is about a tunnel of ours: the
/// stack has no socket to tell. The next packets that are too big are answered by that.
#[inline(always)]
pub fn note_path_mtu(arrival: &Arrival<'_>, quoted: &Quoted) {
    let packet = arrival.packet;
    let v4 = packet.is_v4();
    let Some(settings) = device_settings() else {
        return;
    };
    let tunnel = quoted.reversed();
    if tunnel.protocol != UDP as u32
        || settings.dsr_port == 0
        || tunnel.source_port as u32 != settings.dsr_port
        || !tunnel.destination.same(settings.node.in_family(v4))
    {
        return;
    }
    let Some(mtu) = told_mtu(arrival.ctx, packet) else {
        return;
    };
    let told = PathMtu {
        mtu: mtu.max(if v4 { MTU_MIN_V4 } else { MTU_MIN_V6 }),
        told_s: maps::now_s(),
    };
    if NODE_IDS.get_ptr(tunnel.source).is_some() {
        // An LRU map makes room by itself.
        let _ = PATH_MTUS.insert(&tunnel.source, &told, 0);
    }
}

/// Puts the packet of a flow into the tunnel to its backend's node.
#[inline(always)]
pub fn wrap(arrival: &Arrival<'_>) -> Result<(), DropReason> {
    let packet = arrival.packet;
    let settings = device_settings().ok_or(DropReason::RewriteFailed)?;
    let flow = &arrival.scratch.flow;
    let tunnel = geneve::Tunnel {
        source: settings.node.in_family(packet.is_v4()),
        destination: flow.source,
        port: settings.dsr_port as u16,
        backend: flow.destination,
        backend_port: flow.destination_port,
        hash: flow.tag,
    };
    geneve::wrap(arrival.ctx, packet, &tunnel).map_err(|_| DropReason::RewriteFailed)
}
