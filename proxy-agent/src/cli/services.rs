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
                    "0",
                ]);
            }
            for (frontend, clients) in by_clients(&port.frontends) {
                table.add_row([
                    port.name.clone(),
                    port.protocol.clone(),
                    frontend.address.clone(),
                    frontend.kind.to_owned(),
                    clients.to_owned(),
                    policy(port, frontend.kind).to_owned(),
                    frontend.algorithm.to_owned(),
                    frontend.backends.len().to_string(),
                ]);
            }
        }
        table
    })
}

/// Each frontend with who its clients are: one line where those on this node and
/// those outside get the same backends.
fn by_clients(frontends: &[FrontendView]) -> Vec<(&FrontendView, &'static str)> {
    let of = |frontend: &FrontendView, scope: &str| {
        frontends.iter().find(|it| {
            it.scope == scope && (it.kind, &it.address) == (frontend.kind, &frontend.address)
        })
    };
    let same =
        |a: &FrontendView, b: Option<&FrontendView>| b.is_some_and(|b| a.backends == b.backends);
    let mut lines = Vec::new();
    for frontend in frontends {
        if frontend.scope == "internal" {
            let all = same(frontend, of(frontend, "external"));
            lines.push((frontend, if all { "all" } else { "this node" }));
        } else if !same(frontend, of(frontend, "internal")) {
            lines.push((frontend, "outside"));
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
