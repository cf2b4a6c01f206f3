//! [`QuickMap`], [`IdMap`] and [`IdSet`]: fast hash tables for walks over expressions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys come only from this process, so that an attacker cannot force collisions.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// A map from ids of nodes.
pub(crate) type IdMap<V> = QuickMap<u64, V>;

/// A set of ids of nodes.
pub(crate) type IdSet = HashSet<u64, BuildHasherDefault<QuickHasher>>;

/// Fibonacci hashing, eight bytes at a time. Walks over an expression look up each node several
/// times, and std's default hasher, which resists chosen keys, would take most of their time.
#[derive(Default)]
pub(crate) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write_u64(&mut self, word: u64) {
        // Hash tables use the low and the high bits, so both must depend on the whole word.
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    #[test]
    fn consecutive_ids_differ_in_the_low_and_high_bits_of_their_hashes() {
        let hash = BuildHasherDefault::<QuickHasher>::default();
        let hashes: Vec<u64> = (0..1u64 << 12).map(|id| hash.hash_one(id * 3)).collect();
        let distinct =
            |part: fn(&u64) -> u64| hashes.iter().map(part).collect::<BTreeSet<_>>().len();
        // Random hashes would take 63 % of the values of the low part and all values of the high
        // part.
        assert!(distinct(|h| h & 0xFFF) > 2_000 && distinct(|h| h >> 57) == 128);
        assert_ne!(hash.hash_one("stablehlo.add"), hash.hash_one("stablehlo.mul"));
    }
}
