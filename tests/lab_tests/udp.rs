//! semantics.md, "Connection life", UDP.

use anyhow::{Result, ensure};
use lab::{Cast, IN_FORCE, Peer, SharedLab, eventually};
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

/// Within this time a connected socket notices that its backend is gone.
const NOTICED: Duration = Duration::from_secs(5);

#[test]
fn an_unconnected_socket_keeps_its_backend_and_sees_the_vip() {
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("keep", "10.96.7.1")
                .cluster_ip("fd00:96::7001"),
        )?;
        let pods = [&cast.b1, &cast.b2, &cast.b3];
        cast.apply(&cast.ready("keep", &pods))?;
        cast.apply(&cast.slice("keep-v6", "keep").v6().ready_endpoints(pods))?;
        cast.settle()?;
        for client in cast.insiders() {
            for (from, to) in [
                ("0.0.0.0:0", "10.96.7.1:53"),
                ("[::]:0", "[fd00:96::7001]:53"),
            ] {
                let socket = client.udp_socket(from)?;
                let first = socket.ask(to, "0")?.pod()?.to_owned();
                for number in 1..20 {
                    let answer = socket.ask(to, &number.to_string())?;
                    answer.answered_by(&first)?;
                    answer.came_from(to)?;
                }
            }
        }
        // Other sockets choose for themselves.
        let mut chosen = std::collections::BTreeSet::new();
        for _ in 0..40 {
            chosen.insert(
                cast.client
                    .udp_socket("0.0.0.0:0")?
                    .ask("10.96.7.1:53", "hello")?
                    .pod()?
                    .to_owned(),
            );
        }
        ensure!(chosen.len() == 3, "40 sockets chose only {chosen:?}");
        Ok(())
    });
}

#[test]
fn one_socket_talks_to_several_services_and_tells_their_answers_apart() {
    CAST.story(|cast| {
        for (number, pod) in [&cast.b1, &cast.b2, &cast.b3].into_iter().enumerate() {
            let name = format!("apart-{number}");
            cast.apply(&cast.service(&name, &format!("10.96.7.{}", 10 + number)))?;
            cast.apply(&cast.ready(&name, &[pod]))?;
        }
        cast.settle()?;
        let socket = cast.client.udp_socket("0.0.0.0:0")?;
        for _ in 0..3 {
            for (number, pod) in ["b1", "b2", "b3"].into_iter().enumerate() {
                let to = format!("10.96.7.{}:53", 10 + number);
                let answer = socket.ask(&to, "which")?;
                answer.answered_by(pod)?;
                answer.came_from(&to)?;
            }
        }
        // All three at once, then the answers.
        for number in 0..3 {
            socket.send_to(&format!("10.96.7.{}:53", 10 + number), "burst")?;
        }
        for _ in 0..3 {
            let answer = socket.receive(3000)?;
            let pod = answer.pod()?;
            let number = ["b1", "b2", "b3"]
                .iter()
                .position(|name| *name == pod)
                .unwrap_or(9);
            answer.came_from(&format!("10.96.7.{}:53", 10 + number))?;
        }
        // A datagram from a pod itself, past the Service, keeps its source.
        let direct = format!("{}:8080", cast.b2.v4());
        let other = cast.client.udp_socket("0.0.0.0:0")?;
        other.ask(&direct, "direct")?.came_from(&direct)
    });
}

#[test]
fn an_unconnected_socket_moves_when_its_backend_is_gone() {
    CAST.story(|cast| {
        cast.apply(&cast.service("move", "10.96.7.20"))?;
        cast.apply(&cast.ready("move", &[&cast.b1]))?;
        cast.settle()?;
        let socket = cast.client.udp_socket("0.0.0.0:0")?;
        socket.ask("10.96.7.20:53", "one")?.answered_by("b1")?;
        cast.apply(&cast.ready("move", &[&cast.b2]))?;
        cast.settle()?;
        let moved = socket.ask("10.96.7.20:53", "two")?;
        moved.answered_by("b2")?;
        moved.came_from("10.96.7.20:53")?;
        cast.apply(&cast.slice("move", "move"))?;
        cast.settle()?;
        socket.send_to("10.96.7.20:53", "three")?.refused()?;
        cast.apply(&cast.ready("move", &[&cast.b3]))?;
        cast.settle()?;
        socket.ask("10.96.7.20:53", "four")?.answered_by("b3")
    });
}

