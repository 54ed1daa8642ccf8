//! Traffic policies: rules 16 and 17.

use crate::check::judged;
use crate::fault::Fault;
use crate::row::{Row, Why};
use crate::stage::Stage;
use anyhow::Result;
use lab::Transport;

/// Why kube-proxy ignores the policy of its own node's NodePorts.
const SHORT_CUT: Why = Why::Fault(
    "pods and processes of the cluster get the cluster set also on a NodePort: it shares the \
     chain of LoadBalancer IPs, kubernetes#108526",
);

pub(super) fn rows() -> Vec<Row> {
    let mut rows = internal();
    rows.extend(external_inside());
    rows.extend(external_outside());
    rows
}

fn internal() -> Vec<Row> {
    vec![
        Row::new(
            16,
            "internal-local-stays-on-the-node",
            "with internalTrafficPolicy Local a ClusterIP leads to the endpoints of the client's node",
            "API ServiceSpec.internalTrafficPolicy; KEP-2086",
            Fault::PoliciesIgnored,
            internal_local_stays,
        ),
        Row::new(
            16,
            "internal-local-without-endpoint-is-unanswered",
            "with internalTrafficPolicy Local and endpoints elsewhere only, nobody answers",
            "API ServiceSpec.internalTrafficPolicy (traffic is dropped without a local endpoint)",
            Fault::PoliciesIgnored,
            internal_local_without_endpoint,
        ),
        Row::new(
            16,
            "internal-local-leaves-other-frontends-alone-inside",
            "internalTrafficPolicy Local concerns no NodePort, LoadBalancer IP or externalIP",
            "API ServiceSpec.internalTrafficPolicy (the ClusterIP only)",
            Fault::FirstEndpointOnly,
            internal_local_leaves_others_inside,
        ),
        Row::new(
            16,
            "internal-local-leaves-other-frontends-alone-outside",
            "internalTrafficPolicy Local concerns no NodePort, LoadBalancer IP or externalIP of a \
             client from outside",
            "API ServiceSpec.internalTrafficPolicy (the ClusterIP only)",
            Fault::PoliciesSwapped,
            internal_local_leaves_others_outside,
        ),
        Row::new(
            16,
            "internal-local-holds-for-off-cluster-clients",
            "a client from outside that comes to the ClusterIP by a node gets that node's endpoints",
            "API ServiceSpec.internalTrafficPolicy (how nodes distribute what they receive)",
            Fault::PoliciesIgnored,
            internal_local_off_cluster,
        ),
        Row::new(
            16,
            "changed-internal-policy-holds-for-new-connections",
            "new connections follow a change of internalTrafficPolicy, there and back",
            "API ServiceSpec.internalTrafficPolicy",
            Fault::ChangesLost,
            changed_internal_policy,
        ),
    ]
}

