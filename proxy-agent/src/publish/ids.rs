//! Ids of backends and service ports: small numbers, restored from the kernel.

/// Hands out ids from 1 to a limit; 0 is none.
#[derive(Debug)]
pub(super) struct Ids {
    /// Ids below this were used at some time.
    next: u32,
    /// One past the largest id.
    limit: u32,
    /// Ids below `next` that are free.
    free: Vec<u32>,
}

impl Ids {
    /// Ids `1..limit`, all free but those for which `used` is true.
    pub(super) fn new(limit: u32, used: impl Fn(u32) -> bool) -> Self {
        let next = (1..limit)
            .rev()
            .find(|&id| used(id))
            .map_or(1, |last| last + 1);
        let free = (1..next).rev().filter(|&id| !used(id)).collect();
        Self { next, limit, free }
    }

    /// Largest number of ids that can be in use.
    pub(super) fn capacity(&self) -> u32 {
        self.limit - 1
    }

    /// Takes an id.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        (self.next < self.limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Gives an id back.
    pub(super) fn release(&mut self, id: u32) {
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_until_released_and_end_at_the_limit() {
        let mut ids = Ids::new(4, |id| id == 2);
        assert_eq!(
            (ids.allocate(), ids.allocate(), ids.allocate()),
            (Some(1), Some(3), None)
        );
        ids.release(2);
        assert_eq!((ids.allocate(), ids.allocate()), (Some(2), None));
        assert_eq!(ids.capacity(), 3);
    }
}
