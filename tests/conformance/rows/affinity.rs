//! `sessionAffinity: ClientIP`: rule 24.

use crate::check::{holds, judged};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join};
use anyhow::{Result, bail};
use lab::manifests::{Service, Slice, service};
use lab::{BACKEND_PORT, Peer, Transport};
use std::time::Duration;

const FIELD: &str = "API ServiceSpec.sessionAffinity";
const TIMEOUT: &str = "API ClientIPConfig.timeoutSeconds";

/// The default, in seconds.
const LONG: u32 = 10_800;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            24,
            "client-stays-with-its-backend-inside",
            "all connections of a pod or process to a service port go to one backend",
            "API ServiceSpec.sessionAffinity; kubernetes e2e \"should have session affinity work \
             for service with type clusterIP\"",
            Fault::AffinityIgnored,
            client_stays_inside,
        ),
        Row::new(
            24,
            "frontends-share-a-clients-affinity-inside",
            "a pod or process gets the same backend by ClusterIP, NodePort, LoadBalancer IP and \
             externalIP",
            FIELD,
            Fault::AffinityIgnored,
            frontends_share_inside,
        ),
        Row::new(
            24,
            "client-stays-with-its-backend-outside",
            "all connections of an outside client go to one backend, by whatever external frontend",
            "API ServiceSpec.sessionAffinity; kubernetes e2e \"should have session affinity work \
             for NodePort service\"",
            Fault::AffinityIgnored,
            client_stays_outside,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "clients-do-not-share-an-affinity",
            "two clients of one node have backends of their own, chosen independently",
            FIELD,
            Fault::FirstEndpointOnly,
            clients_do_not_share,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "affinity-lets-go-of-an-unusable-backend",
            "a client leaves a backend that is not ready, terminates or is gone with its first new \
             connection, and does not come back to it",
            "API ServiceSpec.sessionAffinity; EndpointConditions; kubernetes#110302",
            Fault::ChangesLost,
            lets_go_inside,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "affinity-lets-go-of-an-unusable-backend-outside",
            "an outside client leaves a backend that is not ready, terminates or is gone with its \
             first new connection, and does not come back to it",
            "API ServiceSpec.sessionAffinity; EndpointConditions; kubernetes#110302",
            Fault::ChangesLost,
            lets_go_outside,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "affinity-stays-within-the-local-set-inside",
            "a client of a remote backend gets the local one when internalTrafficPolicy becomes \
             Local",
            "API ServiceSpec.internalTrafficPolicy, sessionAffinity",
            Fault::PoliciesIgnored,
            stays_within_local_inside,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "affinity-stays-within-the-local-set-outside",
            "an outside client of a remote backend gets a local one when externalTrafficPolicy \
             becomes Local, and stays with it",
            "API ServiceSpec.externalTrafficPolicy, sessionAffinity",
            Fault::PoliciesIgnored,
            stays_within_local_outside,
        )
        .cases(&["K24"]),
        Row::new(
            24,
            "affinity-ends-after-its-timeout",
            "clients choose anew when no connection came for the timeout",
            TIMEOUT,
            Fault::FieldIgnored("sessionAffinityConfig"),
            ends_after_timeout,
        ),
        Row::new(
            24,
            "affinity-timeout-counts-from-the-last-connection",
            "a client that connects again and again stays for longer than the timeout",
            "API ClientIPConfig.timeoutSeconds; kubernetes e2e \"should have session affinity \
             timeout work for service with type clusterIP\"",
            Fault::AffinityIgnored,
            timeout_counts_from_last,
        ),
        Row::new(
            24,
            "affinity-can-be-turned-off-and-on",
            "without sessionAffinity a client's connections spread again, with it they stop to",
            FIELD,
            Fault::ChangesLost,
            turned_off_and_on,
        ),
    ]
}

fn sticky(service: Service) -> Service {
    service.affinity(LONG)
}

fn all<'w>(s: &Stage<'w>) -> [&'w Peer; 3] {
    [&s.world.b1, &s.world.b2, &s.world.b3]
}

