//! semantics.md, "Frontends": where a service port is reachable from this node.

use anyhow::{Result, ensure};
use lab::{Cast, Dial, SharedLab, Transport, manifests};
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

/// Within this time every change of an object is in force.
const IN_FORCE: Duration = Duration::from_secs(2);

#[test]
fn cluster_ips_lead_to_every_backend_for_both_families_and_transports() {
    CAST.story(|cast| {
        cast.apply(&cast.service("all", "10.96.1.1").cluster_ip("fd00:96::1:1"))?;
        let pods = [&cast.b1, &cast.b2, &cast.b3];
        cast.apply(&cast.ready("all", &pods))?;
        cast.apply(&cast.slice("all-v6", "all").v6().ready_endpoints(pods))?;
        cast.settle()?;
        for client in cast.insiders() {
            for vip in ["10.96.1.1", "[fd00:96::1:1]"] {
                client
                    .many_tcp(&format!("{vip}:80"), 60)?
                    .only_by(&["b1", "b2", "b3"])?;
                client
                    .many_udp(&format!("{vip}:53"), 60)?
                    .only_by(&["b1", "b2", "b3"])?;
            }
        }
        Ok(())
    });
}

#[test]
fn backends_share_connections_evenly() {
    CAST.story(|cast| {
        cast.apply(&cast.service("even", "10.96.1.2"))?;
        cast.apply(&cast.ready("even", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        let counts = cast.client.many_tcp("10.96.1.2:80", 3000)?;
        counts.none_failed()?;
        // Uniform: the standard deviation of a share of 1000 is 26.
        counts.even_within(0.15)
    });
}

#[test]
fn a_cluster_ip_refuses_ports_that_its_service_does_not_define() {
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("ports", "10.96.1.3")
                .cluster_ip("fd00:96::1:3"),
        )?;
        cast.apply(&cast.ready("ports", &[&cast.b1]))?;
        cast.settle()?;
        for client in cast.insiders() {
            client.tcp("10.96.1.3:80")?.answered_by("b1")?;
            for vip in ["10.96.1.3", "[fd00:96::1:3]"] {
                client.tcp(&format!("{vip}:81"))?.refused()?;
                client.udp(&format!("{vip}:81"))?.refused()?;
                // The number exists, but in the other protocol.
                client.udp(&format!("{vip}:80"))?.refused()?;
                client.tcp(&format!("{vip}:53"))?.refused()?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_node_port_answers_on_every_address_of_its_node_but_on_no_other_node() {
    CAST.story(|cast| {
        let n1 = cast.node("n1");
        cast.apply(
            &manifests::service("np")
                .cluster_ip("10.96.1.4")
                .cluster_ip("fd00:96::1:4")
                .port("http", 80, 8080)
                .node_port(30104)
                .udp_port("dns", 53, 8080)
                .node_port(30105)
                .external_local(),
        )?;
        cast.apply(&cast.ready("np", &[&cast.b1]))?;
        cast.apply(&cast.slice("np-v6", "np").v6().ready_endpoints([&cast.b1]))?;
        // Reached only if nothing on n1 translates the address of another host.
        cast.switch()
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 30104)?;
        cast.settle()?;
        for client in cast.insiders() {
            client.tcp("192.0.2.11:30104")?.answered_by("b1")?;
            client.tcp("[2001:db8:2::11]:30104")?.answered_by("b1")?;
            client.udp("192.0.2.11:30105")?.answered_by("b1")?;
            client.udp("[2001:db8:2::11]:30105")?.answered_by("b1")?;
            // n2 has no endpoint of its own, and b1 would mean that n1 translated.
            cast.try_briefly(client, Transport::Tcp, "192.0.2.12:30104")?
                .unanswered()?;
            client.tcp("192.0.2.1:30104")?.answered_by("switch")?;
        }
        n1.host().ip("addr add 192.0.2.51/24 dev eth0")?;
        for client in cast.insiders() {
            cast.within(IN_FORCE, || {
                client.tcp("192.0.2.51:30104")?.answered_by("b1")
            })?;
        }
        n1.host().ip("addr del 192.0.2.51/24 dev eth0")?;
        cast.within(IN_FORCE, || {
            cast.try_briefly(&cast.client, Transport::Tcp, "192.0.2.51:30104")?
                .unanswered()
        })
    });
}

#[test]
fn localhost_node_ports_are_for_host_processes_only() {
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("local-np")
                .cluster_ip("10.96.1.5")
                .cluster_ip("fd00:96::1:5")
                .port("http", 80, 8080)
                .node_port(30106)
                .udp_port("dns", 53, 8080)
                .node_port(30107),
        )?;
        cast.apply(&cast.ready("local-np", &[&cast.b2]))?;
        cast.apply(
            &cast
                .slice("local-np-v6", "local-np")
                .v6()
                .ready_endpoints([&cast.b2]),
        )?;
        cast.settle()?;
        for loopback in ["127.0.0.1", "[::1]"] {
            cast.host()
                .tcp(&format!("{loopback}:30106"))?
                .answered_by("b2")?;
            cast.host()
                .udp(&format!("{loopback}:30107"))?
                .answered_by("b2")?;
            cast.client.tcp(&format!("{loopback}:30106"))?.refused()?;
            cast.client.udp(&format!("{loopback}:30107"))?.refused()?;
        }
        // A pod's own server on its loopback stays its own.
        let pod = cast.node("n1").pod("own-loopback")?;
        pod.listen(Transport::Tcp, Ipv4Addr::LOCALHOST.into(), 30106)?;
        pod.tcp("127.0.0.1:30106")?.answered_by("own-loopback")
    });
}

