//! Assigns images to shards by the seed before anything is written, and writes the shards.
//!
//! Out of scope: the samples (`images`), and where the shards go (`output`).

use std::collections::HashMap;

use super::images::{ImageSample, ImageSet};
use super::manifest::{Manifest, ShardRecord};
use super::options::Pack;
use super::output::Output;
use super::progress::Progress;
use super::shard_file::TarShard;
use fulmen_data::internal::{Purpose, in_parallel, permutation};
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_durable::messages::quantity;
use fulmen_shards::END;

/// A planned shard.
struct PlannedShard<'a> {
    name: String,
    /// The index of its split.
    split: usize,
    /// The samples in the order in which they are written.
    samples: Vec<&'a ImageSample>,
    /// The exact size in bytes.
    bytes: u64,
}

/// Packs images into tar shards.
pub(crate) fn pack_images(pack: &Pack, progress: &dyn Progress) -> Result<Manifest> {
    progress.begin("reading the names of the images", 0);
    let mut set = ImageSet::find(pack)?;
    let sources = std::mem::take(&mut set.sources);
    let shards = plan(&set, pack);
    let options = [
        ("kind", "images".to_owned()),
        ("max_samples", pack.max_images().to_string()),
        ("the list of samples", fingerprint(&shards)),
    ];
    let output = Output::open(pack, &pack.splits(), sources, &options, "tar", progress)?;
    write_missing(&output, &set, &shards)?;
    output.finish(Vec::new())
}

/// All shards, in the order of the splits.
fn plan<'a>(set: &'a ImageSet, pack: &Pack) -> Vec<PlannedShard<'a>> {
    let mut shards: Vec<PlannedShard<'a>> = Vec::new();
    for (split, (name, samples)) in set.splits.iter().enumerate() {
        let mut number = 0;
        let mut open: Option<PlannedShard<'a>> = None;
        for index in permutation(Purpose::Shards, pack.seed, split as u64, samples.len()) {
            let sample = &samples[index];
            let size = sample.tar_bytes();
            let full = open.take_if(|shard| {
                shard.samples.len() == pack.max_images()
                    || shard.bytes.saturating_add(size) > pack.max_bytes
            });
            shards.extend(full);
            let shard = open.get_or_insert_with(|| {
                let name = shard_name(name, number, "tar");
                number += 1;
                PlannedShard { name, split, samples: Vec::new(), bytes: END }
            });
            shard.samples.push(sample);
            shard.bytes = shard.bytes.saturating_add(size);
        }
        shards.extend(open);
    }
    shards
}

/// A hash of the names, the sizes and the order of all samples.
fn fingerprint(shards: &[PlannedShard<'_>]) -> String {
    let mut hash = Fingerprint::new();
    for sample in shards.iter().flat_map(|shard| &shard.samples) {
        hash.add(&sample.key, sample.tar_bytes().to_le_bytes());
    }
    hash.to_string()
}

/// Writes the shards that are missing.
fn write_missing(output: &Output<'_>, set: &ImageSet, shards: &[PlannedShard<'_>]) -> Result<()> {
    let Output { pack, progress, .. } = *output;
    let earlier: HashMap<String, u64> = output
        .earlier_shards()?
        .into_iter()
        .flatten()
        .filter_map(|(record, is_there)| is_there.then_some((record.name, record.bytes)))
        .collect();
    let missing: Vec<&PlannedShard<'_>> =
        shards.iter().filter(|shard| earlier.get(&shard.name) != Some(&shard.bytes)).collect();
    if missing.len() < shards.len() {
        let there = shards.len() - missing.len();
        progress.note(&format!("existing shards: {there} of {}", shards.len()));
    }
    if missing.is_empty() && output.is_complete() {
        return Ok(());
    }
    let bytes = missing.iter().map(|shard| shard.bytes).fold(0, u64::saturating_add);
    let largest = missing.iter().map(|shard| shard.bytes).max().unwrap_or(0);
    output.check_free_space(bytes, largest.saturating_mul(pack.threads as u64))?;
    output.begin(&set.classes)?;
    let uploads = pack.to.local().is_none();
    let work = if uploads { "writing and uploading shards" } else { "writing shards" };
    progress.begin(work, bytes.saturating_mul(if uploads { 2 } else { 1 }));
    in_parallel(&missing, pack.threads, |shard| {
        let record = write_shard(output, shard)?;
        let name = &record.name;
        let samples = quantity(record.samples, "sample");
        let note = format!("{name}: {samples}, {}", quantity(record.bytes, "byte"));
        output.publish(shard.split, record)?;
        progress.note(&note);
        Ok(())
    })?;
    Ok(())
}

fn write_shard(output: &Output<'_>, planned: &PlannedShard<'_>) -> Result<ShardRecord> {
    let mut shard = TarShard::create(output.work(), &planned.name)?;
    for sample in &planned.samples {
        shard.add(&sample.key, sample.read()?)?;
        output.progress.advance(sample.tar_bytes());
    }
    let record = shard.finish()?;
    if record.bytes != planned.bytes {
        return Err(Error::file(
            &output.work().join(&planned.name),
            format!(
                "it has {} bytes, expected {}: an image has changed in the meantime",
                record.bytes, planned.bytes
            ),
        ));
    }
    Ok(record)
}

/// The name of a shard, such as `train-000017.tar`.
pub(crate) fn shard_name(split: &str, number: usize, extension: &str) -> String {
    format!("{split}-{number:06}.{extension}")
}
