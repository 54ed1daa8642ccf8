//! The lab itself: what every other test relies on.

use anyhow::{Result, ensure};
use lab::{Lab, SharedLab, Transport, eventually, story};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

static LAB: SharedLab = SharedLab::new(|| Lab::new(3));

#[test]
fn three_nodes_with_two_pods_each_come_up_within_two_seconds() {
    let start = Instant::now();
    story(
        || Lab::new(3),
        |lab| {
            let mut pods = Vec::new();
            for node in lab.nodes() {
                for number in 1..=2 {
                    pods.push(
                        node.pod(&format!("{}-{number}", node.name()))?
                            .serve(8080)?,
                    );
                }
            }
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(2), "took {took:?}");
            Ok(())
        },
    );
}

#[test]
fn pods_reach_pods_of_all_nodes_in_both_families_without_nat() {
    LAB.story(|lab| {
        let server = lab.node("n2").pod("far-server")?.serve(8080)?;
        let near = lab.node("n2").pod("near-client")?;
        let far = lab.node("n1").pod("far-client")?;
        for client in [&near, &far] {
            for transport in Transport::BOTH {
                let v4 = client.reach(transport, &format!("{}:8080", server.v4()))?;
                v4.answered_by("far-server")?;
                ensure!(v4.seen_peer()?.ip() == client.v4(), "{:?}", v4.line());
                let v6 = client.reach(transport, &format!("[{}]:8080", server.v6()))?;
                v6.answered_by("far-server")?;
                ensure!(v6.seen_peer()?.ip() == client.v6(), "{:?}", v6.line());
                ensure!(v6.seen_local()?.ip() == server.v6(), "{:?}", v6.line());
            }
        }
        Ok(())
    });
}

#[test]
fn nodes_pods_and_outside_clients_reach_each_other() {
    LAB.story(|lab| {
        let pod = lab.node("n3").pod("reached")?.serve(8080)?;
        let host = lab.node("n1").process("host-server")?.serve(9090)?;
        let pod_address = format!("{}:8080", pod.v4());
        lab.node("n1")
            .host()
            .tcp(&pod_address)?
            .answered_by("reached")?;
        lab.node("n3")
            .host()
            .tcp(&pod_address)?
            .answered_by("reached")?;
        lab.client("c1")
            .tcp("192.0.2.11:9090")?
            .answered_by("host-server")?;
        lab.client("c2")
            .udp("[2001:db8:2::11]:9090")?
            .answered_by("host-server")?;
        pod.tcp(&format!("{}:9090", host.v4()))?
            .answered_by("host-server")?;
        pod.tcp("192.0.2.1:7")?.answered_by("switch")
    });
}

#[test]
fn a_closed_port_refuses_and_an_unused_address_is_silent() {
    LAB.story(|lab| {
        let pod = lab.node("n1").pod("closed")?;
        pod.tcp("192.0.2.11:1")?.refused()?;
        pod.udp("192.0.2.11:1")?.refused()?;
        pod.tcp("[2001:db8:2::11]:1")?.refused()?;
        let mut dial = lab::Dial::new(Transport::Tcp, "203.0.113.250:80".parse()?);
        dial.timeout_ms = 200;
        pod.dial(dial)?.unanswered()
    });
}

#[test]
fn held_connections_and_unconnected_sockets_talk_on() {
    LAB.story(|lab| {
        let server = lab.node("n2").pod("talker")?.serve(8080)?;
        let client = lab.node("n1").pod("listener")?;
        let address = format!("{}:8080", server.v4());
        let held = client.hold_tcp(&address)?;
        held.outcome.answered_by("talker")?;
        ensure!(held.talk("again")?.line()? == "talker again");
        held.peer_name_is(&address)?;
        let socket = client.udp_socket("0.0.0.0:0")?;
        let answer = socket.ask(&address, "hello")?;
        answer.answered_by("talker")?;
        answer.came_from(&address)
    });
}

