//! Which Services have a health check port, and what it tells: semantics 31, case K20.

use super::*;

/// `spec.healthCheckNodePort` of a load balancer with policy `Local`, with two
/// ports of which the endpoints have both.
fn checked() -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        external_local: true,
        health_check_node_port: 31_999,
        ports: [
            port("http", Protocol::Tcp, 80, 30080),
            port("dns", Protocol::Udp, 53, 30053),
        ]
        .into(),
        ..service()
    }
}

/// Port, families and counts.
fn shown(service: &Service, slices: &[EndpointSlice], options: &ResolveOptions) -> String {
    let (resolved, _) = resolve(service, slices, &node(), |_| false, options);
    let Some(check) = resolved.health_check else {
        return "none".to_owned();
    };
    let families = check.local_endpoints();
    let counts: Vec<String> = families.map(|(it, n)| format!("{it:?} {n}")).collect();
    format!("{}: {}", check.port, counts.join(", "))
}

#[test]
fn only_load_balancers_with_policy_local_have_a_port() {
    use ServiceType::{ClusterIp, ExternalName, LoadBalancer, NodePort};
    for (kind, external_local, health_check_node_port, want) in [
        (LoadBalancer, true, 31_999, "31999: V4 0, V6 0"),
        (LoadBalancer, true, 0, "none"),
        (LoadBalancer, false, 31_999, "none"),
        (NodePort, true, 31_999, "none"),
        (ClusterIp, true, 31_999, "none"),
        (ExternalName, true, 31_999, "none"),
    ] {
        let service = Service {
            kind,
            external_local,
            health_check_node_port,
            ..checked()
        };
        assert_eq!(shown(&service, &[], &options()), want, "{service:?}");
    }
    let no_node_ports = Service {
        ports: [port("http", Protocol::Tcp, 80, 0)].into(),
        ..checked()
    };
    let single_stack = Service {
        cluster_ips: [ip("fd00:96::20")].into(),
        ..checked()
    };
    let others = Service {
        proxy_name: Some("other".into()),
        ..checked()
    };
    let left_to_kube_proxy = ResolveOptions {
        health_check_node_ports: false,
        ..options()
    };
    for (service, options, want) in [
        (no_node_ports, options(), "31999: V4 0, V6 0"),
        (single_stack, options(), "31999: V6 0"),
        (others, options(), "none"),
        (checked(), left_to_kube_proxy, "none"),
    ] {
        assert_eq!(shown(&service, &[], &options), want, "{service:?}");
    }
}

#[test]
fn ready_endpoints_on_this_node_count_once_each() {
    let v4 = ["10.244.1.1", "10.244.1.2", "10.244.2.3"].map(ip);
    for (text, want) in [
        ("", 0),
        ("R@n1", 1),
        ("R@n1 R@n1 R@n2", 2),
        ("R R@n2", 0),
        ("T@n1 T@n1", 0),
        ("T@n1 R@n1", 1),
        ("N@n1 S@n1 D@n1", 0),
        // publishNotReadyAddresses
        ("A@n1", 1),
        // Zone hints do not narrow the local set.
        ("R@n1[zb]", 1),
    ] {
        let endpoints: Vec<Endpoint> = text
            .split_whitespace()
            .zip(v4)
            .map(|(it, address)| endpoint(address, it))
            .collect();
        let http = slice("web-1", ("http", Protocol::Tcp, 8080), endpoints.clone());
        let dns = slice("web-2", ("dns", Protocol::Udp, 5353), endpoints);
        let foreign = slice(
            "web-3",
            ("unknown", Protocol::Tcp, 1),
            vec![endpoint(ip("10.244.1.9"), "R@n1")],
        );
        let v6 = slice(
            "web-4",
            ("http", Protocol::Tcp, 8080),
            vec![endpoint(ip("fd00:244:1::1"), "R@n1")],
        );
        let shown = shown(&checked(), &[http, dns, foreign, v6], &options());
        assert_eq!(shown, format!("31999: V4 {want}, V6 1"), "{text}");
    }
}
