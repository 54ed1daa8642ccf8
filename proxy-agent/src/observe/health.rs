//! Whether the agent keeps up (semantics 32; pkg/proxy/healthcheck/proxy_health.go).

use k8s_openapi::jiff::Timestamp;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// kube-proxy's default sync period; an update may wait for twice as long.
const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// Shared between the loop, which reports, and the endpoints, which tell.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pending_since: Option<Instant>,
    last_updated: Timestamp,
    synced: bool,
    node_leaving: bool,
}

impl Default for Health {
    /// Healthy while starting: nothing is pending yet.
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                pending_since: None,
                last_updated: Timestamp::now(),
                synced: false,
                node_leaving: false,
            }),
        }
    }
}

/// One answer of /healthz, or of /livez, which does not tell of the Node.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    last_updated: String,
    current_time: String,
    /// Whether load balancers may send new traffic to this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
}

impl Report {
    /// Whether the answer is 200.
    pub(super) fn is_good(&self) -> bool {
        self.healthy && self.node_eligible != Some(false)
    }
}

impl State {
    fn is_healthy(&self, now: Instant) -> bool {
        let late = |since| now.saturating_duration_since(since) >= 2 * SYNC_PERIOD;
        !self.pending_since.is_some_and(late)
    }

    fn report(&self, now: Instant) -> Report {
        let time = Timestamp::now();
        // While nothing is pending the kernel has all that is known.
        let updated = self.pending_since.map_or(time, |_| self.last_updated);
        Report {
            last_updated: updated.to_string(),
            current_time: time.to_string(),
            node_eligible: Some(!self.node_leaving),
            healthy: self.is_healthy(now),
        }
    }
}

impl Health {
    /// The kernel may not have everything that is known.
    pub fn pending(&self) {
        self.locked(|state| {
            state.pending_since.get_or_insert_with(Instant::now);
        });
    }

    /// The kernel has everything that is known.
    pub fn updated(&self) {
        self.locked(|state| {
            state.pending_since = None;
            state.last_updated = Timestamp::now();
            state.synced = true;
        });
    }

    /// Our Node is about to go, or is not.
    pub fn set_node_leaving(&self, leaving: bool) {
        self.locked(|state| state.node_leaving = leaving);
    }

    /// Whether the first complete lists are in the kernel.
    pub fn synced(&self) -> bool {
        self.locked(|state| state.synced)
    }

    /// Whether no update has been pending for too long.
    pub(super) fn is_healthy(&self) -> bool {
        self.locked(|state| state.is_healthy(Instant::now()))
    }

    /// For /healthz.
    pub(super) fn report(&self) -> Report {
        self.locked(|state| state.report(Instant::now()))
    }

    /// For /livez.
    pub(super) fn report_of_proxy(&self) -> Report {
        Report {
            node_eligible: None,
            ..self.report()
        }
    }

    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // A panic while the lock was held leaves plain values: they stay usable.
        f(&mut self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether /healthz and /livez are good when an update has waited so long.
    fn good(health: &Health, waited: Duration) -> (bool, bool) {
        let report = health.locked(|state| state.report(Instant::now() + waited));
        let live = Report {
            node_eligible: None,
            ..health.locked(|state| state.report(Instant::now() + waited))
        };
        (report.is_good(), live.is_good())
    }

    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn an_update_may_wait_for_two_sync_periods_and_no_longer() {
        let health = Health::default();
        assert_eq!(good(&health, 10 * LATE), (true, true), "while starting");
        health.pending();
        assert_eq!(good(&health, LATE / 2), (true, true));
        assert_eq!(good(&health, LATE), (false, false));
        // What comes meanwhile does not make the first one younger.
        let first = health.locked(|state| state.pending_since);
        health.pending();
        assert_eq!(health.locked(|state| state.pending_since), first);
        health.updated();
        assert_eq!(good(&health, 10 * LATE), (true, true));
    }

    #[test]
    fn the_node_concerns_healthz_alone() {
        let health = Health::default();
        health.set_node_leaving(true);
        assert_eq!(good(&health, Duration::ZERO), (false, true));
        assert!(health.is_healthy(), "health check ports stay as they are");
        let body = |report: Report| serde_json::to_value(report).unwrap();
        assert_eq!(body(health.report())["nodeEligible"], false);
        assert_eq!(body(health.report_of_proxy()).get("nodeEligible"), None);
        health.set_node_leaving(false);
        assert_eq!(good(&health, Duration::ZERO), (true, true));
    }

    #[test]
    fn last_updated_is_now_unless_an_update_waits() {
        let health = Health::default();
        let before = Timestamp::now();
        health.locked(|state| state.last_updated = Timestamp::UNIX_EPOCH);
        let updated = |health: &Health| {
            let report = health.report();
            report.last_updated.parse::<Timestamp>().unwrap()
        };
        assert!(updated(&health) >= before);
        health.pending();
        assert_eq!(updated(&health), Timestamp::UNIX_EPOCH);
    }
}
