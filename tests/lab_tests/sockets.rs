//! semantics.md, "Connection life", TCP, and what applications see of their sockets.

use anyhow::{Result, ensure};
use lab::{Cast, Dial, SharedLab, Transport};
use std::net::SocketAddr;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

const BOTH_PORTS: [(Transport, u16); 2] = [(Transport::Tcp, 80), (Transport::Udp, 53)];

/// A dual-stack Service that `b2` serves.
fn dual(cast: &Cast, name: &str, v4: &str, v6: &str) -> Result<()> {
    cast.apply(&cast.service(name, v4).cluster_ip(v6))?;
    cast.apply(&cast.ready(name, &[&cast.b2]))?;
    cast.apply(
        &cast
            .slice(&format!("{name}-v6"), name)
            .v6()
            .ready_endpoints([&cast.b2]),
    )?;
    cast.settle()
}

#[test]
fn ipv4_mapped_sockets_are_ipv4() {
    // K08
    CAST.story(|cast| {
        cast.apply(&cast.service("mapped", "10.96.6.1"))?;
        cast.apply(&cast.ready("mapped", &[&cast.b2]))?;
        cast.apply(&cast.service("mapped-empty", "10.96.6.2"))?;
        cast.settle()?;
        for client in cast.insiders() {
            for (transport, port) in BOTH_PORTS {
                let dial = |ip: &str| -> Result<Dial> {
                    Ok(Dial {
                        mapped: true,
                        ..Dial::new(transport, format!("{ip}:{port}").parse()?)
                    })
                };
                let outcome = client.dial(dial("10.96.6.1")?)?;
                outcome.answered_by("b2")?;
                outcome.peer_name_is(&format!("[::ffff:10.96.6.1]:{port}"))?;
                client.dial(dial("10.96.6.2")?)?.refused()?;
            }
            let socket = client.udp_socket("[::]:0")?;
            let answer = socket.ask("10.96.6.1:53", "mapped")?;
            answer.answered_by("b2")?;
            answer.came_from("[::ffff:10.96.6.1]:53")?;
            socket.send_to("10.96.6.2:53", "mapped")?.refused()?;
        }
        Ok(())
    });
}

#[test]
fn getpeername_says_the_vip_for_the_life_of_the_socket() {
    // K80
    CAST.story(|cast| {
        dual(cast, "named", "10.96.6.3", "fd00:96::6003")?;
        for client in cast.insiders() {
            let mut held = Vec::new();
            for (transport, port) in BOTH_PORTS {
                for vip in ["10.96.6.3", "[fd00:96::6003]"] {
                    let to = format!("{vip}:{port}");
                    let socket = client.hold(Dial::new(transport, to.parse()?))?;
                    socket.outcome.answered_by("b2")?;
                    socket.outcome.peer_name_is(&to)?;
                    socket.peer_name_is(&to)?;
                    held.push((socket, to, transport));
                }
            }
            // The backend is removed; TCP goes on and the name stays.
            cast.apply(&cast.slice("named", "named"))?;
            cast.apply(&cast.slice("named-v6", "named").v6())?;
            cast.settle()?;
            for (socket, to, transport) in &held {
                if *transport == Transport::Tcp {
                    socket.peer_name_is(to)?;
                    socket.talk("on")?.answered_by("b2")?;
                }
            }
            dual(cast, "named", "10.96.6.3", "fd00:96::6003")?;
        }
        Ok(())
    });
}

#[test]
fn getpeername_of_other_sockets_is_left_alone() {
    CAST.story(|cast| {
        for to in [
            format!("{}:8080", cast.b2.v4()),
            format!("[{}]:8080", cast.b2.v6()),
        ] {
            for transport in Transport::BOTH {
                let outcome = cast.client.reach(transport, &to)?;
                outcome.answered_by("b2")?;
                outcome.peer_name_is(&to)?;
            }
        }
        Ok(())
    });
}

#[test]
fn nonblocking_connects_are_in_progress_and_then_succeed() {
    // K80
    CAST.story(|cast| {
        dual(cast, "nonblocking", "10.96.6.4", "fd00:96::6004")?;
        cast.apply(&cast.service("nonblocking-empty", "10.96.6.5"))?;
        cast.settle()?;
        for to in ["10.96.6.4:80", "[fd00:96::6004]:80"] {
            let dial = Dial {
                nonblocking: true,
                ..Dial::new(Transport::Tcp, to.parse()?)
            };
            let outcome = cast.client.dial(dial)?;
            outcome.answered_by("b2")?;
            outcome.peer_name_is(to)?;
            ensure!(
                outcome.dialed.first_errno.as_deref() == Some("EINPROGRESS"),
                "{:?}",
                outcome.dialed
            );
        }
        let dial = Dial {
            nonblocking: true,
            ..Dial::new(Transport::Tcp, "10.96.6.5:80".parse()?)
        };
        cast.client.dial(dial)?.refused()
    });
}

