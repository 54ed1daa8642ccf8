//! Map `devices`: the network devices of this node that the packet path uses.

use crate::{Address, NodeAddresses};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of `devices`; the key is the device's index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Device {
    /// Bits `UPLINK`, `RETURN`, `PODS`.
    pub role: u32,
    /// Bytes of a link header before the IP header: 14 (Ethernet) or 0.
    pub header_bytes: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// 1 if the main table has a default route by it for IPv6.
    pub default_v6: u32,
    /// The IPv4 address of this node that packets to remote backends get there;
    /// [`Address::ANY_V4`] if it has none.
    pub v4: Address,
    /// The same for IPv6, never link-local; [`Address::ANY_V6`] if it has none.
    pub v6: Address,
}

impl Device {
    /// Bit of `role`: leads out of the node; outside clients come in here.
    pub const UPLINK: u32 = 1;
    /// Bit of `role`: routes to remote backends use it.
    pub const RETURN: u32 = 2;
    /// Bit of `role`: clients of this node are behind it whose sockets the programs
    /// for sockets do not see: guests, sandboxes, containers of another engine.
    pub const PODS: u32 = 4;
}

/// The one element of `device_settings`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DeviceSettings {
    /// Seed of the hash that picks from tables, the same on every node.
    pub seed: u32,
    /// First source port for SNAT.
    pub snat_first_port: u16,
    /// Last source port for SNAT.
    pub snat_last_port: u16,
    /// 1 while conntrack may own connections whose flow is not ours: they pass.
    pub take_over: u32,
    /// UDP port by which Nodes hand each other packets for DSR; 0 if they do not.
    pub dsr_port: u32,
    /// Index of the device by which packets go to the stack that are too large for
    /// their way and may be fragmented; 0 if there is none.
    pub slow_path: u32,
    /// This Node's own addresses, from which it hands packets to others.
    pub node: NodeAddresses,
}

impl DeviceSettings {
    /// MAC address of the other end of the slow path.
    pub const SLOW_PATH_MAC: [u8; 6] = [0x02, 0xfa, 0x1e, 0xad, 0x00, 0x01];
}

const _: () = assert!(size_of::<Device>() == 48);
const _: () = assert!(size_of::<DeviceSettings>() == 52);
