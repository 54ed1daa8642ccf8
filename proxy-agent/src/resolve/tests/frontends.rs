//! Addresses of a Service and the sets behind them: semantics 1, 6, 9, 10, 16,
//! 17, cases K22, K34, K36, K40 and K42.

use super::*;

/// The frontends for clients on this node as `kind address:port set`, and the
/// number of warnings.
fn shown(service: &Service, options: &ResolveOptions) -> (Vec<String>, usize) {
    shown_in(Scope::Internal, service, options)
}

fn shown_in(scope: Scope, service: &Service, options: &ResolveOptions) -> (Vec<String>, usize) {
    let (resolved, warnings) = resolve(service, &[], &node(), |_| false, options);
    let line = |port: &ResolvedPort, it: &ResolvedFrontend| {
        let set = match it.set {
            EndpointSet::Cluster => "cluster",
            EndpointSet::Local => "local",
        };
        format!(
            "{} {}:{}/{} {set}",
            it.kind.as_str(),
            it.address.to_ip(),
            it.port,
            port.protocol.as_str()
        )
    };
    let lines = resolved
        .ports
        .iter()
        .flat_map(|port| port.frontends.iter().map(move |it| (port, it)))
        .filter(|(_, frontend)| frontend.scope == scope)
        .map(|(port, frontend)| line(port, frontend))
        .collect();
    (lines, warnings.len())
}

/// A load balancer with every kind of address.
fn balanced() -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        external_ips: [ip("203.0.113.9")].into(),
        load_balancer_ips: [ip("198.51.100.7"), ip("2001:db8:100::7")].into(),
        ports: [port("http", Protocol::Tcp, 80, 30080)].into(),
        ..service()
    }
}

const BALANCED: [&str; 7] = [
    "ClusterIP 10.96.0.20:80/TCP cluster",
    "ClusterIP fd00:96::20:80/TCP cluster",
    "LoadBalancer 198.51.100.7:80/TCP cluster",
    "LoadBalancer 2001:db8:100::7:80/TCP cluster",
    "ExternalIP 203.0.113.9:80/TCP cluster",
    "NodePort 0.0.0.0:30080/TCP cluster",
    "NodePort :::30080/TCP cluster",
];

#[test]
fn every_field_gives_its_frontends() {
    assert_eq!(
        shown(&balanced(), &options()),
        (BALANCED.map(str::to_owned).to_vec(), 0)
    );
}

#[test]
fn policies_bind_only_their_frontends() {
    let internal = shown(
        &Service {
            internal_local: true,
            ..balanced()
        },
        &options(),
    )
    .0;
    let want = BALANCED.map(|it| {
        if it.starts_with("Cl") {
            it.replace(" cluster", " local")
        } else {
            it.to_owned()
        }
    });
    assert_eq!(internal, want);
    let external = shown(
        &Service {
            external_local: true,
            ..balanced()
        },
        &options(),
    )
    .0;
    let want = BALANCED.map(|it| {
        if it.starts_with("No") {
            it.replace(" cluster", " local")
        } else {
            it.to_owned()
        }
    });
    assert_eq!(external, want);
}

