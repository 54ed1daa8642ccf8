//! Health check node ports (semantics 31, case K20) as nodes, addresses and other
//! processes change; what they answer is in the conformance suite.

use anyhow::{Context, Result, ensure};
use lab::manifests::{Service, Slice, service, slice};
use lab::{HEALTHZ, Lab, Node, Peer, Transport, story};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// A load balancer's Service with this health check port.
fn balanced(name: &str, cluster_ip: &str, health_port: u16) -> Service {
    service(name)
        .cluster_ip(cluster_ip)
        .cluster_ip(&cluster_ip.replace("10.96.", "fd00:96::").replace('.', ""))
        .port("http", 80, 8080)
        .lb_ip("198.51.100.161")
        .external_local()
        .field("healthCheckNodePort", health_port.into())
}

fn ready(service: &str, pod: &Peer) -> Slice {
    slice(service, service)
        .port("http", 8080)
        .ready_endpoints([pod])
}

/// One node whose agent runs with these flags.
fn node_with(flags: &'static [&'static str]) -> impl FnOnce() -> Result<Lab> {
    move || {
        let lab = Lab::new(1)?;
        lab.agent_flags(flags.iter().copied());
        Ok(lab)
    }
}

/// A health check port answers so, for this Service.
fn tells(from: &Peer, at: &str, service: &str, status: u16) -> Result<()> {
    let answer = from.http_get(&format!("http://{at}/"))?;
    ensure!(answer.status == status, "{at}: {answer:?}");
    let body: Value = serde_json::from_str(&answer.body)?;
    ensure!(body["service"]["name"] == service, "{at}: {body}");
    Ok(())
}

/// Nobody listens there.
fn closed(from: &Peer, at: &str) -> Result<()> {
    from.tcp(at)?.refused()
}

/// How many sockets the agent says that it has for health checks.
fn open_sockets(node: &Node) -> Result<u32> {
    let metrics = node.metrics()?;
    let name = r#"fairlead_health_check_sockets{state="open"} "#;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.context("no such metric")?.parse().context("a number")
}

#[test]
fn ports_are_on_every_address_of_the_node_by_default() {
    story(node_with(&[]), |lab| {
        let n1 = lab.node("n1");
        let (backend, client) = (n1.pod("b1")?.serve(8080)?, n1.pod("client")?);
        lab.apply(&balanced("web", "10.96.16.1", 31601))?;
        lab.apply(&ready("web", &backend))?;
        lab.start_agents()?;
        // As in the documentation of Kubernetes: `curl localhost:<port>`.
        for at in ["192.0.2.11:31601", "127.0.0.1:31601"] {
            tells(n1.host(), at, "web", 200)?;
        }
        // There is no endpoint of IPv6.
        for at in ["[2001:db8:2::11]:31601", "[::1]:31601"] {
            tells(n1.host(), at, "web", 503)?;
        }
        tells(&client, "192.0.2.11:31601", "web", 200)?;
        n1.host().ip("addr add 192.0.2.61/24 dev eth0")?;
        lab.eventually(|| tells(&client, "192.0.2.61:31601", "web", 200))
    });
}

#[test]
fn ports_follow_the_addresses_that_serve_node_ports() {
    let flags = &["--nodeport-addresses", "192.0.2.0/24,10.50.0.0/16"];
    story(node_with(flags), |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        lab.apply(&balanced("web", "10.96.16.1", 31602))?;
        lab.apply(&ready("web", &backend))?;
        lab.start_agents()?;
        let host = n1.host();
        tells(host, "192.0.2.11:31602", "web", 200)?;
        for at in ["127.0.0.1:31602", "[2001:db8:2::11]:31602"] {
            closed(host, at)?;
        }
        host.ip("addr add 10.50.0.11/32 dev lo")?;
        host.ip("addr add 198.18.0.11/32 dev lo")?;
        lab.eventually(|| tells(host, "10.50.0.11:31602", "web", 200))?;
        closed(host, "198.18.0.11:31602")?;
        // A process that comes later finds the port free where it is not ours.
        let daemon = n1.process("daemon")?;
        daemon.listen(Transport::Tcp, Ipv4Addr::new(198, 18, 0, 11).into(), 31602)?;
        ensure!(open_sockets(n1)? == 2);
        host.ip("addr del 10.50.0.11/32 dev lo")?;
        lab.eventually(|| {
            ensure!(open_sockets(n1)? == 1);
            Ok(())
        })?;
        tells(host, "192.0.2.11:31602", "web", 200)
    });
}

