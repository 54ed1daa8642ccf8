//! Conversion of objects as an API server or a person writes them.

use super::*;
use proxy_common::Algorithm;
use serde_json::{Value, json};

fn service(value: Value) -> (Service, Vec<Reason>) {
    let raw: RawService = serde_json::from_value(value).expect("readable");
    let name = raw.object_name(&mut Interner::default()).expect("named");
    let (service, warnings) = raw.convert(name);
    (
        service,
        warnings.into_iter().map(|warning| warning.reason).collect(),
    )
}

fn slice(value: Value) -> (Option<EndpointSlice>, Vec<Warning>) {
    let raw: RawEndpointSlice = serde_json::from_value(value).expect("readable");
    let mut interner = Interner::default();
    let name = raw.object_name(&mut interner).expect("named");
    raw.convert(name, &mut interner)
}

fn ip(text: &str) -> std::net::IpAddr {
    text.parse().expect("address")
}

fn spec(spec: Value) -> (Service, Vec<Reason>) {
    service(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}))
}

fn labelled(labels: Value) -> Service {
    service(
        json!({"metadata": {"name": "web", "labels": labels}, "spec": {"clusterIP": "10.96.0.7"}}),
    )
    .0
}

#[test]
fn absent_fields_of_a_service_get_the_defaults_of_the_api() {
    let (web, warnings) = service(json!({"metadata": {"name": "web"}}));
    assert_eq!(web.name, ObjectName::new("default", "web"));
    assert_eq!(web.kind, ServiceType::ClusterIp);
    assert_eq!(
        (
            web.affinity_timeout_s,
            web.internal_local,
            web.external_local
        ),
        (0, false, false)
    );
    assert_eq!(web.created_s, i64::MAX);
    assert!(web.ports.is_empty() && web.cluster_ips.is_empty() && warnings.is_empty());
}

#[test]
fn a_service_is_read_in_full_and_unknown_fields_are_ignored() {
    let (web, warnings) = service(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "5", "creationTimestamp": "2026-01-02T00:00:00Z",
                     "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20", "fd00:96::20"],
            "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["203.0.113.9"], "sessionAffinity": "ClientIP",
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "selector": {"app": "web"},
            "ports": [{"name": "dns", "protocol": "UDP", "port": 53, "targetPort": "dns", "nodePort": 30053},
                      {"name": "http", "port": 80, "targetPort": 8080}]
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "198.51.100.7"}, {"ip": "198.51.100.8", "ipMode": "Proxy"},
            {"ip": "198.51.100.9", "ipMode": "VIP"}, {"hostname": "lb.example.test"}]}}
    }));
    assert_eq!(warnings, []);
    assert_eq!(web.created_s, 1_767_312_000);
    assert_eq!(*web.cluster_ips, ["10.96.0.20", "fd00:96::20"].map(ip));
    assert_eq!(
        *web.load_balancer_ips,
        ["198.51.100.7", "198.51.100.9"].map(ip)
    );
    assert_eq!(web.affinity_timeout_s, 10_800);
    assert!(web.internal_local && web.external_local);
    assert_eq!(web.ports[0].node_port, 30053);
    assert_eq!(web.ports[1].protocol, proxy_common::Protocol::Tcp);
}

