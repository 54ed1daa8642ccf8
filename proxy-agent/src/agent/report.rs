//! What is wrong with objects: told by log, metric, and an Event on the object;
//! and how far the kernel is, by health and metrics.

use super::Agent;
use crate::model::{Kind, ObjectName, Reason, Warning};
use crate::observe::EventOutcome;
use crate::publish::{Contest, PublishError};
use proxy_common::FrontendKey;
use std::net::SocketAddr;

impl Agent {
    /// Something in an object is not used.
    pub(super) fn warn(&self, warning: &Warning) {
        self.metrics.warned(warning);
        tracing::warn!(reason = warning.reason.as_str(), "{warning}");
        self.tell_event(warning);
    }

    /// A Service is not published as asked.
    pub(super) fn tell_failure(&self, service: &ObjectName, error: &PublishError) {
        tracing::error!(%service, "not published as asked, it keeps what it had and shall keep: {error}");
        let reason = if error.is_full() {
            Reason::MapFull
        } else {
            Reason::NotPublished
        };
        let message = format!("not published as asked: {error}");
        self.tell_event(&Warning::new(Kind::Service, service, reason, message));
    }

    /// Tells each frontend that a Service newly asks for in vain.
    pub(super) fn tell_contests(&mut self) {
        if self.contests.is_empty() && self.publisher.sizes().contested_frontends == 0 {
            return;
        }
        let contests = self.publisher.contests();
        for contest in contests.difference(&self.contests) {
            let Contest {
                service,
                owner,
                frontend,
            } = contest;
            let frontend = name_of(frontend);
            let message = format!(
                "{frontend} belongs to Service {owner}, which is older, while that asks for it"
            );
            let reason = Reason::FrontendTaken;
            self.warn(&Warning::new(Kind::Service, service, reason, message));
        }
        self.contests = contests;
    }

    /// Changes from before the agent came would tell how long it was away
    /// (pkg/proxy/endpointschangetracker.go, `trackerStartTime`).
    pub(super) fn tell_programming_latency(&mut self) {
        for trigger in self.store.take_triggers() {
            if trigger.triggered_ms > self.started.as_millisecond() {
                self.metrics.programmed(trigger);
            }
        }
    }

    /// The kernel has all that is known, but for what one Service asks for in
    /// vain: that is told by log and metric, and does not make the node unhealthy.
    pub(super) fn tell_up_to_date(&mut self) {
        // Until an upgrade is over the kernel works with the old maps.
        let in_force = self.upgrade.is_none();
        self.metrics
            .up_to_date(in_force && self.retry.services.is_empty());
        if in_force {
            self.health.updated();
        }
    }

    /// Never waits: what there is no room for is left out, and counted.
    fn tell_event(&self, warning: &Warning) {
        if let Some(events) = &self.object_events
            && events.try_send(warning.clone()).is_err()
        {
            self.metrics.event(EventOutcome::Limited);
        }
    }
}

/// The frontend as people write it.
fn name_of(frontend: &FrontendKey) -> String {
    let FrontendKey {
        address,
        port,
        protocol,
        scope: _,
    } = frontend;
    let protocol = protocol.as_str();
    if address.same(address.wildcard()) {
        return format!("NodePort {port}/{protocol}");
    }
    let address = SocketAddr::new(address.to_ip(), *port);
    format!("{address}/{protocol}")
}
