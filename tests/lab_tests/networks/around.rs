//! What is around the nodes: outside clients and their routes, a second uplink.

use crate::scene::{OUTSIDE_PORT, ROUTER_MTU, each_way};
use anyhow::Result;
use lab::{Lab, Probe, Router, story};
use std::net::{IpAddr, SocketAddr};

#[test]
fn frontends_are_routed_through_the_node_of_choice() {
    story(
        || Lab::new(2),
        |lab| {
            let [n1, n2] = ["n1", "n2"].map(|name| lab.node(name));
            let mut servers = Vec::new();
            let vips = ["198.51.100.7", "198.51.100.8", "2001:db8:100::7"];
            for node in [n1, n2] {
                servers.push(node.process(node.name())?.serve(OUTSIDE_PORT)?);
                for vip in vips {
                    node.host().ip(&format!("addr add {vip} dev lo"))?;
                }
            }
            let c1 = lab.client("c1");
            let answers = |expected: [&str; 3]| -> Result<()> {
                for (vip, node) in vips.into_iter().zip(expected) {
                    let to = SocketAddr::new(vip.parse()?, OUTSIDE_PORT);
                    c1.tcp(&to.to_string())?.answered_by(node)?;
                }
                Ok(())
            };
            c1.route_frontends(n1.host())?;
            answers(["n1", "n1", "n1"])?;
            c1.route(vips[1], n2.host())?;
            answers(["n1", "n2", "n1"])?;
            c1.route_frontends(n2.host())?;
            c1.route(vips[1], n1.host())?;
            answers(["n2", "n1", "n2"])?;
            let Router { router, client } = lab.router(ROUTER_MTU)?;
            router.route_frontends(n1.host())?;
            client
                .tcp(&format!("{}:{OUTSIDE_PORT}", vips[0]))?
                .answered_by("n1")?;
            n2.host().ip(&format!("addr del {}/32 dev lo", vips[0]))?;
            c1.ping(vips[0].parse()?)?
                .came_back()
                .expect_err("nobody has it");
            Ok(())
        },
    );
}

#[test]
fn a_second_uplink_leads_to_a_lan_of_its_own() {
    story(
        || Lab::new(2),
        |lab| {
            let c4 = lab.second_lan(&["n1"])?.serve(OUTSIDE_PORT)?;
            let n1 = lab.node("n1");
            let server = n1.process("server")?.serve(OUTSIDE_PORT)?;
            let (v4, v6) = n1.second_uplink();
            for to in [IpAddr::from(v4), IpAddr::from(v6)] {
                let to = SocketAddr::new(to, OUTSIDE_PORT).to_string();
                c4.tcp(&to)?.answered_by(server.name())?;
            }
            each_way(n1.host(), &c4, OUTSIDE_PORT, |address| {
                [IpAddr::from(v4), IpAddr::from(v6)].contains(&address)
            })?;
            // n2 has no way there.
            let probe = Probe {
                timeout_ms: 300,
                ..Probe::ping(c4.v4().into())
            };
            lab.node("n2").host().probe(probe)?.lost()
        },
    );
}