#[test]
fn ports_and_node_ports_follow_the_addresses_of_the_node_object() {
    story(node_with(&["--nodeport-addresses", "primary"]), |lab| {
        let n1 = lab.node("n1");
        let host = n1.host();
        let (backend, client) = (n1.pod("b1")?.serve(8080)?, n1.pod("client")?);
        host.ip("addr add 192.0.2.61/24 dev eth0")?;
        lab.apply(&balanced("web", "10.96.16.1", 31603).node_port(30603))?;
        lab.apply(&ready("web", &backend))?;
        lab.start_agents()?;
        tells(host, "192.0.2.11:31603", "web", 200)?;
        closed(host, "192.0.2.61:31603")?;
        client.tcp("192.0.2.11:30603")?.answered_by("b1")?;
        let node = lab::manifests::node("n1").zone("za");
        lab.apply(&node.internal_ip("192.0.2.61"))?;
        lab.eventually(|| tells(host, "192.0.2.61:31603", "web", 200))?;
        lab.eventually(|| closed(host, "192.0.2.11:31603"))?;
        client.tcp("192.0.2.61:30603")?.answered_by("b1")?;
        client.tcp("192.0.2.11:30603")?.unanswered()
    });
}

#[test]
fn a_port_that_is_taken_harms_nobody_else_and_is_opened_once_it_is_free() {
    story(node_with(&[]), |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        let daemon = n1.process("daemon")?;
        daemon.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 31604)?;
        for (name, ip, port) in [("web", "10.96.16.1", 31604), ("api", "10.96.16.2", 31605)] {
            let frontend = format!("198.51.100.{}", port - 31500);
            let object = balanced(name, ip, port).without_ingress().lb_ip(&frontend);
            lab.apply(&object)?;
            lab.apply(&ready(name, &backend))?;
        }
        lab.start_agents()?;
        let host = n1.host();
        tells(host, "192.0.2.11:31605", "api", 200)?;
        host.tcp("10.96.16.1:80")?.answered_by("b1")?;
        host.tcp("192.0.2.11:31604")?.answered_by("daemon")?;
        lab.eventually(|| {
            let metrics = n1.metrics()?;
            for line in [
                r#"fairlead_rejected_objects_total{reason="HealthCheckPortTaken"} 1"#,
                r#"fairlead_health_check_sockets{state="failed"} 1"#,
            ] {
                ensure!(metrics.lines().any(|it| it == line), "no {line}: {metrics}");
            }
            // All but that of IPv4.
            ensure!(open_sockets(n1)? == 3);
            Ok(())
        })?;
        let log = std::fs::read_to_string(n1.log())?;
        ensure!(log.contains("spec.healthCheckNodePort 31604"), "{log}");
        let healthz = host.http_get(&format!("http://{HEALTHZ}/healthz"))?;
        ensure!(healthz.status == 200, "{healthz:?}");
        drop(daemon);
        lab.eventually(|| tells(host, "192.0.2.11:31604", "web", 200))
    });
}

#[test]
fn ports_come_back_with_a_new_agent() {
    story(node_with(&[]), |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        lab.apply(&balanced("web", "10.96.16.1", 31606))?;
        lab.apply(&ready("web", &backend))?;
        lab.start_agents()?;
        for _ in 0..3 {
            // The agent closes this connection, which then lingers on its side.
            tells(n1.host(), "192.0.2.11:31606", "web", 200)?;
            n1.kill_agent()?;
            closed(n1.host(), "192.0.2.11:31606")?;
            lab.start_agents()?;
            lab.settle()?;
        }
        tells(n1.host(), "192.0.2.11:31606", "web", 200)?;
        n1.terminate_agent()?;
        closed(n1.host(), "192.0.2.11:31606")
    });
}

#[test]
fn ports_can_be_left_to_a_kube_proxy() {
    story(node_with(&["--health-check-node-ports=false"]), |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        lab.apply(&balanced("web", "10.96.16.1", 31607))?;
        lab.apply(&ready("web", &backend))?;
        lab.start_agents()?;
        n1.host().tcp("198.51.100.161:80")?.answered_by("b1")?;
        closed(n1.host(), "192.0.2.11:31607")?;
        n1.process("kube-proxy")?
            .listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 31607)
    });
}

#[test]
fn hundreds_of_ports_answer_each_for_its_own_service() {
    const SERVICES: u16 = 400;
    story(node_with(&[]), |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        let name = |number: u16| format!("web-{number}");
        let of_number = |number: u16| {
            let ip = format!("10.96.17.{}", number % 250 + 1);
            let port = 31000 + number;
            service(&name(number))
                .cluster_ip(&ip)
                .port("http", 1000 + number, 8080)
                .of_type("LoadBalancer")
                .external_local()
                .field("healthCheckNodePort", json!(port))
        };
        for number in 0..SERVICES {
            lab.apply(&of_number(number))?;
            if number % 2 == 0 {
                lab.apply(&ready(&name(number), &backend))?;
            }
        }
        lab.start_agents()?;
        for number in 0..SERVICES {
            let status = if number % 2 == 0 { 200 } else { 503 };
            let at = format!("192.0.2.11:{}", 31000 + number);
            tells(n1.host(), &at, &name(number), status)?;
        }
        for number in 0..SERVICES {
            lab.delete(&of_number(number))?;
        }
        lab.settle()?;
        for number in 0..SERVICES {
            closed(n1.host(), &format!("192.0.2.11:{}", 31000 + number))?;
        }
        ensure!(open_sockets(n1)? == 0);
        Ok(())
    });
}
