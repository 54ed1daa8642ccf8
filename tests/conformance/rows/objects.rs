//! Which Services count, and what tells service ports apart: rules 1, 2 and 5.

use crate::check::judged;
use crate::fault::Fault;
use crate::row::{Row, Why};
use crate::stage::{Stage, join};
use anyhow::Result;
use lab::manifests::{Service, service};
use lab::{BACKEND_PORT, Dial, Transport};
use serde_json::{Value, json};

/// Names the proxy that a Service is for.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

pub(super) fn rows() -> Vec<Row> {
    let mut rows = whose_service();
    rows.extend(service_ports());
    rows.extend(endpoints());
    rows
}

fn whose_service() -> Vec<Row> {
    vec![
        Row::new(
            1,
            "service-of-another-proxy-is-left-alone",
            "traffic to a Service that is another proxy's from its birth is left alone",
            "kubernetes e2e \"should implement service.kubernetes.io/service-proxy-name\"",
            Fault::LabelIgnored(PROXY_NAME),
            another_proxys_is_left_alone,
        )
        .cases(&["K36"]),
        Row::new(
            1,
            "service-goes-to-another-proxy-and-comes-back",
            "a Service that gets another proxy's name is let go, and served again without it",
            "kubernetes e2e \"should implement service.kubernetes.io/service-proxy-name\"",
            Fault::ChangesLost,
            goes_to_another_proxy_and_comes_back,
        )
        .cases(&["K36"]),
        Row::new(
            1,
            "proxy-name-on-a-slice-decides-nothing",
            "a slice that carries a proxy's name serves its Service, which carries none",
            "Kubernetes docs, labels reference: service.kubernetes.io/service-proxy-name is used on Services",
            Fault::EndpointsLost,
            proxy_name_on_a_slice,
        )
        .cases(&["K36"]),
        Row::new(
            1,
            "slice-labelled-headless-adds-nothing",
            "endpoints of a slice with the label service.kubernetes.io/headless get nothing",
            "API const v1.IsHeadlessService: kube-proxy passes over endpoints that have it",
            Fault::LabelIgnored(HEADLESS),
            slice_labelled_headless,
        ),
        Row::new(
            1,
            "headless-service-is-left-alone",
            "a Service whose clusterIP is None has no frontend, not even an externalIP",
            "API ServiceSpec.clusterIP: None means that proxying is not wanted",
            Fault::FieldIgnored("clusterIP"),
            headless,
        ),
        Row::new(
            1,
            "external-name-is-left-alone",
            "a Service of type ExternalName has no frontend, not even an externalIP",
            "API ServiceSpec.type: for ExternalName no proxying is set up",
            Fault::TypeIgnored,
            external_name,
        )
        // It cannot say a family, and the API server's first one is IPv4.
        .once(),
        Row::new(
            1,
            "service-becomes-an-external-name",
            "a Service that becomes an ExternalName is no longer served",
            "API ServiceSpec.type: for ExternalName no proxying is set up",
            Fault::ChangesLost,
            becomes_an_external_name,
        ),
        Row::new(
            1,
            "load-balancer-class-does-not-matter",
            "a LoadBalancer IP is served whatever the loadBalancerClass",
            "API ServiceSpec.loadBalancerClass names who provides the load balancer, not the proxy",
            Fault::StatusIgnored,
            load_balancer_class,
        ),
    ]
}

fn service_ports() -> Vec<Row> {
    vec![
        Row::new(
            2,
            "one-number-for-tcp-and-udp",
            "ports with one number and two protocols lead to the endpoints of each",
            "kubernetes e2e \"should serve endpoints on same port and different protocols\"",
            Fault::ProtocolsIgnored,
            one_number_for_tcp_and_udp,
        )
        .cases(&["K22"]),
        Row::new(
            2,
            "emptying-one-protocol-leaves-the-other",
            "a port without endpoints refuses, and the same number of the other protocol serves on",
            "API ServicePort.protocol is a part of the port",
            Fault::ChangesLost,
            emptying_one_protocol,
        )
        .cases(&["K22"]),
        Row::new(
            2,
            "services-share-an-address-by-protocol",
            "two Services share a LoadBalancer IP and port by protocol; one comes and goes, the other stays",
            "KEP-1435; API ServicePort.protocol",
            Fault::DeletionsLost,
            services_share_an_address,
        )
        .cases(&["K22"]),
        Row::new(
            2,
            "same-name-in-two-namespaces",
            "a slice of another namespace adds nothing, whatever its labels",
            "discovery/v1 EndpointSlice: its Service is one of its own namespace",
            Fault::NamespacesIgnored,
            same_name_in_two_namespaces,
        )
        .cases(&["K38"]),
    ]
}

