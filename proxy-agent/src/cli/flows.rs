//! `fairlead flows`

use super::{Inspect, print, table};
use crate::flows::{FlowMaps, Pair, State, age::silent_s, now_s};
use crate::observe::snapshot::socket_address;
use crate::publish::Kernel;
use crate::publish::bpf::BpfKernel;
use anyhow::{Context, Result};
use clap::Args;
use ipnet::IpNet;
use proxy_common::{Flow, Protocol, ServiceId, ServiceRecord};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct FlowsOptions {
    #[command(flatten)]
    inspect: Inspect,
    /// Only flows of this service or service port: NAMESPACE/NAME or NAMESPACE/NAME:PORT
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// Only flows of clients with this address or in this range
    #[arg(long, value_name = "CIDR", value_parser = parse_range)]
    client: Option<IpNet>,
}

/// A flow as people read it. `to` is from the client to the backend.
#[derive(Serialize)]
struct Row {
    protocol: &'static str,
    client: String,
    frontend: String,
    /// `local`: the backend is on this node. `tunnel`: so it is, and another node has
    /// handed the packets over. `snat`: it is on another node, and answers by this
    /// one. `dsr`: it is on another node, which gets the packets as they are.
    mode: &'static str,
    /// The node that gets them.
    node: Option<String>,
    /// What a backend on another node sees instead of the client.
    source: Option<String>,
    backend: String,
    /// `None` if the backend's id has another owner by now.
    service: Option<String>,
    state: &'static str,
    age_s: u32,
    silent_s: u32,
    packets_to: u64,
    packets_from: u64,
    bytes_to: u64,
    bytes_from: u64,
}

pub(super) fn run(options: &FlowsOptions) -> Result<()> {
    let pin_dir = &options.inspect.pin_dir;
    let kernel =
        BpfKernel::open(pin_dir).context("reading the maps: does an agent pin them there?")?;
    let services: BTreeMap<ServiceId, ServiceRecord> = kernel.services()?.into_iter().collect();
    let now_s = now_s().context("reading the clock")?;
    let mut pairs = FlowMaps::open(pin_dir)?.all()?;
    pairs.sort_by_key(|it| (it.request.created_s, it.key.source_port));
    let rows: Vec<Row> = pairs
        .iter()
        .map(|pair| row(pair, &kernel, &services, now_s))
        .zip(&pairs)
        .filter(|(row, pair)| options.wants(row, pair))
        .map(|(row, _)| row)
        .collect();
    print(options.inspect.output, &rows, || {
        let mut table = table(&[
            "PROTOCOL",
            "CLIENT",
            "FRONTEND",
            "MODE",
            "NODE",
            "SOURCE",
            "BACKEND",
            "SERVICE PORT",
            "STATE",
            "AGE",
            "SILENT",
            "PACKETS TO",
            "FROM",
            "BYTES TO",
            "FROM",
        ]);
        for row in &rows {
            let dash = || "-".to_owned();
            table.add_row([
                row.protocol.to_owned(),
                row.client.clone(),
                row.frontend.clone(),
                row.mode.to_owned(),
                row.node.clone().unwrap_or_else(dash),
                row.source.clone().unwrap_or_else(dash),
                row.backend.clone(),
                row.service.clone().unwrap_or_else(dash),
                row.state.to_owned(),
                format!("{} s", row.age_s),
                format!("{} s", row.silent_s),
                row.packets_to.to_string(),
                row.packets_from.to_string(),
                row.bytes_to.to_string(),
                row.bytes_from.to_string(),
            ]);
        }
        table
    })
}

impl FlowsOptions {
    fn wants(&self, row: &Row, pair: &Pair) -> bool {
        let is_service = |wanted: &String| {
            row.service.as_ref().is_some_and(|name| {
                let of_any_port = name.split_once(':').is_some_and(|(it, _)| it == wanted);
                name == wanted || of_any_port
            })
        };
        self.service.as_ref().is_none_or(is_service)
            && self
                .client
                .is_none_or(|range| range.contains(&pair.key.source.to_ip()))
    }
}

fn row(
    pair: &Pair,
    kernel: &BpfKernel,
    services: &BTreeMap<ServiceId, ServiceRecord>,
    now_s: u32,
) -> Row {
    let Pair {
        key,
        request,
        reply,
    } = pair;
    let backend = kernel.backend(request.backend);
    let is_current = backend.generation == request.generation;
    let service = services.get(&backend.service).filter(|_| is_current);
    let (packets_from, bytes_from) = reply.map_or((0, 0), |it| (it.packets, it.bytes));
    Row {
        protocol: Protocol::from_number(key.protocol).map_or("?", Protocol::as_str),
        client: socket_address(key.source, key.source_port),
        frontend: socket_address(key.destination, key.destination_port),
        mode: mode(request),
        node: request.is_dsr().then(|| request.source.to_ip().to_string()),
        source: request
            .is_snat()
            .then(|| socket_address(request.source, request.source_port)),
        backend: socket_address(request.destination, request.destination_port),
        service: service.map(|it| it.name().to_owned()),
        state: State::of(key.protocol, request, reply.as_ref()).as_str(),
        age_s: now_s.saturating_sub(request.created_s),
        silent_s: silent_s(request, reply.as_ref(), now_s),
        packets_to: request.packets,
        packets_from,
        bytes_to: request.bytes,
        bytes_from,
    }
}

fn mode(request: &Flow) -> &'static str {
    if request.is_dsr() {
        "dsr"
    } else if request.is_snat() {
        "snat"
    } else if request.is_tunnelled() {
        "tunnel"
    } else {
        "local"
    }
}

fn parse_range(text: &str) -> Result<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.into()),
        Err(_) => text
            .parse()
            .with_context(|| format!("{text:?} is no address and no range of addresses")),
    }
}
