//! Maps that the agent fills once: settings, and the service address ranges.

use super::AttachOptions;
use crate::take_over;
use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData};
use proxy_common::{Address, DeviceSettings, Layout, Settings, mapped_prefix_length};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// Values of map `service_cidrs`: the longest prefix decides.
const REFUSE: u32 = 1;
const LEAVE_ALONE: u32 = 0;

/// Writes what the programs must know before they run.
pub(super) fn configure(pin_dir: &Path, options: &AttachOptions, instance: u32) -> Result<()> {
    write_layout(pin_dir)?;
    update_settings(pin_dir, |settings| {
        settings.host_only = options.host_only.into();
        settings.instance = instance;
    })?;
    update_device_settings(pin_dir, |settings| {
        settings.snat_first_port = *options.snat_ports.start();
        settings.snat_last_port = *options.snat_ports.end();
        settings.dsr_port = options.dsr_port.into();
        settings.take_over = take_over::may_begin().into();
    })?;
    let wanted = service_ranges(options);
    let mut map = range_map(pin_dir)?;
    let present = map
        .keys()
        .collect::<Result<Vec<_>, _>>()
        .context("reading map service_cidrs")?;
    for ((prefix, address), value) in &wanted {
        map.insert(&Key::new(*prefix, address.bytes), value, 0)
            .context("writing map service_cidrs")?;
    }
    for key in present {
        let address = Address { bytes: key.data() };
        if !wanted.contains_key(&(key.prefix_len(), address)) {
            map.remove(&key).context("writing map service_cidrs")?;
        }
    }
    Ok(())
}

/// Map `service_cidrs`: prefix length and address → whether the programs refuse
/// connections there (1), or leave them alone (0).
pub type ServiceRanges = BTreeMap<(u32, Address), u32>;

/// What map `service_cidrs` shall have.
pub fn service_ranges(options: &AttachOptions) -> ServiceRanges {
    let entry = |ip: IpAddr, length, value: u32| {
        let key = (mapped_prefix_length(ip, length), Address::from(ip));
        (key, value)
    };
    let ranges = options.service_cidrs.iter();
    let ranges = ranges.map(|cidr| entry(cidr.network(), cidr.prefix_len(), REFUSE));
    let alone = options.left_alone.iter();
    let alone = alone.map(|&ip| entry(ip, if ip.is_ipv4() { 32 } else { 128 }, LEAVE_ALONE));
    ranges.chain(alone).collect()
}

/// What map `service_cidrs` has.
pub fn pinned_service_ranges(pin_dir: &Path) -> Result<ServiceRanges> {
    range_map(pin_dir)?
        .iter()
        .map(|element| {
            let (key, value) = element.context("reading map service_cidrs")?;
            let address = Address { bytes: key.data() };
            Ok(((key.prefix_len(), address), value))
        })
        .collect()
}

fn range_map(pin_dir: &Path) -> Result<LpmTrie<MapData, [u8; size_of::<Address>()], u32>> {
    let map =
        MapData::from_pin(pin_dir.join("service_cidrs")).context("opening map service_cidrs")?;
    Ok(aya::maps::Map::LpmTrie(map).try_into()?)
}

/// The one element of map `settings`; changes nothing.
pub fn pinned_settings(pin_dir: &Path) -> Result<Settings> {
    read(pin_dir)
}

/// The one element of map `device_settings`; changes nothing.
pub fn pinned_device_settings(pin_dir: &Path) -> Result<DeviceSettings> {
    update_device_settings(pin_dir, |_| {})
}

fn layout_map(pin_dir: &Path) -> Result<Array<MapData, [u8; size_of::<Layout>()]>> {
    element(pin_dir, "layout")
}

/// The one element of map `layout`.
pub(super) fn read_layout(pin_dir: &Path) -> Result<Layout> {
    let map = layout_map(pin_dir)?;
    Ok(zerocopy::transmute!(
        map.get(&0, 0).context("reading map layout")?
    ))
}

fn write_layout(pin_dir: &Path) -> Result<()> {
    let bytes: [u8; size_of::<Layout>()] = zerocopy::transmute!(Layout::OURS);
    let mut map = layout_map(pin_dir)?;
    map.set(0, bytes, 0).context("writing map layout")
}

/// The one element of map `settings`.
pub(super) fn read(pin_dir: &Path) -> Result<Settings> {
    update_settings(pin_dir, |_| {})
}

/// Changes the one element of map `settings`.
pub(super) fn update_settings(
    pin_dir: &Path,
    change: impl FnOnce(&mut Settings),
) -> Result<Settings> {
    let mut map: Array<_, [u8; size_of::<Settings>()]> = element(pin_dir, "settings")?;
    let mut settings: Settings =
        zerocopy::transmute!(map.get(&0, 0).context("reading map settings")?);
    let before = settings;
    change(&mut settings);
    if settings != before {
        let bytes: [u8; size_of::<Settings>()] = zerocopy::transmute!(settings);
        map.set(0, bytes, 0).context("writing map settings")?;
    }
    Ok(settings)
}

/// Changes the one element of map `device_settings`.
pub fn update_device_settings(
    pin_dir: &Path,
    change: impl FnOnce(&mut DeviceSettings),
) -> Result<DeviceSettings> {
    let mut map: Array<_, [u8; size_of::<DeviceSettings>()]> = element(pin_dir, "device_settings")?;
    let mut settings: DeviceSettings =
        zerocopy::transmute!(map.get(&0, 0).context("reading map device_settings")?);
    let before = settings;
    change(&mut settings);
    if settings != before {
        let bytes: [u8; size_of::<DeviceSettings>()] = zerocopy::transmute!(settings);
        map.set(0, bytes, 0)
            .context("writing map device_settings")?;
    }
    Ok(settings)
}

pub(super) fn element<V: aya::Pod>(pin_dir: &Path, map: &str) -> Result<Array<MapData, V>> {
    let data =
        MapData::from_pin(pin_dir.join(map)).with_context(|| format!("opening map {map}"))?;
    Ok(aya::maps::Map::Array(data).try_into()?)
}
