//! Identifiers that change hands, and what is left behind: rule 12.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join};
use anyhow::Result;
use lab::manifests::{Service, service};
use lab::{BACKEND_PORT, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = changing_hands();
    rows.extend(left_behind());
    rows
}

fn changing_hands() -> Vec<Row> {
    vec![
        Row::new(
            12,
            "cluster-ip-and-node-port-change-hands",
            "a ClusterIP and NodePort that a new Service takes over at once lead to its endpoints only",
            "kubernetes e2e \"should work after the service has been recreated\", \"should release NodePorts on delete\"",
            Fault::SuccessorsLost,
            numbers_change_hands,
        )
        .cases(&["K32"]),
        Row::new(
            12,
            "shared-address-swaps-ports",
            "two Services that share a LoadBalancer IP and swap their ports lead to their own endpoints",
            "API LoadBalancerStatus.ingress, ServicePort.port",
            Fault::ChangesLost,
            ports_are_swapped,
        )
        .cases(&["K32"]),
        Row::new(
            12,
            "external-ip-changes-hands",
            "an externalIP that one Service takes before the other lets it go is the taker's in the end",
            "API ServiceSpec.externalIPs",
            Fault::ChangesLost,
            external_ip_changes_hands,
        )
        .cases(&["K32"]),
        Row::new(
            12,
            "service-recreated-elsewhere",
            "a Service that is deleted and created with another ClusterIP serves there, and no longer at the old one",
            "kubernetes e2e \"should work after the service has been recreated\"",
            Fault::SuccessorsLost,
            recreated_elsewhere,
        )
        .cases(&["K32"]),
        Row::new(
            12,
            "everything-changes-hands-in-one-burst",
            "a proxy that slept while identifiers changed hands follows the last state",
            "API objects are level-triggered: the last state counts",
            Fault::SuccessorsLost,
            one_burst,
        )
        .cases(&["K32"])
        .alone(),
    ]
}

fn left_behind() -> Vec<Row> {
    vec![
        Row::new(
            12,
            "frontends-go-with-the-type",
            "from LoadBalancer to NodePort to ClusterIP to nothing, each step leaves the present frontends only",
            "kubernetes e2e \"should be able to change the type and ports of a TCP service\"; API ServiceSpec.type",
            Fault::ChangesLost,
            frontends_go_with_the_type,
        )
        .cases(&["K34"]),
        Row::new(
            12,
            "frontends-go-with-the-type-outside",
            "the same steps, for outside clients",
            "kubernetes e2e \"should be able to change the type and ports of a TCP service\"; API ServiceSpec.type",
            Fault::ChangesLost,
            frontends_go_outside,
        )
        .cases(&["K34"]),
        Row::new(
            12,
            "ports-are-edited",
            "a Service whose port and NodePort change serves at the new ones and no longer at the old ones",
            "kubernetes e2e \"should be able to change the type and ports of a TCP service\"",
            Fault::ChangesLost,
            ports_are_edited,
        )
        .cases(&["K34"]),
        Row::new(
            8,
            "node-port-borrows-the-port-of-a-process",
            "a NodePort has the traffic of a host process's port, of its protocol only, until it is deleted",
            "kpng doc/service-proxy.md: nothing keeps processes and NodePorts apart",
            Fault::TypeIgnored,
            borrows_the_port,
        )
        .cases(&["K85"]),
        Row::new(
            8,
            "node-port-borrows-the-port-of-a-process-outside",
            "the same for outside clients",
            "kpng doc/service-proxy.md: nothing keeps processes and NodePorts apart",
            Fault::TypeIgnored,
            borrows_the_port_outside,
        )
        .cases(&["K85"]),
    ]
}

fn numbers_change_hands(s: &Stage<'_>) -> Result<()> {
    let old = s.node_port_service("old");
    s.apply(&old)?;
    s.apply(&s.ready("old", &[&s.world.b1]))?;
    s.apply(&s.ready("new", &[&s.world.b2]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.delete(&old)?;
    s.apply(&s.node_port_service("new"))?;
    new_owner(s)
}

/// What was `old`'s is `new`'s.
fn new_owner(s: &Stage<'_>) -> Result<()> {
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
            s.only(client, transport, &s.node_port("n1"), &["b2"])?;
        }
    }
    Ok(())
}

