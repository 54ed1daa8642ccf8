//! The client that a packet comes from.

use crate::{
    maps::{Client, device_settings},
    packet::Packet,
};
use proxy_common::{Address, flow};

/// See the module.
pub struct PacketClient<'a> {
    pub packet: &'a Packet,
    /// Whether it came by a tunnel.
    pub is_handed_over: bool,
}

impl Client for PacketClient<'_> {
    #[inline(always)]
    fn address(&self, v4: bool) -> Option<Address> {
        (self.packet.is_v4() == v4).then_some(self.packet.source)
    }

    #[inline(always)]
    fn identity(&self) -> u64 {
        let words = self.packet.source.words();
        if self.packet.is_v4() {
            return 0xffff_ffff_0000_0000 | words[3] as u64;
        }
        // Cookies are counted up from one and have no such first bit.
        let (high, low) = (flow::hash(&words, 0), flow::hash(&words, 1));
        1 << 63 | (high as u64) << 32 | low as u64
    }

    #[inline(always)]
    fn is_host(&self) -> bool {
        false
    }

    #[inline(always)]
    fn number(&self, of_client: bool) -> u32 {
        let seed = device_settings().map_or(0, |settings| settings.seed);
        if of_client {
            flow::hash(&self.packet.source.words(), seed)
        } else {
            self.packet.key().hash(seed)
        }
    }

    #[inline(always)]
    fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }
}