#[test]
fn each_row_leaves_exactly_the_frontends_that_it_should() {
    let v4_only = |it: Service| Service {
        cluster_ips: [ip("10.96.0.20")].into(),
        ..it
    };
    let keep = |wanted: &[usize]| {
        wanted
            .iter()
            .map(|&it| BALANCED[it].to_owned())
            .collect::<Vec<_>>()
    };
    let no_external = ResolveOptions {
        external_ips: false,
        ..options()
    };
    let rows = [
        (
            "NodePort type: no load balancer",
            Service {
                kind: ServiceType::NodePort,
                ..balanced()
            },
            options(),
            keep(&[0, 1, 4, 5, 6]),
        ),
        (
            "ClusterIP type: no node port",
            Service {
                kind: ServiceType::ClusterIp,
                ..balanced()
            },
            options(),
            keep(&[0, 1, 4]),
        ),
        (
            "externalIPs switched off",
            balanced(),
            no_external,
            keep(&[0, 1, 2, 3, 5, 6]),
        ),
        (
            "one family: the other's addresses are left alone",
            v4_only(balanced()),
            options(),
            keep(&[0, 2, 4, 5]),
        ),
        (
            "one family by ipFamilies alone",
            Service {
                cluster_ips: Box::default(),
                ip_families: [Family::V6].into(),
                ..balanced()
            },
            options(),
            keep(&[3, 6]),
        ),
        (
            "no family stated: both",
            Service {
                cluster_ips: Box::default(),
                ..balanced()
            },
            options(),
            keep(&[2, 3, 4, 5, 6]),
        ),
        (
            "no node port allocated",
            Service {
                ports: [port("http", Protocol::Tcp, 80, 0)].into(),
                ..balanced()
            },
            options(),
            keep(&[0, 1, 2, 3, 4]),
        ),
        (
            "headless",
            Service {
                headless: true,
                ..balanced()
            },
            options(),
            keep(&[]),
        ),
        (
            "another proxy's",
            Service {
                proxy_name: Some("other".into()),
                ..balanced()
            },
            options(),
            keep(&[]),
        ),
        (
            "ExternalName",
            Service {
                kind: ServiceType::ExternalName,
                ..balanced()
            },
            options(),
            keep(&[]),
        ),
    ];
    for (name, service, options, want) in rows {
        assert_eq!(shown(&service, &options), (want.clone(), 0), "{name}");
        let outside = shown_in(Scope::External, &service, &options);
        assert_eq!(outside, (want, 0), "{name}, for clients outside");
    }
}

/// Semantics 17 and 23: outside, the external policy binds all but the ClusterIP.
#[test]
fn policies_bind_clients_outside_by_kind_of_address() {
    let local = |is_local: fn(&str) -> bool| {
        BALANCED.map(|it| {
            if is_local(it) {
                it.replace(" cluster", " local")
            } else {
                it.to_owned()
            }
        })
    };
    let is_cluster_ip = |it: &str| it.starts_with("ClusterIP");
    let rows = [
        (false, false, local(|_| false)),
        (true, false, local(is_cluster_ip)),
        (false, true, local(|it| !it.starts_with("ClusterIP"))),
        (true, true, local(|_| true)),
    ];
    for (internal_local, external_local, want) in rows {
        let service = Service {
            internal_local,
            external_local,
            ..balanced()
        };
        let (got, _) = shown_in(Scope::External, &service, &options());
        assert_eq!(got, want, "{internal_local} {external_local}");
    }
}

/// Semantics 22: the node's own addresses are nothing to a client outside.
#[test]
fn source_ranges_bind_load_balancer_addresses_in_both_scopes() {
    use SourceFilter::{Anyone, Ranges, RangesAndHost};
    let rows = [
        (&[][..], [Anyone; 4]),
        (&["203.0.113.0/24"], [Ranges, Anyone, Ranges, Anyone]),
        (&["192.0.2.0/24"], [RangesAndHost, Anyone, Ranges, Anyone]),
        (&["2001:db8::/32"], [Anyone, Ranges, Anyone, Ranges]),
        (&["203.0.113.0/24", "0.0.0.0/0"], [Anyone; 4]),
    ];
    for (ranges, want) in rows {
        let service = Service {
            source_ranges: ranges.iter().map(|it| it.parse().unwrap()).collect(),
            ..balanced()
        };
        let (resolved, _) = resolve(&service, &[], &node(), |_| false, &options());
        let frontends = &resolved.ports[0].frontends;
        let (filtered, others): (Vec<&ResolvedFrontend>, Vec<_>) = frontends
            .iter()
            .partition(|it| it.kind == FrontendKind::LoadBalancer);
        let filters: Vec<_> = filtered.iter().map(|it| it.source_filter).collect();
        assert_eq!(filters, want, "{ranges:?}");
        assert!(others.iter().all(|it| it.source_filter == Anyone));
    }
}

/// Semantics 36: a NodeLocal DNSCache is there for all who come to this node.
#[test]
fn what_is_left_alone_is_so_in_both_scopes() {
    let skipping = ResolveOptions {
        skip: ["10.96.0.20:80", "0.0.0.0:30080"]
            .map(|it| it.parse().unwrap())
            .into(),
        ..options()
    };
    for scope in [Scope::Internal, Scope::External] {
        let (got, _) = shown_in(scope, &balanced(), &skipping);
        assert_eq!(got, [&BALANCED[1..5], &BALANCED[6..]].concat(), "{scope:?}");
    }
}

