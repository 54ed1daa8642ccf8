//! The node's own part: hooks, devices, addresses and settings.

use super::{Difference, NOTHING, Part};
use crate::attach::{HookState, ServiceRanges};
use crate::devices::Chosen;
use proxy_common::{Address, Device};
use std::collections::{BTreeMap, BTreeSet};

/// Two sets of addresses.
pub(super) fn addresses(
    part: Part,
    wanted: &BTreeSet<Address>,
    found: &BTreeSet<Address>,
) -> Vec<Difference> {
    const THERE: &str = "an element";
    let text = |address: &Address| address.to_ip().to_string();
    let missing = wanted.difference(found);
    let missing = missing.map(|it| Difference::new(part, text(it), THERE, NOTHING));
    let foreign = found.difference(wanted);
    let foreign = foreign.map(|it| Difference::new(part, text(it), NOTHING, THERE));
    missing.chain(foreign).collect()
}

/// Map `service_cidrs`.
pub(super) fn service_ranges(wanted: &ServiceRanges, found: &ServiceRanges) -> Vec<Difference> {
    let text = |value: Option<&u32>| match value {
        None => NOTHING,
        Some(0) => "left alone",
        Some(_) => "refused",
    };
    each(wanted, found, |&(bits, address)| {
        let key = (bits, address);
        let (wanted, found) = (text(wanted.get(&key)), text(found.get(&key)));
        (
            Part::ServiceCidrs,
            range_name(bits, address),
            wanted.to_owned(),
            found.to_owned(),
        )
    })
}

/// Map `devices`; `name` tells that of a device that is in no packet path.
pub(super) fn devices(
    wanted: &BTreeMap<u32, Chosen>,
    found: &BTreeMap<u32, Device>,
    name: impl Fn(u32) -> String,
) -> Vec<Difference> {
    let text = |device: Option<&Device>| {
        let Some(device) = device else {
            return NOTHING.to_owned();
        };
        let roles = [(Device::UPLINK, "uplink"), (Device::RETURN, "return")];
        let roles = roles.into_iter().filter(|(bit, _)| device.role & bit != 0);
        let roles: Vec<&str> = roles.map(|(_, name)| name).collect();
        let Device {
            header_bytes, mtu, ..
        } = device;
        let (v4, v6) = (device.v4.to_ip(), device.v6.to_ip());
        format!(
            "{}, header {header_bytes} bytes, MTU {mtu}, {v4}, {v6}",
            roles.join("+")
        )
    };
    each(wanted, found, |index| {
        let chosen = wanted.get(index);
        let object = chosen.map_or_else(|| name(*index), |it| it.name.clone());
        let wanted = text(chosen.map(|it| &it.device));
        (Part::Devices, object, wanted, text(found.get(index)))
    })
}

/// Every key of both, if the texts differ.
fn each<K: Ord, A, B>(
    wanted: &BTreeMap<K, A>,
    found: &BTreeMap<K, B>,
    texts: impl Fn(&K) -> (Part, String, String, String),
) -> Vec<Difference> {
    let keys: BTreeSet<&K> = wanted.keys().chain(found.keys()).collect();
    let texts = keys.into_iter().map(texts);
    let differing = texts.filter(|(_, _, wanted, found)| wanted != found);
    differing
        .map(|(part, object, wanted, found)| Difference::new(part, object, wanted, found))
        .collect()
}

/// Hooks of the cgroup, and of devices: those in the packet path have a program
/// of ours, once, and no other device has.
pub(super) fn hooks(
    states: &[HookState],
    in_path: &BTreeMap<u32, Chosen>,
    name: impl Fn(u32) -> String,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for state in states {
        let (object, wanted) = match state.device {
            None => (format!("{} of the cgroup", state.hook), true),
            Some(index) => {
                let chosen = in_path.get(&index);
                let device = chosen.map_or_else(|| name(index), |it| it.name.clone());
                (format!("{} of {device}", state.hook), chosen.is_some())
            }
        };
        let found = if wanted {
            fault(state)
        } else {
            presence(state)
        };
        if let Some(found) = found {
            let wanted = if wanted {
                "one program of ours"
            } else {
                NOTHING
            };
            differences.push(Difference::new(Part::Hooks, object, wanted, found));
        }
    }
    differences
}

/// What is wrong with a hook that shall have a program.
fn fault(state: &HookState) -> Option<String> {
    let programs = numbers(&state.ours);
    match &state.pinned {
        None if state.ours.is_empty() => Some(NOTHING.to_owned()),
        None => Some(format!("{programs} without a pin")),
        Some(Err(fault)) if state.ours.is_empty() => Some(fault.clone()),
        Some(Err(fault)) => Some(format!("{fault}, and {programs} beside it")),
        Some(Ok(id)) if state.ours == [*id] => None,
        Some(Ok(id)) if state.ours.contains(id) => Some(programs),
        Some(Ok(id)) => Some(format!("program {id}, which works on other maps")),
    }
}

/// What is on a hook that shall have none.
fn presence(state: &HookState) -> Option<String> {
    match &state.pinned {
        None if state.ours.is_empty() => None,
        None => Some(numbers(&state.ours)),
        Some(Ok(id)) => Some(format!("program {id}")),
        // The pin of a device that is gone goes with the next look of the agent.
        Some(Err(fault)) => Some(fault.clone()),
    }
}

fn numbers(programs: &[u32]) -> String {
    let ids: Vec<String> = programs.iter().map(u32::to_string).collect();
    match ids.as_slice() {
        [id] => format!("program {id}"),
        ids => format!("programs {}", ids.join(" and ")),
    }
}

/// Single values by name.
pub(super) fn values(
    part: Part,
    rows: impl IntoIterator<Item = (&'static str, String, String)>,
) -> Vec<Difference> {
    let rows = rows
        .into_iter()
        .filter(|(_, wanted, found)| wanted != found);
    rows.map(|(name, wanted, found)| Difference::new(part, name, wanted, found))
        .collect()
}

/// A range of addresses, given its prefix as maps have it.
pub(super) fn range_name(bits: u32, address: Address) -> String {
    let bits = if address.is_v4() {
        bits.saturating_sub(96)
    } else {
        bits
    };
    format!("{}/{bits}", address.to_ip())
}
