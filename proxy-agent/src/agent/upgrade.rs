//! New maps beside the old ones, until the first complete publish.

use crate::attach::Upgrade;
use std::time::{Duration, Instant};

/// How often an agent says that it waits with new maps for the first lists.
const UPGRADE_REMINDER: Duration = Duration::from_secs(60);

/// How long Services that cannot be published keep new maps from their place.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(10);

/// New maps and programs that wait for the first complete publish.
pub(super) struct PendingUpgrade {
    pub(super) upgrade: Upgrade,
    /// When the first publish lacked something.
    incomplete_since: Option<Instant>,
    pub(super) remind_at: tokio::time::Instant,
}

impl PendingUpgrade {
    pub(super) fn new(upgrade: Upgrade) -> Self {
        Self {
            upgrade,
            incomplete_since: None,
            remind_at: tokio::time::Instant::now() + UPGRADE_REMINDER,
        }
    }

    /// Whether to change over, after a publish that was complete or not. What
    /// fails for long must not keep everybody else from being up to date.
    pub(super) fn is_due(&mut self, complete: bool) -> bool {
        let since = self.incomplete_since.get_or_insert_with(Instant::now);
        complete || since.elapsed() >= UPGRADE_PATIENCE
    }

    pub(super) fn remind(&mut self) {
        tracing::warn!(
            "still waiting for the first complete lists: connections go on by the maps of an earlier start, which do not follow changes"
        );
        self.remind_at = tokio::time::Instant::now() + UPGRADE_REMINDER;
    }
}
