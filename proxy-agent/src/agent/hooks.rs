//! The socket programs stay on their hooks: what somebody takes off is noticed,
//! told and put back.

use crate::attach::SocketHooks;
use crate::observe::Metrics;
use std::time::Duration;
use tokio::time::Instant;

/// How often the hooks are looked at. A look takes ten small system calls.
const RECHECK: Duration = Duration::from_secs(5);

/// The hooks of the cgroup.
pub(super) struct Hooks {
    sockets: SocketHooks,
    /// When to look again.
    pub(super) due: Instant,
    /// What went wrong at the last look, so that it is told once.
    told: Option<String>,
}

impl Hooks {
    pub(super) fn new(sockets: SocketHooks) -> Self {
        Self {
            sockets,
            due: Instant::now() + RECHECK,
            told: None,
        }
    }

    /// Looks, and restores what is missing.
    pub(super) fn follow(&mut self, metrics: &Metrics) {
        let problem = match self.sockets.restore() {
            Ok(restored) => {
                let names = restored.iter().map(|hook| format!("{hook} of the cgroup"));
                tell_restored(&names.collect::<Vec<_>>(), metrics);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(problem) = problem.as_ref().filter(|it| self.told.as_ref() != Some(it)) {
            tracing::error!("clients of this node may not be served: {problem}");
        }
        self.told = problem;
        self.due = Instant::now() + RECHECK;
    }
}

/// Says what somebody has taken away or changed, and that it is back.
pub(super) fn tell_restored(restored: &[String], metrics: &Metrics) {
    for what in restored {
        tracing::warn!(
            what,
            "somebody took it away or changed it; it is as it was again"
        );
    }
    metrics.restored(restored.len());
}