/// Clients here are translated at their sockets: nothing of theirs is forwarded.
#[test]
fn a_service_forwards_as_it_says_and_else_as_the_node_does() {
    use ForwardingMode::{Dsr, Hybrid, Snat};
    for (of_service, of_node, tcp, udp) in [
        (None, Snat, Forwarding::Snat, Forwarding::Snat),
        (None, Dsr, Forwarding::Dsr, Forwarding::Dsr),
        (None, Hybrid, Forwarding::Dsr, Forwarding::Snat),
        (Some(Snat), Dsr, Forwarding::Snat, Forwarding::Snat),
        (Some(Dsr), Snat, Forwarding::Dsr, Forwarding::Dsr),
        (Some(Hybrid), Snat, Forwarding::Dsr, Forwarding::Snat),
    ] {
        let service = Service {
            forwarding: of_service,
            ports: [
                port("http", Protocol::Tcp, 80, 30080),
                port("dns", Protocol::Udp, 53, 0),
            ]
            .into(),
            ..balanced()
        };
        let options = ResolveOptions {
            forwarding: of_node,
            ..options()
        };
        let (resolved, _) = resolve(&service, &[], &node(), |_| false, &options);
        for (port, wanted) in resolved.ports.iter().zip([tcp, udp]) {
            for frontend in &port.frontends {
                let wanted = match frontend.scope {
                    Scope::Internal => Forwarding::Snat,
                    Scope::External => wanted,
                };
                assert_eq!(
                    frontend.forwarding, wanted,
                    "{of_service:?} {of_node:?} {frontend:?}"
                );
            }
        }
    }
}

#[test]
fn a_service_that_is_not_ours_has_nothing() {
    let (resolved, _) = resolve(
        &Service {
            headless: true,
            ..balanced()
        },
        &[],
        &node(),
        |_| false,
        &options(),
    );
    assert!(resolved.ports.is_empty() && resolved.cluster_ips.is_empty());
    let own = ResolveOptions {
        service_proxy_name: Some("fairlead".into()),
        ..options()
    };
    let named = Service {
        proxy_name: Some("fairlead".into()),
        ..balanced()
    };
    assert_eq!(shown(&named, &own).0.len(), BALANCED.len());
}

#[test]
fn addresses_that_cannot_be_frontends_are_refused_one_by_one() {
    for bad in [
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
    ] {
        let externals = Service {
            external_ips: [ip(bad), ip("203.0.113.9")].into(),
            ..balanced()
        };
        assert_eq!(
            shown(&externals, &options()),
            (BALANCED.map(str::to_owned).to_vec(), 1),
            "{bad} as externalIP"
        );
        let ingress = [ip(bad), ip("198.51.100.7"), ip("2001:db8:100::7")].into();
        let balancer = Service {
            load_balancer_ips: ingress,
            ..balanced()
        };
        assert_eq!(
            shown(&balancer, &options()),
            (BALANCED.map(str::to_owned).to_vec(), 1),
            "{bad} as load balancer IP"
        );
    }
}

#[test]
fn an_address_in_several_fields_is_one_frontend() {
    let web = Service {
        external_ips: [ip("198.51.100.7"), ip("10.96.0.20"), ip("203.0.113.9")].into(),
        ..balanced()
    };
    assert_eq!(
        shown(&web, &options()),
        (BALANCED.map(str::to_owned).to_vec(), 0)
    );
}

#[test]
fn ports_with_one_number_and_two_protocols_stay_apart() {
    let dns = Service {
        cluster_ips: [ip("10.96.0.10")].into(),
        ports: [
            port("dns", Protocol::Udp, 53, 0),
            port("dns-tcp", Protocol::Tcp, 53, 0),
            port("x", Protocol::Sctp, 53, 0),
        ]
        .into(),
        ..service()
    };
    let want = ["UDP", "TCP", "SCTP"]
        .map(|it| format!("ClusterIP 10.96.0.10:53/{it} cluster"))
        .to_vec();
    // One warning: SCTP is not served yet.
    assert_eq!(shown(&dns, &options()), (want, 1));
}
