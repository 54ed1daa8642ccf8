//! Pinned maps opened, and what the kernel refuses as errors that name the map.

use super::KernelError;
use aya::maps::{HashMap, MapData, MapError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

pub(super) fn open(directory: &Path, map: &'static str) -> Result<MapData, KernelError> {
    MapData::from_pin(directory.join(map)).map_err(refused("open", map))
}

pub(super) fn typed<K: aya::Pod, V: aya::Pod>(
    data: MapData,
    map: &'static str,
) -> Result<HashMap<MapData, K, V>, KernelError> {
    HashMap::try_from(aya::maps::Map::HashMap(data)).map_err(refused("open", map))
}

pub(super) fn max_entries(data: &MapData, map: &'static str) -> Result<u32, KernelError> {
    Ok(data.info().map_err(refused("info", map))?.max_entries())
}

pub(super) fn duplicate(data: &MapData, map: &'static str) -> Result<OwnedFd, KernelError> {
    data.fd()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| KernelError {
            call: "duplicate",
            map,
            error,
        })
}

/// Removing what is not there is what was wanted.
pub(super) fn absent_is_fine(
    result: Result<(), MapError>,
    map: &'static str,
) -> Result<(), KernelError> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        Err(error) => Err(refused("delete", map)(error)),
    }
}

pub(super) fn refused(call: &'static str, map: &'static str) -> impl Fn(MapError) -> KernelError {
    move |error| {
        let error = match error {
            MapError::SyscallError(error) => error.io_error,
            error => io::Error::other(error),
        };
        KernelError { call, map, error }
    }
}
