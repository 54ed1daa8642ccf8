//! The clients of one row. Rows that run at the same time have a troupe each,
//! since a worker does one thing at a time.

use crate::row::Family;
use anyhow::Result;
use lab::{Lab, Peer};
use std::net::IpAddr;

/// Clients of every kind.
#[derive(Debug)]
pub(crate) struct Troupe {
    /// Pod on n1.
    pub(crate) pod1: Peer,
    /// Pod on n2.
    pub(crate) pod2: Peer,
    /// Process in the host's namespace of n1.
    pub(crate) host1: Peer,
    /// Process in the host's namespace of n2.
    pub(crate) host2: Peer,
    /// Process in the host's namespace of n3.
    pub(crate) host3: Peer,
    /// Outside of the cluster. Its way to every frontend but a NodePort is n1.
    pub(crate) c1: Peer,
    /// The same with n2.
    pub(crate) c2: Peer,
}

impl Troupe {
    /// The troupe of this number.
    pub(crate) fn new(lab: &Lab, number: usize) -> Result<Self> {
        let named = |name: &str| format!("{name}-{number}");
        let host = |node: &str| lab.node(node).process(&named(node));
        Ok(Self {
            pod1: lab.node("n1").pod(&named("pod1"))?,
            pod2: lab.node("n2").pod(&named("pod2"))?,
            host1: host("n1")?,
            host2: host("n2")?,
            host3: host("n3")?,
            c1: lab.client("c1").beside(&named("c1"))?,
            c2: lab.client("c2").beside(&named("c2"))?,
        })
    }

    /// The host process of a node, by the node's number.
    pub(crate) fn hosts(&self) -> [&Peer; 3] {
        [&self.host1, &self.host2, &self.host3]
    }
}

/// A peer's address.
pub(crate) fn address(peer: &Peer, family: Family) -> IpAddr {
    match family {
        Family::V4 => peer.v4().into(),
        Family::V6 => peer.v6().into(),
    }
}
