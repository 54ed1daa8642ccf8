//! Slices joined: what pkg/proxy/endpointslicecache_test.go of
//! kubernetes/kubernetes pins down, in our words, and cases K28 and K30.

use super::*;
use crate::model::Reason;

const HTTP: (&str, Protocol, u16) = ("http", Protocol::Tcp, 8080);

/// A slice from `address=flags@node` words.
fn of(name: &str, port: (&str, Protocol, u16), text: &str) -> EndpointSlice {
    let endpoints = text.split_whitespace().map(|word| {
        let (address, rest) = word.split_once('=').expect("address=flags");
        endpoint(ip(address), rest)
    });
    slice(name, port, endpoints.collect())
}

/// The endpoints as `address:port`, with `L` if local and `c` if in the cluster set.
fn shown(slices: &[EndpointSlice]) -> String {
    let (endpoints, _) = endpoints_of(slices, &node());
    let word = |it: &ResolvedEndpoint| {
        let flags = [(it.local, "L"), (it.in_cluster_set, "c")];
        let flags: String = flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| *flag)
            .collect();
        format!("{}:{}{flags}", it.address, it.port)
    };
    endpoints.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn slices_of_a_service_are_joined() {
    for (name, slices, want) in [
        (
            "one slice",
            vec![of("a", HTTP, "10.244.1.2=R@n1 10.244.1.1=R@n2")],
            "10.244.1.1:8080c 10.244.1.2:8080Lc",
        ),
        (
            "two slices",
            vec![of("a", HTTP, "10.244.1.2=R"), of("b", HTTP, "10.244.1.1=R")],
            "10.244.1.1:8080c 10.244.1.2:8080c",
        ),
        (
            "two slices that overlap",
            vec![
                of("a", HTTP, "10.244.1.1=R 10.244.1.2=R"),
                of("b", HTTP, "10.244.1.2=R 10.244.1.3=R"),
            ],
            "10.244.1.1:8080c 10.244.1.2:8080c 10.244.1.3:8080c",
        ),
        (
            "the ready copy counts",
            vec![
                of("a", HTTP, "10.244.1.1=N 10.244.1.2=R"),
                of("b", HTTP, "10.244.1.1=R 10.244.1.2=N"),
            ],
            "10.244.1.1:8080c 10.244.1.2:8080c",
        ),
        (
            "the ready copy counts before a terminating one",
            vec![
                of("a", HTTP, "10.244.1.1=T"),
                of("b", HTTP, "10.244.1.1=R"),
                of("c", HTTP, "10.244.1.2=R"),
            ],
            "10.244.1.1:8080c 10.244.1.2:8080c",
        ),
        (
            "the serving copy counts",
            vec![of("a", HTTP, "10.244.1.1=D"), of("b", HTTP, "10.244.1.1=T")],
            "10.244.1.1:8080c",
        ),
        (
            "no copy is usable",
            vec![of("a", HTTP, "10.244.1.1=N"), of("b", HTTP, "10.244.1.1=D")],
            "",
        ),
        (
            "any local copy makes it local, also the unusable one",
            vec![
                of("a", HTTP, "10.244.1.1=R@n2"),
                of("b", HTTP, "10.244.1.1=N@n1"),
            ],
            "10.244.1.1:8080Lc",
        ),
        (
            "the same address with another port is another endpoint",
            vec![
                of("a", HTTP, "10.244.1.1=R"),
                of("b", ("http", Protocol::Tcp, 80), "10.244.1.1=R"),
            ],
            "10.244.1.1:80c 10.244.1.1:8080c",
        ),
        (
            "another port name",
            vec![of("a", ("https", Protocol::Tcp, 8443), "10.244.1.1=R")],
            "",
        ),
        (
            "no port name is a name",
            vec![of("a", ("", Protocol::Tcp, 8080), "10.244.1.1=R")],
            "",
        ),
        (
            "port names are not folded",
            vec![of("a", ("HTTP", Protocol::Tcp, 8080), "10.244.1.1=R")],
            "",
        ),
        (
            "serving ones in no set are listed, others are not",
            vec![of(
                "a",
                HTTP,
                "10.244.1.1=S 10.244.1.2=T 10.244.1.3=R 10.244.1.4=D 10.244.1.5=N",
            )],
            "10.244.1.1:8080 10.244.1.2:8080 10.244.1.3:8080c",
        ),
        (
            "numbers sort as numbers, IPv4 before IPv6",
            vec![
                of("b", HTTP, "fd00::1=R"),
                of("a", HTTP, "10.244.1.10=R 10.244.1.9=R"),
            ],
            "10.244.1.9:8080c 10.244.1.10:8080c fd00::1:8080c",
        ),
    ] {
        assert_eq!(shown(&slices), want, "{name}");
        let reversed: Vec<_> = slices.into_iter().rev().collect();
        assert_eq!(shown(&reversed), want, "{name}, slices in the other order");
    }
}

#[test]
fn a_port_of_another_protocol_does_not_join() {
    let slices = [of("a", ("http", Protocol::Udp, 8080), "10.244.1.1=R")];
    assert_eq!(
        endpoints_of(&slices, &node()),
        (vec![], vec![Reason::ProtocolMismatch])
    );
}

#[test]
fn equal_copies_with_different_hints_give_one_answer() {
    let hinted = [
        of("a", HTTP, "10.244.1.1=R[za] 10.244.1.2=R[zb]"),
        of("b", HTTP, "10.244.1.1=R"),
    ];
    assert_eq!(shown(&hinted), "10.244.1.1:8080c 10.244.1.2:8080");
    let [a, b] = hinted;
    assert_eq!(shown(&[b, a]), "10.244.1.1:8080c 10.244.1.2:8080");
}

#[test]
fn addresses_that_cannot_be_backends_are_refused_one_by_one() {
    for (bad, good) in [
        ("0.0.0.0", "10.244.1.1"),
        ("127.0.0.1", "10.244.1.1"),
        ("169.254.1.1", "10.244.1.1"),
        ("224.0.0.1", "10.244.1.1"),
        ("255.255.255.255", "10.244.1.1"),
        ("10.96.0.20", "10.244.1.1"),
        ("fd00::5", "10.244.1.1"),
        ("::", "fd00::1"),
        ("::1", "fd00::1"),
        ("fe80::1", "fd00::1"),
        ("ff02::1", "fd00::1"),
        ("fd00:96::99", "fd00::1"),
        ("10.244.1.5", "fd00::1"),
    ] {
        let slices = [of("a", HTTP, &format!("{good}=R {bad}=R"))];
        let (endpoints, warnings) = endpoints_of(&slices, &node());
        assert_eq!(
            endpoints.iter().map(|it| it.address).collect::<Vec<_>>(),
            [ip(good)],
            "{bad}"
        );
        assert_eq!(warnings, [Reason::UnusableEndpoint], "{bad}");
    }
}

#[test]
fn a_bad_endpoint_is_told_once_whatever_the_ports() {
    let mut web = service();
    web.ports = [
        port("http", Protocol::Tcp, 80, 0),
        port("dns", Protocol::Udp, 53, 0),
    ]
    .into();
    let slices = [of("a", HTTP, "127.0.0.1=R")];
    let (_, warnings) = resolve(&web, &slices, &node(), |_| false, &options());
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].name, ObjectName::new("shop", "a"));
    assert!(
        warnings[0].message.contains("127.0.0.1 is loopback"),
        "{}",
        warnings[0].message
    );
}
