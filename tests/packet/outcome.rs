//! What a program made of a packet.

use std::net::{IpAddr, SocketAddr};

use proxy_common::DropReason;

use crate::packet::{Frame, Packet};

/// What a program made of a packet.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// TC_ACT_…
    pub(crate) verdict: i32,
    pub(crate) frame: Frame,
    /// The reason that was counted, if one was.
    pub(crate) counted: Option<DropReason>,
}

/// include/uapi/linux/pkt_cls.h
pub(crate) const UNSPEC: i32 = -1;
pub(crate) const SHOT: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

impl Outcome {
    /// It went to the stack like this.
    #[track_caller]
    pub(crate) fn passed(self, expected: &Packet) {
        self.expect(UNSPEC, &expected.frame(), None);
    }

    /// It left the node like this.
    #[track_caller]
    pub(crate) fn sent(self, expected: &Packet) {
        self.expect(REDIRECT, &expected.frame(), None);
    }

    /// It was turned into this answer.
    #[track_caller]
    pub(crate) fn answered(self, expected: &Frame, reason: DropReason) {
        self.expect(REDIRECT, expected, Some(reason));
    }

    #[track_caller]
    pub(crate) fn dropped(self, reason: DropReason) {
        assert_eq!(
            (self.verdict, self.counted),
            (SHOT, Some(reason)),
            "{self:?}"
        );
    }

    #[track_caller]
    pub(crate) fn expect(self, verdict: i32, frame: &Frame, counted: Option<DropReason>) {
        assert_eq!((self.verdict, self.counted), (verdict, counted), "{self:?}");
        assert_eq!(&self.frame, frame, "left: seen, right: expected");
    }

    /// The source that it got, for a choice that the program is free in.
    pub(crate) fn source(&self) -> SocketAddr {
        addresses(&self.frame).0
    }

    pub(crate) fn destination(&self) -> SocketAddr {
        addresses(&self.frame).1
    }
}

/// Source and destination of a frame without IPv6 extension headers.
pub(crate) fn addresses(frame: &Frame) -> (SocketAddr, SocketAddr) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ethernet(&frame.0).expect("a packet");
    let (source, destination): (IpAddr, IpAddr) = match sliced.net {
        Some(NetSlice::Ipv4(it)) => (
            it.header().source_addr().into(),
            it.header().destination_addr().into(),
        ),
        Some(NetSlice::Ipv6(it)) => (
            it.header().source_addr().into(),
            it.header().destination_addr().into(),
        ),
        other => panic!("no IP: {other:?}"),
    };
    let (from, to) = match sliced.transport {
        Some(TransportSlice::Tcp(it)) => (it.source_port(), it.destination_port()),
        Some(TransportSlice::Udp(it)) => (it.source_port(), it.destination_port()),
        other => panic!("no ports: {other:?}"),
    };
    (
        SocketAddr::new(source, from),
        SocketAddr::new(destination, to),
    )
}