#[test]
fn an_unconnected_socket_may_stay_with_a_terminating_backend_but_not_with_a_dead_one() {
    CAST.story(|cast| {
        cast.apply(&cast.service("leave", "10.96.7.21"))?;
        cast.apply(&cast.ready("leave", &[&cast.b1]))?;
        cast.settle()?;
        let socket = cast.client.udp_socket("0.0.0.0:0")?;
        socket.ask("10.96.7.21:53", "one")?.answered_by("b1")?;
        cast.apply(
            &cast
                .slice("leave", "leave")
                .endpoint(&cast.b1)
                .terminating()
                .endpoint(&cast.b2)
                .ready(),
        )?;
        cast.settle()?;
        socket
            .ask("10.96.7.21:53", "two")?
            .answered_by_one_of(&["b1", "b2"])?;
        // New sockets go to the ready one.
        cast.client
            .many_udp("10.96.7.21:53", 20)?
            .only_by(&["b2"])?;
        cast.apply(
            &cast
                .slice("leave", "leave")
                .endpoint(&cast.b1)
                .dead()
                .endpoint(&cast.b2)
                .ready(),
        )?;
        cast.settle()?;
        socket.ask("10.96.7.21:53", "three")?.answered_by("b2")
    });
}

/// Datagrams that `pod` got from the sender at this port.
fn from_port(pod: &Peer, port: u16) -> Result<u64> {
    Ok(pod
        .received(8080)?
        .iter()
        .filter(|(from, _)| from.port() == port)
        .map(|(_, count)| count)
        .sum())
}

#[test]
fn one_way_senders_follow_the_endpoints() {
    // K02, socket path: a fixed source port, nothing is ever read.
    CAST.story(|cast| {
        let service = cast
            .service("oneway", "10.96.7.30")
            .external_ips(&["203.0.113.73"])
            .lb_ip("198.51.100.73");
        let slice = || cast.slice("oneway", "oneway");
        cast.apply(&service)?;
        cast.apply(&slice().endpoint(&cast.b1).ready())?;
        cast.settle()?;
        let frontends = [
            ("10.96.7.30:53", 45131),
            ("203.0.113.73:53", 45132),
            ("198.51.100.73:53", 45133),
        ];
        let mut loads = Vec::new();
        for (to, port) in frontends {
            loads.push(cast.client.one_way(&format!("0.0.0.0:{port}"), to, 50)?);
        }
        // From here on only this pod gets datagrams.
        let only = |gets: Option<&Peer>| -> Result<()> {
            let others = [&cast.b1, &cast.b2].into_iter();
            let others: Vec<&Peer> = others
                .filter(|pod| Some(pod.name()) != gets.map(Peer::name))
                .collect();
            let counts = |pods: &[&Peer]| -> Result<Vec<u64>> {
                let pairs = pods
                    .iter()
                    .flat_map(|pod| frontends.map(|(_, port)| (*pod, port)));
                pairs.map(|(pod, port)| from_port(pod, port)).collect()
            };
            let (quiet, flowing) = (counts(&others)?, counts(gets.as_slice())?);
            if let Some(pod) = gets {
                eventually(IN_FORCE, || {
                    let now = counts(&[pod])?;
                    let all = now.iter().zip(&flowing).all(|(now, then)| *now > then + 3);
                    ensure!(all, "{} gets {now:?}, at first {flowing:?}", pod.name());
                    Ok(())
                })?;
            }
            // Twenty periods of the senders without one datagram.
            std::thread::sleep(Duration::from_millis(400));
            let now = counts(&others)?;
            ensure!(
                now == quiet,
                "datagrams still go elsewhere: {quiet:?}, then {now:?}"
            );
            Ok(())
        };
        only(Some(&cast.b1))?;
        // a: one endpoint for another.
        cast.apply(&slice().endpoint(&cast.b2).ready())?;
        cast.settle()?;
        only(Some(&cast.b2))?;
        // b: none at all, then one.
        cast.apply(&slice())?;
        cast.settle()?;
        only(None)?;
        cast.apply(&slice().endpoint(&cast.b1).ready())?;
        cast.settle()?;
        only(Some(&cast.b1))?;
        // d: present but not ready, then ready.
        cast.apply(&slice().endpoint(&cast.b2).not_ready())?;
        cast.settle()?;
        only(None)?;
        cast.apply(&slice().endpoint(&cast.b2).ready())?;
        cast.settle()?;
        only(Some(&cast.b2))?;
        // e: the Service goes and comes back with another backend.
        cast.delete(&service)?;
        cast.settle()?;
        only(None)?;
        cast.apply(&slice().endpoint(&cast.b1).ready())?;
        cast.apply(&service)?;
        cast.settle()?;
        only(Some(&cast.b1))
    });
}

