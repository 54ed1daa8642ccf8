//! The usual cast of a story.

use crate::lab::Lab;
use crate::manifests::{Service, Slice, service, slice};
use crate::network::PodNetwork;
use crate::outcome::Outcome;
use crate::peer::Peer;
use crate::wire::{Dial, Transport};
use anyhow::Result;
use std::ops::Deref;
use std::time::Duration;

/// Port on which the cast's backends answer, TCP and UDP.
pub const BACKEND_PORT: u16 = 8080;

/// The ClusterIPs of the lab's address plan, as the agent's option takes them.
pub const SERVICE_CIDRS: &str = "10.96.0.0/16,fd00:96::/112";

/// Within this time every change of an object is in force.
pub const IN_FORCE: Duration = Duration::from_secs(2);

/// Three nodes with an agent each; backends `b1`, `b2`, `b3`, one on each node;
/// a pod `client` on n1.
#[derive(Debug)]
pub struct Cast {
    lab: Lab,
    /// Backend on n1.
    pub b1: Peer,
    /// Backend on n2.
    pub b2: Peer,
    /// Backend on n3.
    pub b3: Peer,
    /// Pod on n1.
    pub client: Peer,
}

impl Cast {
    /// Builds the lab and starts the agents, which know the service CIDRs.
    pub fn new() -> Result<Self> {
        Self::with_network(PodNetwork::default())
    }

    /// The same, with a pod network of choice.
    pub fn with_network(network: PodNetwork) -> Result<Self> {
        let lab = Lab::with_network(3, network)?;
        lab.agent_flags(["--service-cidrs", SERVICE_CIDRS]);
        let backend = |name, node| lab.node(node).pod(name)?.serve(BACKEND_PORT);
        let (b1, b2, b3) = (
            backend("b1", "n1")?,
            backend("b2", "n2")?,
            backend("b3", "n3")?,
        );
        let client = lab.node("n1").pod("client")?;
        lab.start_agents()?;
        Ok(Self {
            lab,
            b1,
            b2,
            b3,
            client,
        })
    }

    /// The host process of n1.
    pub fn host(&self) -> &Peer {
        self.lab.node("n1").host()
    }

    /// The pod and the host process of n1: most rules hold for both.
    pub fn insiders(&self) -> [&Peer; 2] {
        [&self.client, self.host()]
    }

    /// A Service with a TCP port `http` 80 and a UDP port `dns` 53, on a ClusterIP.
    pub fn service(&self, name: &str, cluster_ip: &str) -> Service {
        service(name)
            .cluster_ip(cluster_ip)
            .port("http", 80, BACKEND_PORT)
            .udp_port("dns", 53, BACKEND_PORT)
    }

    /// A slice for such a Service, still without endpoints.
    pub fn slice(&self, name: &str, service: &str) -> Slice {
        slice(name, service)
            .port("http", BACKEND_PORT)
            .udp_port("dns", BACKEND_PORT)
    }

    /// A slice of this Service with these pods, all ready, named for the Service.
    pub fn ready(&self, service: &str, pods: &[&Peer]) -> Slice {
        self.slice(service, service)
            .ready_endpoints(pods.iter().copied())
    }

    /// A dial that gives up soon, for when no answer is expected.
    pub fn try_briefly(&self, from: &Peer, transport: Transport, to: &str) -> Result<Outcome> {
        let mut dial = Dial::new(transport, to.parse()?);
        dial.timeout_ms = 400;
        from.dial(dial)
    }

    /// Within two seconds, as for every change of an object, this pod answers.
    pub fn soon_answered_by(&self, from: &Peer, to: &str, pod: &str) -> Result<()> {
        self.within(IN_FORCE, || {
            self.try_briefly(from, Transport::Tcp, to)?.answered_by(pod)
        })
    }

    /// Within two seconds nobody answers any more.
    pub fn soon_gone(&self, from: &Peer, to: &str) -> Result<()> {
        self.within(IN_FORCE, || {
            self.try_briefly(from, Transport::Tcp, to)?.unanswered()
        })
    }
}

impl Deref for Cast {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl AsRef<Lab> for Cast {
    fn as_ref(&self) -> &Lab {
        &self.lab
    }
}
