//! semantics.md 36: Pods and Namespaces that opt out of socket translation.
//!
//! The switch plays the ClusterIP: who is left alone is answered by it.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Counts, IN_FORCE, Lab, Peer, Transport, story};
use std::fs;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU16, Ordering};

const TCP: [&str; 2] = ["10.96.24.1:80", "[fd00:96::2401]:80"];
const UDP: &str = "10.96.24.1:53";

/// A UID of a Pod that no other lab on this machine has.
fn uid() -> String {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(
        "0f8fad5b-d9cb-469f-{number:04x}-0000{:08x}",
        std::process::id()
    )
}

/// A Pod and its UID.
struct Pod {
    uid: String,
    peer: Peer,
}

impl Deref for Pod {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

struct World<'a> {
    lab: &'a Lab,
    _backend: Peer,
    /// In the cgroup that a kubelet with driver cgroupfs makes.
    one: Pod,
    /// In that of driver systemd.
    other: Pod,
}

fn lab() -> Result<Lab> {
    Lab::new(1)
}

impl<'a> World<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        let switch = lab.switch();
        // At once: nobody looks whether another has it, too.
        let addresses = [("10.96.24.1", "32"), ("fd00:96::2401", "128")];
        for (address, prefix) in addresses {
            let flags = if address.contains(':') { "nodad" } else { "" };
            switch.ip(&format!("addr add {address}/{prefix} dev br0 {flags}"))?;
            let address: IpAddr = address.parse()?;
            switch.listen(Transport::Tcp, address, 80)?;
            switch.listen(Transport::Udp, address, 53)?;
        }
        let web = service("web")
            .cluster_ip("10.96.24.1")
            .cluster_ip("fd00:96::2401");
        lab.apply(&web.port("http", 80, 8080).udp_port("dns", 53, 8080))?;
        for (name, v6) in [("web-v4", false), ("web-v6", true)] {
            let slice = slice(name, "web").port("http", 8080).udp_port("dns", 8080);
            let slice = if v6 { slice.v6() } else { slice };
            lab.apply(&slice.endpoint(&backend).ready())?;
        }
        let (one, other) = (uid(), uid());
        let systemd = format!("kubepods-burstable-pod{}.slice", other.replace('-', "_"));
        Ok(Self {
            lab,
            _backend: backend,
            one: Pod {
                peer: n1.pod(&format!("pod{one}"))?,
                uid: one,
            },
            other: Pod {
                peer: n1.pod(&systemd)?,
                uid: other,
            },
        })
    }

    /// Writes the Pod with this UID; `label` is the value of the opt-out.
    fn pod(&self, uid: &str, label: Option<&str>) -> Result<()> {
        let labels = label.map_or_else(String::new, |it| {
            format!("labels: {{ fairlead.io/socket-translation: {it} }}, ")
        });
        let metadata = format!("name: web-{uid}, namespace: mesh, {labels}uid: {uid}");
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{ {metadata} }}\n");
        self.lab.apply_yaml(&format!("pod-{uid}"), &text)
    }

    fn namespace(&self, labels: &str) -> Result<()> {
        let metadata = format!("name: mesh, labels: {{ {labels} }}");
        let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{ {metadata} }}\n");
        self.lab.apply_yaml("namespace-mesh", &text)
    }

    /// Within two seconds this answers the client in both families.
    fn soon(&self, client: &Peer, by: &str) -> Result<()> {
        self.lab.within(IN_FORCE, || answered_by(client, by))
    }

    fn restart(&self, flags: &[&'static str]) -> Result<()> {
        let n1 = self.lab.node("n1");
        n1.kill_agent()?;
        n1.agent_flags(flags.iter().copied());
        n1.start_agent()?;
        n1.wait_healthy()?;
        self.lab.settle()
    }
}

/// This, and nobody else, answers TCP in both families, and UDP.
fn answered_by(client: &Peer, by: &str) -> Result<()> {
    for to in TCP {
        let answer = client.tcp(to)?;
        answer.answered_by(by)?;
        answer.peer_name_is(to)?;
    }
    client.udp(UDP)?.answered_by(by)?;
    let answer = client.udp_socket("0.0.0.0:0")?.ask(UDP, "hello")?;
    answer.answered_by(by)?;
    answer.came_from(UDP)
}

