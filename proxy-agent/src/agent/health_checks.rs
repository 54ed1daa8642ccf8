//! Health check node ports follow what Services ask for and the node's addresses.

use super::Agent;
use crate::model::ObjectName;
use crate::observe::Claim;
use crate::publish::Change;
use tokio::time::Instant;

impl Agent {
    /// What Services ask for that have a health check port, or had one.
    pub(super) fn health_check_claims(
        &self,
        changes: &[Change],
    ) -> Vec<(ObjectName, Option<Claim>)> {
        let claim = |(name, resolved): &Change| {
            let check = resolved.as_ref().and_then(|it| {
                Some(Claim {
                    created_s: it.created_s,
                    check: it.health_check.clone()?,
                })
            });
            let concerned = check.is_some() || self.health_checks.has(name);
            concerned.then(|| (name.clone(), check))
        };
        changes.iter().filter_map(claim).collect()
    }

    /// Opens and closes ports. Not before the NodePorts' addresses are known.
    pub(super) fn follow_health_checks(&mut self) {
        let Some(serving) = &self.serving else {
            return;
        };
        let addresses = self.config.node_port_addresses.listening(serving);
        self.health_checks.set_addresses(addresses);
        for warning in self.health_checks.follow(Instant::now()) {
            self.warn(&warning);
        }
        self.metrics.health_checks(self.health_checks.counts());
    }
}
