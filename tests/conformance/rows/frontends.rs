//! ClusterIPs and NodePorts: rules 7 and 8.

use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::row::{Family, Row, Why};
use crate::stage::{Stage, join};
use anyhow::Result;
use lab::manifests::{service, slice};
use lab::{BACKEND_PORT, Peer, SWITCH_PORT, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = cluster_ips();
    rows.extend(node_ports());
    rows.extend(addresses_of_nodes());
    rows
}

fn cluster_ips() -> Vec<Row> {
    vec![
        Row::new(
            7,
            "cluster-ip-serves-every-port",
            "a ClusterIP serves each port of its Service, with that port's endpoints",
            "API ServiceSpec.ports, clusterIPs",
            Fault::OnlyFirstPort,
            every_port,
        ),
        Row::new(
            7,
            "unowned-port-of-a-cluster-ip-refuses",
            "a ClusterIP refuses a port that its Service does not define, TCP and UDP",
            "KEP-3866: connections to undefined ports of active ClusterIPs are rejected",
            Fault::MorePorts,
            unowned_port_of_a_cluster_ip,
        )
        .differs(
            Proxy::KubeProxyIptables,
            Why::Fault(
                "iptables mode lets such packets pass; KEP-3866 names it as fixed by nftables mode",
            ),
        ),
        Row::new(
            7,
            "unassigned-cluster-ip-stays-on-the-node",
            "what is sent to an address of the service CIDRs that no Service has leaves no node",
            "KEP-3866: packets to unallocated ClusterIPs are dropped; KEP-1880 ServiceCIDR",
            Fault::DeletionsLost,
            unassigned_cluster_ip,
        )
        .differs(
            Proxy::KubeProxyIptables,
            Why::Fault(
                "iptables mode lets such packets pass; KEP-3866 names it as fixed by nftables mode",
            ),
        ),
    ]
}

fn node_ports() -> Vec<Row> {
    let iptables_v6 = Why::Ours(
        "localhost NodePorts in both families; kube-proxy has no IPv6 counterpart of route_localnet",
    );
    vec![
        Row::new(
            8,
            "node-port-serves-the-node-itself",
            "a NodePort at the own node's address leads pods and host processes to all endpoints",
            "API ServiceSpec.type NodePort: on every node at the same port",
            Fault::TypeIgnored,
            node_port_inside,
        ),
        Row::new(
            8,
            "node-port-serves-outside-clients",
            "a NodePort at every node's address leads outside clients to all endpoints",
            "API ServiceSpec.type NodePort; kubernetes e2e \"should be able to create a functioning NodePort service\"",
            Fault::TypeIgnored,
            node_port_outside,
        ),
        Row::new(
            8,
            "node-port-of-another-node-serves",
            "a NodePort at another node's address leads pods and host processes to all endpoints",
            "API ServiceSpec.type NodePort: on every node at the same port",
            Fault::TypeIgnored,
            node_port_of_another_node,
        )
        .cases(&["K48"]),
        Row::new(
            8,
            "node-port-of-another-node-is-for-that-node",
            "with externalTrafficPolicy Local another node's NodePort leads host processes to that node's endpoints",
            "API ServiceSpec.externalTrafficPolicy: clients in the cluster must take it into account when they pick a node",
            Fault::PoliciesIgnored,
            other_nodes_endpoints,
        )
        .cases(&["K48"]),
        Row::new(
            8,
            "node-port-of-another-node-is-for-that-node-for-pods",
            "with externalTrafficPolicy Local another node's NodePort leads pods to that node's endpoints",
            "API ServiceSpec.externalTrafficPolicy: clients in the cluster must take it into account when they pick a node",
            Fault::PoliciesIgnored,
            other_nodes_endpoints_for_pods,
        )
        .cases(&["K48"])
        .kube_proxy_differs(Why::Fault(
            "pods of all nodes count as the node's own, which get all endpoints, without the masquerade \
             that a remote one needs: kubernetes#74383",
        )),
        Row::new(
            8,
            "node-port-is-not-taken-at-the-source",
            "the number of a NodePort at another node, or at a host that is none, is left to it",
            "API ServiceSpec.externalTrafficPolicy; kpng doc/service-proxy.md",
            Fault::TypeIgnored,
            not_taken_at_the_source,
        )
        .cases(&["K48"]),
        Row::new(
            8,
            "localhost-node-port-serves-host-processes",
            "a host process reaches NodePorts at localhost, and a pod's localhost is its own",
            "KEP-6032; KubeProxyConfiguration.iptables.localhostNodePorts",
            Fault::TypeIgnored,
            localhost,
        )
        .differs(
            Proxy::KubeProxyNftables,
            Why::Ours("localhost NodePorts always; nftables mode has none by default, KEP-6032"),
        )
        .differs_in(Proxy::KubeProxyIptables, Family::V6, iptables_v6),
    ]
}