#[test]
fn what_a_service_says_wrongly_is_left_out_alone() {
    let port = |port: Value| spec(json!({"ports": [port, {"name": "ok", "port": 80}]}));
    for (name, ((web, warnings), reason)) in [
        (
            "port 0",
            (port(json!({"name": "a", "port": 0})), Reason::InvalidPort),
        ),
        (
            "port missing",
            (port(json!({"name": "a"})), Reason::InvalidPort),
        ),
        (
            "port too big",
            (
                port(json!({"name": "a", "port": 65536})),
                Reason::InvalidPort,
            ),
        ),
        (
            "unknown protocol",
            (
                port(json!({"name": "a", "port": 1, "protocol": "QUIC"})),
                Reason::UnknownValue,
            ),
        ),
        (
            "name twice",
            (
                spec(json!({"ports": [{"name": "ok", "port": 80}, {"name": "ok", "port": 81}]})),
                Reason::DuplicatePort,
            ),
        ),
    ] {
        assert_eq!(
            web.ports
                .iter()
                .map(|it| (&*it.name, it.port))
                .collect::<Vec<_>>(),
            [("ok", 80)],
            "{name}"
        );
        assert_eq!(warnings, [reason], "{name}");
    }
    let (web, warnings) = port(json!({"name": "a", "port": 1, "nodePort": 70000}));
    assert_eq!(
        (web.ports[0].node_port, &*warnings),
        (0, &[Reason::InvalidPort][..])
    );
    for (timeout, used, warned) in [
        (0, 1, true),
        (1, 1, false),
        (86_400, 86_400, false),
        (90_000, 86_400, true),
    ] {
        let (web, warnings) = spec(json!({"sessionAffinity": "ClientIP",
                                          "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout}}}));
        assert_eq!(
            (web.affinity_timeout_s, warnings.len()),
            (used, usize::from(warned)),
            "{timeout}"
        );
    }
}

#[test]
fn addresses_are_taken_or_refused_one_by_one() {
    for (text, used) in [
        ("10.96.0.20", Some("10.96.0.20")),
        ("010.096.000.020", Some("10.96.0.20")),
        ("fd00:96::20", Some("fd00:96::20")),
        ("::ffff:10.96.0.20", None),
        ("10.96.0", None),
        ("10.96.0.256", None),
        ("10.96.0.1/32", None),
        ("fe80::1%eth0", None),
        ("lb.example.test", None),
    ] {
        let (web, warnings) = spec(json!({"externalIPs": [text, "203.0.113.1"]}));
        let want: Vec<_> = used.into_iter().chain(["203.0.113.1"]).map(ip).collect();
        assert_eq!(*web.external_ips, *want, "{text}");
        assert_eq!(warnings.len(), usize::from(used.is_none()), "{text}");
    }
    // Empty strings and repetitions say nothing.
    let (web, warnings) = spec(json!({"externalIPs": ["", "203.0.113.1", "203.0.113.1"]}));
    assert_eq!((web.external_ips.len(), warnings.len()), (1, 0));
}

#[test]
fn which_services_are_ours() {
    let proxy = |name: &str| labelled(json!({"service.kubernetes.io/service-proxy-name": name}));
    for (name, service, own, ours) in [
        ("plain", labelled(json!({})), None, true),
        (
            "plain, we have a name",
            labelled(json!({})),
            Some("fairlead"),
            true,
        ),
        ("another proxy's", proxy("other"), None, false),
        (
            "another proxy's, we have a name",
            proxy("other"),
            Some("fairlead"),
            false,
        ),
        ("by our name", proxy("fairlead"), Some("fairlead"), true),
        (
            "by our name, but we have none",
            proxy("fairlead"),
            None,
            false,
        ),
        ("empty name", proxy(""), None, false),
        (
            "label headless",
            labelled(json!({"service.kubernetes.io/headless": ""})),
            None,
            false,
        ),
        (
            "clusterIP None",
            spec(json!({"clusterIP": "None", "clusterIPs": ["None"]})).0,
            None,
            false,
        ),
        (
            "ExternalName",
            spec(json!({"type": "ExternalName", "externalName": "example.test"})).0,
            None,
            false,
        ),
        (
            "no clusterIP yet",
            spec(json!({"clusterIP": ""})).0,
            None,
            true,
        ),
        (
            "loadBalancerClass",
            spec(json!({"type": "LoadBalancer", "loadBalancerClass": "example.test/lb"})).0,
            None,
            true,
        ),
    ] {
        assert_eq!(service.is_ours(own), ours, "{name}");
    }
}

#[test]
fn absent_fields_of_a_slice_get_the_defaults_of_the_api() {
    let (slice, warnings) = slice(json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": 8080}, {"name": "none"}, {"name": "zero", "port": 0},
                  {"name": null, "protocol": null, "port": null}],
        "endpoints": [
            {"addresses": ["10.244.1.5", "10.244.1.6"], "conditions": {}},
            {"addresses": ["10.244.1.7"], "conditions": {"ready": null, "terminating": true}, "nodeName": "n1"},
            {"addresses": []}, {"addresses": null}, {"addresses": ["10.244.1.8"], "conditions": null,
             "hints": {"forZones": [], "forNodes": null}}
        ]
    }));
    let slice = slice.expect("usable");
    assert_eq!(warnings, []);
    assert_eq!(slice.service, Some(ObjectName::new("shop", "web")));
    assert_eq!(slice.ports.len(), 1);
    assert_eq!(
        (
            &*slice.ports[0].name,
            slice.ports[0].protocol.as_str(),
            slice.ports[0].port
        ),
        ("", "TCP", 8080)
    );
    let seen: Vec<_> = slice
        .endpoints
        .iter()
        .map(|it| {
            (
                it.address.to_string(),
                it.ready,
                it.serving,
                it.terminating,
                it.node.as_deref(),
                it.hints.is_none(),
            )
        })
        .collect();
    let want = [
        ("10.244.1.5".to_owned(), true, true, false, None, true),
        ("10.244.1.7".to_owned(), true, true, true, Some("n1"), true),
        ("10.244.1.8".to_owned(), true, true, false, None, true),
    ];
    assert_eq!(seen, want);
}