/// The one backend that answers all of these.
fn one(s: &Stage<'_>, from: &Peer, transport: Transport, to: &str) -> Result<String> {
    let counts = s.dials(from, transport, to, 12)?;
    judged(counts.none_failed())?;
    let backends: Vec<&String> = counts.answered.keys().collect();
    holds(backends.len() == 1, || {
        format!(
            "{} → {to}: several backends: {:?}",
            from.name(),
            counts.answered
        )
    })?;
    match backends[..] {
        [backend] => Ok(backend.clone()),
        _ => bail!("{} has not dialed", from.name()),
    }
}

/// All frontends lead this client to one backend.
fn one_by_all(s: &Stage<'_>, from: &Peer, frontends: &[String]) -> Result<()> {
    for transport in Transport::BOTH {
        let mut first: Option<String> = None;
        for frontend in frontends {
            let backend = one(s, from, transport, frontend)?;
            let first = first.get_or_insert_with(|| backend.clone());
            holds(*first == backend, || {
                format!(
                    "{} → {frontend}: {backend}, after {first} elsewhere",
                    from.name()
                )
            })?;
        }
    }
    Ok(())
}

fn client_stays_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&sticky(s.service("web")))?;
    s.apply(&s.ready("web", &all(s)))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.pod2, &s.host2] {
            let first = one(s, client, transport, &s.cluster_ip())?;
            let again = one(s, client, transport, &s.cluster_ip())?;
            holds(first == again, || {
                format!("{}: {again} after {first}", client.name())
            })?;
        }
    }
    Ok(())
}

fn frontends_share_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&sticky(s.full_service("web")))?;
    s.apply(&s.ready("web", &all(s)))?;
    let [node_port, lb_ip, external_ip] = s.external("n1");
    let frontends = [s.cluster_ip(), node_port, lb_ip, external_ip];
    for client in [&s.pod1, &s.host1] {
        one_by_all(s, client, &frontends)?;
    }
    Ok(())
}

fn client_stays_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&sticky(s.full_service("web")))?;
    s.apply(&s.ready("web", &all(s)))?;
    one_by_all(s, &s.c1, &s.external("n1"))?;
    one_by_all(s, &s.c2, &s.external("n2"))
}

fn clients_do_not_share(s: &Stage<'_>) -> Result<()> {
    // Each port is a choice of its own.
    let ports: Vec<(String, u16)> = (80..100).map(|it| (format!("p{it}"), it)).collect();
    let ip = s.own.cluster_ip(s.family);
    let service = ports
        .iter()
        .fold(service("web").cluster_ip(&ip), |service, (name, port)| {
            service.port(name, *port, BACKEND_PORT)
        });
    let slice = ports.iter().fold(s.slice("web"), |slice, (name, _)| {
        slice.port(name, BACKEND_PORT)
    });
    s.apply(&sticky(service))?;
    s.apply(&slice.ready_endpoints([&s.world.b1, &s.world.b2]))?;
    let choices = |client: &Peer| -> Result<Vec<String>> {
        let chosen = ports.iter().map(|(_, port)| {
            let outcome = s.dial(client, Transport::Tcp, &join(&ip, *port))?;
            judged(outcome.pod().map(str::to_owned))
        });
        chosen.collect()
    };
    let (pod, host) = (choices(&s.pod1)?, choices(&s.host1)?);
    // Twenty times the same by chance: once in a million runs.
    holds(pod != host, || format!("both have {pod:?}"))
}

/// The slice of all, but this one is not ready, terminates or is gone.
fn without(s: &Stage<'_>, name: &str, how: &str) -> Slice {
    all(s)
        .into_iter()
        .fold(s.slice("web"), |slice, backend| match how {
            _ if backend.name() != name => slice.endpoint(backend).ready(),
            "not ready" => slice.endpoint(backend).not_ready(),
            "terminating" => slice.endpoint(backend).terminating(),
            _ => slice,
        })
}

// TCP, as wherever something changes: a UDP flow may stay with its backend.
fn lets_go(s: &Stage<'_>, client: &Peer, to: &str) -> Result<()> {
    s.apply(&s.ready("web", &all(s)))?;
    let mut chosen = one(s, client, Transport::Tcp, to)?;
    // Whoever is unusable in one step is back in the next.
    for how in ["not ready", "terminating", "gone"] {
        s.apply(&without(s, &chosen, how))?;
        let next = one(s, client, Transport::Tcp, to)?;
        holds(chosen != next, || {
            format!("{chosen} is {how} and still chosen")
        })?;
        chosen = next;
    }
    s.apply(&s.ready("web", &all(s)))?;
    let last = one(s, client, Transport::Tcp, to)?;
    holds(last == chosen, || {
        format!("left {chosen} for {last} without need")
    })
}