fn endpoints() -> Vec<Row> {
    vec![
        Row::new(
            5,
            "cluster-ip-as-endpoint-leads-nowhere",
            "an endpoint that is another Service's ClusterIP reaches none of its backends",
            "Kubernetes docs, Services without selectors: a ClusterIP is no valid endpoint",
            Fault::StrangerOn("n1"),
            cluster_ip_as_endpoint,
        ),
        Row::new(
            5,
            "unusable-endpoint-takes-no-share",
            "an endpoint that is a ClusterIP gets no connection beside a usable one",
            "semantics.md, rule 5",
            Fault::StrangerOn("n1"),
            unusable_endpoint_takes_no_share,
        )
        .kube_proxy_differs(Why::Ours(
            "kube-proxy sends a share of the connections to the ClusterIP, where they are lost",
        )),
        Row::new(
            5,
            "endpoints-may-be-node-addresses",
            "processes of nodes serve each port of a Service at the nodes' own addresses",
            "API EndpointSlice.endpoints[].addresses; PodSpec.hostNetwork",
            Fault::EndpointsLost,
            node_addresses,
        ),
        Row::new(
            5,
            "endpoint-outside-of-the-cluster",
            "a slice by hand leads to a host outside, and one of FQDNs beside it does no harm",
            "Kubernetes docs, Services without selectors; discovery/v1 AddressTypeFQDN",
            Fault::EndpointsLost,
            outside_of_the_cluster,
        ),
    ]
}

const HEADLESS: &str = "service.kubernetes.io/headless";

/// A Service with the row's externalIP, which the switch plays.
fn reachable(s: &Stage<'_>) -> Service {
    s.service("web")
        .external_ips(&[&s.own.external_ip(s.family)])
}

/// Nobody here takes what is sent to the externalIP.
fn left_alone(s: &Stage<'_>) -> Result<()> {
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.external_ip(), &["switch"])?;
        }
    }
    Ok(())
}

fn another_proxys_is_left_alone(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.external_ip(s.family))?;
    s.apply(&reachable(s).label(PROXY_NAME, "another-proxy"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    left_alone(s)?;
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn goes_to_another_proxy_and_comes_back(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.external_ip(s.family))?;
    s.apply(&reachable(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.external_ip(), &["b1"])?;
    s.apply(&reachable(s).label(PROXY_NAME, "another-proxy"))?;
    left_alone(s)?;
    s.apply(&reachable(s))?;
    for to in [s.external_ip(), s.cluster_ip()] {
        s.only(&s.pod1, Transport::Tcp, &to, &["b1"])?;
        s.only(&s.host1, Transport::Udp, &to, &["b1"])?;
    }
    Ok(())
}

fn proxy_name_on_a_slice(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.ready("web", &[&s.world.b1])
            .label(PROXY_NAME, json!("another-proxy")),
    )?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])
}