#[test]
fn tcp_fast_open_reaches_a_backend() {
    // K80; the second dial may carry its data in the SYN.
    CAST.story(|cast| {
        dual(cast, "fast", "10.96.6.6", "fd00:96::6006")?;
        for to in ["10.96.6.6:80", "[fd00:96::6006]:80"] {
            for _ in 0..3 {
                let dial = Dial {
                    fast_open: true,
                    ..Dial::new(Transport::Tcp, to.parse()?)
                };
                let outcome = cast.client.dial(dial)?;
                outcome.answered_by("b2")?;
                outcome.peer_name_is(to)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_dissolved_socket_has_no_translation_left() {
    // K80
    CAST.story(|cast| {
        dual(cast, "dissolved", "10.96.6.7", "fd00:96::6007")?;
        // The very backend of before: only what the application said may tell.
        let pod_address = format!("{}:8080", cast.b2.v4());
        let udp = cast.client.hold_udp("10.96.6.7:53")?;
        udp.outcome.answered_by("b2")?;
        ensure!(udp.dissolve()?.dialed.failure.is_none());
        ensure!(udp.names()?.peer == Err("ENOTCONN".to_owned()));
        // Connected to a pod itself: no VIP may show.
        let again = udp.redial(&pod_address)?;
        again.answered_by("b2")?;
        again.peer_name_is(&pod_address)?;
        // And as an unconnected one.
        ensure!(udp.dissolve()?.dialed.failure.is_none());
        let answer = udp.ask(&pod_address, "plain")?;
        answer.answered_by("b2")?;
        answer.came_from(&pod_address)?;

        // Straight from the Service to an unconnected socket.
        let udp = cast.client.hold_udp("10.96.6.7:53")?;
        ensure!(udp.dissolve()?.dialed.failure.is_none());
        udp.ask(&pod_address, "plain")?.came_from(&pod_address)?;

        let tcp = cast.client.hold_tcp("10.96.6.7:80")?;
        tcp.outcome.answered_by("b2")?;
        ensure!(tcp.dissolve()?.dialed.failure.is_none());
        let again = tcp.redial(&pod_address)?;
        again.answered_by("b2")?;
        again.peer_name_is(&pod_address)
    });
}

#[test]
fn a_socket_that_connects_twice_follows_its_last_connect() {
    // K80
    CAST.story(|cast| {
        dual(cast, "twice", "10.96.6.8", "fd00:96::6008")?;
        cast.apply(&cast.service("other", "10.96.6.9"))?;
        cast.apply(&cast.ready("other", &[&cast.b3]))?;
        cast.settle()?;
        let udp = cast.client.hold_udp("10.96.6.8:53")?;
        udp.outcome.answered_by("b2")?;
        let second = udp.redial("10.96.6.9:53")?;
        second.answered_by("b3")?;
        second.peer_name_is("10.96.6.9:53")?;
        let third = udp.redial(&format!("{}:8080", cast.b1.v4()))?;
        third.answered_by("b1")?;
        third.peer_name_is(&format!("{}:8080", cast.b1.v4()))?;
        // From a Service to its very backend and back.
        udp.redial("10.96.6.8:53")?.peer_name_is("10.96.6.8:53")?;
        let direct = format!("{}:8080", cast.b2.v4());
        udp.redial(&direct)?.peer_name_is(&direct)?;
        // A connected TCP socket cannot connect again, and keeps what it has.
        let tcp = cast.client.hold_tcp("10.96.6.8:80")?;
        tcp.redial("10.96.6.9:80")?.failed_with("EISCONN")?;
        tcp.talk("as before")?.answered_by("b2")?;
        tcp.peer_name_is("10.96.6.8:80")
    });
}

#[test]
fn established_tcp_survives_the_removal_of_its_endpoint() {
    // K62
    CAST.story(|cast| {
        for (name, vip, affinity) in [
            ("plain-life", "10.96.6.10", false),
            ("sticky-life", "10.96.6.11", true),
        ] {
            let service = cast.service(name, vip);
            let service = if affinity {
                service.affinity(10800)
            } else {
                service
            };
            cast.apply(&service)?;
            cast.apply(&cast.ready(name, &[&cast.b2]))?;
            cast.settle()?;
            let to = format!("{vip}:80");
            let held = [cast.client.hold_tcp(&to)?, cast.host().hold_tcp(&to)?];
            let alive = |word: &str| {
                held.iter()
                    .try_for_each(|socket| socket.talk(word)?.answered_by("b2"))
            };
            cast.apply(
                &cast
                    .slice(name, name)
                    .endpoint(&cast.b2)
                    .terminating()
                    .endpoint(&cast.b3)
                    .ready(),
            )?;
            cast.settle()?;
            alive("terminating")?;
            cast.client.many_tcp(&to, 20)?.only_by(&["b3"])?;
            cast.apply(&cast.slice(name, name).endpoint(&cast.b3).ready())?;
            cast.settle()?;
            alive("removed")?;
            cast.apply(&service.clone().internal_local())?;
            cast.settle()?;
            alive("another policy")?;
            cast.delete(&service)?;
            cast.settle()?;
            alive("no service at all")?;
        }
        Ok(())
    });
}

#[test]
fn sockets_that_are_no_service_traffic_are_left_alone() {
    CAST.story(|cast| {
        for client in cast.insiders() {
            for target in [&cast.b1, &cast.b2] {
                for transport in Transport::BOTH {
                    client
                        .reach(transport, &format!("{}:8080", target.v4()))?
                        .answered_by(target.name())?;
                    client
                        .reach(transport, &format!("[{}]:8080", target.v6()))?
                        .answered_by(target.name())?;
                }
            }
            client.tcp("192.0.2.1:7")?.answered_by("switch")?;
            client.tcp(&format!("{}:1", cast.b2.v4()))?.refused()?;
        }
        Ok(())
    });
}

#[test]
fn getsockname_says_the_clients_own_address() {
    CAST.story(|cast| {
        dual(cast, "own-name", "10.96.6.12", "fd00:96::6012")?;
        let v4 = cast.client.tcp("10.96.6.12:80")?;
        let local: Option<SocketAddr> = v4.dialed.local_name;
        ensure!(
            local == Some(v4.seen_peer()?),
            "{local:?}, but the backend saw {:?}",
            v4.line()
        );
        let v6 = cast.client.tcp("[fd00:96::6012]:80")?;
        ensure!(
            v6.dialed.local_name == Some(v6.seen_peer()?),
            "{:?}",
            v6.dialed
        );
        Ok(())
    });
}
