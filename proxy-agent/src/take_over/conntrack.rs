//! The entries of connection tracking, by ctnetlink.

use super::netfilter::{self, Message};
use netlink_packet_core::NlasIterator;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Entries of the network namespace; the file is there once the module is.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

// include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h
const NFNL_SUBSYS_CTNETLINK: u8 = 1;
const IPCTNL_MSG_CT_GET: u8 = 1;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_STATUS_MASK: u16 = 26;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// IPS_DST_NAT, include/uapi/linux/netfilter/nf_conntrack_common.h
const DST_NAT: u32 = 1 << 5;

/// How many entries there are; `None` without connection tracking. Loads no module.
pub(super) fn count() -> Option<u64> {
    fs::read_to_string(COUNT).ok()?.trim().parse().ok()
}

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where the client sends.
    pub(super) to: SocketAddr,
    /// Who answers: someone else if the destination is translated.
    pub(super) answered_by: SocketAddr,
}

/// Whether any TCP connection is as wanted. Linux 5.15 and later lists only those whose
/// destination is translated, others list all.
pub(super) fn any(is_wanted: impl Fn(&Entry) -> bool) -> io::Result<bool> {
    let question = Message::new(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, 0)
        .with(CTA_STATUS, &DST_NAT.to_be_bytes())
        .with(CTA_STATUS_MASK, &DST_NAT.to_be_bytes());
    netfilter::any(question, |answer| {
        entry(answer.attributes()).is_some_and(|it| is_wanted(&it))
    })
}

/// The entry of an answer; `None` if it is none of TCP.
fn entry(attributes: &[u8]) -> Option<Entry> {
    let to = Tuple::read(attribute(attributes, CTA_TUPLE_ORIG)?)?.destination;
    let answered_by = Tuple::read(attribute(attributes, CTA_TUPLE_REPLY)?)?.source;
    Some(Entry { to, answered_by })
}

struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Tuple {
    fn read(attributes: &[u8]) -> Option<Self> {
        let ip = attribute(attributes, CTA_TUPLE_IP)?;
        let protocol = attribute(attributes, CTA_TUPLE_PROTO)?;
        if attribute(protocol, CTA_PROTO_NUM)? != [libc::IPPROTO_TCP as u8] {
            return None;
        }
        let end = |v4, v6, port| {
            let port = <[u8; 2]>::try_from(attribute(protocol, port)?).ok()?;
            let v4 = || <[u8; 4]>::try_from(attribute(ip, v4)?).ok();
            let v6 = || <[u8; 16]>::try_from(attribute(ip, v6)?).ok();
            let ip = v4().map(IpAddr::from).or_else(|| v6().map(IpAddr::from))?;
            Some(SocketAddr::new(ip, u16::from_be_bytes(port)))
        };
        Some(Self {
            source: end(CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT)?,
            destination: end(CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT)?,
        })
    }
}

/// The value of an attribute.
fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = all.find(|it| it.kind() == kind)?;
    found.into_inner().get(4..usize::from(found.length()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let message = Message::new(0, 0, 0);
        let message = parts
            .iter()
            .fold(message, |it, (kind, value)| it.with(*kind, value));
        message.attributes().to_owned()
    }

    fn tuple(protocol: u8, addresses: [(u16, &[u8]); 2], ports: [u16; 2]) -> Vec<u8> {
        let [source, destination] = ports.map(u16::to_be_bytes);
        let ports = nested(&[
            (CTA_PROTO_NUM, &[protocol]),
            (CTA_PROTO_SRC_PORT, &source),
            (CTA_PROTO_DST_PORT, &destination),
        ]);
        // As the kernel marks what is nested.
        let nests = 1 << 15;
        nested(&[
            (CTA_TUPLE_IP | nests, &nested(&addresses)),
            (CTA_TUPLE_PROTO | nests, &ports),
        ])
    }

    fn answer(protocol: u8) -> Vec<u8> {
        let addresses: [(u16, &[u8]); 2] = [
            (CTA_IP_V4_SRC, &[192, 0, 2, 100]),
            (CTA_IP_V4_DST, &[198, 51, 100, 7]),
        ];
        let back: [(u16, &[u8]); 2] = [
            (CTA_IP_V4_SRC, &[10, 244, 1, 2]),
            (CTA_IP_V4_DST, &[192, 0, 2, 11]),
        ];
        nested(&[
            (CTA_TUPLE_ORIG, &tuple(protocol, addresses, [40_000, 80])),
            (CTA_TUPLE_REPLY, &tuple(protocol, back, [8080, 61_000])),
        ])
    }

    #[test]
    fn an_entry_tells_where_to_and_who_answers() {
        let wanted = Entry {
            to: "198.51.100.7:80".parse().unwrap(),
            answered_by: "10.244.1.2:8080".parse().unwrap(),
        };
        assert_eq!(entry(&answer(6)), Some(wanted));
        assert_eq!(entry(&answer(17)), None, "no TCP");
    }

    #[test]
    fn what_is_cut_off_is_no_entry() {
        let whole = answer(6);
        for length in 0..whole.len() {
            assert_eq!(entry(&whole[..length]), None, "{length} bytes");
        }
    }
}
