//! Services that outside clients reach, on every pod network.

use anyhow::{Result, ensure};
use lab::manifests::{Service, Slice, service, slice};
use lab::{BACKEND_PORT, Cast, Lab, Peer, PodNetwork, Router};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

/// MTU of the link between the router and c3.
pub(crate) const ROUTER_MTU: u16 = 1400;

/// A Service of the scene: its NodePort, and the last octet of its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) name: &'static str,
    pub(crate) node_port: u16,
    octet: u8,
}

/// Endpoints on every node.
pub(crate) const ALL: Name = Name::new("all", 80);
/// An endpoint on n1 only: local to where c1's packets enter.
pub(crate) const NEAR: Name = Name::new("near", 81);
/// An endpoint on n2 only: remote to there.
pub(crate) const FAR: Name = Name::new("far", 82);
/// No endpoint.
pub(crate) const NONE: Name = Name::new("none", 83);

/// The usual cast, c3 behind a router, and the Services. Everybody's way to
/// frontends is n1.
pub(crate) struct Scene {
    pub(crate) cast: Cast,
    _router: Router,
    pub(crate) c3: Peer,
}

impl Scene {
    pub(crate) fn new(network: PodNetwork) -> Result<Self> {
        let cast = Cast::with_network(network)?;
        let router = cast.router(ROUTER_MTU)?;
        let n1 = cast.node("n1").host();
        for outside in [cast.client("c1"), cast.client("c2"), &router.router] {
            outside.route_frontends(n1)?;
        }
        for (name, backends) in [
            (ALL, vec![&cast.b1, &cast.b2, &cast.b3]),
            (NEAR, vec![&cast.b1]),
            (FAR, vec![&cast.b2]),
            (NONE, vec![]),
        ] {
            cast.apply(&name.service())?;
            name.lead_to(&cast, BACKEND_PORT, &backends)?;
        }
        cast.settle()?;
        let c3 = router.client.clone();
        Ok(Self {
            cast,
            _router: router,
            c3,
        })
    }

    pub(crate) fn c1(&self) -> &Peer {
        self.cast.client("c1")
    }

    pub(crate) fn c2(&self) -> &Peer {
        self.cast.client("c2")
    }

    /// Whether a node has this address, that of its overlay included.
    pub(crate) fn is_of_node(&self, number: u8, address: IpAddr) -> bool {
        let node = self.node(&format!("n{number}"));
        let own = [IpAddr::from(node.v4()), IpAddr::from(node.v6())];
        let overlay = [
            format!("10.244.{number}.0"),
            format!("fd00:244:{number}::"),
            format!("10.244.{number}.1"),
            format!("fd00:244:{number}::1"),
        ];
        own.contains(&address) || overlay.contains(&address.to_string())
    }
}

impl Name {
    pub(crate) const fn new(name: &'static str, octet: u8) -> Self {
        Self {
            name,
            node_port: 30_000 + octet as u16,
            octet,
        }
    }

    pub(crate) fn service(self) -> Service {
        let octet = self.octet;
        service(self.name)
            .cluster_ip(&format!("10.96.70.{octet}"))
            .cluster_ip(&format!("fd00:96::70{octet}"))
            .port("http", 80, BACKEND_PORT)
            .node_port(self.node_port)
            .udp_port("dns", 80, BACKEND_PORT)
            .node_port(self.node_port)
            .lb_ip(&format!("198.51.100.{octet}"))
            .lb_ip(&format!("2001:db8:100::{octet}"))
            .external_ips(&[&format!("203.0.113.{octet}")])
    }

    /// From now on these are its endpoints, on this port.
    pub(crate) fn lead_to(self, lab: &Lab, port: u16, backends: &[&Peer]) -> Result<()> {
        for family in [self.slice("v4"), self.slice("v6").v6()] {
            let family = family.port("http", port).udp_port("dns", port);
            lab.apply(&family.ready_endpoints(backends.iter().copied()))?;
        }
        Ok(())
    }

    /// Its endpoints are addresses of n1 that no pod has.
    pub(crate) fn lead_to_nobody(self, lab: &Lab) -> Result<()> {
        let v4 = self.slice("v4").address("10.244.1.250");
        let v6 = self.slice("v6").v6().address("fd00:244:1::250");
        for family in [v4, v6] {
            let family = family.on("n1").ready();
            lab.apply(&family.port("http", BACKEND_PORT))?;
        }
        Ok(())
    }

    fn slice(self, suffix: &str) -> Slice {
        slice(&format!("{}-{suffix}", self.name), self.name)
    }

    /// Where outside clients reach it: NodePort of n1, LoadBalancer IPs,
    /// externalIP, ClusterIPs.
    pub(crate) fn frontends(self, scene: &Scene) -> Result<Vec<SocketAddr>> {
        let n1 = scene.node("n1");
        let octet = self.octet;
        let mut all = vec![
            SocketAddr::new(n1.v4().into(), self.node_port),
            SocketAddr::new(n1.v6().into(), self.node_port),
        ];
        for ip in [
            format!("198.51.100.{octet}"),
            format!("2001:db8:100::{octet}"),
            format!("203.0.113.{octet}"),
            format!("10.96.70.{octet}"),
            format!("fd00:96::70{octet}"),
        ] {
            all.push(SocketAddr::new(ip.parse()?, 80));
        }
        ensure!(all.iter().any(SocketAddr::is_ipv6), "both families");
        Ok(all)
    }

    /// The NodePort of n1 in both families.
    pub(crate) fn node_ports(self, scene: &Scene) -> Result<[SocketAddr; 2]> {
        let all = self.frontends(scene)?;
        Ok([all[0], all[1]])
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

/// The peer's address of the family of `like`.
pub(crate) fn address(peer: &Peer, like: SocketAddr) -> IpAddr {
    if like.is_ipv4() {
        peer.v4().into()
    } else {
        peer.v6().into()
    }
}
