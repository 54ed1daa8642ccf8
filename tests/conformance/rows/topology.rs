//! Hints, by node and by zone: rule 15. n1 is in za, n2 in zb, n3 in zc.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::Stage;
use anyhow::Result;
use lab::manifests::Slice;
use lab::{Peer, Transport};

const KEP: &str = "API EndpointHints.forZones; KEP-2433";
const NODE_KEP: &str = "API EndpointHints.forNodes; KEP-3015";

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            15,
            "zone-hints-narrow-inside",
            "clients get the endpoints that are hinted for their node's zone, on every frontend",
            KEP,
            Fault::HintsIgnored,
            zone_hints_narrow_inside,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "zone-hints-narrow-outside",
            "a client from outside gets the endpoints hinted for the zone of the node it comes by",
            KEP,
            Fault::HintsIgnored,
            zone_hints_narrow_outside,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "one-ready-endpoint-without-hint-disables-them",
            "if a ready endpoint has no hint, hints do not count",
            KEP,
            Fault::HintsGuessed,
            one_without_hint,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "no-hint-for-the-zone-means-everywhere",
            "if no ready endpoint is hinted for the node's zone, hints do not count",
            KEP,
            Fault::HintsRenamed("zb", "za"),
            no_hint_for_the_zone,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "hints-of-unready-endpoints-do-not-count",
            "an endpoint that is not ready neither keeps a zone's traffic nor disables hints",
            KEP,
            Fault::ConditionsIgnored,
            unready_hints_do_not_count,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "hints-may-name-several-zones",
            "an endpoint that is hinted for two zones serves both",
            KEP,
            Fault::FirstHintOnly,
            several_zones,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "zone-label-is-followed",
            "without a zone label no zone hints count; a changed label is followed",
            KEP,
            Fault::ChangesLost,
            zone_label_is_followed,
        )
        .cases(&["K26"])
        .once()
        .alone(),
        Row::new(
            15,
            "hints-leave-the-fallback-alone",
            "terminating endpoints that stand in for ready ones are used whatever their hints",
            "KEP-1669; KEP-2433 (hints are of ready endpoints)",
            Fault::ConditionsIgnored,
            hints_leave_the_fallback_alone,
        ),
        Row::new(
            15,
            "hints-leave-the-local-set-alone-inside",
            "with internalTrafficPolicy Local the node's endpoints are used whatever their hints",
            "API ServiceSpec.internalTrafficPolicy; KEP-2433",
            Fault::PoliciesIgnored,
            hints_leave_the_local_set_alone_inside,
        ),
        Row::new(
            15,
            "hints-leave-the-local-set-alone-outside",
            "with externalTrafficPolicy Local the node's endpoints are used whatever their hints",
            "API ServiceSpec.externalTrafficPolicy; KEP-2433",
            Fault::PoliciesIgnored,
            hints_leave_the_local_set_alone_outside,
        )
        .cases(&["K26"]),
        Row::new(
            15,
            "node-hints-go-before-zone-hints",
            "clients get the endpoint that is hinted for their node, not the one for its zone",
            NODE_KEP,
            Fault::NodeHintsIgnored,
            node_hints_go_first,
        ),
        Row::new(
            15,
            "node-hints-that-do-not-fit-leave-it-to-zone-hints",
            "if a ready endpoint has no hint for a node, or none has one for this node, zone hints \
             count",
            NODE_KEP,
            Fault::HintsIgnored,
            node_hints_that_do_not_fit,
        ),
        Row::new(
            15,
            "preferences-without-hints-do-nothing",
            "trafficDistribution and the topology annotations alone narrow nothing",
            "API ServiceSpec.trafficDistribution; KEP-4444 (the slices carry the decision)",
            Fault::HintsGuessed,
            preferences_without_hints,
        ),
    ]
}

/// Ready endpoints of `web`, each with its hints for zones.
fn hinted(s: &Stage<'_>, endpoints: &[(&Peer, &[&str])]) -> Slice {
    endpoints
        .iter()
        .fold(s.slice("web"), |slice, (backend, zones)| {
            let slice = slice.endpoint(backend).ready();
            if zones.is_empty() {
                slice
            } else {
                slice.for_zones(zones)
            }
        })
}

/// These clients get these backends of `web`'s ClusterIP.
fn get(s: &Stage<'_>, clients: &[&Peer], backends: &[&str]) -> Result<()> {
    for transport in Transport::BOTH {
        for client in clients {
            s.only(client, transport, &s.cluster_ip(), backends)?;
        }
    }
    Ok(())
}

/// b1 and b3 for za, b2 for zb.
fn two_zones(s: &Stage<'_>) -> Slice {
    hinted(
        s,
        &[
            (&s.world.b1, &["za"]),
            (&s.world.b2, &["zb"]),
            (&s.world.b3, &["za"]),
        ],
    )
}

fn zone_hints_narrow_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&two_zones(s))?;
    get(s, &[&s.pod1, &s.host1], &["b1", "b3"])?;
    get(s, &[&s.pod2, &s.host2], &["b2"])?;
    for frontend in s.external("n2") {
        for client in [&s.pod2, &s.host2] {
            s.only(client, Transport::Tcp, &frontend, &["b2"])?;
        }
    }
    Ok(())
}

