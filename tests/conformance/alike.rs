//! Many dials at the same time of which the same is expected: silence and
//! refusals take a second or more each.

use crate::check::judged;
use crate::stage::{REFUSAL_MS, SILENCE_MS, Stage};
use anyhow::{Context, Result, anyhow};
use lab::{Dial, Outcome, Peer, Transport};

// Each client dials each frontend with each transport.
impl Stage<'_> {
    /// ECONNREFUSED for everybody.
    pub(crate) fn all_refused(
        &self,
        clients: &[&Peer],
        transports: &[Transport],
        frontends: &[String],
    ) -> Result<()> {
        self.alike(clients, transports, frontends, REFUSAL_MS, |outcome| {
            outcome.failed_with("ECONNREFUSED")
        })
    }

    /// Nothing comes back to anybody.
    pub(crate) fn all_silent(
        &self,
        clients: &[&Peer],
        transports: &[Transport],
        frontends: &[String],
    ) -> Result<()> {
        self.alike(clients, transports, frontends, SILENCE_MS, |outcome| {
            outcome.failed_with("TIMEOUT")
        })
    }

    /// An error or silence for everybody.
    pub(crate) fn all_unanswered(
        &self,
        clients: &[&Peer],
        transports: &[Transport],
        frontends: &[String],
    ) -> Result<()> {
        self.alike(
            clients,
            transports,
            frontends,
            SILENCE_MS,
            Outcome::unanswered,
        )
    }

    fn alike(
        &self,
        clients: &[&Peer],
        transports: &[Transport],
        frontends: &[String],
        timeout_ms: u64,
        verdict: impl Fn(&Outcome) -> Result<()>,
    ) -> Result<()> {
        self.settle()?;
        let mut dials = Vec::new();
        for client in clients {
            for frontend in frontends {
                for &transport in transports {
                    let mut dial = Dial::new(transport, frontend.parse().context("a frontend")?);
                    dial.timeout_ms = timeout_ms;
                    // A worker does one thing at a time.
                    let name = format!("{}-{}", client.name(), dials.len());
                    dials.push((client.beside(&name)?, dial));
                }
            }
        }
        let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let waiting: Vec<_> = dials
                .into_iter()
                .map(|(worker, dial)| scope.spawn(move || worker.dial(dial)))
                .collect();
            waiting
                .into_iter()
                .map(|it| it.join().map_err(|_| anyhow!("a dial panicked"))?)
                .collect()
        });
        outcomes
            .into_iter()
            .try_for_each(|outcome| judged(verdict(&outcome?)))
    }
}
