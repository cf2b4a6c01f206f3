//! [`QuickMap`], [`IdMap`] and [`IdSet`]: hash tables for what is recorded.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys only this process makes.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;

/// A value for each of some nodes, by their ids.
pub(crate) type IdMap<V> = QuickMap<u64, V>;

/// Some nodes, by their ids.
pub(crate) type IdSet = HashSet<u64, BuildHasherDefault<QuickHasher>>;

/// Fibonacci hashing, eight bytes at a time. Walks over an expression look up each node several times; std's default,
/// which withstands chosen keys, takes most of their time.
#[derive(Default)]
pub(crate) struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write_u64(&mut self, word: u64) {
        // Tables use the low bits and the high ones: both have to depend on the whole word.
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
    fn both_ends_of_hashes_of_counted_ids_differ() {
        let hash = BuildHasherDefault::<QuickHasher>::default();
        let hashes: Vec<u64> = (0..1u64 << 12).map(|id| hash.hash_one(id * 3)).collect();
        let distinct = |part: fn(&u64) -> u64| hashes.iter().map(part).collect::<BTreeSet<_>>().len();
        // Random hashes have 63 % of the low parts and all of the high parts.
        assert!(distinct(|h| h & 0xFFF) > 2_000 && distinct(|h| h >> 57) == 128);
        assert_ne!(hash.hash_one("stablehlo.add"), hash.hash_one("stablehlo.mul"));
    }
}