fn addresses_of_nodes() -> Vec<Row> {
    vec![
        Row::new(
            8,
            "node-port-follows-the-nodes-addresses",
            "a NodePort serves at an address that the node gets, until it loses it",
            "API ServiceSpec.type NodePort; KubeProxyConfiguration.nodePortAddresses: by default all",
            Fault::TypeIgnored,
            follows_addresses,
        )
        .cases(&["K46"])
        .differs(
            Proxy::KubeProxyNftables,
            Why::Ours("all local addresses by default; nftables mode serves only primary ones"),
        )
        .alone()
        .once(),
        Row::new(
            8,
            "node-port-addresses-restrict",
            "NodePorts serve at the addresses in the configured ranges, others are the host's own",
            "KubeProxyConfiguration.nodePortAddresses",
            Fault::OptionsIgnored,
            restricted_to_ranges,
        )
        .cases(&["K46"])
        .alone()
        .once(),
        Row::new(
            8,
            "node-port-addresses-primary",
            "with `primary` NodePorts serve at the Node's own addresses, others are the host's own",
            "KubeProxyConfiguration.nodePortAddresses",
            Fault::TypeIgnored,
            restricted_to_primary,
        )
        .cases(&["K46"])
        .alone()
        .once(),
    ]
}

fn every_port(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &s.service("web")
            .port("metrics", 9100, BACKEND_PORT)
            .udp_port("log", 514, BACKEND_PORT),
    )?;
    let ports = [
        ("http", Transport::Tcp, 80, &s.world.b1),
        ("udp", Transport::Udp, 80, &s.world.b2),
        ("metrics", Transport::Tcp, 9100, &s.world.b3),
        ("log", Transport::Udp, 514, &s.world.b1),
    ];
    for (name, transport, _, backend) in ports {
        let slice = s.named_slice(name, "web").ready_endpoints([backend]);
        s.apply(&slice.field(
            "ports",
            json!([{ "name": name, "port": BACKEND_PORT, "protocol": transport.as_str() }]),
        ))?;
    }
    for (_, transport, port, backend) in ports {
        let to = join(&s.own.cluster_ip(s.family), port);
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &to, &[backend.name()])?;
        }
    }
    Ok(())
}

fn unowned_port_of_a_cluster_ip(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    let unowned = join(&s.own.cluster_ip(s.family), SWITCH_PORT);
    for transport in Transport::BOTH {
        s.refused(&s.pod1, transport, &unowned)?;
    }
    s.refused(&s.host1, Transport::Tcp, &unowned)
}

fn unassigned_cluster_ip(s: &Stage<'_>) -> Result<()> {
    // Whoever sends it out gets an answer.
    let _switch = s.played_by_switch(&s.own.cluster_ip(s.family))?;
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.delete(&s.service("web"))?;
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())?;
    s.unanswered(&s.host1, Transport::Udp, &s.cluster_ip())
}

fn everywhere(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))
}

