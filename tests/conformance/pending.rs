//! The rows that Fairlead does not meet yet. The list only shrinks: a row in it
//! that passes fails the suite, as does one that is not in it and fails.

use crate::row::Row;
use anyhow::{Result, ensure};

/// What is missing, and the rows that wait for it.
const PENDING: &[(&str, &[&str])] = &[
    (
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
            "established-outlives-its-endpoint-from-outside",
            "established-outlives-a-policy-from-outside",
            "established-outlives-its-service-from-outside",
            "new-follow-while-established-stay-from-outside",
            "closed-tuple-begins-anew-from-outside",
            "stray-reset-of-backend-ends-nothing-from-outside",
            "stray-reset-of-client-ends-nothing-from-outside",
            "clients-may-share-a-source-port",
            "one-source-port-through-two-frontends",
            "node-keeps-its-own-source-ports",
            "fragments-arrive-from-outside",
            "bulk-arrives-intact-from-outside",
            "udp-without-checksum-arrives-from-outside",
            "closed-backend-port-is-told-from-outside",
            "path-mtu-is-learnt-by-backends",
            "path-mtu-is-learnt-by-clients-from-outside",
            "second-uplink-is-served",
            "strict-filters-lose-nothing-from-outside",
            "cold-neighbours-lose-nothing-from-outside",
            "udp-moves-to-the-next-endpoint-from-outside",
            "udp-stops-at-zero-endpoints-from-outside",
            "udp-to-node-port-stops-at-zero-endpoints-from-outside",
            "udp-begins-with-the-first-endpoint-from-outside",
            "udp-reaches-a-recreated-service-from-outside",
            "udp-ends-with-its-service-from-outside",
        ],
    ),
    (
        "health check node ports",
        &[
            "health-port-counts-local-ready-endpoints",
            "health-port-fails-without-local-endpoint",
            "health-port-fails-while-only-terminating",
            "health-port-works-without-node-ports",
            "health-port-closes-with-the-policy",
            "health-port-closes-with-the-service",
        ],
    ),
];

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