#[test]
fn sockets_of_all_kinds_reach_a_server() {
    LAB.story(|lab| {
        let server = lab.node("n2").pod("kinds-server")?.serve(8080)?;
        let client = lab.node("n1").pod("kinds-client")?;
        let address: std::net::SocketAddr = format!("{}:8080", server.v4()).parse()?;
        let plain = lab::Dial::new(Transport::Tcp, address);
        let kinds = [
            lab::Dial {
                mapped: true,
                ..plain.clone()
            },
            lab::Dial {
                nonblocking: true,
                ..plain.clone()
            },
            lab::Dial {
                fast_open: true,
                ..plain.clone()
            },
            lab::Dial {
                from: Some(format!("{}:0", client.v4()).parse()?),
                ..plain.clone()
            },
            lab::Dial {
                transport: Transport::Udp,
                mapped: true,
                ..plain.clone()
            },
        ];
        for kind in kinds {
            client.dial(kind)?.answered_by("kinds-server")?;
        }
        let held = client.hold_udp(&address.to_string())?;
        ensure!(held.dissolve()?.dialed.failure.is_none());
        ensure!(held.names()?.peer == Err("ENOTCONN".to_owned()));
        held.redial(&address.to_string())?
            .answered_by("kinds-server")?;
        let counts = client.many_tcp(&address.to_string(), 500)?;
        counts.only_by(&["kinds-server"])?;
        ensure!(
            counts.elapsed_ms < 2000,
            "500 connections took {} ms",
            counts.elapsed_ms
        );
        Ok(())
    });
}

#[test]
fn no_namespace_of_the_lab_has_a_way_out() {
    LAB.story(|lab| {
        let pod = lab.node("n1").pod("prisoner")?;
        // Everything that leaves a pod or node ends at the switch, so it is
        // enough that the switch has links to members only and forwards nothing.
        let links = links_of(lab.switch().pid())?;
        ensure!(
            links
                .iter()
                .all(|link| ["lo", "br0", "n1", "n2", "n3", "c1", "c2"].contains(&link.as_str())),
            "{links:?}"
        );
        ensure!(links_of(pod.pid())? == ["eth0", "lo"]);
        for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            let output = in_netns(lab.switch().pid(), &["cat", &format!("/proc/sys/{name}")])?;
            ensure!(output.trim() == "0", "{name} is {output}");
        }
        // And this machine has no link of a lab.
        let own = std::fs::read_to_string("/proc/net/dev")?;
        ensure!(!own.contains("br0") && !own.contains("pod2"), "{own}");
        Ok(())
    });
}

fn links_of(pid: u32) -> Result<Vec<String>> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    let mut links: Vec<String> = table
        .lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect();
    links.sort();
    Ok(links)
}

fn in_netns(pid: u32, command: &[&str]) -> Result<String> {
    let output = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args(command)
        .output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_dropped_lab_leaves_nothing_behind() -> Result<()> {
    let lab = Lab::new(1)?;
    let pod = lab.node("n1").pod("short-lived")?;
    let pids = [lab.switch().pid(), lab.node("n1").host().pid(), pod.pid()];
    let traces: Vec<PathBuf> = lab.traces().iter().map(|path| path.to_path_buf()).collect();
    ensure!(traces.iter().all(|path| path.exists()));
    drop(lab);
    for path in traces {
        ensure!(!path.exists(), "{path:?} is still there");
    }
    drop(pod);
    for pid in pids {
        ensure!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is still there"
        );
    }
    Ok(())
}

#[test]
fn a_lab_whose_process_is_killed_leaves_nothing_behind() -> Result<()> {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_peer"))
        .arg("hold")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let [name, pids @ ..] = &words[..] else {
        anyhow::bail!("the holder says {line:?}")
    };
    let traces = [
        find_cgroup(name)?,
        Path::new("/sys/fs/bpf").join(name),
        std::env::temp_dir().join(name),
    ];
    for path in &traces {
        ensure!(path.exists(), "{path:?} is missing while the lab lives");
    }
    // SIGKILL: nothing in that process can clean up.
    holder.kill()?;
    holder.wait()?;
    eventually(Duration::from_secs(5), || {
        for path in &traces {
            ensure!(!path.exists(), "{path:?} is still there");
        }
        for pid in pids {
            ensure!(
                !Path::new(&format!("/proc/{pid}")).exists(),
                "process {pid} is still there"
            );
        }
        Ok(())
    })
}

fn find_cgroup(name: &str) -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    let roots = mounts
        .lines()
        .filter(|line| line.contains(" cgroup2 "))
        .filter_map(|line| line.split(' ').nth(1));
    roots
        .map(|root| Path::new(root).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| anyhow::anyhow!("no cgroup {name}"))
}
