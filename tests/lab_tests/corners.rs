//! Corners that an adversary found: sockets that are used in odd ways, and
//! starts that go wrong.

use anyhow::{Context, Result, ensure};
use lab::manifests::{Slice, service, slice};
use lab::{Cast, Lab, SharedLab, Transport, story};
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

fn one_node() -> Result<Lab> {
    Lab::new(1)
}

#[test]
fn a_pods_connect_to_the_unspecified_address_is_no_node_port() {
    CAST.story(|cast| {
        let object = service("own").cluster_ip("10.96.22.1");
        cast.apply(&object.port("http", 80, 8080).node_port(30221))?;
        cast.apply(&cast.ready("own", &[&cast.b1]))?;
        let any = Ipv4Addr::UNSPECIFIED.into();
        cast.client.listen(Transport::Tcp, any, 30221)?;
        cast.settle()?;
        for own in ["0.0.0.0:30221", "127.0.0.1:30221", "[::ffff:0.0.0.0]:30221"] {
            cast.client.tcp(own)?.answered_by("client")?;
        }
        // To a host process the same address is localhost, which has NodePorts.
        cast.host().tcp("0.0.0.0:30221")?.answered_by("b1")
    });
}

#[test]
fn a_connected_socket_that_names_its_frontend_keeps_its_backend() {
    CAST.story(|cast| {
        cast.apply(&cast.service("again", "10.96.22.2"))?;
        cast.apply(&cast.ready("again", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        for _ in 0..10 {
            let socket = cast.client.hold_udp("10.96.22.2:53")?;
            let backend = socket.pod()?;
            for _ in 0..3 {
                let answer = socket.ask("10.96.22.2:53", "again")?;
                answer.answered_by(&backend)?;
                answer.came_from("10.96.22.2:53")?;
            }
        }
        Ok(())
    });
}

#[test]
fn services_that_share_a_backend_answer_under_the_name_that_was_asked() {
    CAST.story(|cast| {
        let names: Vec<String> = (1..=9).map(|n| format!("shared-{n}")).collect();
        for (name, n) in names.iter().zip(31..) {
            cast.apply(&cast.service(name, &format!("10.96.22.{n}")))?;
            cast.apply(&cast.ready(name, &[&cast.b1]))?;
        }
        cast.settle()?;
        let socket = cast.client.udp_socket("0.0.0.0:0")?;
        for _ in 0..3 {
            // One more than the socket can remember.
            for n in 31..40 {
                let vip = format!("10.96.22.{n}:53");
                socket.ask(&vip, "who")?.came_from(&vip)?;
            }
        }
        let connected = cast.client.hold_udp("10.96.22.32:53")?;
        connected.peer_name_is("10.96.22.32:53")?;
        connected
            .ask("10.96.22.32:53", "who")?
            .came_from("10.96.22.32:53")
    });
}

#[test]
fn a_refused_reconnect_leaves_the_connection_as_it_was() {
    CAST.story(|cast| {
        cast.apply(&cast.service("first", "10.96.22.4"))?;
        cast.apply(&cast.ready("first", &[&cast.b1]))?;
        cast.apply(&cast.service("nobody", "10.96.22.5"))?;
        cast.settle()?;
        let socket = cast.client.hold_udp("10.96.22.4:53")?;
        socket.redial("10.96.22.5:53")?.refused()?;
        socket.peer_name_is("10.96.22.4:53")?;
        socket.talk("still here")?.answered_by("b1")?;
        // And it still notices when its backend goes.
        cast.apply(&cast.ready("first", &[&cast.b2]))?;
        cast.settle()?;
        lab::eventually(Duration::from_secs(5), || {
            socket.talk("are you there")?.unanswered()
        })
    });
}

#[test]
fn a_socket_whose_connect_to_a_service_failed_is_not_destroyed_with_it() {
    CAST.story(|cast| {
        cast.client.ip("route add unreachable 198.18.0.1")?;
        cast.apply(&cast.service("far", "10.96.22.6"))?;
        let far = || cast.slice("far", "far");
        let endpoint: Slice = far().address("198.18.0.1").ready();
        cast.apply(&endpoint)?;
        cast.settle()?;
        let pod = format!("{}:8080", cast.b1.v4());
        let direct = cast.client.hold_udp(&pod)?;
        direct
            .redial("10.96.22.6:53")?
            .failed_with("EHOSTUNREACH")?;
        direct.talk("one")?.answered_by("b1")?;
        cast.apply(&far())?;
        cast.settle()?;
        // Longer than any sweep takes: this is what must not happen. (Linux 6.18
        // delivers no second answer after a failed connect, with or without us.)
        for _ in 0..20 {
            direct.peer_name_is(&pod)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    });
}

#[test]
fn a_start_with_the_wrong_cgroup_changes_nothing() {
    // K58, and the data path of the agent before it goes on.
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let backend = n1.pod("b1")?.serve(8080)?;
        let client = n1.pod("client")?;
        lab.apply(
            &service("web")
                .cluster_ip("10.96.22.7")
                .port("http", 80, 8080),
        )?;
        lab.apply(
            &slice("web", "web")
                .port("http", 8080)
                .ready_endpoints([&backend]),
        )?;
        lab.start_agents()?;
        n1.kill_agent()?;
        let mut wrong = Command::new(lab::fairlead()?);
        wrong.args(["agent", "--hostname-override", "n1", "--manifests"]);
        wrong.arg(lab.manifests_dir());
        wrong.arg("--pin-dir").arg(n1.pins());
        // A pod's cgroup is below the node's, and this process is not in it.
        let children = std::fs::read_dir(n1.cgroup())?.filter_map(|entry| Some(entry.ok()?.path()));
        let too_deep = children
            .filter(|path| path.is_dir() && !path.ends_with("host"))
            .min()
            .context("the pods have no cgroups")?;
        wrong.arg("--cgroup-root").arg(&too_deep);
        let status = n1.host().spawn(wrong)?.wait()?;
        ensure!(!status.success(), "it started with {}", too_deep.display());
        client.tcp("10.96.22.7:80")?.answered_by("b1")?;
        n1.host().tcp("10.96.22.7:80")?.answered_by("b1")?;
        n1.start_agent()?;
        lab.settle()
    });
}

#[test]
fn a_second_agent_on_the_same_pins_is_refused() {
    story(one_node, |lab| {
        lab.start_agents()?;
        let n1 = lab.node("n1");
        let mut second = Command::new(lab::fairlead()?);
        second.args(["agent", "--hostname-override", "n1", "--manifests"]);
        second.arg(lab.manifests_dir());
        second.arg("--pin-dir").arg(n1.pins());
        second.arg("--cgroup-root").arg(n1.cgroup());
        second.args(["--healthz-bind-address", "", "--metrics-bind-address", ""]);
        let status = n1.host().spawn(second)?.wait()?;
        ensure!(!status.success(), "two agents share one pin directory");
        lab.settle()
    });
}

#[test]
fn primary_addresses_stay_while_the_node_object_is_not_known() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        lab.agent_flags(["--nodeport-addresses", "primary"]);
        let backend = n1.pod("b1")?.serve(8080)?;
        let client = n1.pod("client")?;
        let object = service("web")
            .cluster_ip("10.96.22.8")
            .port("http", 80, 8080);
        lab.apply(&object.of_type("NodePort").node_port(30228))?;
        lab.apply(
            &slice("web", "web")
                .port("http", 8080)
                .ready_endpoints([&backend]),
        )?;
        lab.start_agents()?;
        client.tcp("192.0.2.11:30228")?.answered_by("b1")?;
        n1.kill_agent()?;
        lab.delete(&lab.node_manifest("n1"))?;
        n1.start_agent()?;
        lab.settle()?;
        client.tcp("192.0.2.11:30228")?.answered_by("b1")?;
        // Known at last, and with another address.
        n1.host().ip("addr add 192.0.2.61/24 dev eth0")?;
        lab.apply(&lab::manifests::node("n1").internal_ip("192.0.2.61"))?;
        lab.eventually(|| client.tcp("192.0.2.61:30228")?.answered_by("b1"))
    });
}
