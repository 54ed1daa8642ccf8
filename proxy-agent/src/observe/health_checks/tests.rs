//! Semantics 31: who is told about, where, and what is on the wire.

use super::*;
use crate::model::{Family, Reason};
use crate::resolve::HealthCheck;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

/// A claim of this age to a port, with so many endpoints of IPv4 and one of IPv6.
fn claim(created_s: i64, port: u16, families: &[Family], endpoints: u8) -> Claim {
    let v4 = (1..=endpoints).map(|host| IpAddr::from([10, 244, 1, host]));
    let v6: IpAddr = "fd00:244:1::1".parse().unwrap();
    Claim {
        created_s,
        check: HealthCheck {
            port,
            families: families.to_vec(),
            endpoints: v4.chain([v6]).collect(),
        },
    }
}

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];

#[test]
fn a_port_belongs_to_the_oldest_service_that_asks_for_it() {
    type Row = (
        &'static [(&'static str, i64, u16, &'static [Family])],
        &'static str,
        usize,
    );
    let rows: &[Row] = &[
        (&[("a", 1, 31, V4), ("b", 2, 32, V4)], "31 a 2, 32 b 2", 0),
        (&[("a", 2, 31, V4), ("b", 1, 31, V4)], "31 b 2", 1),
        (&[("b", 1, 31, V4), ("a", 1, 31, V4)], "31 a 2", 1),
        (&[("a", 1, 31, V4), ("b", 2, 31, V6)], "31 a 2, 31 b 1", 0),
        (
            &[("a", 1, 31, V4), ("b", 2, 31, &Family::ALL)],
            "31 a 2, 31 b 1",
            1,
        ),
        // One warning, though in two families.
        (
            &[("a", 1, 31, &Family::ALL), ("b", 2, 31, &Family::ALL)],
            "31 a 2, 31 a 1",
            1,
        ),
        (&[], "", 0),
    ];
    for (claims, want, warnings) in rows {
        let claims = claims
            .iter()
            .map(|&(service, age, port, families)| (name(service), claim(age, port, families, 2)))
            .collect();
        let (answers, told) = plan(&claims);
        let shown: Vec<String> = answers
            .iter()
            .map(|((_, port), it)| format!("{port} {} {}", it.service.name, it.local_endpoints))
            .collect();
        assert_eq!(shown.join(", "), *want, "{claims:?}");
        assert_eq!(told.len(), *warnings, "{told:?}");
        assert!(
            told.iter()
                .all(|it| it.reason == Reason::HealthCheckPortTaken)
        );
    }
}

#[test]
fn an_answer_is_good_with_an_endpoint_and_a_healthy_proxy() {
    for (local_endpoints, healthy, good) in [
        (0, true, false),
        (1, true, true),
        (7, true, true),
        (7, false, false),
        (0, false, false),
    ] {
        let answer = Answer {
            service: name("web"),
            local_endpoints,
        };
        assert_eq!(answer.is_good(healthy), good, "{answer:?}");
        let body = serde_json::to_string(&answer.body(healthy)).unwrap();
        let want = format!(
            r#"{{"service":{{"namespace":"shop","name":"web"}},"localEndpoints":{local_endpoints},"serviceProxyHealthy":{healthy}}}"#
        );
        assert_eq!(body, want);
    }
}

#[test]
fn sockets_are_on_the_addresses_of_the_family() {
    let addresses = ["192.0.2.11", "198.51.100.1", "2001:db8::11"].map(|it| it.parse().unwrap());
    let sites = [(Family::V4, 31), (Family::V6, 32)];
    let sockets = sockets(sites.iter(), &addresses.into());
    let shown: Vec<String> = sockets.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        ["192.0.2.11:31", "198.51.100.1:31", "[2001:db8::11]:32"]
    );
}

/// Loopback addresses, one for each test: no other takes its ports there.
const ANSWERS: Ipv4Addr = Ipv4Addr::new(127, 0, 31, 1);
const PASSES: Ipv4Addr = Ipv4Addr::new(127, 0, 31, 2);
const TAKEN: Ipv4Addr = Ipv4Addr::new(127, 0, 31, 3);

/// Ports on a loopback address, and on that of IPv6; and one that is free.
fn on_loopback(v4: Ipv4Addr) -> (HealthChecks, u16) {
    let mut checks = HealthChecks::new(Arc::new(Health::default()));
    checks.set_addresses([v4.into(), Ipv6Addr::LOCALHOST.into()].into());
    let free = TcpListener::bind((v4, 0)).unwrap();
    (checks, free.local_addr().unwrap().port())
}

