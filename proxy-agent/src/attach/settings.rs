//! Maps that the agent fills once: settings, and the service address ranges.

use super::AttachOptions;
use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData};
use proxy_common::{Address, Settings, mapped_prefix_length};
use std::path::Path;

/// Writes what the programs must know before they run.
pub(super) fn configure(pin_dir: &Path, options: &AttachOptions) -> Result<()> {
    update_settings(pin_dir, |settings| {
        settings.host_only = options.host_only.into()
    })?;
    let map =
        MapData::from_pin(pin_dir.join("service_cidrs")).context("opening map service_cidrs")?;
    let mut map: LpmTrie<_, [u8; size_of::<Address>()], u32> =
        aya::maps::Map::LpmTrie(map).try_into()?;
    let wanted: Vec<(u32, [u8; 16])> = options
        .service_cidrs
        .iter()
        .map(|cidr| {
            (
                mapped_prefix_length(cidr.network(), cidr.prefix_len()),
                Address::from(cidr.network()).bytes,
            )
        })
        .collect();
    let present = map
        .keys()
        .collect::<Result<Vec<_>, _>>()
        .context("reading map service_cidrs")?;
    for (prefix, address) in &wanted {
        map.insert(&Key::new(*prefix, *address), 1, 0)
            .context("writing map service_cidrs")?;
    }
    for key in present {
        if !wanted.contains(&(key.prefix_len(), key.data())) {
            map.remove(&key).context("writing map service_cidrs")?;
        }
    }
    Ok(())
}

/// Changes the one element of map `settings`.
pub(super) fn update_settings(
    pin_dir: &Path,
    change: impl FnOnce(&mut Settings),
) -> Result<Settings> {
    let map = MapData::from_pin(pin_dir.join("settings")).context("opening map settings")?;
    let mut map: Array<_, [u8; size_of::<Settings>()]> = aya::maps::Map::Array(map).try_into()?;
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