/// Service `red` or `blue` at a port of the row's LoadBalancer IP.
fn coloured(s: &Stage<'_>, name: &str, cluster_ip: &str, port: u16) -> Service {
    service(name)
        .cluster_ip(cluster_ip)
        .port("http", port, BACKEND_PORT)
        .udp_port("udp", port, BACKEND_PORT)
        .lb_ip(&s.own.lb_ip(s.family))
        .field("allocateLoadBalancerNodePorts", json!(false))
}

fn ports_are_swapped(s: &Stage<'_>) -> Result<()> {
    let ips = [s.world.numbers(), s.world.numbers()].map(|it| it.cluster_ip(s.family));
    s.apply(&s.ready("red", &[&s.world.b1]))?;
    s.apply(&s.ready("blue", &[&s.world.b2]))?;
    for [red, blue] in [[8010, 8020], [8020, 8010]] {
        s.apply(&coloured(s, "red", &ips[0], red))?;
        s.apply(&coloured(s, "blue", &ips[1], blue))?;
        for client in [&s.pod1, &s.host1] {
            for transport in Transport::BOTH {
                let at = |port| join(&s.own.lb_ip(s.family), port);
                s.only(client, transport, &at(red), &["b1"])?;
                s.only(client, transport, &at(blue), &["b2"])?;
            }
        }
    }
    Ok(())
}

fn external_ip_changes_hands(s: &Stage<'_>) -> Result<()> {
    let other = s.world.numbers();
    let ip = s.own.external_ip(s.family);
    let (red, blue) = (s.service("red"), s.service_at("blue", &other));
    s.apply(&s.ready("red", &[&s.world.b1]))?;
    s.apply(&s.ready("blue", &[&s.world.b2]))?;
    s.apply(&red.clone().external_ips(&[&ip]))?;
    s.apply(&blue)?;
    s.only(&s.pod1, Transport::Tcp, &s.external_ip(), &["b1"])?;
    s.apply(&blue.clone().external_ips(&[&ip]))?;
    s.apply(&red)?;
    for client in [&s.pod1, &s.host1] {
        for transport in Transport::BOTH {
            s.only(client, transport, &s.external_ip(), &["b2"])?;
        }
    }
    // And back, the other way round.
    s.apply(&blue)?;
    s.apply(&red.external_ips(&[&ip]))?;
    s.only(&s.pod1, Transport::Tcp, &s.external_ip(), &["b1"])
}

