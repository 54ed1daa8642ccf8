//! The kernel's routes: by which device a packet leaves.

use super::{Arrival, Before, dsr};
use crate::{
    maps,
    packet::{self, Fragment, TCP, geneve, zero},
};
use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_fib_lookup, bpf_redirect, bpf_redirect_neigh, bpf_skb_change_head},
};
use proxy_common::{Address, Device, DeviceSettings, DropReason};

/// AF_INET and AF_INET6 as the kernel counts them.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Answers of bpf_fib_lookup, include/uapi/linux/bpf.h.
const SUCCESS: i64 = 0;
const FORWARDING_OFF: i64 = 5;
const NO_NEIGHBOUR: i64 = 7;
const FRAGMENTATION_NEEDED: i64 = 8;
/// BPF_FIB_LOOKUP_OUTPUT: the device is that to leave by.
const OUTPUT: u32 = 2;

const ETHERNET_HEADER: u32 = 14;
const ETHERTYPE_OFFSET: usize = 12;
const ETHERTYPE_IPV4: u16 = 0x0800;

/// `struct bpf_fib_lookup`, include/uapi/linux/bpf.h.
#[repr(C)]
struct FibLookup {
    family: u8,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
    /// In: bytes of the packet; 0 compares the real one with the device's MTU.
    /// Out, from Linux 5.12 on, if the neighbour is known: the way's MTU.
    length: u16,
    /// In: the device of arrival, or that to leave by. Out: that to leave by.
    index: u32,
    flow_info: u32,
    source: [u32; 4],
    /// Out: the next hop, of `family`.
    destination: [u32; 4],
    vlan: u32,
    macs: [u32; 3],
}

/// What the routes say.
struct Answer {
    code: i64,
    lookup: FibLookup,
}

/// `struct bpf_redir_neigh`, include/uapi/linux/bpf.h.
#[repr(C)]
struct NextHop {
    family: u32,
    address: [u32; 4],
}

/// Asks the routes how packets of the flow are sent on, and notes it in the flow.
/// Replies leave by the device by which the request came in, as long as that leads to
/// the client, else as other packets do.
#[inline(always)]
pub fn ask(arrival: &mut Arrival<'_>) -> Result<(), DropReason> {
    let flow = &arrival.scratch.flow;
    let is_reply = flow.is_reply();
    let mut way = None;
    let mut is_unsure = false;
    if is_reply {
        let back = look_back(arrival);
        is_unsure = back.is_unsure(arrival);
        way = back.way_by(flow.device);
    }
    if way.is_none() && !is_unsure {
        let (source, destination) = if is_reply {
            (flow.source, flow.destination)
        } else if flow.is_dsr() {
            let own = dsr::own_address(arrival.packet.is_v4());
            (own.ok_or(DropReason::NoSourceAddress)?, flow.source)
        } else {
            (arrival.packet.source, flow.destination)
        };
        way = look_up(arrival, source, destination, arrival.index, 0).way();
    }
    let flow = &mut arrival.scratch.flow;
    let mut mtu = u32::MAX;
    match way {
        Some(way) => {
            flow.out = way.index;
            flow.next_hop = way.next_hop();
            if way.length > 1 {
                mtu = way.length as u32;
            }
        }
        // The kernel knows by itself, or drops the packet.
        None if is_reply => {
            flow.out = flow.device;
            flow.next_hop = Address::from_words([zero() as u32; 4]);
        }
        None => return Err(DropReason::NoRoute),
    }
    if flow.is_dsr()
        && let Some(told) = dsr::path_mtu(&flow.source)
    {
        mtu = mtu.min(told);
    }
    let device = maps::device(flow.out);
    flow.mtu = device.map_or(0, |device| device.mtu.min(mtu));
    Ok(())
}

/// Index of the device that leads to `destination`, for a packet that came in here.
#[inline(always)]
pub fn to(arrival: &Arrival<'_>, source: Address, destination: Address) -> Result<u32, DropReason> {
    let way = look_up(arrival, source, destination, arrival.index, 0).way();
    way.map(|way| way.index).ok_or(DropReason::NoRoute)
}