fn only_by(counts: &Counts, by: &str) -> Result<()> {
    counts.only_by(&[by])?;
    ensure!(counts.answers() > 20, "only {} dials", counts.answers());
    Ok(())
}

#[test]
fn a_labelled_pod_is_left_alone_until_the_label_is_gone() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        for pod in [&world.one, &world.other] {
            world.pod(&pod.uid, None)?;
        }
        lab.start_agents()?;
        for pod in [&world.one, &world.other] {
            answered_by(pod, "b1")?;
            // What is translated stays so, there and back.
            let held = pod.hold_tcp(TCP[0])?;
            let socket = pod.udp_socket("0.0.0.0:0")?;
            socket.ask(UDP, "hello")?.came_from(UDP)?;
            let connected = pod.hold_udp(UDP)?;
            world.pod(&pod.uid, Some("disabled"))?;
            world.soon(pod, "switch")?;
            held.talk("on")?.answered_by("b1")?;
            held.peer_name_is(TCP[0])?;
            connected.talk("on")?.answered_by("b1")?;
            connected.peer_name_is(UDP)?;
            socket.ask(UDP, "again")?.answered_by("switch")?;
            // The same socket, connected anew, has nothing of before.
            connected.redial(UDP)?.answered_by("switch")?;
            answered_by(lab.node("n1").host(), "b1")?;
            world.pod(&pod.uid, None)?;
            world.soon(pod, "b1")?;
        }
        Ok(())
    });
}

#[test]
fn a_namespace_opts_out_for_its_pods_but_for_those_that_say_otherwise() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.pod(&world.one.uid, None)?;
        world.pod(&world.other.uid, Some("enabled"))?;
        world.namespace("")?;
        lab.start_agents()?;
        answered_by(&world.one, "b1")?;
        world.namespace("fairlead.io/socket-translation: disabled")?;
        world.soon(&world.one, "switch")?;
        answered_by(&world.other, "b1")?;
        world.pod(&world.other.uid, None)?;
        world.soon(&world.other, "switch")?;
        lab.delete_yaml("namespace-mesh")?;
        world.soon(&world.one, "b1")?;
        world.soon(&world.other, "b1")
    });
}

#[test]
fn no_connection_of_an_opted_out_pod_is_translated_while_agents_come_and_go() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.pod(&world.one.uid, Some("disabled"))?;
        // From before the first agent on.
        let left_alone = world.one.load(Transport::Tcp, TCP[0], 200)?;
        lab.start_agents()?;
        answered_by(&world.other, "b1")?;
        let translated = world.other.load(Transport::Tcp, TCP[0], 200)?;
        world.restart(&[])?;
        // New maps.
        world.restart(&["--backends-max", "4096"])?;
        world.restart(&["--backends-max", "8192"])?;
        only_by(&left_alone.stop()?, "switch")?;
        only_by(&translated.stop()?, "b1")
    });
}

#[test]
fn a_label_that_went_while_no_agent_was_there_is_noticed() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.pod(&world.one.uid, Some("disabled"))?;
        lab.start_agents()?;
        answered_by(&world.one, "switch")?;
        lab.node("n1").kill_agent()?;
        world.pod(&world.one.uid, None)?;
        answered_by(&world.one, "switch")?;
        lab.start_agents()?;
        answered_by(&world.one, "b1")
    });
}

#[test]
fn a_pod_that_starts_later_is_found_soon() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        let uid = uid();
        world.pod(&uid, Some("disabled"))?;
        lab.start_agents()?;
        let late = lab.node("n1").pod(&format!("pod{uid}"))?;
        world.soon(&late, "switch")?;
        answered_by(&world.one, "b1")
    });
}

#[test]
fn a_pod_on_the_hosts_network_does_not_opt_the_host_out() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        let n1 = lab.node("n1");
        lab.start_agents()?;
        let (daemon, uid) = (n1.process("daemon")?, uid());
        let cgroup = n1.cgroup().join(format!("pods/pod{uid}"));
        fs::create_dir_all(&cgroup)?;
        fs::write(cgroup.join("cgroup.procs"), daemon.pid().to_string())?;
        world.pod(&uid, Some("disabled"))?;
        lab.eventually(|| {
            let log = fs::read_to_string(n1.log()).context("read the log")?;
            ensure!(log.contains("uses the host's network"), "no word of it");
            Ok(())
        })?;
        answered_by(&daemon, "b1")?;
        answered_by(n1.host(), "b1")
    });
}
