//! LoadBalancer IPs and externalIPs, and what of them is nobody's: rules 9 to 11.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join};
use anyhow::Result;
use lab::manifests::Service;
use lab::{SWITCH_PORT, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = load_balancers();
    rows.extend(external_ips());
    rows.extend(unowned());
    rows
}

fn load_balancers() -> Vec<Row> {
    vec![
        Row::new(
            9,
            "load-balancer-ips-serve-insiders",
            "LoadBalancer IPs without ipMode and with VIP lead pods and host processes to all endpoints",
            "API LoadBalancerIngress.ip, ipMode; KEP-1860",
            Fault::StatusIgnored,
            load_balancer_inside,
        ),
        Row::new(
            9,
            "load-balancer-ips-serve-outside-clients",
            "LoadBalancer IPs without ipMode and with VIP lead outside clients to all endpoints",
            "API LoadBalancerIngress.ip, ipMode; KEP-1860",
            Fault::StatusIgnored,
            load_balancer_outside,
        ),
        Row::new(
            9,
            "load-balancer-ip-of-mode-proxy-is-left-alone",
            "a LoadBalancer IP of mode Proxy is taken by no node, from inside and from outside",
            "API LoadBalancerIngress.ipMode; KEP-1860",
            Fault::IpModeIgnored,
            mode_proxy,
        ),
        Row::new(
            9,
            "load-balancer-ip-follows-the-status",
            "of a LoadBalancer IP that changes the new one is served and the old one let go",
            "API LoadBalancerStatus.ingress",
            Fault::ChangesLost,
            follows_the_status,
        )
        .cases(&["K34"]),
        Row::new(
            9,
            "load-balancer-known-by-hostname",
            "a load balancer that has a hostname only leaves the ClusterIP served; an IP that comes later counts",
            "API LoadBalancerIngress.hostname; ServiceSpec.allocateLoadBalancerNodePorts",
            Fault::StatusIgnored,
            hostname_only,
        )
        .cases(&["K42"]),
        Row::new(
            9,
            "no-node-port-is-no-port",
            "a LoadBalancer without NodePorts is served at its IP, and port 0 of the nodes is nobody's",
            "API ServiceSpec.allocateLoadBalancerNodePorts; ServicePort.nodePort",
            Fault::StatusIgnored,
            without_node_ports,
        )
        .cases(&["K42"]),
    ]
}

fn external_ips() -> Vec<Row> {
    vec![
        Row::new(
            10,
            "external-ips-serve-insiders",
            "externalIPs that no interface has lead pods and host processes to all endpoints",
            "API ServiceSpec.externalIPs",
            Fault::FieldIgnored("externalIPs"),
            external_ip_inside,
        ),
        Row::new(
            10,
            "external-ips-serve-outside-clients",
            "externalIPs that no interface has lead outside clients to all endpoints",
            "API ServiceSpec.externalIPs; kubernetes e2e \"should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node\"",
            Fault::FieldIgnored("externalIPs"),
            external_ip_outside,
        ),
        Row::new(
            10,
            "external-ip-may-be-a-nodes-address",
            "an externalIP that is a node's own address leads pods and host processes of the node to all endpoints",
            "API ServiceSpec.externalIPs",
            Fault::FieldIgnored("externalIPs"),
            node_address_inside,
        ),
        Row::new(
            10,
            "external-ip-may-be-a-nodes-address-outside",
            "an externalIP that is a node's own address leads outside clients to all endpoints",
            "API ServiceSpec.externalIPs",
            Fault::FieldIgnored("externalIPs"),
            node_address_outside,
        ),
        Row::new(
            10,
            "external-ips-follow-the-spec",
            "of externalIPs that change the new ones are served and the old ones let go",
            "API ServiceSpec.externalIPs",
            Fault::ChangesLost,
            external_ips_follow,
        )
        .cases(&["K34"]),
        Row::new(
            10,
            "external-ips-can-be-turned-off",
            "with externalIPs turned off traffic to them is left alone",
            "KEP-5707; CVE-2020-8554",
            Fault::OptionsIgnored,
            external_ips_off,
        )
        .alone()
        .once(),
    ]
}

