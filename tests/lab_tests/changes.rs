//! semantics.md, "Frontends": what becomes of them when Services change.

use anyhow::Result;
use lab::{Cast, SharedLab, Transport, manifests};
use serde_json::json;
use std::net::Ipv4Addr;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

#[test]
fn tcp_and_udp_of_one_address_and_port_belong_to_different_services() {
    // K22
    CAST.story(|cast| {
        let dt = manifests::service("dt")
            .cluster_ip("10.96.1.8")
            .port("dns", 53, 8080)
            .node_port(30053)
            .lb_ip("198.51.100.10");
        let du = manifests::service("du")
            .cluster_ip("10.96.1.9")
            .udp_port("dns", 53, 8080)
            .node_port(30053)
            .lb_ip("198.51.100.10");
        let dt_ready = manifests::slice("dt", "dt")
            .port("dns", 8080)
            .ready_endpoints([&cast.b1]);
        cast.apply(&dt)?;
        cast.apply(&du)?;
        cast.apply(&dt_ready)?;
        cast.apply(
            &manifests::slice("du", "du")
                .udp_port("dns", 8080)
                .ready_endpoints([&cast.b2]),
        )?;
        cast.settle()?;
        let frontends = ["198.51.100.10:53", "192.0.2.11:30053"];
        let udp_untouched = || -> Result<()> {
            frontends
                .iter()
                .try_for_each(|to| cast.client.many_udp(to, 10)?.only_by(&["b2"]))
        };
        let tcp_is_back = || -> Result<()> {
            frontends
                .iter()
                .try_for_each(|to| cast.client.many_tcp(to, 10)?.only_by(&["b1"]))
        };
        tcp_is_back()?;
        udp_untouched()?;

        cast.delete(&dt)?;
        cast.settle()?;
        for to in frontends {
            cast.try_briefly(&cast.client, Transport::Tcp, to)?
                .unanswered()?;
        }
        udp_untouched()?;

        cast.apply(&dt)?;
        cast.settle()?;
        tcp_is_back()?;
        udp_untouched()?;

        cast.delete(&dt_ready)?;
        cast.settle()?;
        for to in frontends {
            cast.client.tcp(to)?.refused()?;
        }
        udp_untouched()
    });
}

#[test]
fn addresses_and_ports_that_change_hands_lead_only_to_the_new_owner() {
    // K32: the agent sees all of it as one burst.
    CAST.story(|cast| {
        let with = |name: &str, ip: &str, port, np, lb: &str| {
            manifests::service(name)
                .cluster_ip(ip)
                .port("http", port, 8080)
                .node_port(np)
                .lb_ip(lb)
        };
        let slice = |name: &str, pod| {
            manifests::slice(name, name)
                .port("http", 8080)
                .ready_endpoints([pod])
        };
        let old = manifests::service("old")
            .cluster_ip("10.96.1.50")
            .port("http", 80, 8080)
            .node_port(30110);
        let new = manifests::service("new")
            .cluster_ip("10.96.1.50")
            .port("http", 80, 8080)
            .node_port(30110);
        cast.apply(&old)?;
        cast.apply(&slice("old", &cast.b1))?;
        cast.apply(&with("left", "10.96.1.51", 8010, 30111, "198.51.100.11"))?;
        cast.apply(&with("right", "10.96.1.52", 8020, 30112, "198.51.100.11"))?;
        cast.apply(&slice("left", &cast.b1))?;
        cast.apply(&slice("right", &cast.b2))?;
        let giver = manifests::service("giver")
            .cluster_ip("10.96.1.53")
            .port("http", 80, 8080);
        let taker = manifests::service("taker")
            .cluster_ip("10.96.1.54")
            .port("http", 80, 8080);
        cast.apply(&giver.clone().external_ips(&["203.0.113.6"]))?;
        cast.apply(&taker)?;
        cast.apply(&slice("giver", &cast.b1))?;
        cast.apply(&slice("taker", &cast.b2))?;
        let reborn = |uid: &str, ip: &str| {
            manifests::service("reborn")
                .uid(uid)
                .cluster_ip(ip)
                .port("http", 80, 8080)
        };
        cast.apply(&reborn("first", "10.96.1.55"))?;
        cast.apply(&slice("reborn", &cast.b1))?;
        cast.settle()?;
        cast.client.tcp("10.96.1.50:80")?.answered_by("b1")?;
        cast.client.tcp("198.51.100.11:8020")?.answered_by("b2")?;
        cast.client.tcp("203.0.113.6:80")?.answered_by("b1")?;

        let n1 = cast.node("n1");
        n1.pause_agent()?;
        cast.delete(&old)?;
        cast.apply(&new)?;
        cast.apply(&slice("new", &cast.b2))?;
        cast.apply(&with("left", "10.96.1.51", 8020, 30112, "198.51.100.11"))?;
        cast.apply(&with("right", "10.96.1.52", 8010, 30111, "198.51.100.11"))?;
        cast.apply(&giver)?;
        cast.apply(&taker.clone().external_ips(&["203.0.113.6"]))?;
        let first = reborn("first", "10.96.1.55");
        cast.delete(&first)?;
        cast.apply(&reborn("second", "10.96.1.56"))?;
        n1.resume_agent()?;
        cast.settle_on(&[n1])?;

        let leads_to = |to: &str, pod: &str| cast.client.many_tcp(to, 10)?.only_by(&[pod]);
        leads_to("10.96.1.50:80", "b2")?;
        leads_to("192.0.2.11:30110", "b2")?;
        leads_to("198.51.100.11:8020", "b1")?;
        leads_to("198.51.100.11:8010", "b2")?;
        leads_to("192.0.2.11:30112", "b1")?;
        leads_to("192.0.2.11:30111", "b2")?;
        leads_to("203.0.113.6:80", "b2")?;
        leads_to("10.96.1.56:80", "b1")?;
        cast.try_briefly(&cast.client, Transport::Tcp, "10.96.1.55:80")?
            .unanswered()
    });
}

