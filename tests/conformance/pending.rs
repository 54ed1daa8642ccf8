//! The rows that Fairlead does not meet yet. The list only shrinks: a row in it
//! that passes fails the suite, as does one that is not in it and fails.

use crate::row::Row;
use anyhow::{Result, ensure};

/// What is missing, and the rows that wait for it.
const PENDING: &[(&str, &[&str])] = &[(
    "device programs",
    &[
        "families-serve-by-themselves-outside",
        "node-port-serves-outside-clients",
        "node-port-of-another-node-serves",
        "node-port-of-another-node-is-for-that-node",
        "node-port-of-another-node-is-for-that-node-for-pods",
        "node-port-borrows-the-port-of-a-process-outside",
        "load-balancer-ips-serve-outside-clients",
        "external-ips-serve-outside-clients",
        "external-ip-may-be-a-nodes-address-outside",
        "frontends-go-with-the-type-outside",
        "frontends-without-endpoints-refuse-outside-clients",
        "local-fallback-outside",
        "zone-hints-narrow-outside",
        "hints-leave-the-local-set-alone-outside",
        "internal-local-leaves-other-frontends-alone-outside",
        "internal-local-holds-for-off-cluster-clients",
        "another-nodes-node-port-is-cluster",
        "another-nodes-node-port-is-local",
        "another-nodes-node-port-is-local-for-pods",
        "external-cluster-outside",
        "external-local-outside",
        "external-local-without-endpoint-drops-outside",
        "changed-external-policy-holds-for-new-connections",
        "no-endpoint-refuses-outside",
        "policy-local-without-any-endpoint-refuses-outside",
        "dropped-syn-is-retransmitted-with-success-outside",
        "dropped-datagram-leaves-no-state-outside",
        "policy-local-keeps-client-address",
        "policy-cluster-keeps-client-address-for-local-backends",
        "policy-cluster-hides-client-from-remote-backends",
        "only-clients-in-a-range-are-served-outside",
        "source-ranges-concern-load-balancer-ips-only-outside",
        "off-cluster-client-of-a-cluster-ip-is-served",
        "off-cluster-client-is-hidden-from-remote-backends",
        "off-cluster-client-keeps-its-address-for-local-backends",
        "client-stays-with-its-backend-outside",
        "affinity-lets-go-of-an-unusable-backend-outside",
        "affinity-stays-within-the-local-set-outside",
    ],
)];

/// What a row waits for.
pub(crate) fn reason(row: &Row) -> Option<&'static str> {
    PENDING
        .iter()
        .find(|(_, rows)| rows.contains(&row.name))
        .map(|&(reason, _)| reason)
}

/// Fails if the list names a row that there is not.
pub(crate) fn check(rows: &[Row]) -> Result<()> {
    for name in PENDING.iter().flat_map(|(_, names)| *names) {
        let known = rows.iter().any(|row| row.name == *name);
        ensure!(known, "pending.rs lists {name}, and no row has that name");
    }
    Ok(())
}
