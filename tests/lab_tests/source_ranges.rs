//! semantics.md 22: `loadBalancerSourceRanges`, for clients of this node.

use anyhow::Result;
use lab::{Lab, Peer, manifests, story};

const RESTRICTED: &str = "198.51.100.60:80";
const RESTRICTED_V6: &str = "[2001:db8:100::60]:80";

struct World<'a> {
    lab: &'a Lab,
    backend: Peer,
    inside: Peer,
    outside: Peer,
}

fn lab() -> Result<Lab> {
    Lab::new(1)
}

impl<'a> World<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let n1 = lab.node("n1");
        Ok(Self {
            lab,
            backend: n1.pod("b1")?.serve(8080)?,
            inside: n1.pod("inside")?,
            outside: n1.pod("outside")?,
        })
    }

    /// A load balancer of both families with these ranges.
    fn service(&self, ranges: &[&str]) -> manifests::Service {
        manifests::service("lb")
            .cluster_ip("10.96.21.1")
            .cluster_ip("fd00:96::2101")
            .port("http", 80, 8080)
            .node_port(30210)
            .lb_ip("198.51.100.60")
            .lb_ip("2001:db8:100::60")
            .external_ips(&["203.0.113.60"])
            .source_ranges(ranges)
    }

    fn start(&self, ranges: &[&str]) -> Result<()> {
        self.lab.apply(&self.service(ranges))?;
        for (name, v6) in [("lb-v4", false), ("lb-v6", true)] {
            let slice = manifests::slice(name, "lb").port("http", 8080);
            let slice = if v6 { slice.v6() } else { slice };
            self.lab.apply(&slice.endpoint(&self.backend).ready())?;
        }
        self.lab.start_agents()
    }

    fn change(&self, ranges: &[&str]) -> Result<()> {
        self.lab.apply(&self.service(ranges))?;
        self.lab.settle()
    }

    fn host(&self) -> &Peer {
        self.lab.node("n1").host()
    }
}

/// The pod's address as a range of its own.
fn only(pod: &Peer) -> String {
    format!("{}/32", pod.v4())
}

#[test]
fn only_clients_in_a_range_reach_the_load_balancer_ip() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        let range = only(&world.inside);
        // Blanks are trimmed; a range of the other family is no filter for this one.
        world.start(&[&format!(" {range} ")])?;
        world.inside.tcp(RESTRICTED)?.answered_by("b1")?;
        world.outside.tcp(RESTRICTED)?.refused()?;
        world.host().tcp(RESTRICTED)?.refused()?;
        for client in [&world.inside, &world.outside, world.host()] {
            client.tcp(RESTRICTED_V6)?.answered_by("b1")?;
            // Other kinds of frontends are not filtered.
            for frontend in ["10.96.21.1:80", "203.0.113.60:80", "192.0.2.11:30210"] {
                client.tcp(frontend)?.answered_by("b1")?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_range_with_a_node_address_lets_the_node_in() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.start(&["192.0.2.0/24", "2001:db8:2::/64"])?;
        for frontend in [RESTRICTED, RESTRICTED_V6] {
            world.host().tcp(frontend)?.answered_by("b1")?;
            world.outside.tcp(frontend)?.refused()?;
        }
        Ok(())
    });
}

#[test]
fn ranges_follow_the_service_and_outlive_the_agent() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.start(&[])?;
        world.outside.tcp(RESTRICTED)?.answered_by("b1")?;
        let range = only(&world.inside);
        world.change(&[&range])?;
        world.outside.tcp(RESTRICTED)?.refused()?;
        world.inside.tcp(RESTRICTED)?.answered_by("b1")?;
        world.lab.node("n1").kill_agent()?;
        world.outside.tcp(RESTRICTED)?.refused()?;
        world.inside.tcp(RESTRICTED)?.answered_by("b1")?;
        world.lab.node("n1").start_agent()?;
        world.lab.settle()?;
        world.change(&[&range, &only(&world.outside)])?;
        world.outside.tcp(RESTRICTED)?.answered_by("b1")?;
        world.change(&[&only(&world.outside)])?;
        world.inside.tcp(RESTRICTED)?.refused()?;
        world.change(&["0.0.0.0/0"])?;
        world.inside.tcp(RESTRICTED)?.answered_by("b1")?;
        world.host().tcp(RESTRICTED)?.answered_by("b1")
    });
}

#[test]
fn a_pod_that_starts_later_is_known_soon() {
    story(lab, |lab| {
        let world = World::new(lab)?;
        world.start(&["10.244.0.0/16"])?;
        let late = world.lab.node("n1").pod("late")?;
        world
            .lab
            .eventually(|| late.tcp(RESTRICTED)?.answered_by("b1"))?;
        world.host().tcp(RESTRICTED)?.refused()
    });
}
