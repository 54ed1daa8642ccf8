//! Which endpoints get traffic: rules 13 to 19.

use crate::fault::Fault;
use crate::row::Row;
use crate::stage::Stage;
use anyhow::Result;
use lab::Transport;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            13,
            "cluster-set-is-every-node",
            "a ClusterIP leads to the ready endpoints of all nodes, from pods and host processes",
            "API Service.spec.clusterIPs; EndpointSlice.endpoints[].conditions.ready",
            Fault::EndpointsLost,
            cluster_set_is_every_node,
        ),
        Row::new(
            14,
            "not-ready-gets-nothing",
            "an endpoint that is not ready gets nothing while another is ready",
            "discovery/v1 EndpointConditions.ready; KEP-1669",
            Fault::ConditionsIgnored,
            not_ready_gets_nothing,
        ),
        Row::new(
            18,
            "no-endpoint-refuses",
            "a Service without endpoints refuses at once: ClusterIP, NodePort and LoadBalancer IP",
            "kubernetes e2e \"should be rejected when no endpoints exist\"",
            Fault::StrangerOn("n1"),
            no_endpoint_refuses,
        )
        .cases(&["K04"]),
        Row::new(
            20,
            "policy-local-keeps-client-address",
            "with externalTrafficPolicy Local the backend sees the outside client's address",
            "API ServiceSpec.externalTrafficPolicy",
            Fault::Masquerade,
            local_keeps_client_address,
        )
        .cases(&["K50"]),
    ]
}

fn cluster_set_is_every_node(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2, &s.world.b3]))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b1", "b2", "b3"])?;
        }
    }
    Ok(())
}

fn not_ready_gets_nothing(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.ready("web", &[&s.world.b1])
            .endpoint(&s.world.b2)
            .not_ready(),
    )?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn no_endpoint_refuses(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    s.apply(&s.slice("web"))?;
    for transport in Transport::BOTH {
        s.refused(&s.pod1, transport, &s.cluster_ip())?;
        s.refused(&s.host1, transport, &s.node_port("n1"))?;
        s.refused(&s.c1, transport, &s.node_port("n1"))?;
        s.refused(&s.c1, transport, &s.lb_ip())?;
    }
    Ok(())
}

fn local_keeps_client_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web").external_local())?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    for transport in Transport::BOTH {
        let client = s.address_of(&s.c1);
        s.sees(&s.c1, transport, &s.node_port("n1"), "b1", &client)?;
        s.sees(&s.c1, transport, &s.lb_ip(), "b1", &client)?;
    }
    Ok(())
}
