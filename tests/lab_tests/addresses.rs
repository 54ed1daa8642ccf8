//! semantics.md, "Addresses that backends see", for clients on this node.

use anyhow::{Result, ensure};
use lab::{Cast, SharedLab, Transport};
use std::net::IpAddr;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

#[test]
fn a_pod_is_seen_with_its_own_address_and_a_host_with_the_nodes() {
    // K50, clients on this node
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("seen", "10.96.4.1")
                .cluster_ip("fd00:96::4001")
                .lb_ip("198.51.100.41")
                .external_ips(&["203.0.113.41"]),
        )?;
        cast.apply(&cast.ready("seen", &[&cast.b1, &cast.b2]))?;
        cast.apply(
            &cast
                .slice("seen-v6", "seen")
                .v6()
                .ready_endpoints([&cast.b1, &cast.b2]),
        )?;
        cast.settle()?;
        let sees = |client: &lab::Peer, vip: &str, expected: IpAddr| -> Result<()> {
            for (transport, port) in [(Transport::Tcp, 80), (Transport::Udp, 53)] {
                // Often enough to meet the local and the remote backend.
                for _ in 0..12 {
                    let outcome = client.reach(transport, &format!("{vip}:{port}"))?;
                    let peer = outcome.seen_peer()?.ip();
                    ensure!(
                        peer == expected,
                        "{vip} {transport:?}: {:?}, expected {expected}",
                        outcome.line()
                    );
                }
            }
            Ok(())
        };
        for vip in ["10.96.4.1", "198.51.100.41", "203.0.113.41"] {
            sees(&cast.client, vip, cast.client.v4().into())?;
            sees(cast.host(), vip, cast.node("n1").v4().into())?;
        }
        sees(&cast.client, "[fd00:96::4001]", cast.client.v6().into())?;
        for _ in 0..12 {
            // Towards the pod on this node the kernel may choose any address of
            // the node, but no VIP, no loopback and no link-local one.
            let outcome = cast.host().tcp("[fd00:96::4001]:80")?;
            let peer = outcome.seen_peer()?.ip();
            ensure!(peer == cast.node("n1").v6(), "{:?}", outcome.line());
        }
        Ok(())
    });
}

#[test]
fn a_pod_reaches_itself_through_its_own_service() {
    // K10, socket path
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("hairpin", "10.96.4.2")
                .cluster_ip("fd00:96::4002")
                .node_port(30402)
                .lb_ip("198.51.100.42"),
        )?;
        cast.apply(&cast.ready("hairpin", &[&cast.b1]))?;
        cast.apply(
            &cast
                .slice("hairpin-v6", "hairpin")
                .v6()
                .ready_endpoints([&cast.b1]),
        )?;
        cast.settle()?;
        for vip in ["10.96.4.2", "198.51.100.42", "[fd00:96::4002]"] {
            cast.b1.tcp(&format!("{vip}:80"))?.answered_by("b1")?;
            cast.b1.udp(&format!("{vip}:53"))?.answered_by("b1")?;
        }
        cast.b1.udp("192.0.2.11:30402")?.answered_by("b1")
    });
}
