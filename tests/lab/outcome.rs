//! What came of a connection attempt, and the sentences that tests say about it.

use crate::wire::{Counts, Dialed};
use anyhow::{Result, anyhow, bail, ensure};
use std::net::SocketAddr;

/// What came of one dial or exchange, with what was tried.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// For messages: who tried what.
    pub(crate) what: String,
    /// The worker's account.
    pub dialed: Dialed,
}

impl Outcome {
    /// The pod that answered.
    pub fn pod(&self) -> Result<&str> {
        let line = self.line()?;
        line.split(' ')
            .next()
            .ok_or_else(|| anyhow!("{}: an empty answer", self.what))
    }

    /// The whole answer.
    pub fn line(&self) -> Result<&str> {
        self.dialed
            .line
            .as_deref()
            .ok_or_else(|| anyhow!("{}: no answer: {}", self.what, self.failure()))
    }

    /// The client's address as the backend saw it.
    pub fn seen_peer(&self) -> Result<SocketAddr> {
        self.field("peer=")
    }

    /// The address at which the backend was reached.
    pub fn seen_local(&self) -> Result<SocketAddr> {
        self.field("local=")
    }

    fn field(&self, name: &str) -> Result<SocketAddr> {
        let line = self.line()?;
        let value = line.split(' ').find_map(|word| word.strip_prefix(name));
        Ok(value
            .ok_or_else(|| anyhow!("{}: no {name} in {line:?}", self.what))?
            .parse()?)
    }

    /// This pod answered.
    pub fn answered_by(&self, pod: &str) -> Result<()> {
        let got = self.pod()?;
        ensure!(got == pod, "{}: answered by {got}, not by {pod}", self.what);
        Ok(())
    }

    /// One of these pods answered.
    pub fn answered_by_one_of(&self, pods: &[&str]) -> Result<()> {
        let got = self.pod()?;
        ensure!(
            pods.contains(&got),
            "{}: answered by {got}, not one of {pods:?}",
            self.what
        );
        Ok(())
    }

    /// ECONNREFUSED within a second.
    pub fn refused(&self) -> Result<()> {
        self.failed_with("ECONNREFUSED")?;
        ensure!(
            self.dialed.elapsed_ms < 1000,
            "{}: refused after {} ms",
            self.what,
            self.dialed.elapsed_ms
        );
        Ok(())
    }

    /// This errno, or `TIMEOUT`.
    pub fn failed_with(&self, errno: &str) -> Result<()> {
        match &self.dialed.failure {
            Some(failure) if failure.errno == errno => Ok(()),
            _ => bail!("{}: not {errno}: {}", self.what, self.summary()),
        }
    }

    /// Any error or silence, but no answer.
    pub fn unanswered(&self) -> Result<()> {
        ensure!(
            self.dialed.failure.is_some(),
            "{}: {}",
            self.what,
            self.summary()
        );
        Ok(())
    }

    /// `getpeername` after the connect.
    pub fn peer_name_is(&self, expected: &str) -> Result<()> {
        let expected: SocketAddr = expected.parse()?;
        let got = self.dialed.peer_name;
        ensure!(
            got == Some(expected),
            "{}: getpeername says {got:?}, not {expected}",
            self.what
        );
        Ok(())
    }

    /// The source that `recvfrom` reported.
    pub fn came_from(&self, expected: &str) -> Result<()> {
        let expected: SocketAddr = expected.parse()?;
        let got = self.dialed.from;
        ensure!(
            got == Some(expected),
            "{}: the answer came from {got:?}, not {expected}",
            self.what
        );
        Ok(())
    }

    fn failure(&self) -> String {
        match &self.dialed.failure {
            Some(failure) => format!("{}: {}", failure.call, failure.errno),
            None => "no failure either".to_owned(),
        }
    }

    fn summary(&self) -> String {
        match &self.dialed.line {
            Some(line) => format!("answered {line:?}"),
            None => self.failure(),
        }
    }
}

impl Counts {
    /// How many dials were answered.
    pub fn answers(&self) -> u64 {
        self.answered.values().sum()
    }

    /// How many failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// How many this pod answered.
    pub fn by(&self, pod: &str) -> u64 {
        self.answered.get(pod).copied().unwrap_or_default()
    }

    /// Every dial was answered, by these pods and no other, and each had a share.
    pub fn only_by(&self, pods: &[&str]) -> Result<()> {
        self.none_failed()?;
        let got: Vec<&str> = self.answered.keys().map(String::as_str).collect();
        let mut expected = pods.to_vec();
        expected.sort_unstable();
        ensure!(
            got == expected,
            "answered by {:?}, expected exactly {expected:?}",
            self.answered
        );
        Ok(())
    }

    /// Every dial was answered, and by no other pod; a load that ends just after a
    /// change may not have met all of them.
    pub fn by_none_but(&self, pods: &[&str]) -> Result<()> {
        self.none_failed()?;
        let stranger = self
            .answered
            .keys()
            .find(|pod| !pods.contains(&pod.as_str()));
        ensure!(
            stranger.is_none(),
            "answered by {:?}, expected none but {pods:?}",
            self.answered
        );
        Ok(())
    }

    /// No dial failed, and there was one.
    pub fn none_failed(&self) -> Result<()> {
        ensure!(
            self.failed.is_empty(),
            "failures: {:?}, answers: {:?}",
            self.failed,
            self.answered
        );
        ensure!(!self.answered.is_empty(), "nothing was dialed");
        Ok(())
    }

    /// Each of the pods that answered has its fair share, give or take this part of it.
    pub fn even_within(&self, tolerance: f64) -> Result<()> {
        // Counts of a test are far below 2^52.
        let fair = self.answers() as f64 / self.answered.len() as f64;
        for (pod, &count) in &self.answered {
            let off = (count as f64 - fair).abs() / fair;
            ensure!(
                off <= tolerance,
                "{pod} has {count}, a fair share is {fair:.0}: {:?}",
                self.answered
            );
        }
        Ok(())
    }

    /// What came since an earlier count of the same load.
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: &std::collections::BTreeMap<String, u64>,
                     then: &std::collections::BTreeMap<String, u64>| {
            now.iter()
                .map(|(name, count)| {
                    (
                        name.clone(),
                        count - then.get(name).copied().unwrap_or_default(),
                    )
                })
                .filter(|&(_, count)| count > 0)
                .collect()
        };
        Self {
            answered: minus(&self.answered, &earlier.answered),
            failed: minus(&self.failed, &earlier.failed),
            elapsed_ms: self.elapsed_ms - earlier.elapsed_ms,
        }
    }
}
