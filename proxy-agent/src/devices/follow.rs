//! Links, addresses and routes, followed as they come and go (semantics 8, 38).
//!
//! Any change leads to a new dump, so a notification that the kernel had to
//! drop (ENOBUFS) costs nothing but the next one; a slow re-read covers even that.

use super::network::{Link, LinkKind, LocalAddress, Network, Reach, Route};
use super::slow_path;
use futures::{FutureExt, Stream, StreamExt};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a lost notification can hide a change.
const REREAD: Duration = Duration::from_secs(30);

/// What changes together is read together.
const COALESCE: Duration = Duration::from_millis(20);

/// Where a node has very many routes, dumps take a fifth of a CPU at most, and
/// changes are still in force within two seconds.
const IDLE_PER_DUMP: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bytes of an Ethernet header.
const ETHERNET: u32 = 14;

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Sends what this network namespace has, anew at each change, until nobody
/// listens any more.
pub async fn follow(sender: watch::Sender<Option<Network>>) -> io::Result<()> {
    let (connection, handle, mut changes) = new_multicast_connection(&GROUPS)?;
    let connection = tokio::spawn(connection);
    while !sender.is_closed() {
        let started = Instant::now();
        let network = dump(&handle).await?;
        let pause = (started.elapsed() * IDLE_PER_DUMP).clamp(COALESCE, PAUSE_MAX);
        sender.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&network);
            *current = Some(network);
            changed
        });
        tokio::select! {
            change = changes.next() => if change.is_none() { break },
            () = tokio::time::sleep(REREAD) => {}
            () = sender.closed() => break,
        }
        tokio::time::sleep(pause).await;
        while let Some(Some(_)) = changes.next().now_or_never() {}
    }
    connection.abort();
    Ok(())
}

async fn dump(handle: &Handle) -> io::Result<Network> {
    let mut network = Network::default();
    each(handle.link().get().execute(), |message: LinkMessage| {
        network.links.insert(message.header.index, link(&message));
    })
    .await?;
    each(handle.address().get().execute(), |message| {
        network.addresses.extend(address(&message));
    })
    .await?;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        each(handle.route().get(request).execute(), |message| {
            network.routes.extend(routes(&message));
        })
        .await?;
    }
    network.forget(&slow_path::DEVICES);
    Ok(network)
}

async fn each<T>(
    messages: impl Stream<Item = Result<T, rtnetlink::Error>>,
    mut take: impl FnMut(T),
) -> io::Result<()> {
    let mut messages = std::pin::pin!(messages);
    while let Some(message) = messages.next().await {
        take(message.map_err(io::Error::other)?);
    }
    Ok(())
}

fn link(message: &LinkMessage) -> Link {
    let link_type = message.header.link_layer_type;
    let mut link = Link {
        name: String::new(),
        kind: LinkKind::Other,
        header_bytes: header_bytes(link_type),
        link_type: format!("{link_type:?}"),
        controller: None,
        mtu: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::LinkInfo(info) => link.kind = kind(info),
            _ => {}
        }
    }
    if message.header.flags.contains(LinkFlags::Loopback) {
        link.kind = LinkKind::Internal;
    }
    link
}

fn kind(info: &[LinkInfo]) -> LinkKind {
    let kind = info.iter().find_map(|it| match it {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    });
    match kind {
        Some(InfoKind::Dummy | InfoKind::Vrf) => LinkKind::Internal,
        Some(InfoKind::Veth | InfoKind::Netkit | InfoKind::Tun) => LinkKind::Pair,
        Some(InfoKind::Bridge) => LinkKind::Bridge,
        Some(
            InfoKind::Vxlan
            | InfoKind::Geneve
            | InfoKind::IpIp
            | InfoKind::Ip6Tnl
            | InfoKind::SitTun
            | InfoKind::GreTun
            | InfoKind::GreTun6
            | InfoKind::GreTap
            | InfoKind::GreTap6,
        ) => LinkKind::Tunnel,
        _ => LinkKind::Other,
    }
}

fn header_bytes(link_type: LinkLayerType) -> Option<u32> {
    match link_type {
        LinkLayerType::Ether => Some(ETHERNET),
        LinkLayerType::None
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit => Some(0),
        _ => None,
    }
}

fn address(message: &AddressMessage) -> Option<LocalAddress> {
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {}
        }
    }
    // IPv6's flag TEMPORARY is IPv4's SECONDARY (include/uapi/linux/if_addr.h).
    let unwanted = AddressHeaderFlags::Secondary
        | AddressHeaderFlags::Deprecated
        | AddressHeaderFlags::Tentative
        | AddressHeaderFlags::Dadfailed;
    let header = &message.header;
    Some(LocalAddress {
        device: header.index,
        // On a point-to-point link IFA_ADDRESS is the peer and IFA_LOCAL ours.
        ip: local.or(address)?,
        prefix_length: header.prefix_len,
        preferred: header.scope == AddressScope::Universe && !header.flags.intersects(unwanted),
    })
}

/// What a route tells of each device that it uses.
fn routes(message: &RouteMessage) -> Vec<Route> {
    if message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let (mut destination, mut source, mut hops) = (None, None, Vec::new());
    let mut table = u32::from(message.header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Oif(index) => hops.push((*index, has_gateway(&message.attributes))),
            RouteAttribute::MultiPath(several) => hops.extend(
                several
                    .iter()
                    .map(|hop| (hop.interface_index, has_gateway(&hop.attributes))),
            ),
            _ => {}
        }
    }
    // Every IPv6 device has them.
    if let Some(IpAddr::V6(v6)) = destination
        && (v6.is_unicast_link_local() || v6.is_multicast())
    {
        return Vec::new();
    }
    let whole = match message.header.address_family {
        AddressFamily::Inet => 32,
        _ => 128,
    };
    let reach = |gateway| match message.header.destination_prefix_length {
        0 => Reach::Default,
        _ if gateway => Reach::Gateway,
        length if length == whole => Reach::Host,
        _ => Reach::Subnet,
    };
    let is_main_v6 = message.header.address_family == AddressFamily::Inet6
        && table == u32::from(RouteHeader::RT_TABLE_MAIN);
    let route = |(device, gateway)| Route {
        device,
        reach: reach(gateway),
        source,
        is_main_v6,
    };
    hops.into_iter().map(route).collect()
}

fn has_gateway(attributes: &[RouteAttribute]) -> bool {
    let is_gateway =
        |it: &RouteAttribute| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_));
    attributes.iter().any(is_gateway)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}