fn external_inside() -> Vec<Row> {
    vec![
        Row::new(
            17,
            "external-cluster-inside",
            "with externalTrafficPolicy Cluster all endpoints serve a node's own NodePort, the \
             LoadBalancer IP and the externalIP",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::FirstEndpointOnly,
            external_cluster_inside,
        ),
        Row::new(
            17,
            "external-local-leaves-the-cluster-ip-alone",
            "externalTrafficPolicy Local does not concern the ClusterIP",
            "API ServiceSpec.externalTrafficPolicy (externally-facing addresses)",
            Fault::PoliciesSwapped,
            external_local_leaves_cluster_ip,
        ),
        Row::new(
            17,
            "external-local-is-cluster-inside",
            "pods and host processes get every endpoint of a LoadBalancer IP or externalIP, with \
             externalTrafficPolicy Local and with both policies Local",
            "API ServiceSpec.externalTrafficPolicy (in-cluster traffic to these always gets \
             Cluster semantics); kubernetes e2e ESIPP \"should work from pods\"",
            Fault::FirstEndpointOnly,
            external_local_inside,
        )
        .cases(&["K06"]),
        Row::new(
            17,
            "external-local-works-from-a-node-without-endpoint",
            "pods and host processes of a node without endpoints reach those of another node by \
             LoadBalancer IP and externalIP",
            "API ServiceSpec.externalTrafficPolicy; kubernetes e2e ESIPP \"should work from pods\"",
            Fault::EndpointsLost,
            external_local_inside_far,
        )
        .cases(&["K06"]),
        Row::new(
            17,
            "external-local-keeps-node-ports-local-inside",
            "with externalTrafficPolicy Local a pod or process that dials its own node's NodePort \
             gets the node's endpoints",
            "API ServiceSpec.externalTrafficPolicy (a client inside that picks a node takes the \
             policy into account)",
            Fault::PoliciesIgnored,
            node_port_local_inside,
        )
        .cases(&["K06"])
        .kube_proxy_differs(SHORT_CUT),
        Row::new(
            17,
            "node-port-without-local-endpoint-is-unanswered",
            "with externalTrafficPolicy Local the NodePort of a client's own node without \
             endpoints answers nobody",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::PoliciesIgnored,
            node_port_local_without_endpoint_inside,
        )
        .cases(&["K06", "K48"])
        .kube_proxy_differs(SHORT_CUT),
        Row::new(
            17,
            "another-nodes-node-port-is-cluster",
            "with externalTrafficPolicy Cluster pods and processes reach every endpoint by another \
             node's NodePort",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::FirstEndpointOnly,
            another_node_port_cluster,
        )
        .cases(&["K48"]),
        Row::new(
            17,
            "another-nodes-node-port-is-local",
            "with externalTrafficPolicy Local a host process reaches the endpoint of the node \
             whose NodePort it dials, and nobody by a node without one",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::PoliciesIgnored,
            another_node_port_local,
        )
        .cases(&["K48"]),
        Row::new(
            17,
            "another-nodes-node-port-is-local-for-pods",
            "with externalTrafficPolicy Local a pod reaches the endpoint of the node whose \
             NodePort it dials, and nobody by a node without one",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::PoliciesIgnored,
            another_node_port_local_for_pods,
        )
        .cases(&["K48"])
        .kube_proxy_differs(Why::Fault(
            "pods get the cluster set also on another node's NodePort, and no answer from what is \
             not on that node: kubernetes#74383",
        )),
    ]
}

fn external_outside() -> Vec<Row> {
    vec![
        Row::new(
            17,
            "external-cluster-outside",
            "with externalTrafficPolicy Cluster a client from outside gets every endpoint by any \
             node",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::FirstEndpointOnly,
            external_cluster_outside,
        ),
        Row::new(
            17,
            "external-local-outside",
            "with externalTrafficPolicy Local a client from outside gets the endpoints of the node \
             that it comes by",
            "API ServiceSpec.externalTrafficPolicy; kubernetes e2e ESIPP \"should only target \
             nodes with endpoints\"",
            Fault::PoliciesIgnored,
            external_local_outside,
        ),
        Row::new(
            17,
            "external-local-without-endpoint-drops-outside",
            "with externalTrafficPolicy Local a node without endpoints leaves clients from outside \
             without any answer",
            "API ServiceSpec.externalTrafficPolicy (mistakenly sent traffic is dropped)",
            Fault::PoliciesIgnored,
            external_local_drops_outside,
        ),
        Row::new(
            17,
            "changed-external-policy-holds-for-new-connections",
            "new connections from outside follow a change of externalTrafficPolicy",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::ChangesLost,
            changed_external_policy,
        ),
    ]
}

fn internal_local_stays(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b1"])?;
        }
        for client in [&s.pod2, &s.host2] {
            s.only(client, transport, &s.cluster_ip(), &["b2"])?;
        }
    }
    Ok(())
}

fn internal_local_without_endpoint(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.all_unanswered(
        &[&s.pod1, &s.host1, &s.host3],
        &Transport::BOTH,
        &[s.cluster_ip()],
    )
}

fn internal_local_leaves_others_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            for frontend in s.external("n1") {
                s.only(client, transport, &frontend, &["b1", "b2"])?;
            }
        }
    }
    Ok(())
}

fn internal_local_leaves_others_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn internal_local_off_cluster(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web").internal_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(&s.c1, transport, &s.cluster_ip(), &["b1"])?;
        s.only(&s.c2, transport, &s.cluster_ip(), &["b2"])?;
    }
    Ok(())
}

