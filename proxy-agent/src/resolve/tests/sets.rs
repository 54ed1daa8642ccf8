//! The cluster and the local set: what pkg/proxy/topology_test.go of
//! kubernetes/kubernetes pins down, in our words, and cases K26 and K40.

use super::*;

/// Numbers of the endpoints in the cluster and in the local set.
fn sets(text: &str, node: &NodeView, prefix: &str) -> (Vec<usize>, Vec<usize>) {
    let endpoints: Vec<Endpoint> = text
        .split_whitespace()
        .zip(1..)
        .map(|(it, number): (&str, usize)| endpoint(ip(&format!("{prefix}{number}")), it))
        .collect();
    let (resolved, warnings) = endpoints_of(
        &[slice("web-1", ("http", Protocol::Tcp, 8080), endpoints)],
        node,
    );
    assert_eq!(warnings, [], "{text}");
    let numbers = |wanted: fn(&ResolvedEndpoint) -> bool| {
        let number = |it: &ResolvedEndpoint| match it.address {
            IpAddr::V4(v4) => usize::from(v4.octets()[3]),
            IpAddr::V6(v6) => usize::from(v6.segments()[7]),
        };
        resolved
            .iter()
            .filter(|it| wanted(it))
            .map(number)
            .collect()
    };
    (
        numbers(|it| it.in_cluster_set),
        numbers(|it| it.in_local_set),
    )
}

type Row = (
    &'static str,
    &'static str,
    &'static [usize],
    &'static [usize],
);

fn check(node: &NodeView, rows: &[Row]) {
    for (name, text, cluster, local) in rows {
        for prefix in ["10.244.1.", "fd00:244:1::"] {
            assert_eq!(
                sets(text, node, prefix),
                (cluster.to_vec(), local.to_vec()),
                "{name}: {text} in {prefix}"
            );
        }
    }
}

#[test]
fn readiness_decides_each_set_on_its_own() {
    check(
        &node(),
        &[
            ("nothing at all", "", &[], &[]),
            ("all remote", "R@n2 R@n3", &[1, 2], &[]),
            ("all on this node", "R@n1 R@n1", &[1, 2], &[1, 2]),
            ("some on this node", "R@n2 R@n1", &[1, 2], &[2]),
            ("no node is never local", "R R@n1", &[1, 2], &[2]),
            ("not ready ones never count", "R@n1 N@n1 N@n2", &[1], &[1]),
            ("none ready", "N@n1 N@n2", &[], &[]),
            (
                "terminating ones wait behind ready ones",
                "R@n2 T@n2",
                &[1],
                &[],
            ),
            (
                "terminating ones when nothing is ready",
                "T@n2 T@n1 N@n1",
                &[1, 2],
                &[2],
            ),
            (
                "terminating ones that stopped serving never count",
                "D@n1 D@n2",
                &[],
                &[],
            ),
            ("stopped and serving", "D@n1 T@n2", &[2], &[]),
            (
                "local falls back while the cluster need not",
                "R@n2 T@n1",
                &[1],
                &[2],
            ),
            ("cluster ready only here", "T@n2 R@n1", &[2], &[2]),
            (
                "local has one ready, so no terminating one",
                "T@n1 R@n1 R@n2",
                &[2, 3],
                &[2],
            ),
            (
                "serving without ready or terminating is in no set",
                "S@n1 N@n2",
                &[],
                &[],
            ),
            (
                "a ready one may terminate (publishNotReadyAddresses)",
                "A@n1 T@n1",
                &[1],
                &[1],
            ),
        ],
    );
}

#[test]
fn zone_hints_narrow_the_cluster_set_if_complete() {
    check(
        &node(),
        &[
            ("each zone its own", "R[za] R[zb] R[zc] R[za]", &[1, 4], &[]),
            (
                "one ready endpoint without hints: off",
                "R[za] R[zb] R",
                &[1, 2, 3],
                &[],
            ),
            ("no endpoint for our zone: off", "R[zb] R[zc]", &[1, 2], &[]),
            (
                "only a not ready one for our zone: off",
                "N[za] R[zb]",
                &[2],
                &[],
            ),
            (
                "a not ready one without hints does no harm",
                "R[za] N R[zb]",
                &[1],
                &[],
            ),
            (
                "a terminating one without hints does no harm",
                "R[za] T R[zb]",
                &[1],
                &[],
            ),
            (
                "several zones per endpoint",
                "R[za,zb] R[zb] R[zc,za]",
                &[1, 3],
                &[],
            ),
            (
                "the local set does not care",
                "R@n1[zb] R@n1[za] R@n2[za]",
                &[2, 3],
                &[1, 2],
            ),
            (
                "the fallback is not narrowed",
                "T[za] T[zb] N[za]",
                &[1, 2],
                &[],
            ),
            (
                "hints on terminating ones alone say nothing",
                "R R T[za]",
                &[1, 2],
                &[],
            ),
        ],
    );
}

#[test]
fn node_hints_come_before_zone_hints() {
    check(
        &node(),
        &[
            ("one names us", "R[:n1] R[:n2]", &[1], &[]),
            (
                "none names us, no zones: off",
                "R[:n2] R[:n3]",
                &[1, 2],
                &[],
            ),
            ("none names us: zones", "R[za:n2] R[zb:n3]", &[1], &[]),
            (
                "one without: zones",
                "R[za:n1] R[za] R[zb:n1]",
                &[1, 2],
                &[],
            ),
            ("both complete: nodes", "R[zb:n1] R[za:n2]", &[1], &[]),
            ("neither complete: off", "R[za] R[:n1]", &[1, 2], &[]),
            (
                "only a not ready one names us: zones",
                "N[za:n1] R[za:n2] R[zb:n3]",
                &[2],
                &[],
            ),
            ("several nodes per endpoint", "R[:n2,n1] R[:n2]", &[1], &[]),
        ],
    );
}

#[test]
fn the_zone_of_the_node_decides() {
    let in_zone = |zone: Option<&str>| NodeView {
        addresses: Vec::new(),
        name: "n1".into(),
        zone: zone.map(Arc::from),
    };
    check(
        &in_zone(None),
        &[
            ("no zone", "R[za] R[zb]", &[1, 2], &[]),
            ("nodes need none", "R[:n1] R[:n2]", &[1], &[]),
        ],
    );
    check(
        &in_zone(Some("")),
        &[("empty zone", "R[za] R[zb]", &[1, 2], &[])],
    );
    check(
        &in_zone(Some("zb")),
        &[("the other zone", "R[za] R[zb] R[za]", &[2], &[])],
    );
}

#[test]
fn families_are_decided_apart() {
    let v4 = slice(
        "web-4",
        ("http", Protocol::Tcp, 8080),
        vec![endpoint(ip("10.244.1.1"), "T@n1")],
    );
    let v6 = vec![
        endpoint(ip("fd00:244::1"), "R@n2[zb]"),
        endpoint(ip("fd00:244::2"), "R@n1[za]"),
    ];
    let v6 = slice("web-6", ("http", Protocol::Tcp, 8080), v6);
    let (resolved, _) = endpoints_of(&[v6, v4], &node());
    let seen: Vec<_> = resolved
        .iter()
        .map(|it| (it.in_cluster_set, it.in_local_set))
        .collect();
    assert_eq!(seen, [(true, true), (false, false), (true, true)]);
}