#[test]
fn load_balancer_ips_are_taken_unless_their_mode_is_proxy() {
    CAST.story(|cast| {
        // What this node does not take ends up at the switch.
        cast.switch().ip("addr add 198.51.100.23/32 dev br0")?;
        for transport in Transport::BOTH {
            cast.switch()
                .listen(transport, "198.51.100.23".parse()?, 80)?;
        }
        cast.apply(
            &cast
                .service("lb", "10.96.1.6")
                .cluster_ip("fd00:96::1:6")
                .lb_ip("198.51.100.21")
                .lb_ip_mode("198.51.100.22", "VIP")
                .lb_ip_mode("198.51.100.23", "Proxy")
                .lb_ip("2001:db8:100::21"),
        )?;
        cast.apply(&cast.ready("lb", &[&cast.b2]))?;
        cast.apply(&cast.slice("lb-v6", "lb").v6().ready_endpoints([&cast.b2]))?;
        cast.settle()?;
        for client in cast.insiders() {
            for vip in ["198.51.100.21", "198.51.100.22", "[2001:db8:100::21]"] {
                client.tcp(&format!("{vip}:80"))?.answered_by("b2")?;
                client.udp(&format!("{vip}:53"))?.answered_by("b2")?;
            }
            client.tcp("198.51.100.23:80")?.answered_by("switch")?;
        }
        Ok(())
    });
}

#[test]
fn ports_of_a_load_balancer_or_external_ip_that_no_service_owns_are_left_alone() {
    CAST.story(|cast| {
        for ip in ["198.51.100.24", "203.0.113.24"] {
            cast.switch().ip(&format!("addr add {ip}/32 dev br0"))?;
            for transport in Transport::BOTH {
                cast.switch().listen(transport, ip.parse()?, 9000)?;
            }
        }
        cast.apply(
            &cast
                .service("unowned", "10.96.1.7")
                .lb_ip("198.51.100.24")
                .external_ips(&["203.0.113.24"]),
        )?;
        cast.apply(&cast.ready("unowned", &[&cast.b3]))?;
        cast.settle()?;
        for client in cast.insiders() {
            for ip in ["198.51.100.24", "203.0.113.24"] {
                client.tcp(&format!("{ip}:80"))?.answered_by("b3")?;
                client.udp(&format!("{ip}:53"))?.answered_by("b3")?;
                for transport in Transport::BOTH {
                    client
                        .reach(transport, &format!("{ip}:9000"))?
                        .answered_by("switch")?;
                }
                // Nobody listens there: the switch itself refuses.
                client.tcp(&format!("{ip}:9001"))?.refused()?;
            }
        }
        Ok(())
    });
}

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
fn one_service_serves_tcp_and_udp_on_one_port() {
    // K22, the other half
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("dns")
                .cluster_ip("10.96.1.10")
                .udp_port("dns", 53, 8080)
                .port("dns-tcp", 53, 8080),
        )?;
        cast.apply(
            &manifests::slice("dns-u", "dns")
                .udp_port("dns", 8080)
                .ready_endpoints([&cast.b1]),
        )?;
        cast.apply(
            &manifests::slice("dns-t", "dns")
                .port("dns-tcp", 8080)
                .ready_endpoints([&cast.b2]),
        )?;
        cast.settle()?;
        cast.client
            .many_udp("10.96.1.10:53", 20)?
            .only_by(&["b1"])?;
        cast.client.many_tcp("10.96.1.10:53", 20)?.only_by(&["b2"])
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
        cast.within(IN_FORCE, || {
            cast.client.tcp("198.51.100.14:80")?.answered_by("b2")
        })
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
        cast.within(IN_FORCE, || {
            cast.client.tcp("192.0.2.11:30155")?.answered_by("daemon")
        })?;
        cast.within(IN_FORCE, || {
            cast.host().tcp("192.0.2.11:30156")?.answered_by("daemon")
        })
    });
}

