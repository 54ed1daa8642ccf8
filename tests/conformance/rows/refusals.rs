//! When nobody can answer: rules 18 and 19.

use crate::check::judged;
use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::row::{Row, Why};
use crate::stage::{REFUSAL_MS, SILENCE_MS, Stage};
use anyhow::Result;
use lab::{Dial, Outcome, Peer, Transport};

const REJECTED: &str = "kubernetes e2e \"should be rejected when no endpoints exist\"";

/// Why host processes are told something else by kube-proxy.
const OUTPUT_REJECT: Why = Why::Fault(
    "netfilter's reject in the output hook makes the send itself fail with EPERM, and the ICMP \
     error is for the next call only (net/netfilter: a dropped local packet is EPERM)",
);

/// Why host processes are not told at all by kube-proxy with iptables.
const NO_OUTPUT_REJECT: Why = Why::Fault(
    "iptables mode rejects at external addresses on the hooks INPUT and FORWARD only, which a \
     local packet does not pass: pkg/proxy/iptables, chain KUBE-EXTERNAL-SERVICES",
);

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            18,
            "no-endpoint-refuses-inside",
            "a Service without endpoints, or without any slice, refuses pods at every frontend, and \
             connections of host processes at ClusterIP and NodePort",
            REJECTED,
            Fault::StrangerOn("n1"),
            no_endpoint_refuses_inside,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "no-endpoint-refuses-host-processes-at-load-balancer-ips",
            "a Service without endpoints refuses connections of host processes at LoadBalancer IP \
             and externalIP",
            REJECTED,
            Fault::StrangerOn("n1"),
            no_endpoint_refuses_host_externally,
        )
        .cases(&["K04"])
        .differs(Proxy::KubeProxyIptables, NO_OUTPUT_REJECT),
        Row::new(
            18,
            "no-endpoint-refuses-datagrams-of-host-processes",
            "a host process that sends to a Service without endpoints is told ECONNREFUSED",
            REJECTED,
            Fault::StrangerOn("n1"),
            no_endpoint_refuses_host_datagrams,
        )
        .cases(&["K04"])
        .kube_proxy_differs(OUTPUT_REJECT),
        Row::new(
            18,
            "no-endpoint-refuses-outside",
            "a Service without endpoints refuses clients from outside at every frontend",
            REJECTED,
            Fault::StrangerOn("n1"),
            no_endpoint_refuses_outside,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "unready-endpoints-refuse",
            "a Service refuses whose endpoints are all neither ready nor serving while they \
             terminate",
            "API EndpointConditions; KEP-1669",
            Fault::ConditionsIgnored,
            unready_endpoints_refuse,
        )
        .cases(&["K04"]),
        Row::new(
            18,
            "policy-local-without-any-endpoint-refuses-inside",
            "with both policies Local and no endpoint on any node, pods and processes are refused",
            REJECTED,
            Fault::StrangerOn("n1"),
            local_without_any_refuses_inside,
        ),
        Row::new(
            18,
            "policy-local-without-any-endpoint-refuses-outside",
            "with externalTrafficPolicy Local and no endpoint on any node, clients from outside \
             are refused",
            REJECTED,
            Fault::StrangerOn("n1"),
            local_without_any_refuses_outside,
        ),
        Row::new(
            19,
            "refusal-leaves-no-state",
            "who was refused is served as soon as there is an endpoint, from the same source port",
            "RFC 9293 (a reset ends the attempt); kubernetes#48370",
            Fault::ChangesLost,
            refusal_leaves_no_state,
        )
        .cases(&["K64"]),
        Row::new(
            19,
            "no-answer-leaves-no-state-inside",
            "who got no answer is served as soon as there is a local endpoint, from the same \
             source port",
            "API ServiceSpec.internalTrafficPolicy; kubernetes#48370",
            Fault::ChangesLost,
            no_answer_leaves_no_state_inside,
        )
        .cases(&["K64"]),
        Row::new(
            19,
            "dropped-syn-is-retransmitted-with-success-outside",
            "the retransmission of a dropped SYN connects when there is a local endpoint meanwhile",
            "RFC 9293 (retransmission); API ServiceSpec.externalTrafficPolicy; kubernetes#48719",
            Fault::ChangesLost,
            retransmission_connects_outside,
        )
        .cases(&["K64"]),
        Row::new(
            19,
            "dropped-datagram-leaves-no-state-outside",
            "after a dropped datagram the next of the same source port is answered when there is a \
             local endpoint meanwhile",
            "API ServiceSpec.externalTrafficPolicy; kubernetes#48370",
            Fault::ChangesLost,
            datagram_leaves_no_state_outside,
        )
        .cases(&["K64"]),
    ]
}

fn no_endpoint_refuses_inside(s: &Stage<'_>) -> Result<()> {
    let without_slice = s.world.numbers();
    s.apply(&s.full_service("web"))?;
    s.apply(&s.slice("web"))?;
    s.apply(&s.service_at("bare", &without_slice))?;
    refuses_inside(s, &[s.cluster_ip_of(&without_slice)])
}

