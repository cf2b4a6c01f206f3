//! Assigns samples to shards by the seed before anything is written.
//!
//! Out of scope: the samples (`imagenet`, `coco`), and writing the shards (`run`).

use std::collections::HashSet;
use std::ops::Range;

use super::options::PrepareOptions;
use super::sample_set::SampleSet;
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_data::{internal::Purpose, internal::permutation};
use fulmen_shards::{END, size_in_tar};

/// A planned shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedShard {
    pub(crate) name: String,
    /// The index of its split.
    pub(crate) split: usize,
    /// The samples of the shard, as positions in the split's order.
    pub(crate) sample_range: Range<usize>,
    /// The exact size in bytes.
    pub(crate) bytes: u64,
}

/// All shards of a dataset.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The samples of each split, in the order in which they are written.
    pub(crate) orders: Vec<Vec<usize>>,
    pub(crate) shards: Vec<PlannedShard>,
    /// A hash of all samples' keys and sizes.
    pub(crate) samples: String,
}

impl Plan {
    pub(crate) fn new(set: &dyn SampleSet, options: &PrepareOptions) -> Result<Plan> {
        let mut plan = Plan { orders: Vec::new(), shards: Vec::new(), samples: String::new() };
        let mut hash = Fingerprint::new();
        for (split, name) in set.splits().iter().enumerate() {
            let samples = set.len(split);
            let mut keys = HashSet::with_capacity(samples);
            for index in 0..samples {
                let key = set.key(split, index);
                hash.add(key, set.tar_bytes(split, index).to_le_bytes());
                if !keys.insert(key) {
                    return Err(Error::new(format!(
                        "two samples of the {name} split have the name {key}; readers would merge them"
                    )));
                }
            }
            let order = permutation(Purpose::Shards, options.seed, split as u64, samples);
            let mut first = 0;
            let mut bytes = END;
            let mut number = 0;
            for (position, &index) in order.iter().enumerate() {
                let size = set.tar_bytes(split, index);
                let full = position - first == options.max_samples
                    || bytes.saturating_add(size) > options.max_bytes;
                if full && position > first {
                    plan.add(name, split, &mut number, first..position, bytes);
                    (first, bytes) = (position, END);
                }
                bytes = bytes.saturating_add(size);
            }
            if first < samples {
                plan.add(name, split, &mut number, first..samples, bytes);
            }
            plan.orders.push(order);
        }
        plan.samples = hash.to_string();
        Ok(plan)
    }

    fn add(
        &mut self,
        name: &str,
        split: usize,
        number: &mut usize,
        sample_range: Range<usize>,
        bytes: u64,
    ) {
        self.shards.push(PlannedShard {
            name: shard_name(name, *number, "tar"),
            split,
            sample_range,
            bytes,
        });
        *number += 1;
    }
}

/// The name of a shard, such as `train-000017.tar`.
pub(crate) fn shard_name(split: &str, number: usize, extension: &str) -> String {
    format!("{split}-{number:06}.{extension}")
}

/// The size of a sample's files in a tar, from their extensions and sizes.
pub(crate) fn tar_bytes<const FILES: usize>(key: &str, files: [(&str, u64); FILES]) -> u64 {
    let bytes = files.map(|(extension, size)| size_in_tar(key.len() + 1 + extension.len(), size));
    bytes.into_iter().fold(0, u64::saturating_add)
}
