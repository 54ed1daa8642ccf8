//! How many flows each backend has: what programs cannot know.
//!
//! Programs add a flow when it begins. They do not see its end: it is over by the
//! state of both halves, or by age, or evicted. So a walk counts what there was
//! when it began, and puts right the difference. What began since stays added.

use proxy_common::{BackendId, Flow};
use std::collections::HashMap;

/// One walk's count.
#[derive(Debug, Default)]
pub(super) struct OpenFlows {
    /// When the walk began, in seconds since boot.
    since_s: u32,
    backends: HashMap<BackendId, Count>,
}

#[derive(Debug, Default)]
struct Count {
    generation: u32,
    /// What was published when the walk began.
    published: i32,
    /// What the walk has found of that time.
    found: i32,
}

/// A number that must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Correction {
    pub(super) backend: BackendId,
    /// Its generation when the walk began.
    pub(super) generation: u32,
    /// What to add.
    pub(super) change: i32,
}

impl OpenFlows {
    /// Begins with what is published: backend, generation and number, not 0. Best at
    /// the turn of a second, since flows know only the second in which they began.
    pub(super) fn begin(
        published: impl IntoIterator<Item = (BackendId, u32, i32)>,
        now_s: u32,
    ) -> Self {
        let count = |(backend, generation, published)| {
            let count = Count {
                generation,
                published,
                found: 0,
            };
            (backend, count)
        };
        Self {
            since_s: now_s,
            backends: published.into_iter().map(count).collect(),
        }
    }

    /// Counts a flow that is open.
    pub(super) fn see(&mut self, request: &Flow) {
        if request.created_s >= self.since_s {
            return;
        }
        let count = self.backends.entry(request.backend);
        let count = count.or_insert_with(|| Count {
            generation: request.generation,
            ..Count::default()
        });
        count.found += i32::from(count.generation == request.generation);
    }

    /// What to add to the numbers that are published.
    pub(super) fn corrections(self) -> impl Iterator<Item = Correction> {
        let wrong = |(backend, count): (BackendId, Count)| {
            let change = count.found.wrapping_sub(count.published);
            (change != 0).then_some(Correction {
                backend,
                generation: count.generation,
                change,
            })
        };
        self.backends.into_iter().filter_map(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn flow(backend: BackendId, generation: u32, created_s: u32) -> Flow {
        Flow {
            backend,
            generation,
            created_s,
            ..Flow::new_zeroed()
        }
    }

    #[test]
    fn a_walk_puts_right_what_was_published_when_it_began() {
        let published = [(1, 7, 5), (2, 7, 1), (3, 7, 2), (4, 8, 1)];
        let mut open = OpenFlows::begin(published, 100);
        for (backend, generation, created_s) in [
            (1, 7, 90),
            (1, 7, 99),
            (2, 7, 40),
            // Since then: programs have added it.
            (2, 7, 100),
            // Nobody had counted this one, whose program was another build's.
            (5, 2, 3),
            // The flow of an endpoint that had the id before.
            (4, 7, 50),
        ] {
            open.see(&flow(backend, generation, created_s));
        }
        let mut corrections: Vec<(BackendId, u32, i32)> = open
            .corrections()
            .map(|it| (it.backend, it.generation, it.change))
            .collect();
        corrections.sort_unstable();
        assert_eq!(corrections, [(1, 7, -3), (3, 7, -2), (4, 8, -1), (5, 2, 1)]);
    }
}
