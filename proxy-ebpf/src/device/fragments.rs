//! Fragments: only the first one of a datagram has the ports.

use crate::{
    maps::FRAGMENTS,
    packet::{Fragment, Packet},
};
use proxy_common::{FragmentKey, FragmentPorts};

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
    packet.source_port = ports.source;
    packet.destination_port = ports.destination;
    true
}