#[test]
fn lists_that_are_null_are_empty() {
    let (slice, warnings) = slice(
        json!({"metadata": {"name": "a"}, "addressType": "IPv6", "ports": null, "endpoints": null}),
    );
    let slice = slice.expect("usable");
    assert!(slice.ports.is_empty() && slice.endpoints.is_empty() && warnings.is_empty());
}

#[test]
fn a_slice_belongs_to_the_service_that_its_label_names() {
    for (labels, service) in [
        (json!({"kubernetes.io/service-name": "api"}), Some("api")),
        (json!({"kubernetes.io/service-name": ""}), None),
        (json!({}), None),
        (
            json!({"kubernetes.io/service-name": "api", "service.kubernetes.io/headless": ""}),
            None,
        ),
        (
            json!({"kubernetes.io/service-name": "api", "service.kubernetes.io/service-proxy-name": "other"}),
            Some("api"),
        ),
    ] {
        let owner = json!([{"kind": "Service", "name": "web"}]);
        let meta = json!({"name": "web-1", "namespace": "shop", "labels": labels, "ownerReferences": owner});
        let (slice, _) = slice(json!({"metadata": meta, "addressType": "IPv4"}));
        assert_eq!(
            slice.expect("usable").service,
            service.map(|name| ObjectName::new("shop", name)),
            "{meta}"
        );
    }
}

#[test]
fn what_a_slice_says_wrongly_is_left_out_alone() {
    let of =
        |kind: &str| slice(json!({"metadata": {"name": "a"}, "addressType": kind})).1[0].reason;
    assert_eq!(
        [of("FQDN"), of("IPX"), of("")],
        [
            Reason::FqdnSlice,
            Reason::UnknownValue,
            Reason::UnknownValue
        ]
    );
    let (slice, warnings) = slice(json!({
        "metadata": {"name": "web-1", "namespace": "shop"}, "addressType": "IPv4",
        "ports": [{"name": "a", "port": -1}, {"name": "b", "port": 80, "protocol": "ICMP"}, {"name": "c", "port": 80}],
        "endpoints": [{"addresses": ["pod-1"]}, {"addresses": ["10.244.1.5"]}]
    }));
    let slice = slice.expect("usable");
    assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
    assert_eq!(
        warnings.iter().map(|it| it.reason).collect::<Vec<_>>(),
        [
            Reason::InvalidPort,
            Reason::UnknownValue,
            Reason::InvalidAddress
        ]
    );
    let text = warnings[2].to_string();
    for part in [
        "EndpointSlice shop/web-1",
        "addresses[0]",
        "\"pod-1\"",
        "write a plain",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_empty_zone_is_none() {
    for (labels, zone) in [
        (json!({"topology.kubernetes.io/zone": "za"}), Some("za")),
        (json!({"topology.kubernetes.io/zone": ""}), None),
        (json!({}), None),
    ] {
        let raw: RawNode =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}}))
                .expect("readable");
        let node = raw.convert(raw.object_name().expect("named"), &mut Interner::default());
        assert_eq!(
            (node.name.to_string(), node.zone.as_deref()),
            ("n1".to_owned(), zone)
        );
    }
}

