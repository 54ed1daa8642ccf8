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

/// One answer of /healthz.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    #[serde(skip)]
    pub(super) healthy: bool,
    /// Whether load balancers may send new traffic to this node.
    pub(super) node_eligible: bool,
    last_updated: String,
    current_time: String,
}

impl Health {
    /// Changes are known that the kernel does not have yet.
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

    pub(super) fn report(&self) -> Report {
        self.locked(|state| Report {
            healthy: state
                .pending_since
                .is_none_or(|since| since.elapsed() <= 2 * SYNC_PERIOD),
            node_eligible: !state.node_leaving,
            last_updated: state.last_updated.to_string(),
            current_time: Timestamp::now().to_string(),
        })
    }

    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // A panic while the lock was held leaves plain values: they stay usable.
        f(&mut self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