fn changed_internal_policy(s: &Stage<'_>) -> Result<()> {
    let cluster = s.service("web");
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for (service, backends) in [
        (cluster.clone(), &["b1", "b2"][..]),
        (cluster.clone().internal_local(), &["b1"][..]),
        (cluster, &["b1", "b2"][..]),
    ] {
        s.apply(&service)?;
        for client in [&s.pod1, &s.host1] {
            s.only(client, Transport::Tcp, &s.cluster_ip(), backends)?;
        }
    }
    Ok(())
}

fn external_cluster_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            for frontend in s.external("n1") {
                s.only(client, transport, &frontend, &["b1", "b2"])?;
            }
        }
        // Its node has no endpoint.
        for frontend in s.external("n3") {
            s.only(&s.host3, transport, &frontend, &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn external_local_leaves_cluster_ip(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1, &s.host3] {
            s.only(client, transport, &s.cluster_ip(), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn external_local_inside(s: &Stage<'_>) -> Result<()> {
    let service = s.full_service("web").external_local();
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for service in [service.clone(), service.internal_local()] {
        s.apply(&service)?;
        for transport in Transport::BOTH {
            for client in [&s.pod1, &s.host1] {
                for frontend in [s.lb_ip(), s.external_ip()] {
                    s.only(client, transport, &frontend, &["b1", "b2"])?;
                }
            }
        }
    }
    Ok(())
}

fn external_local_inside_far(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    for transport in Transport::BOTH {
        for frontend in [s.lb_ip(), s.external_ip()] {
            s.sees(&s.pod1, transport, &frontend, "b2", &s.address_of(&s.pod1))?;
            s.only(&s.host1, transport, &frontend, &["b2"])?;
            s.only(&s.pod2, transport, &frontend, &["b2"])?;
        }
    }
    Ok(())
}

fn node_port_local_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.node_port("n1"), &["b1"])?;
        }
        for client in [&s.pod2, &s.host2] {
            s.only(client, transport, &s.node_port("n2"), &["b2"])?;
        }
    }
    Ok(())
}

fn node_port_local_without_endpoint_inside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.all_unanswered(&[&s.pod1, &s.host1], &Transport::BOTH, &[s.node_port("n1")])
}

fn another_node_port_cluster(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            for node in ["n2", "n3"] {
                s.only(client, transport, &s.node_port(node), &["b1", "b2"])?;
            }
        }
    }
    Ok(())
}

fn another_node_port_local(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(&s.host1, transport, &s.node_port("n2"), &["b2"])?;
    }
    s.all_silent(&[&s.host1], &Transport::BOTH, &[s.node_port("n3")])
}

fn another_node_port_local_for_pods(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        // One by one: a wrong one is silence.
        for _ in 0..10 {
            judged(
                s.dial(&s.pod1, transport, &s.node_port("n2"))?
                    .answered_by("b2"),
            )?;
        }
    }
    s.all_silent(&[&s.pod1], &Transport::BOTH, &[s.node_port("n3")])
}

fn external_cluster_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1", "b2"])?;
        }
        for node in ["n2", "n3"] {
            s.only(&s.c1, transport, &s.node_port(node), &["b1", "b2"])?;
        }
    }
    Ok(())
}

fn external_local_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for transport in Transport::BOTH {
        for frontend in s.external("n1") {
            s.only(&s.c1, transport, &frontend, &["b1"])?;
        }
        for frontend in s.external("n2") {
            s.only(&s.c2, transport, &frontend, &["b2"])?;
        }
    }
    Ok(())
}

fn external_local_drops_outside(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.full_service("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.all_silent(&[&s.c1], &Transport::BOTH, &s.external("n1"))
}

fn changed_external_policy(s: &Stage<'_>) -> Result<()> {
    let cluster = s.full_service("web");
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for (service, backends) in [
        (cluster.clone(), &["b1", "b2"][..]),
        (cluster.clone().external_local(), &["b1"][..]),
        (cluster, &["b1", "b2"][..]),
    ] {
        s.apply(&service)?;
        for frontend in s.external("n1") {
            s.only(&s.c1, Transport::Tcp, &frontend, backends)?;
        }
    }
    Ok(())
}
