//! Maglev lookup tables (Eisenbud et al., "Maglev: A Fast and Reliable Software
//! Network Load Balancer", NSDI 2016, section 3.4).
//!
//! A table is a function of the backends' addresses and weights, a seed and a
//! size, and of nothing else: nodes that know the same backends have the same
//! table, whatever they learnt in which order, and whatever their CPU. When a
//! backend comes or goes, few slots but its own change hands.

use super::BackendKey;
use siphasher::sip128::SipHasher24;

#[cfg(test)]
mod tests;

/// Sizes that tables have: primes, as the permutations need, and few and far
/// apart, so that a Service rarely grows from one to the next.
pub const SIZES: [u32; 4] = [251, 2_039, 16_381, 131_071];

/// Slots that each backend shall have. With a hundred, as the paper has it, shares
/// are even enough, but small tables would change more than 2 % of the slots of
/// those that stay when one goes.
const SLOTS_PER_BACKEND: usize = 200;

/// The seed of tables where nobody gave one and no cluster has one.
pub const DEFAULT_SEED_TEXT: &str = "fairlead";

/// A backend that wants slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What its place in the permutations comes from.
    pub key: BackendKey,
    /// Its share among the others'; 0 for none.
    pub weight: u32,
}

/// The seed that a text stands for; never 0, which means "not known".
pub fn seed(text: &str) -> u32 {
    (SipHasher24::new().hash(text.as_bytes()).h1 as u32).max(1)
}

/// Slots of the table for so many backends: the least size that gives each of
/// them enough, else the largest. It depends on the present number alone: two
/// nodes, one of which has seen more backends than the other, must agree.
pub fn size(members: usize) -> u32 {
    let [.., largest] = SIZES;
    let wanted = members.saturating_mul(SLOTS_PER_BACKEND);
    match SIZES.iter().find(|&&size| size as usize >= wanted) {
        _ if members == 0 => 0,
        Some(&size) => size,
        None => largest,
    }
}

/// A backend's walk through the slots: its permutation, one step at a time.
struct Walk {
    /// Index in the caller's list.
    member: u32,
    weight: u32,
    /// What it has earned of its next turn.
    credit: u32,
    slot: u32,
    skip: u32,
}

impl Walk {
    fn of(member: u32, backend: &Member, seed: u32, size: u32) -> Self {
        let (address, port) = backend.key;
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(&address.bytes);
        bytes[16..].copy_from_slice(&port.to_be_bytes());
        let hash = SipHasher24::new_with_keys(seed.into(), 0).hash(&bytes);
        let below = |hash: u64, limit: u32| (hash % u64::from(limit)) as u32;
        Self {
            member,
            weight: backend.weight,
            credit: 0,
            slot: below(hash.h1, size),
            skip: 1 + below(hash.h2, size - 1),
        }
    }

    fn step(&mut self, size: u32) {
        self.slot += self.skip;
        if self.slot >= size {
            self.slot -= size;
        }
    }
}

/// The table: for each slot the index of its backend in `members`. Empty if
/// nobody has any weight.
///
/// `size` is one of [`SIZES`], or another prime. The backends take turns in the
/// order of their addresses; one with half the weight of the heaviest has every
/// second turn, and each has the first.
pub fn table(members: &[Member], seed: u32, size: u32) -> Vec<u32> {
    const NOBODY: u32 = u32::MAX;
    let mut walks: Vec<Walk> = (0..)
        .zip(members)
        .filter(|(_, member)| member.weight > 0)
        .map(|(index, member)| Walk::of(index, member, seed, size))
        .collect();
    walks.sort_unstable_by_key(|walk| members[walk.member as usize].key);
    let Some(heaviest) = walks.iter().map(|walk| walk.weight).max() else {
        return Vec::new();
    };
    for walk in &mut walks {
        walk.credit = heaviest - walk.weight;
    }
    let mut table = vec![NOBODY; size as usize];
    let mut free = size;
    while free > 0 {
        for walk in &mut walks {
            walk.credit += walk.weight;
            if walk.credit < heaviest {
                continue;
            }
            walk.credit -= heaviest;
            while table[walk.slot as usize] != NOBODY {
                walk.step(size);
            }
            table[walk.slot as usize] = walk.member;
            free -= 1;
            if free == 0 {
                break;
            }
        }
    }
    table
}