fn recreated_elsewhere(s: &Stage<'_>) -> Result<()> {
    let other = s.world.numbers();
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.delete(&s.service("web"))?;
    s.apply(&s.service_at("web", &other))?;
    for client in [&s.pod1, &s.host1] {
        for transport in Transport::BOTH {
            s.only(client, transport, &s.cluster_ip_of(&other), &["b1"])?;
        }
    }
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn one_burst(s: &Stage<'_>) -> Result<()> {
    let ips = [s.world.numbers(), s.world.numbers()].map(|it| it.cluster_ip(s.family));
    let old = s.node_port_service("old");
    s.apply(&old)?;
    s.apply(&coloured(s, "red", &ips[0], 8010))?;
    s.apply(&coloured(s, "blue", &ips[1], 8020))?;
    for (name, backend) in [
        ("old", &s.world.b1),
        ("new", &s.world.b2),
        ("red", &s.world.b1),
        ("blue", &s.world.b2),
    ] {
        s.apply(&s.ready(name, &[backend]))?;
    }
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.world.while_asleep(|| {
        s.delete(&old)?;
        s.apply(&s.node_port_service("new"))?;
        s.apply(&coloured(s, "red", &ips[0], 8020))?;
        s.apply(&coloured(s, "blue", &ips[1], 8010))
    })?;
    new_owner(s)?;
    let at = |port| join(&s.own.lb_ip(s.family), port);
    s.only(&s.pod1, Transport::Tcp, &at(8020), &["b1"])?;
    s.only(&s.pod1, Transport::Tcp, &at(8010), &["b2"])
}

fn frontends_go_with_the_type(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.lb_ip(s.family))?;
    // Who has the NodePort when no Service has it.
    let _listener = s.listener(&s.host1, &s.node_address("n1"), s.own.node_port())?;
    let process = s.host1.name();
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for (object, at_lb_ip, at_node_port) in [
        (s.load_balancer("web"), "b1", "b1"),
        (s.node_port_service("web"), "switch", "b1"),
        (s.service("web"), "switch", process),
    ] {
        s.apply(&object)?;
        for transport in Transport::BOTH {
            s.only(&s.pod1, transport, &s.lb_ip(), &[at_lb_ip])?;
            s.only(&s.pod1, transport, &s.node_port("n1"), &[at_node_port])?;
            s.only(&s.host1, transport, &s.cluster_ip(), &["b1"])?;
        }
    }
    s.delete(&s.service("web"))?;
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn frontends_go_outside(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.lb_ip(s.family))?;
    let _listener = s.listener(&s.host1, &s.node_address("n1"), s.own.node_port())?;
    let process = s.host1.name();
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for (object, at_lb_ip, at_node_port) in [
        (s.load_balancer("web"), "b1", "b1"),
        (s.node_port_service("web"), "switch", "b1"),
        (s.service("web"), "switch", process),
    ] {
        s.apply(&object)?;
        s.only(&s.c1, Transport::Udp, &s.lb_ip(), &[at_lb_ip])?;
        for transport in Transport::BOTH {
            s.only(&s.c1, transport, &s.node_port("n1"), &[at_node_port])?;
        }
    }
    Ok(())
}

fn ports_are_edited(s: &Stage<'_>) -> Result<()> {
    let second = s.world.numbers().node_port();
    let _listener = s.listener(&s.host1, &s.node_address("n1"), s.own.node_port())?;
    let at = |port: u16, node_port: u16| {
        service("web")
            .cluster_ip(&s.own.cluster_ip(s.family))
            .port("http", port, BACKEND_PORT)
            .node_port(node_port)
            .udp_port("udp", port, BACKEND_PORT)
            .node_port(node_port)
    };
    let cluster_ip = |port| join(&s.own.cluster_ip(s.family), port);
    s.apply(&at(80, s.own.node_port()))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.node_port("n1"), &["b1"])?;
    s.apply(&at(81, second))?;
    for transport in Transport::BOTH {
        let new = join(&s.node_address("n1"), second);
        s.only(&s.pod1, transport, &new, &["b1"])?;
        s.only(&s.pod1, transport, &cluster_ip(81), &["b1"])?;
        s.only(&s.pod1, transport, &s.node_port("n1"), &[s.host1.name()])?;
    }
    s.unanswered(&s.pod1, Transport::Tcp, &cluster_ip(80))
}

/// A TCP NodePort and no UDP one.
fn tcp_node_port(s: &Stage<'_>) -> Service {
    service("web")
        .cluster_ip(&s.own.cluster_ip(s.family))
        .port("http", 80, BACKEND_PORT)
        .node_port(s.own.node_port())
}

fn borrows_the_port(s: &Stage<'_>) -> Result<()> {
    borrowed(s, &[&s.pod1, &s.host1])
}

fn borrows_the_port_outside(s: &Stage<'_>) -> Result<()> {
    borrowed(s, &[&s.c1, &s.host2])
}

fn borrowed(s: &Stage<'_>, clients: &[&lab::Peer]) -> Result<()> {
    let process = s.host1.name();
    let _listener = s.listener(&s.host1, &s.node_address("n1"), s.own.node_port())?;
    let reached = |transport, who: &str| {
        clients
            .iter()
            .try_for_each(|client| s.only(client, transport, &s.node_port("n1"), &[who]))
    };
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    reached(Transport::Tcp, process)?;
    s.apply(&tcp_node_port(s))?;
    reached(Transport::Tcp, "b2")?;
    reached(Transport::Udp, process)?;
    s.delete(&tcp_node_port(s))?;
    reached(Transport::Tcp, process)
}