fn slice_labelled_headless(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let labelled = s.named_slice("labelled", "web").label(HEADLESS, json!(""));
    s.apply(&labelled.ready_endpoints([&s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn headless(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.external_ip(s.family))?;
    s.apply(
        &service("web")
            .field("clusterIP", json!("None"))
            .field("ipFamilies", json!([s.family.as_str()]))
            .port("http", 80, BACKEND_PORT)
            .udp_port("udp", 80, BACKEND_PORT)
            .external_ips(&[&s.own.external_ip(s.family)]),
    )?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    left_alone(s)
}

/// The row's Service as an ExternalName.
fn named(s: &Stage<'_>) -> Service {
    service("web")
        .of_type("ExternalName")
        .field("externalName", json!("web.example.test"))
        .port("http", 80, BACKEND_PORT)
        .udp_port("udp", 80, BACKEND_PORT)
        .external_ips(&[&s.own.external_ip(s.family)])
}

fn external_name(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.external_ip(s.family))?;
    s.apply(&named(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    left_alone(s)
}

fn becomes_an_external_name(s: &Stage<'_>) -> Result<()> {
    let _switch = s.played_by_switch(&s.own.external_ip(s.family))?;
    s.apply(&reachable(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.external_ip(), &["b1"])?;
    s.apply(&named(s))?;
    left_alone(s)
}

fn load_balancer_class(s: &Stage<'_>) -> Result<()> {
    let object = s.load_balancer("web");
    s.apply(&object.field("loadBalancerClass", json!("example.test/other")))?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.only(&s.pod1, Transport::Tcp, &s.lb_ip(), &["b2"])?;
    s.only(&s.host1, Transport::Udp, &s.lb_ip(), &["b2"])
}

fn one_number_for_tcp_and_udp(s: &Stage<'_>) -> Result<()> {
    // As DNS has it.
    s.apply(
        &service("dns")
            .cluster_ip(&s.own.cluster_ip(s.family))
            .udp_port("dns", 80, BACKEND_PORT)
            .node_port(s.own.node_port())
            .port("dns-tcp", 80, BACKEND_PORT)
            .node_port(s.own.node_port())
            .port("metrics", 9153, BACKEND_PORT),
    )?;
    // The builder's ports are called otherwise.
    for (port, protocol, backend) in [
        ("dns", "UDP", &s.world.b1),
        ("dns-tcp", "TCP", &s.world.b2),
        ("metrics", "TCP", &s.world.b3),
    ] {
        let ports = json!([{ "name": port, "port": BACKEND_PORT, "protocol": protocol }]);
        let slice = s.named_slice(port, "dns").ready_endpoints([backend]);
        s.apply(&slice.field("ports", ports))?;
    }
    for client in [&s.pod1, &s.host1] {
        for to in [s.cluster_ip(), s.node_port("n1")] {
            s.only(client, Transport::Udp, &to, &["b1"])?;
            s.only(client, Transport::Tcp, &to, &["b2"])?;
        }
        let metrics = join(&s.own.cluster_ip(s.family), 9153);
        s.only(client, Transport::Tcp, &metrics, &["b3"])?;
    }
    Ok(())
}

fn emptying_one_protocol(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let ports = |name: &str, protocol: &str| -> Value {
        json!([{ "name": name, "port": BACKEND_PORT, "protocol": protocol }])
    };
    let udp = s.named_slice("udp", "web").ready_endpoints([&s.world.b1]);
    s.apply(&udp.field("ports", ports("udp", "UDP")))?;
    let tcp = s.named_slice("tcp", "web").ready_endpoints([&s.world.b2]);
    s.apply(&tcp.field("ports", ports("http", "TCP")))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b2"])?;
    s.only(&s.pod1, Transport::Udp, &s.cluster_ip(), &["b1"])?;
    let tcp = s.named_slice("tcp", "web");
    s.apply(&tcp.field("ports", ports("http", "TCP")))?;
    s.refused(&s.pod1, Transport::Tcp, &s.cluster_ip())?;
    s.only(&s.pod1, Transport::Udp, &s.cluster_ip(), &["b1"])
}

fn services_share_an_address(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.lb_ip(s.family);
    let _switch = s.played_by_switch(&ip)?;
    let tcp = service("tcp")
        .cluster_ip(&s.own.cluster_ip(s.family))
        .port("http", 80, BACKEND_PORT)
        .lb_ip(&ip)
        .field("allocateLoadBalancerNodePorts", json!(false));
    let udp = service("udp")
        .cluster_ip(&s.world.numbers().cluster_ip(s.family))
        .udp_port("udp", 80, BACKEND_PORT)
        .lb_ip(&ip)
        .field("allocateLoadBalancerNodePorts", json!(false));
    s.apply(&tcp)?;
    s.apply(&udp)?;
    s.apply(&s.ready("tcp", &[&s.world.b1]))?;
    s.apply(&s.ready("udp", &[&s.world.b2]))?;
    for there in [true, false, true] {
        for client in [&s.pod1, &s.host1] {
            let backend = if there { "b1" } else { "switch" };
            s.only(client, Transport::Tcp, &s.lb_ip(), &[backend])?;
            s.only(client, Transport::Udp, &s.lb_ip(), &["b2"])?;
        }
        if there {
            s.delete(&tcp)?;
        } else {
            s.apply(&tcp)?;
        }
    }
    Ok(())
}

fn same_name_in_two_namespaces(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let there = s.named_slice("web-there", "web");
    s.apply_next_door(&there.ready_endpoints([&s.world.b2]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

/// Service `inner`, and Service `outer` in front of its ClusterIP, which also
/// has other endpoints. Where `outer` is.
fn one_service_before_another(s: &Stage<'_>, others: &[&lab::Peer]) -> Result<String> {
    let inner = s.own.cluster_ip(s.family);
    // The inner port is the outer one's target.
    s.apply(
        &service("inner")
            .cluster_ip(&inner)
            .port("http", BACKEND_PORT, BACKEND_PORT)
            .udp_port("udp", BACKEND_PORT, BACKEND_PORT),
    )?;
    s.apply(&s.ready("inner", &[&s.world.b2]))?;
    let outer = s.world.numbers();
    s.apply(&s.service_at("outer", &outer))?;
    s.apply(&s.ready("outer", others).address(&inner).ready())?;
    Ok(s.cluster_ip_of(&outer))
}

fn cluster_ip_as_endpoint(s: &Stage<'_>) -> Result<()> {
    let outer = one_service_before_another(s, &[])?;
    s.unanswered(&s.pod1, Transport::Tcp, &outer)?;
    s.unanswered(&s.host1, Transport::Udp, &outer)?;
    let inner = join(&s.own.cluster_ip(s.family), BACKEND_PORT);
    s.only(&s.pod1, Transport::Tcp, &inner, &["b2"])
}

fn unusable_endpoint_takes_no_share(s: &Stage<'_>) -> Result<()> {
    let outer = one_service_before_another(s, &[&s.world.b1])?;
    s.settle()?;
    let mut dial = Dial::new(Transport::Tcp, outer.parse()?);
    // A lost one is as good as a late one.
    dial.timeout_ms = 300;
    judged(s.pod1.many(dial, 20)?.only_by(&["b1"]))
}

fn node_addresses(s: &Stage<'_>) -> Result<()> {
    let ports = [s.own.host_port(), s.world.numbers().host_port()];
    let mut listeners = Vec::new();
    for (host, node) in s.hosts().into_iter().zip(["n1", "n2", "n3"]) {
        for port in ports {
            listeners.push(s.listener(host, &s.node_address(node), port)?);
        }
    }
    s.apply(
        &service("daemon")
            .cluster_ip(&s.own.cluster_ip(s.family))
            .port("http", 80, ports[0])
            .udp_port("metrics", 9100, ports[1]),
    )?;
    let hosts = s.named_slice("daemon", "daemon").ready_endpoints(s.hosts());
    s.apply(&hosts.field(
        "ports",
        json!([
            { "name": "http", "port": ports[0], "protocol": "TCP" },
            { "name": "metrics", "port": ports[1], "protocol": "UDP" },
        ]),
    ))?;
    let names = s.hosts().map(|host| host.name());
    let metrics = join(&s.own.cluster_ip(s.family), 9100);
    for client in [&s.pod1, &s.host1] {
        s.only(client, Transport::Tcp, &s.cluster_ip(), &names)?;
        s.only(client, Transport::Udp, &metrics, &names)?;
    }
    Ok(())
}

fn outside_of_the_cluster(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("database"))?;
    let outside = s.address_of(&s.world.outside);
    s.apply(&s.slice("database").address(&outside).ready())?;
    let names = s.named_slice("database-by-name", "database");
    let names = names.address("database.example.test").ready();
    s.apply(&names.field("addressType", json!("FQDN")))?;
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["outside"])?;
        }
    }
    Ok(())
}
