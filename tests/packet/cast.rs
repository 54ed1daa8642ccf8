//! Who plays in the stories: clients, frontends, endpoints, in both families.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{
    Algorithm, BackendId, DropReason, EndpointSet, Forwarding, FrontendKind, Protocol, Scope,
    ServiceId, SourceFilter, decide::BackendRef,
};

use crate::node::{Guard, Link, Outcome, node};
use crate::packet::{ACK, Packet};

/// The service port of most stories.
pub(crate) const SERVICE: ServiceId = 5;
/// Port of its frontends, and of its endpoints.
pub(crate) const PORT: u16 = 30_080;
pub(crate) const TARGET_PORT: u16 = 8_080;

/// A family and a protocol: what most stories are told for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) v4: bool,
    pub(crate) protocol: Protocol,
}

/// Every family and protocol.
pub(crate) const CASES: [Case; 4] = [
    Case {
        v4: true,
        protocol: Protocol::Tcp,
    },
    Case {
        v4: true,
        protocol: Protocol::Udp,
    },
    Case {
        v4: false,
        protocol: Protocol::Tcp,
    },
    Case {
        v4: false,
        protocol: Protocol::Udp,
    },
];

pub(crate) const KINDS: [FrontendKind; 4] = [
    FrontendKind::ClusterIp,
    FrontendKind::NodePort,
    FrontendKind::LoadBalancer,
    FrontendKind::ExternalIp,
];

/// Where an endpoint is, and so how packets get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this node.
    Local,
    /// Behind the overlay.
    Overlay,
    /// Behind the uplink.
    Routed,
    /// Behind no route.
    Nowhere,
    /// A guest of this node.
    Guest,
}

impl Place {
    /// The device towards it.
    pub(crate) fn link(self) -> Link {
        match self {
            Self::Local => Link::Cni0,
            Self::Overlay => Link::Ov0,
            Self::Routed | Self::Nowhere => Link::Up0,
            Self::Guest => Link::Guests,
        }
    }
}

impl Case {
    fn address(self, v4: &str, v6: &str, port: u16) -> SocketAddr {
        let text = if self.v4 { v4 } else { v6 };
        SocketAddr::new(text.parse().expect("an address"), port)
    }

    /// An outside client.
    pub(crate) fn client(self, port: u16) -> SocketAddr {
        self.address("192.0.2.100", "2001:db8:2::100", port)
    }

    /// A guest of this node.
    pub(crate) fn guest(self, port: u16) -> SocketAddr {
        self.address("10.244.5.9", "fd00:244:5::9", port)
    }

    /// Another one.
    pub(crate) fn other_client(self, port: u16) -> SocketAddr {
        self.address("192.0.2.101", "2001:db8:2::101", port)
    }

    /// One whose packets pass for Ethernet frames without having such a header:
    /// bytes 12 and 13, of the source, are the number of the protocol.
    pub(crate) fn l3_client(self, port: u16) -> SocketAddr {
        self.address("8.0.0.100", "2001:db8:86dd::100", port)
    }

    /// The address of a kind of frontend.
    pub(crate) fn frontend(self, kind: FrontendKind) -> SocketAddr {
        match kind {
            FrontendKind::ClusterIp => self.address("10.96.0.20", "fd00:96::20", PORT),
            FrontendKind::NodePort => self.address("192.0.2.11", "2001:db8:2::11", PORT),
            FrontendKind::LoadBalancer => self.address("198.51.100.7", "2001:db8:100::7", PORT),
            FrontendKind::ExternalIp => self.address("203.0.113.9", "2001:db8:113::9", PORT),
        }
    }

    /// An endpoint's address.
    pub(crate) fn endpoint(self, place: Place, number: u8) -> SocketAddr {
        let (v4, v6) = match place {
            Place::Local => ("10.244.1.", "fd00:244:1::"),
            Place::Overlay => ("10.244.2.", "fd00:244:2::"),
            Place::Routed => ("10.244.3.", "fd00:244:3::"),
            Place::Nowhere => ("10.244.4.", "fd00:244:4::"),
            Place::Guest => ("10.244.5.", "fd00:244:5::"),
        };
        let (v4, v6) = (format!("{v4}{number}"), format!("{v6}{number}"));
        self.address(&v4, &v6, TARGET_PORT)
    }

