//! What rows change that run alone: nodes, proxies, connections of all.

use super::Stage;
use crate::fault::Fault;
use crate::world::run;
use anyhow::Result;
use control_plane::Kind;
use lab::Peer;
use lab::wire::Segment;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a proxy may need to find an API server that is back.
const OUTAGE: Duration = Duration::from_secs(60);

/// So far off the mark is a stray reset: out of any window.
const ASTRAY: u32 = 1 << 30;

impl Stage<'_> {
    /// The fault by which nothing stays connected through a change.
    pub(super) fn cut(&self) -> Result<()> {
        if self.fault != Some(Fault::ConnectionsCut) {
            return Ok(());
        }
        self.settle()?;
        self.world.cut_connections(&[&self.pod1, &self.host1])
    }

    /// Changes a Node. The row runs alone and changes it back.
    pub(crate) fn patch_node(&self, node: &str, patch: &Value) -> Result<()> {
        if self
            .fault
            .is_some_and(|it| it.swallows(Kind::Node, true, false))
        {
            return Ok(());
        }
        self.world.api.patch(Kind::Node, "", node, patch).map(drop)
    }

    /// Deletes a Node. The row runs alone and makes it anew.
    pub(crate) fn delete_node(&self, node: &str) -> Result<()> {
        if self
            .fault
            .is_some_and(|it| it.swallows(Kind::Node, false, true))
        {
            return Ok(());
        }
        self.world.api.delete(Kind::Node, "", node, None)
    }

    /// SIGKILL to a node's proxy. The row runs alone and starts it again.
    pub(crate) fn kill_proxy(&self, node: &str) -> Result<()> {
        self.settle()?;
        self.world.kill_proxy(node)?;
        if self.fault == Some(Fault::RulesGoWithProxy) {
            self.world.forget_programmed(node)?;
        }
        Ok(())
    }

    /// Starts a node's proxy, with these flags if it is Fairlead.
    pub(crate) fn start_proxy_with(&self, node: &str, flags: &[&str]) -> Result<()> {
        let ignored = self.fault == Some(Fault::FlagsIgnored);
        let flags = if ignored { &[] } else { flags };
        self.world.start_proxy_with(node, flags, &json!({}))?;
        self.world.wait_healthy(node)?;
        // A proxy may call itself healthy while it still reads.
        self.unsettled.set(true);
        Ok(())
    }

    /// Redirects what leaves a pod for an address to a port of its own.
    pub(crate) fn redirect(&self, pod: &Peer, ip: &str, port: u16) -> Result<()> {
        if self.fault == Some(Fault::RedirectionLost) {
            return Ok(());
        }
        let rules = format!(
            "table inet sidecar {{ chain out {{ type nat hook output priority -100; \
             ip daddr {ip} meta l4proto tcp redirect to :{port}; }}; }}"
        );
        run(pod, "nft", &[&rules])
    }

    /// Waits until every proxy follows the API again after an outage: each has
    /// its own pauses between tries.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.unsettled.set(false);
        self.world
            .settle_within(OUTAGE, self.troupe, &self.space, self.family)
    }

    /// Sends a reset from somewhere, far off the sequence number of the segment.
    pub(crate) fn stray_reset(&self, from: &Peer, mut segment: Segment) -> Result<()> {
        if self.fault != Some(Fault::ResetsFit) {
            segment.sequence = segment.sequence.wrapping_add(ASTRAY);
        }
        from.send_reset(segment)
    }
}

/// Tells a story that changes what others rely on, and changes it back in any case.
pub(crate) fn then_restore(
    story: impl FnOnce() -> Result<()>,
    restore: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let told = story();
    // Nobody is served well by a lab that could not be put right again.
    match (told, restore()) {
        (Err(told), Err(restored)) => Err(told.context(format!("nor restored: {restored:#}"))),
        (told, restored) => told.and(restored),
    }
}