/// Sends a request and returns the whole answer, or "" if nobody is there.
fn ask(stream: &mut TcpStream) -> String {
    let request = b"GET /any/path HTTP/1.1\r\nHost: node\r\n\r\n";
    let mut text = String::new();
    if stream.write_all(request).is_err() {
        return text;
    }
    let mut buffer = [0; 1024];
    while !text.ends_with('}') {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return text,
            Ok(read) => text.push_str(std::str::from_utf8(&buffer[..read]).unwrap()),
        }
    }
    text
}

fn ask_anew(v4: Ipv4Addr, port: u16) -> String {
    match TcpStream::connect((v4, port)) {
        Ok(mut stream) => ask(&mut stream),
        Err(_) => String::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_what_load_balancers_know_from_kube_proxy() {
    let (mut checks, port) = on_loopback(ANSWERS);
    checks.set(name("web"), Some(claim(1, port, &Family::ALL, 2)));
    assert_eq!(checks.follow(Instant::now()), []);
    assert_eq!(checks.counts(), (2, 0));
    let answer = ask_anew(ANSWERS, port);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    for header in [
        "Content-Type: application/json",
        "X-Content-Type-Options: nosniff",
        "X-Load-Balancing-Endpoint-Weight: 2",
    ] {
        assert!(
            head.lines().any(|line| line == header),
            "{header} in {head}"
        );
    }
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["localEndpoints"], 2);
    let mut v6 = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    assert!(ask(&mut v6).contains("\"localEndpoints\":1"));
    // Told without another look at the sockets.
    checks.set(name("web"), Some(claim(1, port, &Family::ALL, 0)));
    assert_eq!(checks.due(), None);
    let answer = ask_anew(ANSWERS, port);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("X-Load-Balancing-Endpoint-Weight: 0\r\n"),
        "{answer}"
    );
    assert!(ask(&mut v6).starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_open_connection_ends_with_its_service_and_follows_the_port() {
    let (mut checks, port) = on_loopback(PASSES);
    checks.set(name("web"), Some(claim(1, port, V4, 1)));
    checks.follow(Instant::now());
    let mut open = TcpStream::connect((PASSES, port)).unwrap();
    assert!(ask(&mut open).contains("\"web\""));
    // The port passes to another Service in one step.
    checks.set(name("web"), None);
    checks.set(name("api"), Some(claim(2, port, V4, 1)));
    assert_eq!(checks.follow(Instant::now()), []);
    assert!(ask(&mut open).contains("\"api\""));
    checks.set(name("api"), None);
    checks.follow(Instant::now());
    // The last answer, if there is one, is no good one.
    let last = ask(&mut open);
    assert!(
        last.is_empty() || last.starts_with("HTTP/1.1 503"),
        "{last}"
    );
    assert_eq!(checks.counts(), (0, 0));
    // Nobody else is there.
    while !ask_anew(PASSES, port).is_empty() {
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_port_that_is_taken_is_told_once_and_opened_when_it_is_free() {
    let (mut checks, port) = on_loopback(TAKEN);
    let other = TcpListener::bind((TAKEN, 0)).unwrap();
    let taken = other.local_addr().unwrap().port();
    let start = Instant::now() + RETRY;
    checks.set(name("web"), Some(claim(1, port, V4, 1)));
    checks.set(name("api"), Some(claim(1, taken, V4, 1)));
    assert_eq!(checks.follow(start), [], "it may be free in an instant");
    assert_eq!(checks.counts(), (1, 1));
    assert!(ask_anew(TAKEN, port).contains("\"web\""), "others go on");
    assert_eq!(checks.due(), Some(start + RETRY));
    let warnings = checks.follow(start + RETRY);
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    assert_eq!(
        (&warning.name, warning.reason),
        (&name("api"), Reason::HealthCheckPortTaken)
    );
    assert!(warning.message.contains(&taken.to_string()), "{warning}");
    assert_eq!(checks.follow(start + 2 * RETRY), [], "once");
    drop(other);
    assert_eq!(checks.follow(start + 3 * RETRY), []);
    assert_eq!((checks.counts(), checks.due()), ((2, 0), None));
    assert!(ask_anew(TAKEN, taken).contains("\"api\""));
}
