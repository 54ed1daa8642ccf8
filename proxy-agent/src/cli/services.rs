//! `fairlead services`

use super::{Inspect, print, table};
use crate::observe::snapshot::{self, ServicePort};
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
            "POLICY",
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
                    "0",
                ]);
            }
            for frontend in &port.frontends {
                table.add_row([
                    port.name.clone(),
                    port.protocol.clone(),
                    frontend.address.clone(),
                    frontend.kind.to_owned(),
                    policy(port, frontend.kind).to_owned(),
                    frontend.backends.len().to_string(),
                ]);
            }
        }
        table
    })
}

fn policy(port: &ServicePort, kind: &str) -> &'static str {
    if kind == "ClusterIP" {
        port.internal_traffic_policy
    } else {
        port.external_traffic_policy
    }
}