fn lets_go_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&sticky(s.service("web")))?;
    lets_go(s, &s.pod1, &s.cluster_ip())
}

fn lets_go_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&sticky(s.node_port_service("web")))?;
    lets_go(s, &s.c1, &s.node_port("n1"))
}

fn stays_within_local_inside(s: &Stage<'_>) -> Result<()> {
    let service = sticky(s.service("web"));
    let clients = [&s.pod1, &s.host1];
    s.apply(&service)?;
    s.apply(&s.ready("web", &[&s.world.b2, &s.world.b3]))?;
    for client in clients {
        one(s, client, Transport::Tcp, &s.cluster_ip())?;
    }
    s.apply(&s.ready("web", &all(s)))?;
    s.apply(&service.internal_local())?;
    for client in clients {
        s.only(client, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn stays_within_local_outside(s: &Stage<'_>) -> Result<()> {
    let service = sticky(s.full_service("web"));
    let remote = [&s.world.b2, &s.world.b3];
    s.apply(&service)?;
    s.apply(&s.ready("web", &remote))?;
    for frontend in s.external("n1") {
        one(s, &s.c1, Transport::Tcp, &frontend)?;
    }
    let beside_b1 = s.world.strangers.iter();
    let beside_b1 = beside_b1.filter(|it| it.node_name() == Some("n1"));
    let backends: Vec<&Peer> = all(s).into_iter().chain(beside_b1).collect();
    s.apply(&s.ready("web", &backends))?;
    s.apply(&service.external_local())?;
    for frontend in s.external("n1") {
        let backend = one(s, &s.c1, Transport::Tcp, &frontend)?;
        let is_remote = remote.iter().any(|it| it.name() == backend);
        holds(!is_remote, || format!("{backend} is not on n1"))?;
    }
    Ok(())
}

fn ends_after_timeout(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").affinity(1))?;
    s.apply(&s.ready("web", &all(s)))?;
    let before = chosen(s)?;
    // The passing of time is what this row is about.
    std::thread::sleep(Duration::from_millis(2200));
    let after = chosen(s)?;
    // All ten choose as before by chance: once in 59,000 runs.
    holds(before != after, || format!("all have {before:?} as before"))
}

/// The backends of ten pairs of client and service port.
fn chosen(s: &Stage<'_>) -> Result<Vec<String>> {
    let mut chosen = Vec::new();
    for client in [&s.pod1, &s.pod2, &s.host1, &s.host2, &s.host3] {
        for transport in Transport::BOTH {
            let outcome = s.dial(client, transport, &s.cluster_ip())?;
            let backend = judged(outcome.pod().map(str::to_owned))?;
            chosen.push(backend);
        }
    }
    Ok(chosen)
}

fn timeout_counts_from_last(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").affinity(2))?;
    s.apply(&s.ready("web", &all(s)))?;
    s.settle()?;
    let load = s.pod1.load(Transport::Tcp, &s.cluster_ip(), 10)?;
    // The passing of time is what this row is about.
    std::thread::sleep(Duration::from_millis(3200));
    let counts = load.stop()?;
    judged(counts.none_failed())?;
    holds(counts.answered.len() == 1, || {
        format!("several backends: {:?}", counts.answered)
    })
}

fn turned_off_and_on(s: &Stage<'_>) -> Result<()> {
    let off = s.service("web");
    let on = sticky(off.clone());
    s.apply(&s.ready("web", &all(s)))?;
    s.apply(&on)?;
    one(s, &s.pod1, Transport::Tcp, &s.cluster_ip())?;
    s.apply(&off)?;
    s.only(
        &s.pod1,
        Transport::Tcp,
        &s.cluster_ip(),
        &["b1", "b2", "b3"],
    )?;
    s.apply(&on)?;
    one(s, &s.pod1, Transport::Tcp, &s.cluster_ip()).map(drop)
}