/// By which device, and by which neighbour, a packet that came in here would be routed
/// to `destination`.
#[inline(always)]
pub fn way_to(arrival: &Arrival<'_>, destination: Address) -> Option<(u32, Address)> {
    let source = arrival.packet.destination;
    let way = look_up(arrival, source, destination, arrival.index, 0).way()?;
    Some((way.index, way.next_hop()))
}

/// Whether the device by which the flow's request came in still leads to the client,
/// for a packet of this size: nobody would tell its sender that it is too big there.
/// Where the kernel knows better, it shall try.
#[inline(always)]
pub fn leads_back(arrival: &mut Arrival<'_>) -> bool {
    let answer = look_back(arrival);
    let is_way = answer.is_unsure(arrival) || answer.way_by(arrival.scratch.flow.device).is_some();
    let flow = &mut arrival.scratch.flow;
    flow.mtu = maps::device(flow.device).map_or(0, |device| device.mtu);
    is_way && exceeds(arrival).is_none()
}

/// Asks for the way to the client by the device by which the flow's request came in.
#[inline(always)]
fn look_back(arrival: &Arrival<'_>) -> Answer {
    let flow = &arrival.scratch.flow;
    look_up(arrival, flow.source, flow.destination, flow.device, OUTPUT)
}

#[inline(always)]
fn look_up(
    arrival: &Arrival<'_>,
    source: Address,
    destination: Address,
    index: u32,
    flags: u32,
) -> Answer {
    let v4 = arrival.packet.is_v4();
    let zero = zero() as u32;
    let words = |address: Address| {
        if v4 {
            [address.v4_word(), zero, zero, zero]
        } else {
            address.words()
        }
    };
    let mut lookup = FibLookup {
        family: if v4 { AF_INET } else { AF_INET6 },
        protocol: arrival.packet.protocol,
        source_port: 0,
        destination_port: 0,
        // Fits everywhere: `exceeds` judges.
        length: 1,
        index,
        flow_info: zero,
        source: words(source),
        destination: words(destination),
        vlan: zero,
        macs: [zero; 3],
    };
    // SAFETY: the structure has the kernel's layout, and the context is this program's.
    let code = unsafe {
        bpf_fib_lookup(
            arrival.ctx.as_ptr(),
            (&raw mut lookup).cast(),
            size_of::<FibLookup>() as i32,
            flags,
        )
    };
    Answer { code, lookup }
}

impl Answer {
    /// The way, if there is one. Its neighbour is found when the packet is sent.
    #[inline(always)]
    fn way(self) -> Option<FibLookup> {
        matches!(self.code, SUCCESS | NO_NEIGHBOUR | FRAGMENTATION_NEEDED).then_some(self.lookup)
    }

    /// Whether the device that was asked for may be a way although the answer has none
    /// by it: the helper refuses to tell where forwarding is off, and it prefers IPv6
    /// routes by that device only among equal ones.
    #[inline(always)]
    fn is_unsure(&self, arrival: &Arrival<'_>) -> bool {
        let device = maps::device(arrival.scratch.flow.device);
        let has_default = device.is_some_and(|device| device.default_v6 != 0);
        self.code == FORWARDING_OFF || has_default && self.lookup.family == AF_INET6
    }

    /// The way, if it is by this device.
    #[inline(always)]
    fn way_by(self, index: u32) -> Option<FibLookup> {
        self.way().filter(|way| way.index == index)
    }
}

impl FibLookup {
    #[inline(always)]
    fn next_hop(&self) -> Address {
        if self.family == AF_INET {
            Address::from_v4_word(self.destination[0])
        } else {
            Address::from_words(self.destination)
        }
    }
}

/// Sends the packet on as its flow says. Egress lets it pass.
#[inline(always)]
pub fn send_on(arrival: &Arrival<'_>) -> Result<i32, DropReason> {
    let flow = &arrival.scratch.flow;
    if flow.mtu != 0 {
        // The device is one of ours, and so has the program that takes it off.
        Before::SentOn.note(arrival.ctx);
    }
    let address = flow.next_hop.words();
    if address[0] == 0 && address[1] == 0 && address[2] == 0 && address[3] == 0 {
        return leave_by(arrival, flow.out);
    }
    link_header(arrival)?;
    let mut next_hop = if flow.next_hop.is_v4() {
        let zero = zero() as u32;
        NextHop {
            family: AF_INET as u32,
            address: [address[3], zero, zero, zero],
        }
    } else {
        NextHop {
            family: AF_INET6 as u32,
            address,
        }
    };
    let size = size_of::<NextHop>() as i32;
    // SAFETY: the structure has the kernel's layout.
    Ok(unsafe { bpf_redirect_neigh(flow.out, (&raw mut next_hop).cast(), size, 0) } as i32)
}

