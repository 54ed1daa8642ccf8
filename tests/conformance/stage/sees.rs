//! What clients see. Each sentence waits for the proxies first.

use super::{REFUSAL_MS, SILENCE_MS, Stage, join};
use crate::check::{holds, judged};
use crate::world::PATIENCE;
use anyhow::{Context, Result, bail};
use lab::wire::Probe;
use lab::{Counts, Dial, Held, Outcome, Peer, Probed, Transport, eventually};
use std::net::SocketAddr;
use std::time::Duration;

/// How long something that must come may take, on a machine that has a lot to do.
const ANSWER_MS: u64 = 5000;

impl Stage<'_> {
    /// One dial of which something must come.
    pub(crate) fn dial(&self, from: &Peer, transport: Transport, to: &str) -> Result<Outcome> {
        self.dial_for(ANSWER_MS, from, transport, to)
    }

    fn dial_for(
        &self,
        timeout_ms: u64,
        from: &Peer,
        transport: Transport,
        to: &str,
    ) -> Result<Outcome> {
        self.settle()?;
        let mut dial = Dial::new(transport, socket_address(to)?);
        dial.timeout_ms = timeout_ms;
        from.dial(dial)
    }

    /// Many dials, each with a socket of its own.
    pub(crate) fn dials(
        &self,
        from: &Peer,
        transport: Transport,
        to: &str,
        count: u32,
    ) -> Result<Counts> {
        self.settle()?;
        let mut dial = Dial::new(transport, socket_address(to)?);
        dial.timeout_ms = ANSWER_MS;
        from.many(dial, count)
    }

    /// A dial from this source port of any address.
    pub(crate) fn dial_from(&self, port: u16, transport: Transport, to: &str) -> Result<Dial> {
        self.settle()?;
        let mut dial = Dial::new(transport, socket_address(to)?);
        dial.from = Some(socket_address(&join(self.any_address(), port))?);
        dial.timeout_ms = SILENCE_MS;
        Ok(dial)
    }

    /// A packet of some size and what comes back.
    pub(crate) fn probe(&self, from: &Peer, probe: Probe) -> Result<Probed> {
        self.settle()?;
        from.probe(probe)
    }

    /// A socket that stays open after the dial.
    pub(crate) fn hold(&self, from: &Peer, transport: Transport, to: &str) -> Result<Held> {
        self.settle()?;
        let mut dial = Dial::new(transport, socket_address(to)?);
        dial.timeout_ms = SILENCE_MS;
        from.hold(dial)
    }

    /// This backend still answers on an open socket.
    pub(crate) fn goes_on(&self, held: &Held, backend: &str) -> Result<()> {
        self.settle()?;
        judged(held.talk("still there?")?.answered_by(backend))
    }

    /// These backends answer, each of them, and no other.
    pub(crate) fn only(
        &self,
        from: &Peer,
        transport: Transport,
        to: &str,
        backends: &[&str],
    ) -> Result<()> {
        // Of three, 40 dials in a row miss one with odds of 1 to 3.7 million.
        let tries = if backends.len() > 1 { 40 } else { 8 };
        // One that fails may take long, so it is not tried many times.
        judged(self.dial(from, transport, to)?.answered_by_one_of(backends))?;
        let counts = self.dials(from, transport, to, tries)?;
        judged(
            counts
                .only_by(backends)
                .with_context(|| told(from, transport, to)),
        )
    }

    /// This backend answers, which sees the client at this address.
    pub(crate) fn sees(
        &self,
        from: &Peer,
        transport: Transport,
        to: &str,
        backend: &str,
        client: &str,
    ) -> Result<()> {
        let outcome = self.dial(from, transport, to)?;
        judged(outcome.answered_by(backend))?;
        let seen = outcome.seen_peer()?.ip().to_canonical().to_string();
        holds(seen == client, || {
            format!(
                "{}: {backend} saw the client at {seen}, not {client}",
                told(from, transport, to)
            )
        })
    }

    /// ECONNREFUSED.
    pub(crate) fn refused(&self, from: &Peer, transport: Transport, to: &str) -> Result<()> {
        self.settle()?;
        let mut dial = Dial::new(transport, socket_address(to)?);
        dial.timeout_ms = REFUSAL_MS;
        judged(from.dial(dial)?.failed_with("ECONNREFUSED"))
    }

    /// An error or silence, but no backend.
    pub(crate) fn unanswered(&self, from: &Peer, transport: Transport, to: &str) -> Result<()> {
        let outcome = self.dial_for(SILENCE_MS, from, transport, to)?;
        judged(outcome.unanswered())
    }

    /// An echo request is answered.
    pub(crate) fn echoed(&self, from: &Peer, to: &str) -> Result<()> {
        self.settle()?;
        judged(from.ping(to.parse()?)?.came_back())
    }

    /// In the end it is so: for what a proxy follows by itself, such as a
    /// node's addresses.
    pub(crate) fn soon(&self, what: &str, check: impl FnMut() -> Result<()>) -> Result<()> {
        self.within(PATIENCE, what, check)
    }

    /// The same with a time of its own.
    pub(crate) fn within(
        &self,
        time: Duration,
        what: &str,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.settle()?;
        let mut last = Ok(());
        // A wrong lab stays wrong.
        let time = self.fault.map_or(time, |_| time / 5);
        let outcome = eventually(time, || {
            last = check();
            match &last {
                Ok(()) => Ok(()),
                Err(error) => bail!("{error:#}"),
            }
        });
        match outcome {
            Ok(()) => Ok(()),
            // The kind of the last error must stay.
            Err(_) => last.map_err(|error| {
                if crate::check::is_mismatch(&error) {
                    crate::check::mismatch(format!("{what}: {error:#}"))
                } else {
                    error.context(what.to_owned())
                }
            }),
        }
    }
}

fn told(from: &Peer, transport: Transport, to: &str) -> String {
    format!("{} → {} {to}", from.name(), transport.as_str())
}

fn socket_address(text: &str) -> Result<SocketAddr> {
    text.parse()
        .with_context(|| format!("{text:?} is not an address and port"))
}
