//! A lab with everything around its nodes, and what stories say about packets.

use anyhow::{Result, ensure};
use lab::{Cast, Lab, Peer, PodNetwork, Probe, Router, Transport};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

/// A port on which outside clients answer.
pub(crate) const OUTSIDE_PORT: u16 = 9000;
/// MTU of the link between the router and c3.
pub(crate) const ROUTER_MTU: u16 = 1400;

/// The usual cast, and c3 behind its router. Outside clients have routes to pods.
pub(crate) struct Scene {
    pub(crate) cast: Cast,
    pub(crate) network: PodNetwork,
    pub(crate) router: Router,
    pub(crate) c3: Peer,
}

impl Scene {
    pub(crate) fn new(network: PodNetwork) -> Result<Self> {
        let cast = Cast::with_network(network)?;
        let router = cast.router(ROUTER_MTU)?;
        let c1 = cast.client("c1").clone().serve(OUTSIDE_PORT)?;
        cast.open_pods_to(&c1)?;
        let c3 = router.client.clone().serve(OUTSIDE_PORT)?;
        Ok(Self {
            cast,
            network,
            router,
            c3,
        })
    }

    pub(crate) fn c1(&self) -> &Peer {
        self.cast.client("c1")
    }

    /// Whether n1 has this address.
    pub(crate) fn is_of_n1(&self, address: IpAddr) -> bool {
        let node = self.node("n1");
        let of_network = match self.network {
            PodNetwork::Routed | PodNetwork::Policy => None,
            PodNetwork::Bridge => Some(["10.244.1.1", "fd00:244:1::1"]),
            PodNetwork::Vxlan => Some(["10.244.1.0", "fd00:244:1::"]),
        };
        let of_network = of_network
            .iter()
            .flatten()
            .filter_map(|own| own.parse().ok());
        [IpAddr::from(node.v4()), IpAddr::from(node.v6())]
            .into_iter()
            .chain(of_network)
            .any(|own| own == address)
    }

    /// Who may object to a packet for c3 that is too big: the router, and for
    /// IPv6 also a node that has learnt of it.
    pub(crate) fn objectors(&self, to: IpAddr) -> Vec<IpAddr> {
        match to {
            IpAddr::V4(_) => vec![self.router.router.v4().into()],
            IpAddr::V6(_) => vec![self.router.router.v6().into(), self.node("n1").v6().into()],
        }
    }

    /// MTU of a pod's own device.
    pub(crate) fn pod_device_mtu(&self) -> u16 {
        match self.network {
            PodNetwork::Vxlan => 1450,
            PodNetwork::Routed | PodNetwork::Bridge | PodNetwork::Policy => 1500,
        }
    }

    /// The largest packet that a pod of n1 gets to a pod of another node.
    pub(crate) fn pod_mtu(&self, to: IpAddr) -> u16 {
        match (self.network, to) {
            // The outer header is of the same family, and IPv6's is longer.
            (PodNetwork::Vxlan, IpAddr::V6(_)) => 1430,
            _ => self.pod_device_mtu(),
        }
    }
}

impl Deref for Scene {
    type Target = Cast;

    fn deref(&self) -> &Cast {
        &self.cast
    }
}

impl AsRef<Lab> for Scene {
    fn as_ref(&self) -> &Lab {
        self.cast.as_ref()
    }
}

pub(crate) fn addresses(peer: &Peer) -> [IpAddr; 2] {
    [peer.v4().into(), peer.v6().into()]
}

/// Every transport and family: the server answers, and the judge likes the
/// client's address that it saw.
pub(crate) fn each_way(
    client: &Peer,
    server: &Peer,
    port: u16,
    likes: impl Fn(IpAddr) -> bool,
) -> Result<()> {
    for address in addresses(server) {
        for transport in Transport::BOTH {
            let to = SocketAddr::new(address, port).to_string();
            let outcome = client.reach(transport, &to)?;
            outcome.answered_by(server.name())?;
            let seen = outcome.seen_peer()?.ip();
            ensure!(
                likes(seen),
                "{}: unexpected client: {:?}",
                to,
                outcome.line()?
            );
        }
    }
    Ok(())
}

/// Any of the peer's two addresses.
pub(crate) fn is(peer: &Peer) -> impl Fn(IpAddr) -> bool + '_ {
    move |address| addresses(peer).contains(&address)
}

/// Bytes of a datagram that makes an IP packet of this size.
pub(crate) fn payload(packet: u16, to: IpAddr) -> u16 {
    let headers = match to {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    };
    packet - headers
}

pub(crate) fn datagram(to: IpAddr, port: u16, packet: u16) -> Probe {
    Probe::datagram(SocketAddr::new(to, port), payload(packet, to))
}