#[test]
fn strings_that_nobody_uses_are_forgotten() {
    let mut interner = Interner::default();
    let kept = interner.intern("kept");
    for number in 0..10_000 {
        interner.intern(&number.to_string());
    }
    assert!(interner.len() < 3_000);
    assert!(std::sync::Arc::ptr_eq(&kept, &interner.intern("kept")));
}

#[test]
fn annotations_of_a_service_are_read_and_bad_ones_told() {
    let annotated = |algorithm: &str, weights: &str| {
        service(json!({"metadata": {"name": "web", "annotations": {
            "fairlead.io/algorithm": algorithm, "fairlead.io/weights": weights,
        }}}))
    };
    let (web, warnings) = annotated("random", "web-0=3");
    assert_eq!(web.algorithm, Algorithm::Random);
    assert_eq!(web.weights, Weights::parse("web-0=3").unwrap());
    assert!(warnings.is_empty());
    let (web, warnings) = annotated("Random", "web-0=3,web-1");
    assert_eq!(web.algorithm, Algorithm::Maglev);
    assert!(web.weights.is_empty());
    assert_eq!(warnings, [Reason::UnknownValue, Reason::InvalidWeights]);
}

#[test]
fn the_names_of_targets_stay_with_their_endpoints() {
    let endpoint =
        |address: &str, target: Value| json!({"addresses": [address], "targetRef": target});
    for (targets, wanted) in [
        (["a", "b", "c"], ["a", "c"]),
        (["", "b", "c"], ["", "c"]),
        (["a", "b", ""], ["a", ""]),
        (["", "", ""], ["", ""]),
        (["a\n", "b", "c"], ["", "c"]),
    ] {
        let [first, second, third] = targets.map(|it| match it {
            "" => Value::Null,
            name => json!({"kind": "Pod", "name": name}),
        });
        let (web, warnings) = slice(json!({
            "metadata": {"name": "web-1", "annotations": {"fairlead.io/weights": "a=2"}},
            "addressType": "IPv4",
            "endpoints": [
                endpoint("10.0.0.1", first), endpoint("no address", second), endpoint("10.0.0.3", third),
            ],
        }));
        let web = web.unwrap();
        assert!(
            web.target_names().eq(wanted),
            "{targets:?}: {:?}",
            web.targets
        );
        assert_eq!(web.weights.of(ip("10.0.0.1"), "a"), Some(2));
        assert_eq!(warnings.len(), 1);
    }
}

#[test]
fn a_service_says_how_packets_get_to_other_nodes() {
    let convert = |annotations: Value| {
        let (web, warnings) =
            service(json!({"metadata": {"name": "web", "annotations": annotations}}));
        (web.forwarding, warnings)
    };
    let ours = |mode: &str| convert(json!({"fairlead.io/forwarding-mode": mode}));
    let foreign = |mode: &str| convert(json!({"service.cilium.io/forwarding-mode": mode}));
    for mode in ForwardingMode::ALL {
        assert_eq!(ours(mode.as_str()), (Some(mode), vec![]));
        assert_eq!(foreign(mode.as_str()), (Some(mode), vec![]));
    }
    assert_eq!(convert(json!({})), (None, vec![]));
    let both = json!({
        "fairlead.io/forwarding-mode": "hybrid", "service.cilium.io/forwarding-mode": "dsr",
    });
    assert_eq!(convert(both), (Some(ForwardingMode::Hybrid), vec![]));
    for unknown in [ours("DSR"), foreign("tunnel")] {
        assert_eq!(unknown, (None, vec![Reason::UnknownValue]));
    }
}
