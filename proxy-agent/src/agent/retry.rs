//! Services that could not be published, and when to try them again.

use crate::model::ObjectName;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before what failed is tried again, doubled up to the maximum.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What waits to be tried again. Successes of others neither postpone that nor,
/// by the room that they give back, make it a try at each of them.
#[derive(Default)]
pub(super) struct Retry {
    pub(super) services: BTreeSet<ObjectName>,
    attempts: u32,
    /// When the last of them failed.
    failed_at: Option<Instant>,
    pub(super) at: Option<Instant>,
}

impl Retry {
    /// Notes what a publish left undone.
    pub(super) fn schedule(&mut self, failed: BTreeSet<ObjectName>, now: Instant) {
        if failed.is_empty() {
            if self.services.is_empty() {
                *self = Self::default();
            }
            return;
        }
        self.services.extend(failed);
        let pause = RETRY_MIN
            .saturating_mul(1 << self.attempts.min(10))
            .min(RETRY_MAX);
        self.attempts += 1;
        self.failed_at = Some(now);
        self.at = Some(self.at.map_or(now + pause, |at| at.min(now + pause)));
    }

    /// There is room again: the shortest pause is enough.
    pub(super) fn hurry(&mut self) {
        if let (Some(at), Some(failed_at)) = (self.at, self.failed_at) {
            self.at = Some(at.min(failed_at + RETRY_MIN));
        }
    }

    /// What is due.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeSet<ObjectName> {
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            return std::mem::take(&mut self.services);
        }
        BTreeSet::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> BTreeSet<ObjectName> {
        BTreeSet::from([ObjectName::new("default", "web")])
    }

    #[test]
    fn successes_of_others_do_not_postpone_a_retry() {
        let start = Instant::now();
        let mut retry = Retry::default();
        retry.schedule(failed(), start);
        for ms in 1..500 {
            let now = start + Duration::from_millis(ms);
            assert!(retry.take_due(now).is_empty());
            retry.schedule(BTreeSet::new(), now);
        }
        assert_eq!(retry.take_due(start + RETRY_MIN), failed());
    }

    #[test]
    fn room_shortens_a_long_pause_but_never_below_the_shortest() {
        let mut now = Instant::now();
        let mut retry = Retry::default();
        for _ in 0..8 {
            retry.schedule(failed(), now);
            now = retry.at.unwrap();
            assert_eq!(retry.take_due(now), failed());
        }
        retry.schedule(failed(), now);
        retry.hurry();
        retry.hurry();
        assert!(
            retry.take_due(now).is_empty(),
            "a try at each change of others"
        );
        assert_eq!(retry.take_due(now + RETRY_MIN), failed());
        // All is well: the next failure starts from the shortest pause.
        retry.schedule(BTreeSet::new(), now);
        retry.schedule(failed(), now);
        assert_eq!(retry.at, Some(now + RETRY_MIN));
    }
}
