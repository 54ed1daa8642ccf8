//! Arrays as memory that the programs read at the same time.

use super::KernelError;
use super::pinned::{max_entries, open};
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// Memory of an mmapable array.
pub(super) struct Shared(MmapRaw);

impl Shared {
    pub(super) fn new(
        fd: &impl AsRawFd,
        bytes: usize,
        map: &'static str,
    ) -> Result<Self, KernelError> {
        MmapOptions::new()
            .len(bytes)
            .map_raw(fd)
            .map(Self)
            .map_err(|error| KernelError {
                call: "mmap",
                map,
                error,
            })
    }

    /// A pinned array of `T`, and its number of elements.
    pub(super) fn open<T>(directory: &Path, map: &'static str) -> Result<(Self, u32), KernelError> {
        let data = open(directory, map)?;
        let max = max_entries(&data, map)?;
        let shared = Self::new(&data.fd().as_fd(), max as usize * stride::<T>(), map)?;
        Ok((shared, max))
    }

    /// The element at `index`; `None` past the end.
    pub(super) fn at<T>(&self, index: usize) -> Option<*mut T> {
        let end = index.checked_add(1)?.checked_mul(stride::<T>())?;
        let start = end - stride::<T>();
        (end <= self.0.len()).then(|| self.0.as_mut_ptr().wrapping_add(start).cast())
    }
}

/// From one element to the next: arrays have them at multiples of 8 bytes
/// (kernel/bpf/arraymap.c, `elem_size`).
const fn stride<T>() -> usize {
    size_of::<T>().next_multiple_of(8)
}
