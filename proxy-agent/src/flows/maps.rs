//! Maps `flows` and `flows_new`, read in batches.

use crate::sys::{self, Batch};
use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapError};
use proxy_common::{Flow, FlowKey};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const KEY: usize = size_of::<FlowKey>();
const FLOW: usize = size_of::<Flow>();

/// The two maps: of flows that are answered, and of those that are not.
pub struct FlowMaps {
    maps: [FlowMap; 2],
}

struct FlowMap {
    name: &'static str,
    map: HashMap<MapData, [u8; KEY], [u8; FLOW]>,
    fd: OwnedFd,
    max_entries: u32,
}

/// Both halves of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Key of the request's half: client to frontend.
    pub key: FlowKey,
    /// What requests become: something to the backend.
    pub request: Flow,
    /// What replies become, if that half is there. By DSR there is none.
    pub reply: Option<Flow>,
}

/// What one of the maps holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Elements: two for each flow, one for a flow by DSR.
    pub elements: usize,
    /// Flows whose request's half is there.
    pub flows: usize,
}

/// Where a walk through both maps has got to.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    map: usize,
    batch: Option<Batch>,
}

impl FlowMaps {
    /// The maps that are pinned in a directory.
    pub fn open(pin_dir: &Path) -> Result<Self> {
        let open = |name: &'static str| -> Result<FlowMap> {
            let what = || format!("opening map {name}");
            let data = MapData::from_pin(pin_dir.join(name)).with_context(what)?;
            let max_entries = data.info().with_context(what)?.max_entries();
            let fd = data.fd().as_fd().try_clone_to_owned().with_context(what)?;
            let map = if name == "flows" {
                aya::maps::Map::HashMap(data)
            } else {
                aya::maps::Map::LruHashMap(data)
            };
            Ok(FlowMap {
                name,
                map: map.try_into()?,
                fd,
                max_entries,
            })
        };
        Ok(Self {
            maps: [open("flows")?, open("flows_new")?],
        })
    }

    /// Elements that fit into map `flows`.
    pub(super) fn room(&self) -> u32 {
        self.maps[0].max_entries
    }

    /// Whether the position is in map `flows_new`.
    pub(super) fn is_in_new(position: &Position) -> bool {
        position.map == 1
    }

    /// The next elements of both maps, about `count`; `None` at the end.
    pub(super) fn next(
        &self,
        position: &mut Position,
        count: usize,
    ) -> Result<Option<Vec<(FlowKey, Flow)>>> {
        let Some(map) = self.maps.get(position.map) else {
            return Ok(None);
        };
        let (elements, next) =
            sys::lookup_batch::<KEY, FLOW>(map.fd.as_fd(), position.batch.take(), count)
                .with_context(|| format!("reading map {}", map.name))?;
        if next.is_none() {
            position.map += 1;
        }
        position.batch = next;
        let decode = |(key, flow): ([u8; KEY], [u8; FLOW])| {
            (zerocopy::transmute!(key), zerocopy::transmute!(flow))
        };
        Ok(Some(elements.into_iter().map(decode).collect()))
    }

    /// One half, wherever it is.
    pub(super) fn find(&self, key: &FlowKey) -> Result<Option<Flow>> {
        let key: [u8; KEY] = zerocopy::transmute!(*key);
        for FlowMap { name, map, .. } in &self.maps {
            match map.get(&key, 0) {
                Ok(bytes) => return Ok(Some(zerocopy::transmute!(bytes))),
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).with_context(|| format!("reading map {name}")),
            }
        }
        Ok(None)
    }

    /// Both halves of a flow, by its request's.
    pub(super) fn pair(&self, key: FlowKey, request: Flow) -> Result<Pair> {
        let reply = if request.is_dsr() {
            None
        } else {
            self.find(&request.other_key(key.protocol))?
        };
        let reply = reply.filter(Flow::is_reply);
        Ok(Pair {
            key,
            request,
            reply,
        })
    }

    /// Removes one half from both maps.
    pub(super) fn remove(&mut self, key: &FlowKey) -> Result<()> {
        let key: [u8; KEY] = zerocopy::transmute!(*key);
        for FlowMap { name, map, .. } in &mut self.maps {
            match map.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(MapError::SyscallError(error))
                    if error.io_error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error).with_context(|| format!("writing map {name}")),
            }
        }
        Ok(())
    }

    /// How much is in `flows` and in `flows_new`.
    pub fn counts(&self) -> Result<[Counts; 2]> {
        let mut position = Position::default();
        let mut counts = [Counts::default(); 2];
        loop {
            let map = usize::from(Self::is_in_new(&position));
            let Some(elements) = self.next(&mut position, 4096)? else {
                return Ok(counts);
            };
            let requests = elements.iter().filter(|(_, flow)| !flow.is_reply());
            counts[map].flows += requests.count();
            counts[map].elements += elements.len();
        }
    }

    /// Every flow at about this moment.
    pub fn all(&self) -> Result<Vec<Pair>> {
        let mut position = Position::default();
        let mut pairs = Vec::new();
        while let Some(elements) = self.next(&mut position, 4096)? {
            for (key, flow) in elements {
                if !flow.is_reply() {
                    pairs.push(self.pair(key, flow)?);
                }
            }
        }
        Ok(pairs)
    }
}