fn unowned() -> Vec<Row> {
    vec![
        Row::new(
            11,
            "unowned-ports-of-external-addresses-are-left-alone",
            "a port of a LoadBalancer IP or externalIP that no Service owns is left to the network",
            "kpng doc/service-proxy.md: a port not associated with a Service is not intercepted",
            Fault::MorePorts,
            unowned_ports,
        )
        .cases(&["K44"]),
        Row::new(
            11,
            "unowned-ports-reach-the-host-that-has-the-address",
            "a node that has a LoadBalancer IP itself answers at its other ports, or refuses",
            "kpng doc/service-proxy.md: a port not associated with a Service is not intercepted",
            Fault::MorePorts,
            address_of_the_host,
        )
        .cases(&["K44"]),
        Row::new(
            11,
            "ping-to-a-frontend-is-left-alone",
            "an echo request to a LoadBalancer IP is answered by whoever has the address",
            "kpng doc/service-proxy.md: no other traffic to a VIP is intercepted",
            Fault::PingsLost,
            ping,
        )
        .cases(&["K44"]),
    ]
}

/// A Service with two LoadBalancer IPs, and where they are.
fn with_both_modes(s: &Stage<'_>) -> Result<[String; 2]> {
    let second = s.world.numbers().lb_ip(s.family);
    s.apply(&s.load_balancer("web").lb_ip_mode(&second, "VIP"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    Ok([s.lb_ip(), join(&second, 80)])
}

fn load_balancer_inside(s: &Stage<'_>) -> Result<()> {
    for to in with_both_modes(s)? {
        for transport in Transport::BOTH {
            for client in [&s.pod1, &s.host1, &s.host3] {
                s.only(client, transport, &to, &["b1", "b2"])?;
            }
        }
    }
    Ok(())
}

fn load_balancer_outside(s: &Stage<'_>) -> Result<()> {
    for to in with_both_modes(s)? {
        for transport in Transport::BOTH {
            for client in [&s.c1, &s.c2] {
                s.only(client, transport, &to, &["b1", "b2"])?;
            }
        }
    }
    Ok(())
}

/// What is sent here reaches the switch. From outside UDP must do: the answer
/// passes by the node, and a node's conntrack drops half a TCP connection.
fn left_alone(s: &Stage<'_>, to: &str) -> Result<()> {
    for client in [&s.pod1, &s.host1] {
        for transport in Transport::BOTH {
            s.only(client, transport, to, &["switch"])?;
        }
    }
    s.only(&s.c1, Transport::Udp, to, &["switch"])
}

fn mode_proxy(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.lb_ip(s.family);
    let _switch = s.played_by_switch(&ip)?;
    s.apply(&s.node_port_service("web").lb_ip_mode(&ip, "Proxy"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    left_alone(s, &s.lb_ip())?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])
}

fn follows_the_status(s: &Stage<'_>) -> Result<()> {
    let second = s.world.numbers().lb_ip(s.family);
    let _switch = [
        s.played_by_switch(&s.own.lb_ip(s.family))?,
        s.played_by_switch(&second)?,
    ];
    let (first, second_port) = (s.lb_ip(), join(&second, 80));
    s.apply(&s.load_balancer("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &first, &["b1"])?;
        s.only(&s.pod1, transport, &second_port, &["switch"])?;
    }
    s.apply(&s.node_port_service("web").lb_ip(&second))?;
    s.only(&s.host1, Transport::Tcp, &second_port, &["b1"])?;
    left_alone(s, &first)?;
    s.apply(&s.load_balancer("web").without_ingress())?;
    left_alone(s, &second_port)?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])
}

/// A LoadBalancer Service that has no NodePort.
fn without_node_port(s: &Stage<'_>) -> Service {
    s.service("web")
        .of_type("LoadBalancer")
        .field("allocateLoadBalancerNodePorts", json!(false))
}

fn hostname_only(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.lb_ip(s.family);
    let _switch = s.played_by_switch(&ip)?;
    let named = without_node_port(s).ingress(json!({ "hostname": "lb.example.test" }));
    s.apply(&named)?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    left_alone(s, &s.lb_ip())?;
    s.apply(&named.lb_ip(&ip))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.lb_ip(), &["b1"])?;
    }
    Ok(())
}

fn without_node_ports(s: &Stage<'_>) -> Result<()> {
    s.apply(&without_node_port(s).lb_ip(&s.own.lb_ip(s.family)))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let no_port = join(&s.node_address("n1"), 0);
    for client in [&s.pod1, &s.host1] {
        s.only(client, Transport::Tcp, &s.lb_ip(), &["b1"])?;
        s.unanswered(client, Transport::Tcp, &no_port)?;
    }
    s.refused(&s.c1, Transport::Tcp, &no_port)
}

fn with_external_ip(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.external_ip(s.family);
    s.apply(&s.service("web").external_ips(&[&ip]))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))
}

