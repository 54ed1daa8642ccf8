//! Fragments: only the first one of a datagram has the ports.
//!
//! One that comes before its first one, or whose first one was forgotten, cannot
//! be translated. Nor may it get through as it is, if it may be one of ours: it
//! is dropped and counted. The stack's own fragments come in order, and
//! conntrack, where it is on, puts others in order before they get to egress.

use crate::{
    maps::{self, FRAGMENTS},
    packet::{Fragment, Packet, TCP, UDP},
};
use aya_ebpf::programs::TcContext;
use proxy_common::{FragmentKey, FragmentPorts};

/// Seconds after which a later fragment is none of the same datagram: so long Linux
/// waits for the rest of one (`ipfrag_time`, Documentation/networking/ip-sysctl.rst).
/// Identifications come again, and their first fragments may take another way, or be
/// lost: what follows would get the ports of an old datagram. An IPv6 fragment that
/// is later still, for which others wait 60 seconds, is dropped.
const SECONDS_MAX: u32 = 30;

/// Remembers the ports of a first fragment; gives them to a later one. `false`
/// if they are not known.
#[inline(always)]
pub fn complete(packet: &mut Packet) -> bool {
    if matches!(packet.fragment, Fragment::Whole) {
        return true;
    }
    let key = FragmentKey {
        source: packet.source,
        destination: packet.destination,
        id: packet.fragment_id,
        protocol: packet.protocol as u32,
    };
    if matches!(packet.fragment, Fragment::First) {
        let ports = FragmentPorts {
            source: packet.source_port,
            destination: packet.destination_port,
            seen_s: maps::now_s(),
        };
        // An LRU map makes room by itself; else the others are not recognised.
        let _ = FRAGMENTS.insert(&key, &ports, 0);
        return true;
    }
    let Some(ports) = FRAGMENTS.get_ptr(&key) else {
        return false;
    };
    // SAFETY: the element is valid while the program runs.
    let ports = unsafe { *ports };
    if maps::now_s().saturating_sub(ports.seen_s) > SECONDS_MAX {
        return false;
    }
    packet.source_port = ports.source;
    packet.destination_port = ports.destination;
    true
}

/// Whether a fragment is for an address of a Service, which needs no port to be known
/// as ours. A node's address is, in most packets, its own, also if Services have it;
/// what came for a frontend there waits in the stack for a first fragment that never
/// comes, and is dropped.
#[inline(always)]
pub fn asks_service(packet: &Packet) -> bool {
    has_ports(packet) && maps::belongs_to_service(&packet.destination)
}

/// Whether a fragment that leaves is from a pod of this node, and so perhaps of
/// a reply, which must not show the pod's address: it is not the host's own, nor
/// has it come in by a device that we know. Without ports a pod's other packets
/// look the same, but their fragments come in order.
#[inline(always)]
pub fn comes_from_pod(ctx: &TcContext, packet: &Packet) -> bool {
    // SAFETY: the kernel hands a valid context.
    let came_by = unsafe { (*ctx.skb.skb).ingress_ifindex };
    has_ports(packet) && came_by != 0 && maps::device(came_by).is_none()
}

/// Whether its datagram is of a protocol that services know.
#[inline(always)]
fn has_ports(packet: &Packet) -> bool {
    packet.protocol == TCP || packet.protocol == UDP
}
