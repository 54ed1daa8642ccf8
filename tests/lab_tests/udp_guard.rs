//! semantics.md 27 on a kernel without CONFIG_INET_DIAG_DESTROY: what connected
//! UDP sockets send to a backend that is gone is refused.

use anyhow::{Context, Result, ensure};
use lab::{
    BACKEND_PORT, Dial, Held, IN_FORCE, Lab, Node, Peer, Transport, eventually, manifests,
    other_fairlead, story,
};
use std::time::Duration;

/// Within this time a connected socket notices that its backend is gone.
const NOTICED: Duration = Duration::from_secs(5);

/// The agent looks again every five seconds.
const LOOKED_AGAIN: Duration = Duration::from_secs(8);

const TO: &str = "10.96.25.1:53";
const TO_V6: &str = "[fd00:96::2501]:53";
const BYSTANDER: &str = "10.96.25.2:53";

struct World<'a> {
    lab: &'a Lab,
    n1: &'a Node,
    b1: Peer,
    b2: Peer,
    client: Peer,
}

fn lab() -> Result<Lab> {
    Lab::new(1)
}

impl<'a> World<'a> {
    /// Everything, with an agent that believes that its kernel cannot end sockets.
    fn new(lab: &'a Lab) -> Result<Self> {
        let n1 = lab.node("n1");
        let world = Self {
            lab,
            n1,
            b1: n1.pod("b1")?.serve(BACKEND_PORT)?,
            b2: n1.pod("b2")?.serve(BACKEND_PORT)?,
            client: n1.pod("client")?,
        };
        for (name, v4, v6) in [
            ("notice", "10.96.25.1", "fd00:96::2501"),
            ("bystander", "10.96.25.2", "fd00:96::2502"),
        ] {
            let service = manifests::service(name).cluster_ip(v4).cluster_ip(v6);
            let service = service.port("http", 80, BACKEND_PORT);
            lab.apply(&service.udp_port("dns", 53, BACKEND_PORT))?;
        }
        world.endpoint("notice", &world.b1)?;
        world.endpoint("bystander", &world.b1)?;
        n1.agent_program(Some(other_fairlead()?));
        n1.agent_environment(&[("FAIRLEAD_TEST_NO_SOCK_DESTROY", "1".to_owned())]);
        lab.start_agents()?;
        Ok(world)
    }

    fn endpoint(&self, service: &str, pod: &Peer) -> Result<()> {
        for (name, v6) in [("v4", false), ("v6", true)] {
            let slice = manifests::slice(&format!("{service}-{name}"), service);
            let slice = slice
                .port("http", BACKEND_PORT)
                .udp_port("dns", BACKEND_PORT);
            let slice = if v6 { slice.v6() } else { slice };
            self.lab.apply(&slice.endpoint(pod).ready())?;
        }
        Ok(())
    }

    /// The backend of Service `notice` is another one now.
    fn move_away(&self) -> Result<()> {
        self.endpoint("notice", &self.b2)?;
        self.lab.settle()
    }

    fn guard_is_up(&self) -> bool {
        self.n1.pins().join("links/udp_egress").exists()
    }

    fn guard_is(&self, up: bool, within: Duration) -> Result<()> {
        eventually(within, || {
            ensure!(self.guard_is_up() == up, "the guard is up: {}", !up);
            Ok(())
        })
    }

    /// Programs that the kernel has on the node's way out.
    fn egress_programs(&self) -> Result<usize> {
        let cgroup = self.n1.cgroup();
        let cgroup = cgroup.to_str().context("a path of text")?;
        let shown = self.n1.bpftool(&["cgroup", "show", cgroup])?;
        Ok(shown.lines().filter(|it| it.contains("egress")).count())
    }

    fn metric(&self, name: &str) -> Result<u64> {
        let metrics = self.n1.metrics()?;
        let value = metrics.lines().find_map(|it| it.strip_prefix(name));
        Ok(value
            .with_context(|| format!("no {name}"))?
            .trim()
            .parse()?)
    }
}

/// The socket's sends end with EPERM, within the time.
fn notices(socket: &Held) -> Result<()> {
    eventually(NOTICED, || {
        socket.talk("are you there")?.failed_with("EPERM")
    })
}

#[test]
fn senders_notice_others_do_not_and_the_guard_goes_when_nobody_needs_it() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        let mut held = Vec::new();
        let mut bystanders = Vec::new();
        for client in [&world.client, world.n1.host()] {
            held.push((client.hold_udp(TO)?, TO));
            held.push((client.hold_udp(TO_V6)?, TO_V6));
            bystanders.push(client.hold_udp(BYSTANDER)?);
            bystanders.push(client.hold_udp(&format!("{}:8080", world.b1.v4()))?);
            bystanders.push(client.hold_tcp("10.96.25.1:80")?);
        }
        let mapped = "[::ffff:10.96.25.1]:53";
        let dial = Dial::new(Transport::Udp, mapped.parse()?);
        held.push((world.client.hold(dial)?, mapped));
        let gone_elsewhere = world.client.hold_udp(TO)?;
        gone_elsewhere.redial(BYSTANDER)?.answered_by("b1")?;
        ensure!(!world.guard_is_up() && world.egress_programs()? == 0);
        world.move_away()?;
        for (socket, _) in &held {
            notices(socket)?;
        }
        ensure!(world.guard_is_up() && world.egress_programs()? == 1);
        // What such a socket sends elsewhere passes.
        let other = format!("{}:8080", world.b2.v4());
        ensure!(held[0].0.send_to(&other, "past")?.dialed.failure.is_none());
        for socket in bystanders.iter().chain([&gone_elsewhere]) {
            socket.talk("still here")?.answered_by("b1")?;
        }
        let count = "fairlead_dropped_total{reason=\"backend_gone\"} ";
        ensure!(world.metric(count)? >= held.len() as u64);
        ensure!(world.metric("fairlead_udp_sockets_guarded ")? == held.len() as u64);
        for (socket, to) in &held {
            socket.redial(to)?.answered_by("b2")?;
            socket.talk("again")?.answered_by("b2")?;
        }
        world.guard_is(false, LOOKED_AGAIN)?;
        ensure!(world.egress_programs()? == 0);
        eventually(IN_FORCE, || {
            let guarded = world.metric("fairlead_udp_sockets_guarded ")?;
            ensure!(guarded == 0, "{guarded}");
            Ok(())
        })?;
        for (socket, _) in &held {
            socket.talk("still")?.answered_by("b2")?;
        }
        Ok(())
    });
}

#[test]
fn the_guard_outlives_the_agent_and_is_cleared_away_by_the_next() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        let socket = world.client.hold_udp(TO)?;
        world.move_away()?;
        notices(&socket)?;
        world.n1.kill_agent()?;
        socket.talk("and now")?.failed_with("EPERM")?;
        lab.start_agents()?;
        notices(&socket)?;
        ensure!(world.egress_programs()? == 1);
        // An agent on a kernel that can end sockets needs none.
        world.n1.kill_agent()?;
        world.n1.agent_environment(&[]);
        lab.start_agents()?;
        world.guard_is(false, LOOKED_AGAIN)?;
        eventually(NOTICED, || socket.talk("ended")?.unanswered())?;
        eventually(NOTICED, || socket.redial(TO)?.answered_by("b2"))?;
        ensure!(world.egress_programs()? == 0);
        Ok(())
    });
}
