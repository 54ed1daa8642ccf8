//! Options of the agent that change which rules hold.

use anyhow::Result;
use lab::manifests::{Service, service, slice};
use lab::{Lab, Peer, SERVICE_CIDRS, Transport, story};
use std::net::Ipv4Addr;

/// One node whose agent runs with these flags, and a pod `b1` that serves on 8080.
fn node_with(flags: &'static [&'static str]) -> impl FnOnce() -> Result<Lab> {
    move || {
        let lab = Lab::new(1)?;
        lab.agent_flags(flags.iter().copied());
        Ok(lab)
    }
}

/// A backend and a client on n1, and the agent started.
fn start(lab: &Lab, object: &Service) -> Result<(Peer, Peer)> {
    let backend = lab.node("n1").pod("b1")?.serve(8080)?;
    let client = lab.node("n1").pod("client")?;
    lab.apply(object)?;
    lab.apply(
        &slice("web", "web")
            .port("http", 8080)
            .ready_endpoints([&backend]),
    )?;
    lab.apply(
        &slice("web-v6", "web")
            .v6()
            .port("http", 8080)
            .ready_endpoints([&backend]),
    )?;
    lab.start_agents()?;
    Ok((backend, client))
}

fn web() -> Service {
    service("web")
        .cluster_ip("10.96.8.1")
        .port("http", 80, 8080)
}

#[test]
fn nodeport_addresses_restrict_node_ports_and_the_rest_stays_with_the_host() {
    // K46
    story(
        node_with(&["--nodeport-addresses", "192.0.2.0/24,2001:db8:2::/64"]),
        |lab| {
            let host = lab.node("n1").host();
            host.ip("addr add 10.50.0.11/24 dev eth0")?;
            let daemon = lab.node("n1").process("daemon")?;
            daemon.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 30801)?;
            let object = web().cluster_ip("fd00:96::8001").node_port(30801);
            let (_backend, client) = start(lab, &object)?;
            for peer in [&client, host] {
                peer.tcp("192.0.2.11:30801")?.answered_by("b1")?;
                peer.tcp("[2001:db8:2::11]:30801")?.answered_by("b1")?;
                peer.tcp("10.50.0.11:30801")?.answered_by("daemon")?;
            }
            Ok(())
        },
    );
}

#[test]
fn primary_node_port_addresses_are_those_of_the_node_object() {
    story(node_with(&["--nodeport-addresses", "primary"]), |lab| {
        lab.node("n1")
            .host()
            .ip("addr add 192.0.2.61/24 dev eth0")?;
        let daemon = lab.node("n1").process("daemon")?;
        daemon.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 30801)?;
        let (_backend, client) = start(lab, &web().node_port(30801))?;
        client.tcp("192.0.2.11:30801")?.answered_by("b1")?;
        client.tcp("192.0.2.61:30801")?.answered_by("daemon")
    });
}

#[test]
fn only_sockets_of_the_host_namespace_are_translated_if_asked() {
    // K60: a sidecar must see the ClusterIP, so the pod's packets carry it.
    story(node_with(&["--host-namespace-only"]), |lab| {
        lab.switch().ip("addr add 10.96.8.1/32 dev br0")?;
        lab.switch()
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 80)?;
        let (_backend, client) = start(lab, &web())?;
        lab.node("n1")
            .host()
            .tcp("10.96.8.1:80")?
            .answered_by("b1")?;
        client.tcp("10.96.8.1:80")?.answered_by("switch")
    });
}

#[test]
fn frontends_to_skip_are_left_to_whoever_serves_them() {
    // Semantics 36: a NodeLocal DNSCache listens on the DNS Service's address.
    let flags: &[&str] = &[
        "--skip-frontends",
        "10.96.8.1:80",
        "--service-cidrs",
        SERVICE_CIDRS,
    ];
    story(node_with(flags), |lab| {
        lab.node("n1").host().ip("addr add 10.96.8.1/32 dev lo")?;
        let cache = lab.node("n1").process("cache")?;
        for port in [80, 9153] {
            cache.listen(Transport::Tcp, Ipv4Addr::new(10, 96, 8, 1).into(), port)?;
        }
        let object = web().cluster_ip("fd00:96::8001").port("other", 81, 8080);
        let (_backend, client) = start(lab, &object)?;
        for peer in [&client, lab.node("n1").host()] {
            peer.tcp("10.96.8.1:80")?.answered_by("cache")?;
            // A port of its own, which the Service does not define.
            peer.tcp("10.96.8.1:9153")?.answered_by("cache")?;
            // Not skipped: the other family.
            peer.tcp("[fd00:96::8001]:80")?.answered_by("b1")?;
        }
        Ok(())
    });
}

#[test]
fn external_ips_can_be_switched_off() {
    story(node_with(&["--external-ips", "false"]), |lab| {
        lab.switch().ip("addr add 203.0.113.81/32 dev br0")?;
        lab.switch()
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 80)?;
        let (_backend, client) = start(lab, &web().external_ips(&["203.0.113.81"]))?;
        client.tcp("10.96.8.1:80")?.answered_by("b1")?;
        client.tcp("203.0.113.81:80")?.answered_by("switch")
    });
}

#[test]
fn services_with_our_own_proxy_name_are_ours() {
    // K36; a Service without the label belongs to the default proxy, and with
    // a name of our own we are not that one: kube-proxy's rule is equality.
    story(
        node_with(&[
            "--service-proxy-name",
            "mine",
            "--service-cidrs",
            SERVICE_CIDRS,
        ]),
        |lab| {
            let label = "service.kubernetes.io/service-proxy-name";
            let backend = lab.node("n1").pod("b1")?.serve(8080)?;
            let client = lab.node("n1").pod("client")?;
            lab.apply(&web().label(label, "mine"))?;
            lab.apply(
                &slice("web", "web")
                    .port("http", 8080)
                    .ready_endpoints([&backend]),
            )?;
            lab.node("n1").start_agent()?;
            lab.node("n1").wait_healthy()?;
            lab.eventually(|| client.tcp("10.96.8.1:80")?.answered_by("b1"))?;
            lab.apply(&web().label(label, "other"))?;
            lab.eventually(|| client.tcp("10.96.8.1:80")?.unanswered())
        },
    );
}

#[test]
fn without_service_cidrs_unassigned_addresses_are_left_alone() {
    story(node_with(&[]), |lab| {
        lab.switch().ip("addr add 10.96.8.99/32 dev br0")?;
        lab.switch()
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 80)?;
        let (_backend, client) = start(lab, &web())?;
        client.tcp("10.96.8.1:80")?.answered_by("b1")?;
        client.tcp("10.96.8.99:80")?.answered_by("switch")?;
        // The ClusterIP itself is ours with all of its ports.
        lab.switch().ip("addr add 10.96.8.1/32 dev br0")?;
        lab.switch()
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 81)?;
        client.tcp("10.96.8.1:81")?.refused()
    });
}
