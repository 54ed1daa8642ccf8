//! Room for tables: extents of lines in the chunks of map `tables`.

use proxy_common::{IDS_PER_LINE, TableRef, limits::LINES_PER_CHUNK};
use std::collections::{BTreeMap, BTreeSet};

/// Free extents, best fit first; neighbours are joined when freed.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: u32,
    /// (chunk, first line) → lines.
    free: BTreeMap<(u32, u32), u32>,
    /// (lines, chunk, first line), the same extents.
    by_size: BTreeSet<(u32, u32, u32)>,
}

impl Arena {
    /// Number of chunks.
    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Adds one empty chunk.
    pub(super) fn add_chunk(&mut self) {
        self.put(self.chunks, 0, LINES_PER_CHUNK);
        self.chunks += 1;
    }

    /// Takes room for `length` ids; `None` if no chunk has it. An empty table
    /// needs no room.
    pub(super) fn allocate(&mut self, length: u32) -> Option<TableRef> {
        let lines = length.div_ceil(IDS_PER_LINE);
        if lines == 0 {
            return Some(TableRef::default());
        }
        let &(size, chunk, first_line) = self.by_size.range((lines, 0, 0)..).next()?;
        self.take(chunk, first_line);
        if size > lines {
            self.put(chunk, first_line + lines, size - lines);
        }
        Some(TableRef {
            chunk,
            first_line,
            length,
        })
    }

    /// Marks a table's room as used, as found in the kernel; `false` if any of
    /// it lies outside the chunks or is used already.
    pub(super) fn reserve(&mut self, table: TableRef) -> bool {
        let lines = table.lines();
        if lines == 0 {
            return true;
        }
        let Some((&(chunk, start), &size)) = self
            .free
            .range(..=(table.chunk, table.first_line))
            .next_back()
        else {
            return false;
        };
        let Some(end) = table.first_line.checked_add(lines) else {
            return false;
        };
        if chunk != table.chunk || end > start + size {
            return false;
        }
        self.take(chunk, start);
        if table.first_line > start {
            self.put(chunk, start, table.first_line - start);
        }
        if start + size > end {
            self.put(chunk, end, start + size - end);
        }
        true
    }

    /// Gives a table's room back.
    pub(super) fn release(&mut self, table: TableRef) {
        let (chunk, mut start, mut lines) = (table.chunk, table.first_line, table.lines());
        if lines == 0 {
            return;
        }
        if let Some((&(c, s), &size)) = self.free.range(..(chunk, start)).next_back()
            && c == chunk
            && s + size == start
        {
            self.take(c, s);
            (start, lines) = (s, lines + size);
        }
        if let Some(&size) = self.free.get(&(chunk, start + lines)) {
            self.take(chunk, start + lines);
            lines += size;
        }
        self.put(chunk, start, lines);
    }

    fn put(&mut self, chunk: u32, first_line: u32, lines: u32) {
        self.free.insert((chunk, first_line), lines);
        self.by_size.insert((lines, chunk, first_line));
    }

    fn take(&mut self, chunk: u32, first_line: u32) {
        if let Some(lines) = self.free.remove(&(chunk, first_line)) {
            self.by_size.remove(&(lines, chunk, first_line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is allocated, reserved and freed, extents never overlap, and
        /// when all is freed the chunk is whole again.
        #[test]
        fn extents_never_overlap(steps in prop::collection::vec((any::<bool>(), 1_u32..2000), 1..200)) {
            let mut arena = Arena::default();
            arena.add_chunk();
            let mut live: Vec<TableRef> = Vec::new();
            for (allocate, number) in steps {
                if allocate {
                    if let Some(table) = arena.allocate(number) {
                        live.push(table);
                    }
                } else if !live.is_empty() {
                    let table = live.swap_remove(number as usize % live.len());
                    arena.release(table);
                }
                let mut sorted: Vec<_> = live.iter().map(|it| (it.first_line, it.first_line + it.lines())).collect();
                sorted.sort_unstable();
                prop_assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                let used: u32 = live.iter().map(|it| it.lines()).sum();
                prop_assert_eq!(arena.free.values().sum::<u32>() + used, LINES_PER_CHUNK);
            }
            let mut restored = Arena::default();
            restored.add_chunk();
            for table in &live {
                prop_assert!(restored.reserve(*table));
                prop_assert!(!restored.reserve(*table), "the same room twice");
            }
            prop_assert_eq!(&restored.free, &arena.free);
            for table in live {
                arena.release(table);
            }
            prop_assert_eq!(arena.free.into_iter().collect::<Vec<_>>(), vec![((0, 0), LINES_PER_CHUNK)]);
        }
    }
}