    /// A frontend of a service port without endpoints.
    pub(crate) fn listing(self, kind: FrontendKind) -> Listing {
        Listing {
            address: self.frontend(kind),
            protocol: self.protocol,
            kind,
            set: EndpointSet::Cluster,
            service: SERVICE,
            backends: Vec::new(),
            affinity_timeout_s: 0,
            elsewhere: false,
            source_filter: SourceFilter::Anyone,
            algorithm: Algorithm::Maglev,
            forwarding: Forwarding::Snat,
            scope: Scope::External,
        }
    }

    /// The first packet of a client to a frontend.
    pub(crate) fn first(self, kind: FrontendKind) -> Packet {
        Packet::first(self.protocol, self.client(40_000), self.frontend(kind))
    }
}

/// One frontend, as a story asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) kind: FrontendKind,
    pub(crate) set: EndpointSet,
    pub(crate) service: ServiceId,
    pub(crate) backends: Vec<BackendId>,
    pub(crate) affinity_timeout_s: u32,
    pub(crate) elsewhere: bool,
    pub(crate) source_filter: SourceFilter,
    pub(crate) algorithm: Algorithm,
    pub(crate) forwarding: Forwarding,
    pub(crate) scope: Scope,
}

/// A node with one frontend and one endpoint, for stories about one packet's way.
pub(crate) struct Scene {
    pub(crate) node: Guard,
    pub(crate) case: Case,
    pub(crate) kind: FrontendKind,
    pub(crate) place: Place,
    pub(crate) endpoint: SocketAddr,
    pub(crate) backend: BackendRef,
}

impl Scene {
    pub(crate) fn new(case: Case, kind: FrontendKind, place: Place) -> Self {
        let mut node = node();
        let endpoint = case.endpoint(place, 2);
        let backend = node.backend(SERVICE, endpoint);
        node.publish(&Listing {
            backends: vec![backend.id],
            ..case.listing(kind)
        });
        Self {
            node,
            case,
            kind,
            place,
            endpoint,
            backend,
        }
    }

    /// The frontend's address.
    pub(crate) fn frontend(&self) -> SocketAddr {
        self.case.frontend(self.kind)
    }

    /// The first packet of a client.
    pub(crate) fn first(&self) -> Packet {
        self.case.first(self.kind)
    }

    /// A client's packet comes in by up0 and reaches the backend; as it gets there.
    #[track_caller]
    pub(crate) fn request(&self, packet: &Packet) -> Packet {
        self.check_request(packet, self.node.ingress(Link::Up0, packet))
    }

    #[track_caller]
    pub(crate) fn check_request(&self, packet: &Packet, seen: Outcome) -> Packet {
        let wanted = packet.clone().to(self.endpoint);
        if self.place == Place::Local {
            seen.passed(&wanted);
            return wanted;
        }
        let source = seen.source();
        let address: IpAddr = self.place.link().address(packet.source);
        assert_eq!(source.ip(), address, "the address of the device towards it");
        let wanted = wanted.from(source).hop();
        seen.sent(&wanted);
        wanted
    }

    /// What the backend sends comes back and reaches the client; as it gets there.
    #[track_caller]
    pub(crate) fn reply(&self, reply: &Packet, client: SocketAddr) -> Packet {
        let wanted = reply.clone().from(self.frontend()).to(client);
        if self.place == Place::Local {
            self.node.egress(Link::Up0, reply).passed(&wanted);
            return wanted;
        }
        let wanted = wanted.hop();
        self.node.ingress(self.place.link(), reply).sent(&wanted);
        wanted
    }

    /// A client's first packet, its answer, and the end of TCP's handshake; the first
    /// as the backend got it.
    #[track_caller]
    pub(crate) fn open(&self, first: &Packet) -> Packet {
        let got = self.request(first);
        self.reply(&got.answer(), first.source);
        if first.protocol() == Protocol::Tcp {
            self.request(&first.clone().flags(ACK));
        }
        got
    }

    /// A client's first packet is dropped, and leaves nothing behind.
    #[track_caller]
    pub(crate) fn drops(&self, packet: &Packet, reason: DropReason) {
        self.node.ingress(Link::Up0, packet).dropped(reason);
        assert_eq!(self.node.flows_new.entries(), []);
        assert_eq!(self.node.flows.entries(), []);
    }
}
