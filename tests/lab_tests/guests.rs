//! Clients whose sockets nobody translates, behind devices that the operator names
//! (semantics 36): guests of a hypervisor, sandboxes, containers of another engine.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{BACKEND_PORT, Lab, Peer, PodNetwork, SERVICE_CIDRS, SharedLab, Transport};
use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 80;
/// Last octets of the Services' addresses.
const BOTH: u8 = 1;
const OWN: u8 = 2;
const NOBODY: u8 = 3;

static ROUTED: SharedLab<World> = SharedLab::new(|| World::new(PodNetwork::Routed, "pod*"));
static BRIDGE: SharedLab<World> = SharedLab::new(|| World::new(PodNetwork::Bridge, "veth*"));

/// A guest and a backend on n1, another one on n2.
struct World {
    lab: Lab,
    guest: Peer,
    _backends: [Peer; 2],
}

impl AsRef<Lab> for World {
    fn as_ref(&self) -> &Lab {
        &self.lab
    }
}

impl World {
    fn new(network: PodNetwork, devices: &str) -> Result<Self> {
        let lab = Lab::with_network(2, network)?;
        lab.agent_flags([
            "--service-cidrs",
            SERVICE_CIDRS,
            // No socket of a pod is translated.
            "--host-namespace-only",
            "--pod-devices",
            devices,
        ]);
        let pod = |name, node| lab.node(node).pod(name)?.serve(BACKEND_PORT);
        let (guest, b1, b2) = (pod("guest", "n1")?, pod("b1", "n1")?, pod("b2", "n2")?);
        for (octet, backends) in [
            (BOTH, vec![&b1, &b2]),
            (OWN, vec![&guest]),
            (NOBODY, vec![]),
        ] {
            let name = format!("s{octet}");
            lab.apply(
                &service(&name)
                    .cluster_ip(&format!("10.96.80.{octet}"))
                    .cluster_ip(&format!("fd00:96::80{octet}"))
                    .port("http", PORT, BACKEND_PORT)
                    .udp_port("dns", PORT, BACKEND_PORT),
            )?;
            for family in [
                slice(&format!("{name}-v4"), &name),
                slice(&format!("{name}-v6"), &name).v6(),
            ] {
                let family = family
                    .port("http", BACKEND_PORT)
                    .udp_port("dns", BACKEND_PORT);
                lab.apply(&family.ready_endpoints(backends.iter().copied()))?;
            }
        }
        lab.start_agents()?;
        Ok(Self {
            lab,
            guest,
            _backends: [b1, b2],
        })
    }
}

fn frontends(octet: u8) -> Result<[SocketAddr; 2]> {
    let ips = [format!("10.96.80.{octet}"), format!("fd00:96::80{octet}")];
    let [v4, v6] = ips.map(|ip| -> Result<SocketAddr> { Ok(SocketAddr::new(ip.parse()?, PORT)) });
    Ok([v4?, v6?])
}

fn on_both(story: fn(&World) -> Result<()>) {
    for lab in [&ROUTED, &BRIDGE] {
        lab.story(story);
    }
}

#[test]
fn guests_reach_cluster_ips_and_keep_their_address() {
    on_both(|world| {
        for to in frontends(BOTH)? {
            let own: IpAddr = if to.is_ipv4() {
                world.guest.v4().into()
            } else {
                world.guest.v6().into()
            };
            for transport in Transport::BOTH {
                let mut seen = Vec::new();
                for _ in 0..30 {
                    let outcome = world.guest.reach(transport, &to.to_string())?;
                    let what = || format!("{} {to}", transport.as_str());
                    seen.push(outcome.pod().with_context(what)?.to_owned());
                    ensure!(outcome.seen_peer()?.ip() == own, "{to}: {outcome:?}");
                }
                seen.sort();
                seen.dedup();
                ensure!(seen == ["b1", "b2"], "{to}: {seen:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_guest_reaches_itself() {
    // Semantics 21.
    on_both(|world| {
        for to in frontends(OWN)? {
            for transport in Transport::BOTH {
                let outcome = world.guest.reach(transport, &to.to_string())?;
                outcome
                    .answered_by("guest")
                    .with_context(|| format!("{} {to}", transport.as_str()))?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_guest_is_refused_where_nobody_serves() {
    on_both(|world| {
        for to in frontends(NOBODY)? {
            for transport in Transport::BOTH {
                world.guest.reach(transport, &to.to_string())?.refused()?;
            }
        }
        Ok(())
    });
}

#[test]
fn streams_of_any_length_pass_both_ways() {
    on_both(|world| {
        let line = "x".repeat(300_000);
        for to in frontends(BOTH)? {
            for _ in 0..4 {
                let held = world.guest.hold_tcp(&to.to_string())?;
                let length = held.talk(&line)?.line()?.len();
                ensure!(length > line.len(), "{to}: {length} bytes came back");
            }
        }
        Ok(())
    });
}
