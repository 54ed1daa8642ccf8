//! Map `tables`: sequences of backend ids, in chunks of lines.

use crate::BackendId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Backend ids in one line. The kernel rounds array elements up to 8 bytes, so
/// an element per id would waste half.
pub const IDS_PER_LINE: u32 = 16;

/// Element of a chunk: sixteen backend ids.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TableLine {
    /// Backend ids; 0 past the end of a table.
    pub backends: [BackendId; IDS_PER_LINE as usize],
}

/// Where a table lies. A table never crosses the end of its chunk.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub struct TableRef {
    /// Index into `tables`.
    pub chunk: u32,
    /// The table's first line in the chunk.
    pub first_line: u32,
    /// Number of backend ids.
    pub length: u32,
}

impl TableRef {
    /// Lines that the table occupies.
    pub fn lines(self) -> u32 {
        self.length.div_ceil(IDS_PER_LINE)
    }
}

const _: () = assert!(size_of::<TableLine>() == 64);
const _: () = assert!(size_of::<TableRef>() == 12);
