//! Addresses that backends see, hairpins, clients off the cluster: rules 20, 21
//! and 23.

use crate::fault::Fault;
use crate::row::{Family, Row, Why};
use crate::stage::Stage;
use anyhow::Result;
use lab::manifests::slice;
use lab::{Peer, Transport};

/// Why Fairlead hides fewer clients than kube-proxy.
const LOCAL_BACKEND: Why = Why::Ours(
    "kube-proxy masquerades whatever comes from outside under policy Cluster; Fairlead keeps the \
     client's address where the backend is on this node",
);

const AT_THE_SOURCE: Why = Why::Ours(
    "kube-proxy masquerades what goes to external frontends under policy Cluster, also from pods; \
     Fairlead translates at the pod, so its address stays",
);

pub(super) fn rows() -> Vec<Row> {
    let mut rows = inside();
    rows.extend(outside());
    rows
}

fn inside() -> Vec<Row> {
    vec![
        Row::new(
            20,
            "pod-keeps-its-address-on-the-cluster-ip",
            "backends of this and of another node see a pod's own address behind a ClusterIP",
            "kubernetes e2e \"should preserve source pod IP for traffic thru service cluster IP\"",
            Fault::Masquerade,
            pod_keeps_address_on_cluster_ip,
        )
        .cases(&["K50"]),
        Row::new(
            20,
            "pod-keeps-its-address-with-external-local",
            "with externalTrafficPolicy Local backends see a pod's own address behind LoadBalancer \
             IP and externalIP",
            "API ServiceSpec.externalTrafficPolicy (without masquerading the client's address)",
            Fault::Masquerade,
            pod_keeps_address_with_local,
        )
        .cases(&["K50"]),
        Row::new(
            20,
            "pod-keeps-its-address-with-external-cluster",
            "with externalTrafficPolicy Cluster backends see a pod's own address behind \
             LoadBalancer IP and externalIP",
            "KEP-2086 and API leave the address open; semantics 20",
            Fault::Masquerade,
            pod_keeps_address_with_cluster,
        )
        .cases(&["K50"])
        .kube_proxy_differs(AT_THE_SOURCE),
        Row::new(
            20,
            "host-process-has-its-nodes-address",
            "backends see a host process at its node's address, never at a frontend's or loopback",
            "kpng service-proxy.md; API ServiceSpec.clusterIPs",
            Fault::Masquerade,
            host_has_node_address,
        )
        .cases(&["K50"]),
        Row::new(
            21,
            "pod-reaches-itself-through-its-service",
            "a pod that is its Service's only backend answers itself at every frontend",
            "kubernetes e2e \"should allow pods to hairpin back to themselves through services\"",
            Fault::StrangerOn("n1"),
            pod_reaches_itself,
        )
        .cases(&["K10"]),
        Row::new(
            21,
            "host-process-reaches-itself-through-its-service",
            "a process in the host's namespace that is the only backend answers itself, a pod of \
             its node and one of another",
            "kubernetes e2e \"should function for service endpoints using hostNetwork\"",
            Fault::EndpointsLost,
            host_reaches_itself,
        ),
    ]
}

fn outside() -> Vec<Row> {
    vec![
        Row::new(
            20,
            "policy-local-keeps-client-address",
            "with externalTrafficPolicy Local the backend sees the outside client's address",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::Masquerade,
            local_keeps_client_address,
        )
        .cases(&["K50"]),
        Row::new(
            20,
            "policy-cluster-keeps-client-address-for-local-backends",
            "with externalTrafficPolicy Cluster a backend of the node that the client comes by \
             sees the client's address",
            "API ServiceSpec.externalTrafficPolicy leaves it open; semantics 20",
            Fault::Masquerade,
            cluster_keeps_client_address,
        )
        .cases(&["K50"])
        .kube_proxy_differs(LOCAL_BACKEND),
        Row::new(
            20,
            "policy-cluster-hides-client-from-remote-backends",
            "with externalTrafficPolicy Cluster a backend of another node sees the address of the \
             node that the client came by",
            "API ServiceSpec.externalTrafficPolicy; kpng service-proxy.md",
            Fault::Masquerade,
            cluster_hides_client,
        )
        .cases(&["K50"]),
        Row::new(
            23,
            "off-cluster-client-of-a-cluster-ip-is-served",
            "a client from outside that routes to a ClusterIP by a node gets every endpoint",
            "kpng service-proxy.md (off-cluster traffic to ClusterIPs)",
            Fault::FirstEndpointOnly,
            off_cluster_is_served,
        ),
        Row::new(
            23,
            "off-cluster-client-is-hidden-from-remote-backends",
            "a backend of another node sees an off-cluster client of a ClusterIP at the address of \
             the node that it came by",
            "kpng service-proxy.md (off-cluster traffic is masqueraded)",
            Fault::Masquerade,
            off_cluster_is_hidden,
        )
        .cases(&["K50"]),
        Row::new(
            23,
            "off-cluster-client-keeps-its-address-for-local-backends",
            "a backend of the node that it came by sees an off-cluster client of a ClusterIP at \
             the client's address",
            "semantics 23",
            Fault::Masquerade,
            off_cluster_keeps_address,
        )
        .cases(&["K50"])
        .kube_proxy_differs(LOCAL_BACKEND),
    ]
}