#[test]
fn a_late_listener_may_bind_a_port_that_is_a_node_port() {
    // K85: the proxy reserves no ports; the other protocol stays free.
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("early")
                .cluster_ip("10.96.1.16")
                .port("http", 80, 8080)
                .node_port(30157),
        )?;
        cast.apply(
            &manifests::slice("early", "early")
                .port("http", 8080)
                .ready_endpoints([&cast.b1]),
        )?;
        cast.settle()?;
        let late = cast.node("n1").process("late")?;
        late.listen(Transport::Udp, Ipv4Addr::UNSPECIFIED.into(), 30157)?;
        late.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 30157)?;
        cast.client.udp("192.0.2.11:30157")?.answered_by("late")?;
        cast.client.tcp("192.0.2.11:30157")?.answered_by("b1")
    });
}

#[test]
fn a_connect_from_a_bound_source_keeps_that_source() {
    CAST.story(|cast| {
        cast.apply(&cast.service("bound", "10.96.1.17"))?;
        cast.apply(&cast.ready("bound", &[&cast.b2]))?;
        cast.settle()?;
        let from = format!("{}:45017", cast.client.v4());
        for (transport, to) in [
            (Transport::Tcp, "10.96.1.17:80"),
            (Transport::Udp, "10.96.1.17:53"),
        ] {
            let dial = Dial {
                from: Some(from.parse()?),
                ..Dial::new(transport, to.parse()?)
            };
            let outcome = cast.client.dial(dial)?;
            outcome.answered_by("b2")?;
            ensure!(
                outcome.seen_peer()? == from.parse()?,
                "{:?}",
                outcome.line()
            );
        }
        Ok(())
    });
}

#[test]
fn an_address_of_the_service_cidrs_that_no_service_has_is_not_sent_out() {
    CAST.story(|cast| {
        // Wherever a node sends it, the switch would answer.
        for (ip, length) in [("10.96.1.199", 32), ("fd00:96::1:199", 128)] {
            cast.switch()
                .ip(&format!("addr add {ip}/{length} dev br0"))?;
            for transport in Transport::BOTH {
                cast.switch().listen(transport, ip.parse()?, 80)?;
            }
        }
        let service = cast
            .service("assigned", "10.96.1.199")
            .cluster_ip("fd00:96::1:199");
        for client in cast.insiders() {
            for to in ["10.96.1.199:80", "[fd00:96::1:199]:80"] {
                for transport in Transport::BOTH {
                    cast.try_briefly(client, transport, to)?.unanswered()?;
                }
            }
        }
        cast.apply(&service)?;
        cast.apply(&cast.ready("assigned", &[&cast.b1]))?;
        cast.settle()?;
        cast.client.tcp("10.96.1.199:80")?.answered_by("b1")?;
        cast.delete(&service)?;
        cast.settle()?;
        cast.try_briefly(&cast.client, Transport::Tcp, "10.96.1.199:80")?
            .unanswered()
    });
}