fn zone_hints_narrow_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&two_zones(s))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1", "b3"])?;
        }
        for frontend in s.external("n2") {
            s.only(&s.c2, transport, &frontend, &["b2"])?;
        }
    }
    Ok(())
}

fn one_without_hint(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&hinted(
        s,
        &[
            (&s.world.b1, &["za"]),
            (&s.world.b2, &["zb"]),
            (&s.world.b3, &[]),
        ],
    ))?;
    get(s, &[&s.pod1, &s.host1, &s.pod2], &["b1", "b2", "b3"])
}

fn no_hint_for_the_zone(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&hinted(
        s,
        &[(&s.world.b2, &["zb"]), (&s.world.b3, &["zc"])],
    ))?;
    get(s, &[&s.pod1, &s.host1], &["b2", "b3"])
}

fn unready_hints_do_not_count(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &hinted(s, &[(&s.world.b2, &["zb"]), (&s.world.b3, &["zc"])])
            .endpoint(&s.world.b1)
            .not_ready()
            .for_zones(&["za"]),
    )?;
    get(s, &[&s.pod1], &["b2", "b3"])?;
    s.apply(
        &hinted(s, &[(&s.world.b1, &["za"]), (&s.world.b2, &["zb"])])
            .endpoint(&s.world.b3)
            .not_ready(),
    )?;
    // Another client: a UDP flow may stay with b2.
    get(s, &[&s.host1], &["b1"])
}

fn several_zones(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&hinted(
        s,
        &[(&s.world.b1, &["za", "zb"]), (&s.world.b2, &["zb"])],
    ))?;
    get(s, &[&s.pod1, &s.host1], &["b1"])?;
    get(s, &[&s.pod2, &s.host2], &["b1", "b2"])
}

fn zone_label_is_followed(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&two_zones(s))?;
    let gets = |backends: &[&str]| s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), backends);
    gets(&["b1", "b3"])?;
    let told = change_zones(s, gets);
    s.label_zone("n1", Some("za"))?;
    told?;
    s.soon("n1 is in za again", || gets(&["b1", "b3"]))
}

fn change_zones(s: &Stage<'_>, gets: impl Fn(&[&str]) -> Result<()>) -> Result<()> {
    let all = ["b1", "b2", "b3"];
    s.label_zone("n1", None)?;
    s.soon("n1 has no zone", || gets(&all))?;
    s.label_zone("n1", Some("zb"))?;
    s.soon("n1 is in zb", || gets(&["b2"]))?;
    s.label_zone("n1", Some(""))?;
    s.soon("n1's zone is empty", || gets(&all))
}

fn hints_leave_the_fallback_alone(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .terminating()
            .for_zones(&["zb"])
            .endpoint(&s.world.b2)
            .terminating()
            .for_zones(&["za"]),
    )?;
    get(s, &[&s.pod1, &s.host1], &["b1", "b2"])
}

/// b1 is on n1 but for n2's zone, b2 the other way round.
fn crossed(s: &Stage<'_>) -> Slice {
    hinted(s, &[(&s.world.b1, &["zb"]), (&s.world.b2, &["za"])])
}

fn hints_leave_the_local_set_alone_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&crossed(s))?;
    get(s, &[&s.pod1, &s.host1], &["b1"])?;
    get(s, &[&s.pod2, &s.host2], &["b2"])
}

fn hints_leave_the_local_set_alone_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&crossed(s))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1"])?;
        }
    }
    Ok(())
}

fn node_hints_go_first(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .ready()
            .for_zones_and_nodes(&["za"], &["n2"])
            .endpoint(&s.world.b2)
            .ready()
            .for_zones_and_nodes(&["zb"], &["n1", "n3"]),
    )?;
    get(s, &[&s.pod1, &s.host1, &s.host3], &["b2"])?;
    get(s, &[&s.pod2, &s.host2], &["b1"])
}

fn node_hints_that_do_not_fit(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let b1 = s.slice("web").endpoint(&s.world.b1).ready();
    let no_node_for_b1 = b1
        .clone()
        .for_zones(&["za"])
        .endpoint(&s.world.b2)
        .ready()
        .for_zones_and_nodes(&["zb"], &["n1"]);
    let nothing_for_n1 = b1
        .for_zones_and_nodes(&["za"], &["n2"])
        .endpoint(&s.world.b2)
        .ready()
        .for_zones_and_nodes(&["zb"], &["n3"]);
    for slice in [no_node_for_b1, nothing_for_n1] {
        s.apply(&slice)?;
        get(s, &[&s.pod1, &s.host1], &["b1"])?;
    }
    Ok(())
}

fn preferences_without_hints(s: &Stage<'_>) -> Result<()> {
    let plain = s.ready("web", &[&s.world.b1, &s.world.b2, &s.world.b3]);
    s.apply(&plain)?;
    for service in [
        s.service("web")
            .field("trafficDistribution", "PreferSameZone".into()),
        s.service("web")
            .annotation("service.kubernetes.io/topology-mode", "Auto"),
    ] {
        s.apply(&service)?;
        get(s, &[&s.pod1, &s.host1], &["b1", "b2", "b3"])?;
    }
    Ok(())
}