/// The backend sees the client at this address, behind each of the frontends.
fn seen(
    s: &Stage<'_>,
    client: &Peer,
    frontends: &[String],
    backend: &Peer,
    address: &str,
) -> Result<()> {
    s.apply(&s.ready("web", &[backend]))?;
    for transport in Transport::BOTH {
        for frontend in frontends {
            s.sees(client, transport, frontend, backend.name(), address)?;
        }
    }
    Ok(())
}

fn pod_keeps_address_on_cluster_ip(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let pod = s.address_of(&s.pod1);
    for backend in [&s.world.b1, &s.world.b2] {
        seen(s, &s.pod1, &[s.cluster_ip()], backend, &pod)?;
    }
    Ok(())
}

fn pod_keeps_address_with_local(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    let pod = s.address_of(&s.pod1);
    for backend in [&s.world.b1, &s.world.b2] {
        seen(s, &s.pod1, &[s.lb_ip(), s.external_ip()], backend, &pod)?;
    }
    Ok(())
}

fn pod_keeps_address_with_cluster(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    let pod = s.address_of(&s.pod1);
    for backend in [&s.world.b1, &s.world.b2] {
        seen(s, &s.pod1, &[s.lb_ip(), s.external_ip()], backend, &pod)?;
    }
    Ok(())
}

fn host_has_node_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    let [node_port, lb_ip, external_ip] = s.external("n1");
    let frontends = [s.cluster_ip(), node_port, lb_ip, external_ip];
    for backend in [&s.world.b1, &s.world.b2] {
        seen(s, &s.host1, &frontends, backend, &s.node_address("n1"))?;
    }
    Ok(())
}

fn pod_reaches_itself(s: &Stage<'_>) -> Result<()> {
    let alone = s.world.node("n1").pod(&s.space)?.serve(lab::BACKEND_PORT)?;
    s.apply(&s.full_service("web"))?;
    s.apply(&s.ready("web", &[&alone]))?;
    let [node_port, lb_ip, external_ip] = s.external("n1");
    for transport in Transport::BOTH {
        for frontend in [&s.cluster_ip(), &node_port, &lb_ip, &external_ip] {
            s.only(&alone, transport, frontend, &[alone.name()])?;
        }
    }
    Ok(())
}

fn host_reaches_itself(s: &Stage<'_>) -> Result<()> {
    // Other rows have processes in this namespace, too.
    let port = s.own.health_port();
    let alone = s.world.node("n1").process(&s.space)?.serve(port)?;
    s.apply(&s.service("web"))?;
    let empty = slice("web", "web");
    let empty = match s.family {
        Family::V4 => empty,
        Family::V6 => empty.v6(),
    };
    let ports = empty.port("http", port).udp_port("udp", port);
    s.apply(&ports.ready_endpoints([&alone]))?;
    for transport in Transport::BOTH {
        for client in [&alone, &s.host1, &s.pod1, &s.pod2] {
            s.only(client, transport, &s.cluster_ip(), &[alone.name()])?;
        }
    }
    Ok(())
}

fn local_keeps_client_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    let client = s.address_of(&s.c1);
    seen(s, &s.c1, &s.external("n1"), &s.world.b1, &client)
}

fn cluster_keeps_client_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    let client = s.address_of(&s.c1);
    seen(s, &s.c1, &s.external("n1"), &s.world.b1, &client)
}

fn cluster_hides_client(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    let node = s.node_address("n1");
    seen(s, &s.c1, &s.external("n1"), &s.world.b2, &node)
}

fn off_cluster_is_served(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(&s.c1, transport, &s.cluster_ip(), &["b1", "b2"])?;
    }
    Ok(())
}

fn off_cluster_is_hidden(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let node = s.node_address("n1");
    seen(s, &s.c1, &[s.cluster_ip()], &s.world.b2, &node)
}

fn off_cluster_keeps_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let client = s.address_of(&s.c1);
    seen(s, &s.c1, &[s.cluster_ip()], &s.world.b1, &client)
}
