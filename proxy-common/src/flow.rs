//! Maps `flows` and `flows_new`: translated connections of the packet path, each
//! as two elements: one for what the client sends, one for what comes back.

use crate::{Address, BackendId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of `flows` and `flows_new`: a packet's tuple as it arrives.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FlowKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Host byte order.
    pub source_port: u16,
    /// Host byte order.
    pub destination_port: u16,
    /// IANA protocol number.
    pub protocol: u32,
}

/// Value of `flows` and `flows_new`: what such a packet becomes.
///
/// The kernel may recycle an element while a program on another CPU still reads
/// it. It writes values from their start to their end: a reader copies out, then
/// looks whether `tag` is still that of its key.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Flow {
    /// [`FlowKey::tag`] of the element's key.
    pub tag: u32,
    /// Bits `REPLY`, `SNAT`, `DSR`, `TUNNELLED`.
    pub kind: u8,
    /// Bits `FIN`, `RST`, `ANSWERED`.
    pub state: u8,
    /// Always 0.
    pub _reserved: u16,
    /// Packets of this direction.
    pub packets: u64,
    /// Bytes of this direction, from the IP header on.
    pub bytes: u64,
    /// The source that packets get.
    pub source: Address,
    /// The destination that they get.
    pub destination: Address,
    /// Host byte order.
    pub source_port: u16,
    /// Host byte order.
    pub destination_port: u16,
    /// Index of the device by which the request came in, and replies leave.
    pub device: u32,
    /// The backend, for the counters.
    pub backend: BackendId,
    /// Its generation when the flow began.
    pub generation: u32,
    /// Seconds since boot of the last packet of this direction.
    pub last_seen_s: u32,
    /// Seconds since boot of the flow's first packet.
    pub created_s: u32,
    /// Index of the device by which such packets are sent on; 0 if the routes were
    /// not asked yet, or the stack sends them. The routes are asked again in each
    /// second that has such a packet.
    pub out: u32,
    /// Largest IP packet on that way in bytes, 0 if it is not known.
    pub mtu: u32,
    /// The neighbour that they go to; [`Address::ANY_V6`] if the kernel shall find it.
    pub next_hop: Address,
}

impl FlowKey {
    /// A number that another tuple is unlikely to have; never 0.
    #[inline(always)]
    pub fn tag(&self) -> u32 {
        hash(&self.words(), 0) | 1
    }

    /// The tuple's hash under a seed.
    #[inline(always)]
    pub fn hash(&self, seed: u32) -> u32 {
        hash(&self.words(), seed)
    }

    /// Equality by words, cheap in BPF.
    #[inline(always)]
    pub fn same(&self, other: &Self) -> bool {
        self.source.same(other.source)
            && self.destination.same(other.destination)
            && self.source_port == other.source_port
            && self.destination_port == other.destination_port
            && self.protocol == other.protocol
    }

    #[inline(always)]
    fn words(&self) -> [u32; 10] {
        zerocopy::transmute!(*self)
    }
}

/// The hash by which tables are indexed: of some words, under a seed. Multiply,
/// fold and mix as in wyhash; every bit of the input reaches every bit of it.
#[inline(always)]
pub fn hash(words: &[u32], seed: u32) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
    let mut state = (seed as u64) ^ K;
    for word in words {
        state = (state ^ *word as u64).wrapping_mul(K);
        state ^= state >> 32;
    }
    state = state.wrapping_mul(K);
    (state >> 32) as u32
}

impl Flow {
    /// Bit of `kind`: the direction from the backend to the client.
    pub const REPLY: u8 = 1;
    /// Bit of `kind`: the backend is on another node and sees an address of ours.
    pub const SNAT: u8 = 2;
    /// Bit of `kind`: the backend is on another node, which gets the packets as they
    /// are, in a tunnel, and answers the client itself. `source` is that Node's
    /// address; there is no other half.
    pub const DSR: u8 = 4;
    /// Bit of `kind`: the packets came by such a tunnel. Replies leave as the stack
    /// routes them.
    pub const TUNNELLED: u8 = 8;
    /// Bit of `state`: this direction has sent a FIN.
    pub const FIN: u8 = 1;
    /// Bit of `state`: the last packet of this direction was a RST.
    pub const RST: u8 = 2;
    /// Bit of `state`: the backend has answered, and in TCP the client has
    /// acknowledged that, so both elements are in `flows`.
    pub const ANSWERED: u8 = 4;

    /// The key of the other direction's element.
    #[inline(always)]
    pub fn other_key(&self, protocol: u32) -> FlowKey {
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol,
        }
    }

    /// Whether this is the direction from the backend to the client.
    #[inline(always)]
    pub fn is_reply(&self) -> bool {
        self.kind & Self::REPLY != 0
    }

    /// Whether another node answers the client.
    #[inline(always)]
    pub fn is_dsr(&self) -> bool {
        self.kind & Self::DSR != 0
    }

    /// Whether another node has handed us the packets.
    #[inline(always)]
    pub fn is_tunnelled(&self) -> bool {
        self.kind & Self::TUNNELLED != 0
    }

    /// Whether the backend is on another node, and answers through this one.
    #[inline(always)]
    pub fn is_snat(&self) -> bool {
        self.kind & Self::SNAT != 0
    }
}

const _: () = assert!(size_of::<FlowKey>() == 40);
const _: () = assert!(size_of::<Flow>() == 104);
