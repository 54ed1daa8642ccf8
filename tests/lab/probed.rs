//! What came back of a packet of a given size, and the sentences that tests say about it.

use crate::wire::{Echo, IcmpError};
use anyhow::{Context, Result, bail, ensure};
use std::net::IpAddr;

/// What came of one probe, with what was tried.
#[derive(Clone, Debug)]
pub struct Probed {
    /// For messages: who tried what.
    pub(crate) what: String,
    /// Size of the answer that was asked for.
    pub(crate) expected: u16,
    /// The worker's account.
    pub echo: Echo,
}

impl Probed {
    /// The whole answer came back, and neither way changed a byte.
    pub fn came_back(&self) -> Result<()> {
        let size = self.echo.size;
        ensure!(
            size == Some(usize::from(self.expected)),
            "{}: {} bytes expected: {}",
            self.what,
            self.expected,
            self.summary()
        );
        ensure!(
            self.echo.intact,
            "{}: damaged: {}",
            self.what,
            self.summary()
        );
        Ok(())
    }

    /// No answer, and no ICMP error either.
    pub fn lost(&self) -> Result<()> {
        ensure!(
            self.echo.size.is_none() && self.echo.icmp.is_none(),
            "{}: {}",
            self.what,
            self.summary()
        );
        Ok(())
    }

    /// An ICMP error from one of these said that the packet was too big for a
    /// link of this MTU.
    pub fn too_big(&self, mtu: u32, from: &[IpAddr]) -> Result<()> {
        let icmp = self.icmp()?;
        let (kind, code) = match icmp.from {
            // Fragmentation needed (RFC 1191).
            Some(IpAddr::V4(_)) => (3, 4),
            // Packet too big (RFC 4443).
            Some(IpAddr::V6(_)) => (2, 0),
            None => bail!("{}: an ICMP error of nobody: {icmp:?}", self.what),
        };
        ensure!(
            (icmp.kind, icmp.code, icmp.mtu) == (kind, code, mtu),
            "{}: {icmp:?} is no \"too big\" for {mtu}",
            self.what
        );
        ensure!(
            icmp.from.is_some_and(|sender| from.contains(&sender)),
            "{}: {icmp:?} is from none of {from:?}",
            self.what
        );
        Ok(())
    }

    /// The ICMP error that came back.
    pub fn icmp(&self) -> Result<IcmpError> {
        self.echo
            .icmp
            .with_context(|| format!("{}: no ICMP error: {}", self.what, self.summary()))
    }

    /// This errno, or `TIMEOUT`.
    pub fn failed_with(&self, errno: &str) -> Result<()> {
        match &self.echo.failure {
            Some(failure) if failure.errno == errno => Ok(()),
            _ => bail!("{}: not {errno}: {}", self.what, self.summary()),
        }
    }

    fn summary(&self) -> String {
        format!("{:?}", self.echo)
    }
}
