//! Whether pinned maps are what this build would make.

use super::maps::{Content, MapSizes, MapSpec};
use super::{pins, settings};
use crate::sys::{self, MapShape};
use proxy_common::{Layout, limits::CHUNKS_MAX};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The map that holds the versions, which stays out of comparisons: its absence
/// is no difference.
const LAYOUT: &str = "layout";

/// What maps mean that are from before there was map `layout`. Where the first
/// version differs from them, sizes tell.
const BEFORE_VERSIONS: Layout = Layout {
    maps: 1,
    sockets: 1,
};

/// The maps that are pinned in a directory.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) maps: BTreeMap<String, MapShape>,
    /// What they mean; `None` if that cannot be known.
    pub(super) layout: Option<Layout>,
}

impl Pinned {
    pub(super) fn read(directory: &Path) -> io::Result<Self> {
        let mut maps = BTreeMap::new();
        for name in pins::maps(directory)? {
            let map = sys::open_pinned(&directory.join(&name))?;
            maps.insert(name, sys::map_shape(map.as_fd())?);
        }
        let spec = MapSpec::all(&MapSizes::default())
            .into_iter()
            .find(|it| it.name == LAYOUT);
        let layout = match maps.get(LAYOUT) {
            Some(found) if spec.is_some_and(|it| it.shape() == *found) => {
                settings::read_layout(directory).ok()
            }
            Some(_) => None,
            None => Some(BEFORE_VERSIONS),
        };
        Ok(Self { maps, layout })
    }

    /// How they differ from what this build makes; nothing if it can take them over.
    pub(super) fn differences(&self, specs: &[MapSpec]) -> Vec<String> {
        let mut differences = Vec::new();
        if let Some(layout) = self.layout
            && layout != Layout::OURS
        {
            differences.push(of_versions(layout));
        }
        for spec in specs {
            match self.maps.get(spec.name) {
                None if spec.name == LAYOUT => {}
                None => differences.push(format!("map {} is not pinned", spec.name)),
                Some(found) => differences.extend(of_shapes(spec.name, found, &spec.shape())),
            }
        }
        let known = |name: &str| specs.iter().any(|spec| spec.name == name) || is_chunk(name);
        let extra = self.maps.keys().filter(|name| !known(name));
        differences.extend(extra.map(|name| format!("map {name} is none of this build's")));
        differences
    }

    /// Whether ids and generations mean the same to this build.
    pub(super) fn ids_are_ours(&self) -> bool {
        self.layout.is_some_and(|it| it.maps == Layout::OURS.maps)
    }

    /// Whether a new set of maps shall share this map with the old one.
    pub(super) fn keeps(&self, spec: &MapSpec) -> bool {
        let same_meaning = match spec.content {
            Content::Published => false,
            Content::Referring => self.ids_are_ours(),
            Content::Sockets => self
                .layout
                .is_some_and(|it| it.sockets == Layout::OURS.sockets),
            Content::Namespaces => self.layout.is_some(),
        };
        same_meaning && self.maps.get(spec.name) == Some(&spec.shape())
    }
}

/// Why this build cannot read what is pinned.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// The map that shows it.
    pub(crate) map: &'static str,
    /// For people.
    pub(crate) reason: String,
}

/// Whether the pinned maps mean something else than this build reads in them.
/// Sizes that an operator chooses may differ, and missing maps are not judged.
pub(crate) fn unreadable(directory: &Path) -> Option<Foreign> {
    let pinned = Pinned::read(directory).ok()?;
    unreadable_maps(&pinned)
}

fn unreadable_maps(pinned: &Pinned) -> Option<Foreign> {
    let foreign = |map, difference| Foreign {
        map,
        reason: format!(
            "the pinned maps are of another build of Fairlead, whose commands read them: {difference}"
        ),
    };
    if let Some(layout) = pinned.layout
        && layout.maps != Layout::OURS.maps
    {
        return Some(foreign(LAYOUT, of_versions(layout)));
    }
    MapSpec::all(&MapSizes::default()).iter().find_map(|spec| {
        let found = pinned.maps.get(spec.name)?;
        let any_size = MapShape {
            max_entries: found.max_entries,
            ..spec.shape()
        };
        of_shapes(spec.name, found, &any_size).map(|difference| foreign(spec.name, difference))
    })
}

fn of_versions(layout: Layout) -> String {
    let Layout { maps, sockets } = layout;
    format!(
        "layout version {maps}.{sockets} instead of {}.{}",
        Layout::OURS.maps,
        Layout::OURS.sockets
    )
}