/// Sends the packet out by a device; the kernel finds the next hop.
///
/// Its source may be an address of ours: the stack would take it for a martian.
#[inline(always)]
pub fn leave_by(arrival: &Arrival<'_>, index: u32) -> Result<i32, DropReason> {
    // The kernel takes a link header off before it puts its own on.
    link_header(arrival)?;
    // SAFETY: no parameters: the next hop comes from the packet's destination.
    Ok(unsafe { bpf_redirect_neigh(index, core::ptr::null_mut(), 0, 0) } as i32)
}

/// Hands an IPv4 packet to the stack, which routes and fragments it. It comes in by a
/// device that takes packets from addresses of this node.
#[inline(always)]
pub fn leave_by_stack(arrival: &Arrival<'_>) -> Result<i32, DropReason> {
    let slow_path = maps::device_settings().map_or(0, |settings| settings.slow_path);
    if slow_path == 0 {
        return Err(DropReason::TooBig);
    }
    link_header(arrival)?;
    // The type of a header that was just made is still empty; IPv6 never comes here.
    packet::set_receiver(arrival.ctx, DeviceSettings::SLOW_PATH_MAC)
        .and_then(|()| {
            arrival
                .ctx
                .store(ETHERTYPE_OFFSET, &ETHERTYPE_IPV4.to_be(), 0)
        })
        .map_err(|_| DropReason::RewriteFailed)?;
    // SAFETY: takes numbers.
    Ok(unsafe { bpf_redirect(slow_path, 0) } as i32)
}

/// Gives a packet without link header room for one.
#[inline(always)]
fn link_header(arrival: &Arrival<'_>) -> Result<(), DropReason> {
    if arrival.device.header_bytes == 0 {
        // SAFETY: the context is this program's.
        let changed = unsafe { bpf_skb_change_head(arrival.ctx.skb.skb, ETHERNET_HEADER, 0) };
        if changed != 0 {
            return Err(DropReason::RewriteFailed);
        }
    }
    Ok(())
}

/// The address that remote backends see of packets that leave by a device.
#[inline(always)]
pub fn source_address(index: u32, v4: bool) -> Result<Address, DropReason> {
    let device: &Device = maps::device(index).ok_or(DropReason::NoSourceAddress)?;
    let address = if v4 { device.v4 } else { device.v6 };
    if address.same(address.wildcard()) {
        return Err(DropReason::NoSourceAddress);
    }
    Ok(address)
}

/// What the flow's way takes, if the packet is larger. One that the kernel will cut
/// into segments is judged by those.
///
/// A fragment that may be fragmented again counts as larger if another one of its
/// datagram may be: all of them must go the same way, since connection tracking
/// on the slow path waits for those that are missing.
#[inline(always)]
pub fn exceeds(arrival: &Arrival<'_>) -> Option<u32> {
    let mtu = arrival.scratch.flow.mtu;
    if mtu == 0 {
        return None;
    }
    let packet = arrival.packet;
    // SAFETY: the kernel hands a valid context.
    let segment = unsafe { (*arrival.ctx.skb.skb).gso_size };
    let tunnel = if arrival.scratch.flow.is_dsr() {
        geneve::overhead(packet.is_v4())
    } else {
        0
    };
    let takes = mtu.saturating_sub(tunnel);
    let length = if segment == 0 {
        packet.length
    } else {
        let headers = packet.transport - packet.ip + packet.transport_header(arrival.ctx);
        // A tunnel makes segments of TCP smaller.
        headers + segment - if packet.protocol == TCP { tunnel } else { 0 }
    };
    let others_may_exceed = !packet.dont_fragment
        && !matches!(packet.fragment, Fragment::Whole)
        && arrival.device.mtu > mtu
        && maps::device_settings().is_some_and(|it| it.slow_path != 0);
    (length > takes || others_may_exceed).then_some(takes)
}
