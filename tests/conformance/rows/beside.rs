//! Beside others that translate: rules 36 and 37.

use super::restart::{clients, served, without_proxy};
use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::row::Row;
use crate::stage::{Stage, then_restore};
use crate::world::run;
use anyhow::{Context, Result};
use control_plane::Mode;
use lab::{Peer, Transport};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            36,
            "sidecar-sees-the-cluster-ip",
            "a redirection in a pod's namespace gets its connections to a ClusterIP, and the \
             host's reach the backend",
            "istio: traffic is captured by its original destination",
            Fault::RedirectionLost,
            sidecar,
        )
        .cases(&["K60"])
        .once()
        .alone(),
        Row::new(
            36,
            "skipped-frontend-is-left-alone",
            "a frontend on the list to skip leads to whoever has its address on the node",
            "NodeLocal DNSCache: it listens on the DNS Service's ClusterIP",
            Fault::FlagsIgnored,
            skipped,
        )
        .only(Proxy::Fairlead)
        .once()
        .alone(),
        Row::new(
            37,
            "leftovers-of-another-proxy-do-not-decide",
            "rules that another mode or proxy left behind, to dead backends and to reject, do \
             not decide once this one runs",
            "kubernetes pkg/proxy: rules of other modes are cleaned up at start; kubernetes#88698",
            Fault::EndpointsLost,
            leftovers,
        )
        .cases(&["K78"])
        .once()
        .alone(),
    ]
}

/// Runs with n1's proxy started with these flags if it is Fairlead.
fn with_flags(s: &Stage<'_>, flags: &[&str], story: impl FnOnce() -> Result<()>) -> Result<()> {
    s.kill_proxy("n1")?;
    then_restore(
        || {
            s.start_proxy_with("n1", flags)?;
            story()
        },
        || {
            s.world.kill_proxy("n1")?;
            s.start_proxy_with("n1", &[])
        },
    )
}

/// Where a sidecar takes its pod's connections.
const SIDECAR: u16 = 15001;

fn sidecar(s: &Stage<'_>) -> Result<()> {
    let to = served(s, "web")?;
    let (ip, _) = to.rsplit_once(':').context("an address and a port")?;
    s.pod1.listen(Transport::Tcp, "0.0.0.0".parse()?, SIDECAR)?;
    with_flags(s, &["--host-namespace-only"], || {
        s.redirect(&s.pod1, ip, SIDECAR)?;
        then_restore(
            || {
                s.only(&s.pod1, Transport::Tcp, &to, &[s.pod1.name()])?;
                s.only(&s.host1, Transport::Tcp, &to, &["b1"])
            },
            || {
                s.pod1.unlisten(Transport::Tcp, SIDECAR)?;
                run(&s.pod1, "nft", &["flush ruleset"])
            },
        )
    })
}

fn skipped(s: &Stage<'_>) -> Result<()> {
    let (to, ip) = (s.cluster_ip(), s.own.cluster_ip(s.family));
    s.apply(&s.service("dns"))?;
    s.apply(&s.ready("dns", &[&s.world.b1]))?;
    s.host1.ip(&format!("addr add {ip}/32 dev lo"))?;
    s.host1.listen(Transport::Tcp, ip.parse()?, 80)?;
    then_restore(
        || {
            with_flags(s, &["--skip-frontends", &to], || {
                let cache = s.host1.name();
                for client in [&s.pod1, &s.host1] {
                    s.only(client, Transport::Tcp, &to, &[cache])?;
                }
                Ok(())
            })
        },
        || {
            s.host1.unlisten(Transport::Tcp, 80)?;
            s.host1.ip(&format!("addr del {ip}/32 dev lo"))
        },
    )
}

/// Where leftovers lead to: nobody has this address.
const DEAD: &str = "10.244.1.250:8080";

fn leftovers(s: &Stage<'_>) -> Result<()> {
    let to = served(s, "web")?;
    let rejected = served(s, "rejected")?;
    let [ip, rejected_ip] = [&to, &rejected].map(|it| it.trim_end_matches(":80").to_owned());
    let clean = || match s.world.proxy.mode() {
        // The proxy itself has to.
        Some(_) => Ok(()),
        None => forget_iptables(&s.host1),
    };
    then_restore(
        || {
            without_proxy(s, || match s.world.proxy.mode() {
                Some(Mode::Iptables) => leave_nftables(&s.host1, &ip, &rejected_ip),
                Some(Mode::Nftables) | None => leave_iptables(&s.host1, &ip, &rejected_ip),
            })?;
            for client in clients(s) {
                s.only(client, Transport::Tcp, &to, &["b1"])?;
                s.only(client, Transport::Tcp, &rejected, &["b1"])?;
            }
            Ok(())
        },
        clean,
    )
}

/// As kube-proxy's nftables mode, in the parts that decide.
fn leave_nftables(host: &Peer, ip: &str, rejected: &str) -> Result<()> {
    let rules = format!(
        "table ip kube-proxy {{
           chain services {{
             ip daddr {ip} tcp dport 80 dnat to {DEAD};
           }}
           chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
           chain nat-output {{ type nat hook output priority -100; jump services; }}
           chain filter-output {{
             type filter hook output priority -101; ip daddr {rejected} reject;
           }}
           chain filter-prerouting {{
             type filter hook prerouting priority -101; ip daddr {rejected} drop;
           }}
         }}"
    );
    run(host, "nft", &[&rules])
}

/// As kube-proxy's iptables mode.
fn leave_iptables(host: &Peer, ip: &str, rejected: &str) -> Result<()> {
    let portals = "-m comment --comment";
    let text = "kubernetes service portals";
    for (table, rules) in [
        (
            "nat",
            vec![
                "-N KUBE-SERVICES".to_owned(),
                format!(
                    "-A KUBE-SERVICES -d {ip} -p tcp --dport 80 -j DNAT --to-destination {DEAD}"
                ),
                format!("-A PREROUTING {portals} TEXT -j KUBE-SERVICES"),
                format!("-A OUTPUT {portals} TEXT -j KUBE-SERVICES"),
            ],
        ),
        (
            "filter",
            vec![
                "-N KUBE-SERVICES".to_owned(),
                format!("-A KUBE-SERVICES -d {rejected} -j REJECT"),
                format!("-A FORWARD -m conntrack --ctstate NEW {portals} TEXT -j KUBE-SERVICES"),
                format!("-A OUTPUT -m conntrack --ctstate NEW {portals} TEXT -j KUBE-SERVICES"),
            ],
        ),
    ] {
        for rule in rules {
            let words = rule
                .split(' ')
                .map(|it| if it == "TEXT" { text } else { it });
            let arguments: Vec<&str> = ["-t", table].into_iter().chain(words).collect();
            run(host, "iptables-legacy", &arguments)?;
        }
    }
    Ok(())
}

fn forget_iptables(host: &Peer) -> Result<()> {
    for table in ["nat", "filter"] {
        for command in ["-F", "-X"] {
            run(host, "iptables-legacy", &["-t", table, command])?;
        }
    }
    Ok(())
}
