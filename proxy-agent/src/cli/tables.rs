//! `fairlead tables`

use super::{Inspect, Output, table};
use crate::compile::maglev::{self, Member};
use crate::compile::{self, BackendKey, TableForm, TableKind};
use crate::observe::snapshot::socket_address;
use crate::publish::Kernel;
use crate::publish::bpf::BpfKernel;
use anyhow::{Context, Result, ensure};
use clap::Args;
use proxy_common::{Algorithm, EndpointSet, Protocol, ServiceId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Arguments of `fairlead tables`.
#[derive(Args, Debug)]
pub(super) struct Tables {
    /// The service port, as `fairlead services` shows it
    #[arg(value_name = "NAMESPACE/NAME:PORT")]
    service_port: String,
    /// Also show what moves when this backend goes
    #[arg(long, value_name = "ADDRESS:PORT")]
    without: Option<SocketAddr>,
    #[command(flatten)]
    inspect: Inspect,
}

/// A table of a service port.
#[derive(Serialize)]
struct View {
    protocol: &'static str,
    /// How a backend is picked from it.
    algorithm: &'static str,
    /// `list` or `maglev`.
    form: &'static str,
    family: &'static str,
    /// The endpoint set that it lists.
    set: &'static str,
    /// Number of slots.
    size: usize,
    backends: Vec<Share>,
    /// What happens without the backend that was asked about.
    without: Option<Without>,
}

#[derive(Serialize)]
struct Share {
    address: String,
    weight: u32,
    slots: usize,
    percent: f64,
}

#[derive(Serialize)]
struct Without {
    /// Number of slots of the table that comes.
    size: usize,
    /// Of new connections, those that get another backend than now.
    moved_percent: f64,
    /// The part of them whose backend is the one that goes.
    own_percent: f64,
}

pub(super) fn run(arguments: &Tables) -> Result<()> {
    let kernel = BpfKernel::open(&arguments.inspect.pin_dir)
        .context("reading the maps: does an agent pin them there?")?;
    let name = &arguments.service_port;
    let mut views = Vec::new();
    for (id, record) in kernel.services()? {
        if record.name() == name {
            let protocol = Protocol::from_number(record.protocol).map_or("?", Protocol::as_str);
            views.extend(tables(&kernel, id, protocol, arguments.without)?);
        }
    }
    ensure!(
        !views.is_empty(),
        "no service port {name} with a frontend: `fairlead services` lists them"
    );
    if let Some(without) = arguments.without {
        ensure!(
            views.iter().any(|view| view.without.is_some()),
            "{without} is in no Maglev table of {name}"
        );
    }
    match arguments.inspect.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&views)?),
        Output::Table => print_tables(&views, arguments.without),
    }
    Ok(())
}

/// The tables that the frontends of a service port name.
fn tables(
    kernel: &BpfKernel,
    service: ServiceId,
    protocol: &'static str,
    without: Option<SocketAddr>,
) -> Result<Vec<View>> {
    let seed = kernel.device_settings()?.seed;
    let mut found = BTreeMap::new();
    for frontend in kernel.frontends()? {
        if frontend.service == service {
            let kind = TableKind::of(&compile::resolved(&frontend));
            found.insert(kind, (frontend.table, frontend.algorithm));
        }
    }
    let view = |(kind, (table, algorithm)): (TableKind, (_, Algorithm))| {
        let mut weights = Weights::new();
        let mut backend = |id| {
            let backend = kernel.backend(id);
            let key = (backend.address, backend.port);
            weights.insert(key, backend.weight);
            key
        };
        let slots: Vec<BackendKey> = kernel.table(table).into_iter().map(&mut backend).collect();
        let without = without.filter(|_| kind.form == TableForm::Maglev);
        let without = without.map(|it| (it.ip().into(), it.port()));
        View {
            protocol,
            algorithm: algorithm.as_str(),
            form: match kind.form {
                TableForm::List => "list",
                TableForm::Maglev => "maglev",
            },
            family: if kind.is_v4 { "IPv4" } else { "IPv6" },
            set: match kind.set {
                EndpointSet::Cluster => "Cluster",
                EndpointSet::Local => "Local",
            },
            size: slots.len(),
            backends: shares(&slots, &weights),
            without: without.and_then(|gone| change(&slots, &weights, gone, seed)),
        }
    };
    Ok(found.into_iter().map(view).collect())
}

/// Of the backends of a table.
type Weights = BTreeMap<BackendKey, u32>;

fn count(slots: &[BackendKey]) -> BTreeMap<BackendKey, usize> {
    let mut counts = BTreeMap::new();
    for key in slots {
        *counts.entry(*key).or_default() += 1;
    }
    counts
}

fn percent(part: f64) -> f64 {
    (part * 10_000.0).round() / 100.0
}

fn share(slots: usize, size: usize) -> f64 {
    slots as f64 / size.max(1) as f64
}

fn shares(slots: &[BackendKey], weights: &Weights) -> Vec<Share> {
    let of = |((address, port), count)| Share {
        address: socket_address(address, port),
        weight: weights.get(&(address, port)).copied().unwrap_or_default(),
        slots: count,
        percent: percent(share(count, slots.len())),
    };
    count(slots).into_iter().map(of).collect()
}