/// Everywhere and at these. What becomes of the other packets of host processes
/// are rows of their own.
fn refuses_inside(s: &Stage<'_>, more: &[String]) -> Result<()> {
    let [node_port, lb_ip, external_ip] = s.external("n1");
    let of_host = [&[s.cluster_ip(), node_port][..], more].concat();
    let of_pod = [&of_host[..], &[lb_ip, external_ip]].concat();
    s.all_refused(&[&s.pod1], &Transport::BOTH, &of_pod)?;
    s.all_refused(&[&s.host1], &[Transport::Tcp], &of_host)
}

fn no_endpoint_refuses_host_externally(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&s.slice("web"))?;
    let [_, lb_ip, external_ip] = s.external("n1");
    s.all_refused(&[&s.host1], &[Transport::Tcp], &[lb_ip, external_ip])
}

fn no_endpoint_refuses_host_datagrams(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&s.slice("web"))?;
    let [node_port, lb_ip, external_ip] = s.external("n1");
    s.all_refused(
        &[&s.host1],
        &[Transport::Udp],
        &[s.cluster_ip(), node_port, lb_ip, external_ip],
    )
}

fn no_endpoint_refuses_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&s.slice("web"))?;
    let [node_port, lb_ip, external_ip] = s.external("n1");
    s.all_refused(
        &[&s.c1],
        &Transport::BOTH,
        &[s.cluster_ip(), node_port, lb_ip, external_ip],
    )
}

fn unready_endpoints_refuse(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .not_ready()
            .endpoint(&s.world.b2)
            .dead()
            .endpoint(&s.world.b3)
            .set(
                "conditions",
                serde_json::json!({ "ready": false, "serving": true, "terminating": false }),
            ),
    )?;
    refuses_inside(s, &[])
}

fn local_without_any_refuses_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").internal_local().external_local())?;
    s.apply(&s.slice("web"))?;
    refuses_inside(s, &[])
}

fn local_without_any_refuses_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.slice("web"))?;
    s.all_refused(&[&s.c1], &Transport::BOTH, &s.external("n1"))
}

/// A dial from a source port that only this row uses.
fn from_own_port(s: &Stage<'_>, from: &Peer, transport: Transport, to: &str) -> Result<Dial> {
    // Below the ports that the kernel hands out.
    let port = s.own.node_port() - 10_000;
    let mut dial = Dial::new(transport, to.parse()?);
    dial.from = Some(s.port_of(from, port).parse()?);
    dial.timeout_ms = SILENCE_MS;
    Ok(dial)
}

fn refusal_leaves_no_state(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.slice("web"))?;
    s.settle()?;
    for transport in Transport::BOTH {
        let mut dial = from_own_port(s, &s.pod1, transport, &s.cluster_ip())?;
        dial.timeout_ms = REFUSAL_MS;
        judged(s.pod1.dial(dial)?.failed_with("ECONNREFUSED"))?;
    }
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    served_from_own_port(s, "b2")
}

fn no_answer_leaves_no_state_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    for transport in Transport::BOTH {
        let dial = from_own_port(s, &s.pod1, transport, &s.cluster_ip())?;
        judged(s.pod1.dial(dial)?.unanswered())?;
    }
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    served_from_own_port(s, "b1")
}

fn served_from_own_port(s: &Stage<'_>, backend: &str) -> Result<()> {
    s.settle()?;
    for transport in Transport::BOTH {
        let dial = from_own_port(s, &s.pod1, transport, &s.cluster_ip())?;
        judged(s.pod1.dial(dial)?.answered_by(backend))?;
    }
    Ok(())
}

fn retransmission_connects_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    let tries = s.external("n1").map(|to| -> Result<_> {
        let mut dial = Dial::new(Transport::Tcp, to.parse()?);
        dial.nonblocking = true;
        dial.timeout_ms = 100;
        let held = s.c1.hold(dial)?;
        judged(held.outcome.failed_with("TIMEOUT"))?;
        Ok((held, to))
    });
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    s.settle()?;
    for attempt in tries {
        let (held, to) = attempt?;
        // The same socket: it waits for what its SYNs bring.
        judged(held.redial(&to)?.answered_by("b1"))?;
    }
    Ok(())
}

fn datagram_leaves_no_state_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.settle()?;
    each_datagram(s, |outcome| outcome.failed_with("TIMEOUT"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    s.settle()?;
    each_datagram(s, |outcome| outcome.answered_by("b1"))
}

fn each_datagram(s: &Stage<'_>, verdict: impl Fn(&Outcome) -> Result<()>) -> Result<()> {
    s.external("n1").iter().try_for_each(|to| {
        let mut dial = from_own_port(s, &s.c1, Transport::Udp, to)?;
        dial.timeout_ms = 400;
        judged(verdict(&s.c1.dial(dial)?))
    })
}
