//! `fairlead backends`

use super::{Inspect, print, table};
use crate::observe::snapshot::{self, BackendView};
use anyhow::{Context, Result};

pub(super) fn run(inspect: &Inspect) -> Result<()> {
    let ports = snapshot::read(&inspect.pin_dir)
        .context("reading the maps: does an agent pin them there?")?;
    print(inspect.output, &ports, || {
        let mut table = table(&[
            "SERVICE PORT",
            "PROTOCOL",
            "ID",
            "BACKEND",
            "NODE",
            "STATE",
            "WEIGHT",
            "NEW CONNECTIONS",
            "OPENED",
            "FAILED",
            "OPEN",
        ]);
        for port in &ports {
            let in_use = port.in_use();
            for backend in &port.backends {
                table.add_row([
                    port.name.clone(),
                    port.protocol.clone(),
                    backend.id.to_string(),
                    backend.address.clone(),
                    node(backend),
                    backend.state.to_owned(),
                    backend.weight.to_string(),
                    if in_use.contains(&backend.id) {
                        "yes"
                    } else {
                        "no"
                    }
                    .to_owned(),
                    backend.opened.to_string(),
                    backend.failed.to_string(),
                    backend.open.to_string(),
                ]);
            }
        }
        table
    })
}

/// "this", or the first address of the other one.
fn node(backend: &BackendView) -> String {
    if backend.local {
        return "this".to_owned();
    }
    let known = backend.node.first();
    known.map_or_else(|| "other".to_owned(), ToString::to_string)
}