fn node_port_inside(s: &Stage<'_>) -> Result<()> {
    everywhere(s)?;
    for transport in Transport::BOTH {
        for (client, node) in [
            (&s.pod1, "n1"),
            (&s.host1, "n1"),
            (&s.pod2, "n2"),
            (&s.host3, "n3"),
        ] {
            s.only(client, transport, &s.node_port(node), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn node_port_outside(s: &Stage<'_>) -> Result<()> {
    everywhere(s)?;
    for transport in Transport::BOTH {
        for node in ["n1", "n2", "n3"] {
            s.only(&s.c1, transport, &s.node_port(node), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn node_port_of_another_node(s: &Stage<'_>) -> Result<()> {
    everywhere(s)?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.node_port("n2"), &["b1", "b2"])?;
            s.only(client, transport, &s.node_port("n3"), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn other_nodes_endpoints(s: &Stage<'_>) -> Result<()> {
    local_endpoints(s, &s.host1)?;
    s.unanswered(&s.host1, Transport::Tcp, &s.node_port("n3"))
}

fn other_nodes_endpoints_for_pods(s: &Stage<'_>) -> Result<()> {
    local_endpoints(s, &s.pod1)
}

/// n2's NodePort leads to n2's endpoint.
fn local_endpoints(s: &Stage<'_>, client: &Peer) -> Result<()> {
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(client, transport, &s.node_port("n2"), &["b2"])?;
    }
    Ok(())
}

fn not_taken_at_the_source(s: &Stage<'_>) -> Result<()> {
    // b1 at n2's NodePort would mean that n1 translated.
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let outside = s.address_of(&s.world.outside);
    let _listener = s.listener(&s.world.outside, &outside, s.own.node_port())?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.node_port("n1"), &["b1"])?;
            let to = join(&outside, s.own.node_port());
            s.only(client, transport, &to, &["outside"])?;
        }
    }
    s.unanswered(&s.pod1, Transport::Tcp, &s.node_port("n2"))?;
    s.unanswered(&s.host1, Transport::Udp, &s.node_port("n2"))
}

fn localhost(s: &Stage<'_>) -> Result<()> {
    everywhere(s)?;
    let to = join(s.loopback(), s.own.node_port());
    let _pods_own = s.listener(&s.pod1, s.loopback(), s.own.node_port())?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &to, &[s.pod1.name()])?;
        s.only(&s.host1, transport, &to, &["b1", "b2"])?;
    }
    Ok(())
}

/// Addresses that no node has.
const MORE_ADDRESSES: [&str; 2] = ["10.50.0.11", "fd00:50::11"];

/// A Service with b2 in both families behind the row's NodePort.
fn dual_node_port(s: &Stage<'_>) -> Result<()> {
    s.apply(
        &service("web")
            .cluster_ip(&s.own.cluster_ip(Family::V4))
            .cluster_ip(&s.own.cluster_ip(Family::V6))
            .port("http", 80, BACKEND_PORT)
            .node_port(s.own.node_port())
            .udp_port("udp", 80, BACKEND_PORT)
            .node_port(s.own.node_port()),
    )?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    let v6 = slice("web-v6", "web").v6().port("http", BACKEND_PORT);
    s.apply(
        &v6.udp_port("udp", BACKEND_PORT)
            .ready_endpoints([&s.world.b2]),
    )
}

fn follows_addresses(s: &Stage<'_>) -> Result<()> {
    dual_node_port(s)?;
    s.only(&s.pod1, Transport::Tcp, &s.node_port("n1"), &["b2"])?;
    for ip in MORE_ADDRESSES {
        let to = join(ip, s.own.node_port());
        let address = s.address_on("n1", ip, "lo")?;
        s.soon("an address was added", || {
            s.only(&s.pod1, Transport::Tcp, &to, &["b2"])?;
            s.only(&s.host1, Transport::Udp, &to, &["b2"])
        })?;
        drop(address);
        s.soon("the address was removed", || {
            s.unanswered(&s.pod1, Transport::Tcp, &to)
        })?;
    }
    Ok(())
}

fn restricted_to_ranges(s: &Stage<'_>) -> Result<()> {
    // Neither those that a proxy serves by default nor all of them.
    let ranges = ["10.50.0.0/16", "fd00:50::/64"];
    let (first, second) = two_pairs(s);
    restricted_to(s, &ranges, &second, &first)
}

fn restricted_to_primary(s: &Stage<'_>) -> Result<()> {
    let (first, second) = two_pairs(s);
    restricted_to(s, &["primary"], &first, &second)
}

/// n1's addresses as its Node has them, and those that it has besides.
fn two_pairs(s: &Stage<'_>) -> ([String; 2], [String; 2]) {
    let n1 = s.world.node("n1");
    let first = [n1.v4().to_string(), n1.v6().to_string()];
    (first, MORE_ADDRESSES.map(str::to_owned))
}

fn restricted_to(
    s: &Stage<'_>,
    addresses: &[&str],
    served: &[String],
    others: &[String],
) -> Result<()> {
    let port = s.own.node_port();
    let mut more = Vec::new();
    for ip in MORE_ADDRESSES {
        more.push(s.address_on("n1", ip, "lo")?);
    }
    let mut listeners = Vec::new();
    for ip in others {
        listeners.push(s.listener(&s.host1, ip, port)?);
    }
    dual_node_port(s)?;
    let at = |ip: &str| join(ip, port);
    s.with_options(
        "n1",
        &["--nodeport-addresses", &addresses.join(",")],
        &json!({ "nodePortAddresses": addresses }),
        || {
            for transport in Transport::BOTH {
                for ip in served {
                    s.only(&s.pod1, transport, &at(ip), &["b2"])?;
                }
                for ip in others {
                    s.only(&s.pod1, transport, &at(ip), &[s.host1.name()])?;
                }
            }
            Ok(())
        },
    )
}