fn of_shapes(name: &str, found: &MapShape, wanted: &MapShape) -> Option<String> {
    let parts = [
        ("type", found.map_type, wanted.map_type),
        ("key bytes", found.key_size, wanted.key_size),
        ("value bytes", found.value_size, wanted.value_size),
        ("room for", found.max_entries, wanted.max_entries),
    ];
    let differing = parts
        .into_iter()
        .filter(|(_, found, wanted)| found != wanted);
    let texts: Vec<String> = differing
        .map(|(what, found, wanted)| format!("{what} {found} instead of {wanted}"))
        .collect();
    (!texts.is_empty()).then(|| format!("map {name} has {}", texts.join(", ")))
}

/// Whether this is the pin of a chunk that was added to `tables`.
fn is_chunk(name: &str) -> bool {
    let number = name.strip_prefix("tables_").and_then(|it| it.parse().ok());
    number.is_some_and(|number: u32| number < CHUNKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Pinned {
        Pinned {
            maps: MapSpec::all(&MapSizes::default())
                .iter()
                .map(|spec| (spec.name.to_owned(), spec.shape()))
                .collect(),
            layout: Some(Layout::OURS),
        }
    }

    fn differences(pinned: &Pinned, sizes: &MapSizes) -> Vec<String> {
        pinned.differences(&MapSpec::all(sizes))
    }

    fn kept(pinned: &Pinned) -> Vec<&'static str> {
        let specs = MapSpec::all(&MapSizes::default());
        let kept = specs.iter().filter(|spec| pinned.keeps(spec));
        kept.map(|spec| spec.name).collect()
    }

    #[test]
    fn the_same_maps_with_any_number_of_chunks_fit() {
        let mut pinned = ours();
        let chunk = pinned.maps["tables_0"];
        pinned.maps.insert("tables_1".into(), chunk);
        assert_eq!(differences(&pinned, &MapSizes::default()), [""; 0]);
        assert!(unreadable_maps(&pinned).is_none());
    }

    #[test]
    fn another_size_does_not_fit_and_is_readable_and_keeps_all_memory() {
        let sizes = MapSizes {
            frontends: 100,
            ..MapSizes::default()
        };
        let pinned = ours();
        assert_eq!(
            differences(&pinned, &sizes),
            ["map frontends has room for 262144 instead of 100"]
        );
        assert!(unreadable_maps(&pinned).is_none());
        let kept = kept(&pinned);
        for name in [
            "affinity",
            "udp_sockets",
            "drop_stats",
            "socket_flows",
            "udp_flows",
            "opt_outs",
        ] {
            assert!(kept.contains(&name), "{name}");
        }
        assert!(!kept.contains(&"backends"));
    }

    #[test]
    fn another_layout_of_the_same_size_is_foreign_and_keeps_what_does_not_depend_on_it() {
        let mut pinned = ours();
        pinned.layout = Some(Layout {
            maps: Layout::OURS.maps.wrapping_add(1),
            ..Layout::OURS
        });
        assert_eq!(differences(&pinned, &MapSizes::default()).len(), 1);
        let foreign = unreadable_maps(&pinned).unwrap();
        assert!(foreign.reason.contains("layout version"), "{foreign:?}");
        assert_eq!(kept(&pinned), ["socket_flows", "udp_flows", "opt_outs"]);
    }

    #[test]
    fn an_unknown_layout_keeps_nothing() {
        let mut pinned = ours();
        pinned.layout = None;
        pinned.maps.get_mut(LAYOUT).unwrap().value_size += 8;
        assert_eq!(unreadable_maps(&pinned).unwrap().map, LAYOUT);
        assert_eq!(kept(&pinned), [""; 0]);
    }

    #[test]
    fn missing_and_additional_maps_do_not_fit() {
        let mut pinned = ours();
        let vips = pinned.maps.remove("vips").unwrap();
        pinned.maps.insert("novelties".into(), vips);
        assert_eq!(
            differences(&pinned, &MapSizes::default()),
            [
                "map vips is not pinned",
                "map novelties is none of this build's"
            ]
        );
    }

    #[test]
    fn maps_from_before_there_were_versions_are_the_first() {
        let mut pinned = ours();
        pinned.maps.remove(LAYOUT);
        assert_eq!(differences(&pinned, &MapSizes::default()), [""; 0]);
        assert_eq!(BEFORE_VERSIONS.maps, 1);
    }
}