#[test]
fn a_service_that_loses_its_type_loses_its_frontends() {
    // K34
    CAST.story(|cast| {
        let base = manifests::service("down")
            .cluster_ip("10.96.1.12")
            .port("http", 80, 8080);
        let balancer = base.clone().node_port(30113);
        cast.apply(
            &manifests::slice("down", "down")
                .port("http", 8080)
                .ready_endpoints([&cast.b2]),
        )?;
        cast.apply(
            &balancer
                .clone()
                .lb_ip("198.51.100.12")
                .external_ips(&["203.0.113.12"]),
        )?;
        // Gets the connections that nothing translates.
        let owner = cast.node("n1").process("port-owner")?;
        owner.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 30113)?;
        cast.settle()?;

        let client = &cast.client;
        let taken = |to: &str| client.tcp(to)?.answered_by("b2");
        let gone = |to: &str| cast.try_briefly(client, Transport::Tcp, to)?.unanswered();
        for to in [
            "10.96.1.12:80",
            "192.0.2.11:30113",
            "198.51.100.12:80",
            "203.0.113.12:80",
        ] {
            taken(to)?;
        }
        cast.apply(
            &balancer
                .clone()
                .lb_ip("198.51.100.13")
                .external_ips(&["203.0.113.13"]),
        )?;
        cast.settle()?;
        taken("198.51.100.13:80")?;
        taken("203.0.113.13:80")?;
        gone("198.51.100.12:80")?;
        gone("203.0.113.12:80")?;

        cast.apply(&balancer.clone().of_type("LoadBalancer"))?;
        cast.settle()?;
        gone("198.51.100.13:80")?;
        gone("203.0.113.13:80")?;
        taken("192.0.2.11:30113")?;

        cast.apply(&balancer)?;
        cast.settle()?;
        taken("192.0.2.11:30113")?;

        cast.apply(&base)?;
        cast.settle()?;
        client.tcp("192.0.2.11:30113")?.answered_by("port-owner")?;
        taken("10.96.1.12:80")?;

        cast.delete(&base)?;
        cast.settle()?;
        gone("10.96.1.12:80")
    });
}

#[test]
fn a_load_balancer_without_node_ports_or_addresses_is_no_wildcard() {
    // K42
    CAST.story(|cast| {
        let service = cast
            .service("bare", "10.96.1.14")
            .field("allocateLoadBalancerNodePorts", json!(false))
            .ingress(json!({ "hostname": "lb.example.test" }));
        let with_zero = service
            .clone()
            .port("zero", 81, 8080)
            .node_port(0)
            .of_type("LoadBalancer");
        cast.apply(&with_zero)?;
        cast.apply(&cast.ready("bare", &[&cast.b2]))?;
        cast.settle()?;
        cast.client.tcp("10.96.1.14:80")?.answered_by("b2")?;
        cast.try_briefly(&cast.client, Transport::Tcp, "192.0.2.11:0")?
            .unanswered()?;
        cast.client.tcp("192.0.2.11:80")?.refused()?;

        cast.apply(&with_zero.lb_ip("198.51.100.14"))?;
        cast.soon_answered_by(&cast.client, "198.51.100.14:80", "b2")
    });
}

#[test]
fn a_node_port_takes_a_host_processs_port_only_while_it_exists() {
    // K85
    CAST.story(|cast| {
        let daemon = cast.node("n1").process("daemon")?;
        for (transport, port) in [
            (Transport::Tcp, 30155),
            (Transport::Tcp, 30156),
            (Transport::Udp, 30156),
            (Transport::Tcp, 9100),
        ] {
            daemon.listen(transport, Ipv4Addr::UNSPECIFIED.into(), port)?;
        }
        cast.settle()?;
        cast.client.tcp("192.0.2.11:30155")?.answered_by("daemon")?;

        let service = manifests::service("thief")
            .cluster_ip("10.96.1.15")
            .port("http", 80, 8080)
            .node_port(30155)
            .port("alt", 81, 8080)
            .node_port(30156);
        cast.apply(&service)?;
        cast.apply(
            &manifests::slice("thief", "thief")
                .port("http", 8080)
                .port("alt", 8080)
                .ready_endpoints([&cast.b3]),
        )?;
        cast.settle()?;
        for client in cast.insiders() {
            client.many_tcp("192.0.2.11:30155", 10)?.only_by(&["b3"])?;
            client.tcp("192.0.2.11:30156")?.answered_by("b3")?;
            client.udp("192.0.2.11:30156")?.answered_by("daemon")?;
            client.tcp("192.0.2.11:9100")?.answered_by("daemon")?;
        }
        cast.delete(&service)?;
        cast.soon_answered_by(&cast.client, "192.0.2.11:30155", "daemon")?;
        cast.soon_answered_by(cast.host(), "192.0.2.11:30156", "daemon")
    });
}
