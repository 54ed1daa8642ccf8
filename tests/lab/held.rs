//! What a worker does over a longer time: sockets held open, and loads.

use crate::outcome::Outcome;
use crate::peer::{Peer, address, counts, unexpected};
use crate::wire::{Counts, Names, Reply, Request, Sequences};
use anyhow::{Result, ensure};

/// A socket that a worker holds open. Dropping it closes it.
#[derive(Debug)]
pub struct Held {
    peer: Peer,
    socket: u32,
    /// What came of the dial.
    pub outcome: Outcome,
}

impl Held {
    pub(crate) fn new(peer: Peer, socket: u32, outcome: Outcome) -> Self {
        Self {
            peer,
            socket,
            outcome,
        }
    }

    /// The pod that answered the dial.
    pub fn pod(&self) -> Result<String> {
        self.outcome.pod().map(str::to_owned)
    }

    /// Sends a line and reads one.
    pub fn talk(&self, line: &str) -> Result<Outcome> {
        let request = Request::Talk {
            socket: self.socket,
            line: line.to_owned(),
            timeout_ms: 3000,
        };
        self.peer.outcome(
            format!("{} (held) says {line:?}", self.outcome.what),
            &request,
        )
    }

    /// Where the connection is.
    pub fn sequences(&self) -> Result<Sequences> {
        match self.peer.ask(&Request::Sequences {
            socket: self.socket,
        })? {
            Reply::Sequences(sequences) => Ok(sequences),
            other => unexpected(&other),
        }
    }

    /// `getpeername` and `getsockname` now.
    pub fn names(&self) -> Result<Names> {
        match self.peer.ask(&Request::Names {
            socket: self.socket,
        })? {
            Reply::Names(names) => Ok(names),
            other => unexpected(&other),
        }
    }

    /// `getpeername` now says this.
    pub fn peer_name_is(&self, expected: &str) -> Result<()> {
        let got = self.names()?.peer;
        ensure!(
            got == Ok(address(expected)?),
            "{}: getpeername says {got:?}, not {expected}",
            self.outcome.what
        );
        Ok(())
    }

    /// `connect(AF_UNSPEC)`.
    pub fn dissolve(&self) -> Result<Outcome> {
        self.peer.outcome(
            "dissolve".to_owned(),
            &Request::Dissolve {
                socket: self.socket,
            },
        )
    }

    /// Connects the same socket (again).
    pub fn redial(&self, to: &str) -> Result<Outcome> {
        let request = Request::Redial {
            socket: self.socket,
            to: address(to)?,
            timeout_ms: 3000,
        };
        self.peer
            .outcome(format!("{} → {to} (again)", self.peer.name()), &request)
    }

    /// `sendto`, then `recvfrom`.
    pub fn ask(&self, to: &str, line: &str) -> Result<Outcome> {
        let sent = self.send_to(to, line)?;
        if sent.dialed.failure.is_some() {
            return Ok(sent);
        }
        self.receive(3000)
    }

    /// `sendto`.
    pub fn send_to(&self, to: &str, line: &str) -> Result<Outcome> {
        let request = Request::SendTo {
            socket: self.socket,
            to: address(to)?,
            line: line.to_owned(),
        };
        self.peer
            .outcome(format!("{} sendto {to}", self.outcome.what), &request)
    }

    /// `recvfrom`.
    pub fn receive(&self, timeout_ms: u64) -> Result<Outcome> {
        let request = Request::ReceiveFrom {
            socket: self.socket,
            timeout_ms,
        };
        self.peer
            .outcome(format!("{} recvfrom", self.outcome.what), &request)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A worker that is gone has closed it.
        let _ = self.peer.ask(&Request::Close {
            socket: self.socket,
        });
    }
}

/// A background load of a worker. Dropping it ends it.
#[derive(Debug)]
pub struct Load {
    peer: Peer,
    load: u32,
}

impl Load {
    pub(crate) fn new(peer: Peer, load: u32) -> Self {
        Self { peer, load }
    }

    /// Counts so far; the load goes on.
    pub fn so_far(&self) -> Result<Counts> {
        counts(self.peer.ask(&Request::LoadSoFar { load: self.load })?)
    }

    /// Ends the load.
    pub fn stop(self) -> Result<Counts> {
        counts(self.peer.ask(&Request::StopLoad { load: self.load })?)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Stopped already, or the worker is gone.
        let _ = self.peer.ask(&Request::StopLoad { load: self.load });
    }
}