fn external_ip_inside(s: &Stage<'_>) -> Result<()> {
    with_external_ip(s)?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.host3] {
            s.only(client, transport, &s.external_ip(), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn external_ip_outside(s: &Stage<'_>) -> Result<()> {
    with_external_ip(s)?;
    for transport in Transport::BOTH {
        for client in [&s.c1, &s.c2] {
            s.only(client, transport, &s.external_ip(), &["b1", "b2"])?;
        }
    }
    Ok(())
}

/// A Service at n1's own address, and where it is.
fn at_node_address(s: &Stage<'_>) -> Result<String> {
    let (ip, port) = (s.node_address("n1"), s.own.host_port());
    s.apply(
        &lab::manifests::service("web")
            .cluster_ip(&s.own.cluster_ip(s.family))
            .port("http", port, lab::BACKEND_PORT)
            .udp_port("udp", port, lab::BACKEND_PORT)
            .external_ips(&[&ip]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    Ok(join(&ip, port))
}

fn node_address_inside(s: &Stage<'_>) -> Result<()> {
    let to = at_node_address(s)?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &to, &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn node_address_outside(s: &Stage<'_>) -> Result<()> {
    let to = at_node_address(s)?;
    for transport in Transport::BOTH {
        s.only(&s.c1, transport, &to, &["b1", "b2"])?;
    }
    Ok(())
}

fn external_ips_follow(s: &Stage<'_>) -> Result<()> {
    let ips = [
        s.own.external_ip(s.family),
        s.world.numbers().external_ip(s.family),
        s.world.numbers().external_ip(s.family),
    ];
    let _switch = [s.played_by_switch(&ips[0])?, s.played_by_switch(&ips[1])?];
    let at = |ip: &str| join(ip, 80);
    s.apply(&s.service("web").external_ips(&[&ips[0], &ips[2]]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &at(&ips[0]), &["b1"])?;
    s.only(&s.pod1, Transport::Tcp, &at(&ips[2]), &["b1"])?;
    s.apply(&s.service("web").external_ips(&[&ips[1], &ips[2]]))?;
    left_alone(s, &at(&ips[0]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &at(&ips[1]), &["b1"])?;
        s.only(&s.host1, transport, &at(&ips[2]), &["b1"])?;
    }
    s.apply(&s.service("web"))?;
    left_alone(s, &at(&ips[1]))
}

fn external_ips_off(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.external_ip(s.family);
    let _switch = s.played_by_switch(&ip)?;
    s.apply(&s.node_port_service("web").external_ips(&[&ip]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.external_ip(), &["b1"])?;
    s.with_options(
        "n1",
        &["--external-ips=false"],
        &json!({ "featureGates": { "AllowServiceExternalIPs": false } }),
        || {
            left_alone(s, &s.external_ip())?;
            s.only(&s.pod1, Transport::Tcp, &s.node_port("n1"), &["b1"])?;
            s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])
        },
    )
}

fn unowned_ports(s: &Stage<'_>) -> Result<()> {
    let ips = [s.own.lb_ip(s.family), s.own.external_ip(s.family)];
    let _switch = [s.played_by_switch(&ips[0])?, s.played_by_switch(&ips[1])?];
    let object = without_node_port(s).lb_ip(&ips[0]);
    s.apply(&object.external_ips(&[&ips[1]]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for ip in &ips {
        s.only(&s.pod1, Transport::Tcp, &join(ip, 80), &["b1"])?;
        left_alone(s, &join(ip, SWITCH_PORT))?;
    }
    // There nobody listens, and the switch says so.
    s.refused(&s.pod1, Transport::Tcp, &join(&ips[0], 81))
}

fn address_of_the_host(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.lb_ip(s.family);
    let _address = s.address_on("n1", &ip, "lo")?;
    let _listener = s.listener(&s.host1, &ip, SWITCH_PORT)?;
    s.apply(&without_node_port(s).lb_ip(&ip))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.only(&s.pod1, Transport::Tcp, &s.lb_ip(), &["b2"])?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.c1] {
            let to = join(&ip, SWITCH_PORT);
            s.only(client, transport, &to, &[s.host1.name()])?;
            s.refused(client, transport, &join(&ip, 9001))?;
        }
    }
    Ok(())
}

fn ping(s: &Stage<'_>) -> Result<()> {
    let ips = [s.own.lb_ip(s.family), s.own.external_ip(s.family)];
    let _switch = s.played_by_switch(&ips[1])?;
    let _address = s.address_on("n1", &ips[0], "lo")?;
    let object = without_node_port(s).lb_ip(&ips[0]);
    s.apply(&object.external_ips(&[&ips[1]]))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for ip in &ips {
        for client in [&s.pod1, &s.host1, &s.c1] {
            s.echoed(client, ip)?;
        }
    }
    Ok(())
}
