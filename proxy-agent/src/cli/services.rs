//! `fairlead services`

use super::{Inspect, print, table};
use crate::observe::snapshot::{self, FrontendView, ServicePort};
use anyhow::{Context, Result};

pub(super) fn run(inspect: &Inspect) -> Result<()> {
    let ports = snapshot::read(&inspect.pin_dir)
        .context("reading the maps: does an agent pin them there?")?;
    print(inspect.output, &ports, || {
        let mut table = table(&[
            "SERVICE PORT",
            "PROTOCOL",
            "FRONTEND",
            "KIND",
            "CLIENTS",
            "POLICY",
            "ALGORITHM",
            "FORWARDING",
            "BACKENDS",
        ]);
        for port in &ports {
            if port.frontends.is_empty() {
                table.add_row([
                    port.name.as_str(),
                    port.protocol.as_str(),
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "0",
                ]);
            }
            for (frontend, clients, forwarding) in by_clients(&port.frontends) {
                table.add_row([
                    port.name.clone(),
                    port.protocol.clone(),
                    frontend.address.clone(),
                    frontend.kind.to_owned(),
                    clients.to_owned(),
                    policy(port, frontend.kind).to_owned(),
                    frontend.algorithm.to_owned(),
                    forwarding.to_owned(),
                    frontend.backends.len().to_string(),
                ]);
            }
        }
        table
    })
}

/// Each frontend with who its clients are, and how their packets get to other nodes:
/// one line where those on this node and those outside get the same backends.
fn by_clients(frontends: &[FrontendView]) -> Vec<(&FrontendView, &'static str, &'static str)> {
    let of = |frontend: &FrontendView, scope: &str| {
        frontends.iter().find(|it| {
            it.scope == scope && (it.kind, &it.address) == (frontend.kind, &frontend.address)
        })
    };
    let same = |a: &FrontendView, b: &FrontendView| a.backends == b.backends;
    let mut lines = Vec::new();
    for frontend in frontends {
        if frontend.scope == "internal" {
            let outside = of(frontend, "external").filter(|it| same(frontend, it));
            lines.push(match outside {
                Some(outside) => (frontend, "all", outside.forwarding),
                None => (frontend, "this node", "-"),
            });
        } else if !of(frontend, "internal").is_some_and(|it| same(frontend, it)) {
            lines.push((frontend, "outside", frontend.forwarding));
        }
    }
    lines
}

fn policy(port: &ServicePort, kind: &str) -> &'static str {
    if kind == "ClusterIP" {
        port.internal_traffic_policy
    } else {
        port.external_traffic_policy
    }
}