#[test]
fn connected_sockets_notice_that_their_backend_is_gone() {
    // 27; a backend that answers no more would leave them waiting for ever.
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("notice", "10.96.7.40")
                .cluster_ip("fd00:96::7040"),
        )?;
        let v6 = |pod: &Peer| cast.slice("notice-v6", "notice").v6().endpoint(pod).ready();
        cast.apply(&cast.ready("notice", &[&cast.b1]))?;
        cast.apply(&v6(&cast.b1))?;
        cast.apply(&cast.service("bystander", "10.96.7.41"))?;
        cast.apply(&cast.ready("bystander", &[&cast.b1]))?;
        cast.settle()?;
        let mut held = Vec::new();
        let mut bystanders = Vec::new();
        for client in cast.insiders() {
            held.push((client.hold_udp("10.96.7.40:53")?, "10.96.7.40:53"));
            held.push((client.hold_udp("[fd00:96::7040]:53")?, "[fd00:96::7040]:53"));
            bystanders.push(client.hold_udp("10.96.7.41:53")?);
            // No service traffic at all, but the very same pod.
            bystanders.push(client.hold_udp(&format!("{}:8080", cast.b1.v4()))?);
        }
        // This one points elsewhere by now.
        let gone_elsewhere = cast.client.hold_udp("10.96.7.40:53")?;
        gone_elsewhere.redial("10.96.7.41:53")?.answered_by("b1")?;
        cast.apply(&cast.ready("notice", &[&cast.b2]))?;
        cast.apply(&v6(&cast.b2))?;
        cast.settle()?;
        for (socket, to) in &held {
            eventually(NOTICED, || socket.talk("are you there")?.unanswered())?;
            // The socket still has the error to tell, once.
            eventually(NOTICED, || socket.redial(to)?.answered_by("b2"))?;
        }
        for socket in bystanders.iter().chain([&gone_elsewhere]) {
            socket.talk("still here")?.answered_by("b1")?;
        }
        Ok(())
    });
}

#[test]
fn connected_sockets_notice_that_their_service_is_gone() {
    CAST.story(|cast| {
        let service = cast.service("vanish", "10.96.7.42");
        cast.apply(&service)?;
        cast.apply(&cast.ready("vanish", &[&cast.b1]))?;
        cast.settle()?;
        let socket = cast.client.hold_udp("10.96.7.42:53")?;
        socket.outcome.answered_by("b1")?;
        cast.delete(&service)?;
        cast.settle()?;
        eventually(NOTICED, || socket.talk("are you there")?.unanswered())
    });
}

#[test]
fn connected_sockets_of_a_terminating_backend_are_left_alone() {
    CAST.story(|cast| {
        cast.apply(&cast.service("patient", "10.96.7.43"))?;
        cast.apply(&cast.ready("patient", &[&cast.b1]))?;
        cast.settle()?;
        let socket = cast.client.hold_udp("10.96.7.43:53")?;
        cast.apply(
            &cast
                .slice("patient", "patient")
                .endpoint(&cast.b1)
                .terminating(),
        )?;
        cast.settle()?;
        // Only a terminating one is left: in force, so nobody is sent away.
        socket.talk("one")?.answered_by("b1")?;
        cast.apply(&cast.ready("patient", &[&cast.b1, &cast.b2]))?;
        cast.settle()?;
        socket.talk("two")?.answered_by("b1")
    });
}

#[test]
fn connected_sockets_each_choose_a_backend() {
    CAST.story(|cast| {
        cast.apply(&cast.service("choose", "10.96.7.44"))?;
        cast.apply(&cast.ready("choose", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        for client in cast.insiders() {
            let socket = client.hold_udp("10.96.7.44:53")?;
            let first = socket.pod()?;
            for _ in 0..10 {
                socket.talk("again")?.answered_by(&first)?;
            }
            let counts = client.many_udp("10.96.7.44:53", 60)?;
            counts.only_by(&["b1", "b2", "b3"])?;
        }
        Ok(())
    });
}
