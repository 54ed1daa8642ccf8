//! The slow path: a pair of devices of our own, by which programs hand the stack
//! packets that are too large for their way and may be fragmented.
//!
//! What leaves by the near end comes in by the far end, and is routed and
//! fragmented as any other packet. Its source is an address of this node, which
//! the stack takes for a martian unless the far end has `accept_local`. Strict
//! reverse path filters would drop it, since no way back is by that device; the
//! larger value of `all` and the device counts, so the far end asks for 2, which
//! lets a source pass that has no way at all by the device. For this the device
//! must have an address of its own (net/ipv4/fib_frontend.c,
//! `__fib_validate_source`): one that nobody else uses, RFC 7600's dummy, which is
//! never chosen as a source since it is of scope link.

use crate::crash;
use crate::netlink::request;
use anyhow::{Context, Result, bail};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use proxy_common::DeviceSettings;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// The near end, by which packets leave programs, and the far end, by which they
/// come in again.
pub(crate) const DEVICES: [&str; 2] = [NEAR, FAR];
const NEAR: &str = "fairlead0";
const FAR: &str = "fairlead1";

const NEAR_MAC: [u8; 6] = [0x02, 0xfa, 0x1e, 0xad, 0x00, 0x00];
const FAR_MAC: [u8; 6] = DeviceSettings::SLOW_PATH_MAC;

/// No packet is larger.
const MTU: u32 = 65_535;

/// RFC 7600, 4.8.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Before the devices come up. IPv6 is never fragmented on its way.
const SYSCTLS: [(&str, &str); 5] = [
    ("ipv6/conf/fairlead0/disable_ipv6", "1"),
    ("ipv6/conf/fairlead1/disable_ipv6", "1"),
    ("ipv4/conf/fairlead1/accept_local", "1"),
    ("ipv4/conf/fairlead1/rp_filter", "2"),
    // As with what programs send by other devices themselves.
    ("ipv4/conf/fairlead1/forwarding", "1"),
];

/// Makes the pair, or what is missing of it. Returns the index of the near end.
pub(crate) fn put_up() -> Result<u32> {
    if pair()?.is_none() {
        remove()?;
        crash::point();
        create().context("making the pair of devices fairlead0 and fairlead1")?;
        tracing::info!("the pair of devices fairlead0 and fairlead1 is made");
    }
    let Some([near, far]) = pair()? else {
        bail!("fairlead0 and fairlead1 are not the pair that was made");
    };
    for (path, value) in SYSCTLS {
        set(path, value)?;
    }
    for end in [&near, &far] {
        if !end.is_up || end.mtu != MTU {
            crash::point();
            bring_up(end.index).context("bringing fairlead0 and fairlead1 up")?;
        }
    }
    give_address(far.index).context("giving fairlead1 its address")?;
    Ok(near.index)
}

/// Index of the near end of the pair; `None` if that is not whole.
pub(crate) fn near_end() -> Result<Option<u32>> {
    Ok(pair()?.map(|[near, _]| near.index))
}

/// Removes the pair, if it is there.
pub(crate) fn remove() -> Result<()> {
    for name in DEVICES {
        let Some(end) = End::find(name)? else {
            continue;
        };
        if !end.is_pair {
            bail!("{name} is somebody else's device: rename it");
        }
        crash::point();
        let mut message = LinkMessage::default();
        message.header.index = end.index;
        match request(RouteNetlinkMessage::DelLink(message), NLM_F_ACK) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            outcome => drop(outcome.with_context(|| format!("removing {name}"))?),
        }
    }
    Ok(())
}

/// What the kernel says of one of the devices.
#[derive(Clone, Debug, Default)]
struct End {
    index: u32,
    /// Whether it is an end of some pair of devices.
    is_pair: bool,
    other: Option<u32>,
    mac: Vec<u8>,
    mtu: u32,
    is_up: bool,
}

/// Both ends, if they belong together.
fn pair() -> Result<Option<[End; 2]>> {
    let (Some(near), Some(far)) = (End::find(NEAR)?, End::find(FAR)?) else {
        return Ok(None);
    };
    let belong_together = near.other == Some(far.index) && far.other == Some(near.index);
    Ok((belong_together && far.mac == FAR_MAC).then_some([near, far]))
}

impl End {
    fn find(name: &str) -> Result<Option<Self>> {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let answers = match request(RouteNetlinkMessage::GetLink(message), NLM_F_ACK) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            answers => answers.with_context(|| format!("looking for {name}"))?,
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(Self::read(&message)),
            _ => None,
        }))
    }

    fn read(message: &LinkMessage) -> Self {
        let mut end = Self {
            index: message.header.index,
            is_up: message.header.flags.contains(LinkFlags::Up),
            ..Self::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Link(index) => end.other = Some(*index),
                LinkAttribute::Address(mac) => end.mac.clone_from(mac),
                LinkAttribute::Mtu(mtu) => end.mtu = *mtu,
                LinkAttribute::LinkInfo(info) => {
                    end.is_pair = info.contains(&LinkInfo::Kind(InfoKind::Veth));
                }
                _ => {}
            }
        }
        end
    }
}

fn create() -> io::Result<()> {
    let end = |name: &str, mac: [u8; 6]| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(MTU),
            LinkAttribute::Address(mac.to_vec()),
        ];
        message
    };
    let mut message = end(NEAR, NEAR_MAC);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end(FAR, FAR_MAC)))),
    ]));
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
    request(RouteNetlinkMessage::NewLink(message), flags).map(drop)
}

fn bring_up(index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![LinkAttribute::Mtu(MTU)];
    request(RouteNetlinkMessage::SetLink(message), NLM_F_ACK).map(drop)
}

fn give_address(index: u32) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 32;
    message.header.scope = AddressScope::Link;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(IpAddr::V4(ADDRESS)),
        AddressAttribute::Address(IpAddr::V4(ADDRESS)),
    ];
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
    match request(RouteNetlinkMessage::NewAddress(message), flags) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Only what differs, so that a read-only /proc/sys is no obstacle to what is right.
fn set(setting: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{setting}");
    match std::fs::read_to_string(&path) {
        // A host without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        present if present.as_ref().is_ok_and(|it| it.trim() == value) => return Ok(()),
        _ => {}
    }
    crash::point();
    std::fs::write(&path, value).with_context(|| format!("writing {path}"))
}