/// What the table becomes without a backend, made as the agent would make it.
/// `None` if it is not in the table.
fn change(
    before: &[BackendKey],
    weights: &Weights,
    gone: BackendKey,
    seed: u32,
) -> Option<Without> {
    let counts = count(before);
    let own = *counts.get(&gone)?;
    let left = counts.keys().filter(|key| **key != gone);
    let weight = |key: &BackendKey| weights.get(key).copied().unwrap_or_default().max(1);
    let member = |key: &BackendKey| Member {
        key: *key,
        weight: weight(key),
    };
    let members: Vec<Member> = left.map(member).collect();
    let size = maglev::size(members.len());
    let after: Vec<BackendKey> = maglev::table(&members, seed, size)
        .into_iter()
        .map(|index| members[index as usize].key)
        .collect();
    let stays = if after.len() == before.len() {
        let same = before.iter().zip(&after).filter(|(a, b)| a == b).count();
        share(same, before.len())
    } else {
        // Tables of two sizes have nothing to do with each other.
        let of = |(key, slots): (BackendKey, usize)| {
            let had = counts.get(&key).copied().unwrap_or_default();
            share(slots, after.len()) * share(had, before.len())
        };
        count(&after).into_iter().map(of).sum()
    };
    Some(Without {
        size: after.len(),
        moved_percent: percent(1.0 - stays),
        own_percent: percent(share(own, before.len())),
    })
}

fn print_tables(views: &[View], without: Option<SocketAddr>) {
    let name = |view: &View| {
        let View {
            protocol,
            algorithm,
            form,
            family,
            set,
            ..
        } = *view;
        [protocol, algorithm, form, family, set].map(str::to_owned)
    };
    let columns = |more: &[&'static str]| {
        let first = ["PROTOCOL", "ALGORITHM", "TABLE", "FAMILY", "SET"].as_slice();
        table(&[first, more].concat())
    };
    let mut sizes = columns(&["SIZE", "BACKENDS", "LEAST %", "MOST %"]);
    let mut backends = columns(&["BACKEND", "WEIGHT", "SLOTS", "SHARE %"]);
    let mut changes = columns(&["NEW SIZE", "MOVED %", "OF WHICH ITS OWN %"]);
    for view in views {
        let shares = || view.backends.iter().map(|it| it.percent);
        let (least, most) = (shares().reduce(f64::min), shares().reduce(f64::max));
        let numbers = [view.size.to_string(), view.backends.len().to_string()];
        let range = [least, most].map(|it| it.map_or("-".to_owned(), |it| it.to_string()));
        sizes.add_row(name(view).into_iter().chain(numbers).chain(range));
        for it in &view.backends {
            let numbers = [
                it.weight.to_string(),
                it.slots.to_string(),
                it.percent.to_string(),
            ];
            let cells = [it.address.clone()].into_iter().chain(numbers);
            backends.add_row(name(view).into_iter().chain(cells));
        }
        if let Some(it) = &view.without {
            let cells = [
                it.size.to_string(),
                it.moved_percent.to_string(),
                it.own_percent.to_string(),
            ];
            changes.add_row(name(view).into_iter().chain(cells));
        }
    }
    println!("{sizes}\n\n{backends}");
    if let Some(without) = without {
        println!("\nWithout {without}:\n{changes}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn key(host: u8) -> BackendKey {
        (IpAddr::from([10, 0, 0, host]).into(), 80)
    }

    fn weights(hosts: std::ops::RangeInclusive<u8>) -> Weights {
        hosts.map(|host| (key(host), 1)).collect()
    }

    fn slots(weights: &Weights) -> Vec<BackendKey> {
        let member = |(&key, &weight): (&BackendKey, &u32)| Member { key, weight };
        let members: Vec<Member> = weights.iter().map(member).collect();
        maglev::table(&members, 7, maglev::size(members.len()))
            .into_iter()
            .map(|index| members[index as usize].key)
            .collect()
    }

    fn without(weights: &Weights, host: u8) -> Option<Without> {
        change(&slots(weights), weights, key(host), 7)
    }

    #[test]
    fn without_a_backend_its_own_slots_move_and_few_others() {
        let change = without(&weights(1..=5), 2).unwrap();
        assert_eq!((change.size, change.own_percent), (2_039, 20.01));
        assert!(
            (20.01..25.0).contains(&change.moved_percent),
            "{}",
            change.moved_percent
        );
    }

    #[test]
    fn the_others_keep_their_weights() {
        let mut weights = weights(1..=5);
        weights.insert(key(2), 6);
        weights.insert(key(3), 10);
        let change = without(&weights, 2).unwrap();
        // 6 of 19.
        let (own, moved) = (change.own_percent, change.moved_percent);
        assert!((31.4..31.8).contains(&own), "{own}");
        assert!((own..own + 4.0).contains(&moved), "{moved}");
    }

    #[test]
    fn another_size_moves_most() {
        let change = without(&weights(1..=11), 2).unwrap();
        assert_eq!(change.size, 2_039);
        assert!(
            (89.0..92.0).contains(&change.moved_percent),
            "{}",
            change.moved_percent
        );
    }

    #[test]
    fn the_last_backend_takes_everything_with_it_and_a_strange_one_nothing() {
        let last = without(&weights(1..=1), 1).unwrap();
        assert_eq!(
            (last.size, last.moved_percent, last.own_percent),
            (0, 100.0, 100.0)
        );
        assert!(without(&weights(1..=5), 9).is_none());
    }
}
