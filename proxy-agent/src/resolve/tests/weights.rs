//! Weights of a Service and its slices.

use super::*;

/// Endpoints 10.244.1.1 and on, each `flags@node`, whose Pods are web-1 and on.
fn named(texts: &[&str], weights: &str) -> EndpointSlice {
    let endpoints = texts.iter().zip(1..).map(|(text, number)| {
        let address = format!("10.244.1.{number}");
        endpoint(ip(&address), text)
    });
    let names: Vec<String> = (1..=texts.len()).map(|it| format!("web-{it}")).collect();
    EndpointSlice {
        targets: names.join("\n").into(),
        weights: Weights::parse(weights).unwrap(),
        ..slice("web", ("http", Protocol::Tcp, 8080), endpoints.collect())
    }
}

fn resolved(of_service: &str, slice: EndpointSlice) -> Vec<ResolvedEndpoint> {
    let service = Service {
        weights: Weights::parse(of_service).unwrap(),
        ..service()
    };
    let (mut resolved, warnings) = resolve(&service, &[slice], &node(), |_| false, &options());
    assert!(warnings.is_empty(), "{warnings:?}");
    resolved.ports.remove(0).endpoints
}

#[test]
fn a_slice_speaks_before_its_service() {
    for (of_service, of_slice, wanted) in [
        ("", "", [1, 1, 1]),
        ("web-2=5", "", [1, 5, 1]),
        ("*=7", "10.244.1.1=2", [2, 7, 7]),
        ("web-1=9,*=8", "web-*=3", [3, 3, 3]),
        ("10.244.1.3=4", "web-1=6", [6, 1, 4]),
    ] {
        let got = resolved(of_service, named(&["R@n2"; 3], of_slice)).into_iter();
        let got: Vec<u16> = got.map(|it| it.weight).collect();
        assert_eq!(got, wanted, "{of_service:?} {of_slice:?}");
    }
}

#[test]
fn weight_0_leaves_each_set_unless_nobody_else_is_in_it() {
    type Row = (
        &'static str,
        &'static [&'static str],
        &'static str,
        &'static [u8],
        &'static [u8],
    );
    let rows: [Row; 6] = [
        (
            "others have more",
            &["R@n1", "R@n1", "R@n2"],
            "web-1=0",
            &[2, 3],
            &[2],
        ),
        (
            "none here has more",
            &["R@n1", "R@n1", "R@n2"],
            "web-1=0,web-2=0",
            &[3],
            &[1, 2],
        ),
        (
            "none has more",
            &["R@n1", "R@n2", "R@n2"],
            "*=0",
            &[1, 2, 3],
            &[1],
        ),
        (
            "who has more is not ready",
            &["R@n1", "N@n1", "T@n1"],
            "web-1=0",
            &[1],
            &[1],
        ),
        (
            "draining ones",
            &["T@n1", "T@n1", "N@n2"],
            "web-1=0",
            &[2],
            &[2],
        ),
        (
            "in another zone",
            &["R@n1[za]", "R@n1[zb]"],
            "web-1=0",
            &[1],
            &[2],
        ),
    ];
    for (case, endpoints, weights, cluster, local) in rows {
        let got = resolved(weights, named(endpoints, ""));
        let numbers = |is_in: fn(&ResolvedEndpoint) -> bool| -> Vec<u8> {
            let members = got.iter().filter(|it| is_in(it));
            members
                .map(|it| match it.address {
                    IpAddr::V4(v4) => v4.octets()[3],
                    IpAddr::V6(v6) => panic!("{v6}"),
                })
                .collect()
        };
        assert_eq!(numbers(|it| it.in_cluster_set), cluster, "{case}");
        assert_eq!(numbers(|it| it.in_local_set), local, "{case}");
    }
}
