//! semantics.md, "Frontends": where a service port is reachable from this node.

use anyhow::{Context, Result, ensure};
use lab::{Cast, Dial, SharedLab, Transport, manifests};
use serde_json::Value;
use std::net::Ipv4Addr;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

#[test]
fn cluster_ips_lead_to_every_backend_for_both_families_and_transports() {
    CAST.story(|cast| {
        cast.apply(&cast.service("all", "10.96.1.1").cluster_ip("fd00:96::1001"))?;
        let pods = [&cast.b1, &cast.b2, &cast.b3];
        cast.apply(&cast.ready("all", &pods))?;
        cast.apply(&cast.slice("all-v6", "all").v6().ready_endpoints(pods))?;
        cast.settle()?;
        for client in cast.insiders() {
            for vip in ["10.96.1.1", "[fd00:96::1001]"] {
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
                .cluster_ip("fd00:96::1003"),
        )?;
        cast.apply(&cast.ready("ports", &[&cast.b1]))?;
        cast.settle()?;
        for client in cast.insiders() {
            client.tcp("10.96.1.3:80")?.answered_by("b1")?;
            for vip in ["10.96.1.3", "[fd00:96::1003]"] {
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
                .cluster_ip("fd00:96::1004")
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
            cast.soon_answered_by(client, "192.0.2.51:30104", "b1")?;
        }
        n1.host().ip("addr del 192.0.2.51/24 dev eth0")?;
        cast.soon_gone(&cast.client, "192.0.2.51:30104")
    });
}

#[test]
fn localhost_node_ports_are_for_host_processes_only() {
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("local-np")
                .cluster_ip("10.96.1.5")
                .cluster_ip("fd00:96::1005")
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
                .cluster_ip("fd00:96::1006")
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
        for (ip, options) in [("10.96.1.199", ""), ("fd00:96::1199", "nodad")] {
            cast.switch()
                .ip(&format!("addr add {ip} dev br0 {options}"))?;
            for transport in Transport::BOTH {
                cast.switch().listen(transport, ip.parse()?, 80)?;
            }
        }
        let service = cast
            .service("assigned", "10.96.1.199")
            .cluster_ip("fd00:96::1199");
        for client in cast.insiders() {
            for to in ["10.96.1.199:80", "[fd00:96::1199]:80"] {
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

/// What `fairlead COMMAND -o json` prints on a node.
fn json(cast: &Cast, node: &str, command: &[&str]) -> Result<Vec<Value>> {
    let text = cast
        .node(node)
        .fairlead(&[command, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text)
}

/// The frontends of a service port for clients outside, as `kind backends`, sorted.
fn outside(cast: &Cast, port: &str) -> Result<Vec<String>> {
    let ports = json(cast, "n1", &["services"])?;
    let found = ports.iter().find(|it| it["name"] == port);
    let frontends = found.and_then(|it| it["frontends"].as_array());
    let external = frontends
        .with_context(|| format!("no {port}"))?
        .iter()
        .filter(|it| it["scope"] == "external");
    let mut lines: Vec<String> = external
        .map(|it| {
            let backends = it["backends"].as_array().map_or(0, Vec::len);
            format!("{} {backends}", it["kind"].as_str().unwrap_or_default())
        })
        .collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn each_kind_of_frontend_is_there_for_clients_outside_with_its_own_policy() {
    CAST.story(|cast| {
        let everything = cast
            .service("outside", "10.96.1.30")
            .node_port(30130)
            .lb_ip("198.51.100.130")
            .external_ips(&["203.0.113.130"]);
        let only_inside = cast
            .service("cluster-ip-only", "10.96.1.31")
            .internal_local();
        for (name, service) in [("outside", &everything), ("cluster-ip-only", &only_inside)] {
            cast.apply(service)?;
            cast.apply(&cast.ready(name, &[&cast.b1, &cast.b2, &cast.b3]))?;
        }
        cast.settle()?;
        let got = outside(cast, "default/outside:dns")?;
        ensure!(
            got == [
                "ClusterIP 3",
                "ExternalIP 3",
                "LoadBalancer 3",
                "NodePort 3"
            ],
            "{got:?}"
        );
        // Clients that route to a ClusterIP are bound by the internal policy.
        let got = outside(cast, "default/cluster-ip-only:http")?;
        ensure!(got.len() == 1 && got[0].as_str() < "ClusterIP 3", "{got:?}");
        let dump = cast.node("n1").dump_map("frontends")?;
        for text in ["\"External\"", "\"Internal\""] {
            ensure!(dump.contains(text), "{dump}");
        }
        cast.apply(&everything.external_local())?;
        cast.settle()?;
        let got = outside(cast, "default/outside:dns")?;
        let local = got.iter().filter(|it| !it.ends_with(" 3")).count();
        ensure!(local == 3 && got[0] == "ClusterIP 3", "{got:?}");
        Ok(())
    });
}

#[test]
fn every_node_has_the_same_maglev_tables_and_a_cluster_ip_none() {
    CAST.story(|cast| {
        let service = cast.service("maglev", "10.96.1.32").node_port(30132);
        cast.apply(&service)?;
        cast.apply(&cast.ready("maglev", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        let backend = format!("{}:8080", cast.b3.v4());
        let command = ["tables", "default/maglev:dns", "--without", &backend];
        let tables = ["n1", "n2"].map(|node| json(cast, node, &command));
        let [one, other] = tables;
        let (one, other) = (one?, other?);
        ensure!(one == other, "{one:?}\n{other:?}");
        let maglev: Vec<&Value> = one.iter().filter(|it| it["form"] == "maglev").collect();
        ensure!(maglev.len() == 1, "{one:?}");
        ensure!(maglev[0]["size"] == 2039, "{one:?}");
        let moved = maglev[0]["without"]["moved_percent"].as_f64();
        ensure!(
            moved.is_some_and(|it| (33.0..45.0).contains(&it)),
            "{one:?}"
        );
        let plain = json(cast, "n1", &["tables", "default/maglev:http"])?;
        ensure!(plain.iter().all(|it| it["form"] == "list"), "{plain:?}");
        let shown = cast
            .node("n1")
            .fairlead(&["tables", "default/maglev:dns"])?;
        ensure!(shown.contains(&backend), "{shown}");
        cast.node("n1").fairlead(&["services"]).map(drop)
    });
}
