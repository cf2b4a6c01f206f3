//! Images from JPEGs, decoded each time or cached, and the cache's rate as a fraction of a memory
//! copy's.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use fulmen::data::Dataset;
use fulmen::data::cache::{CacheExt, CachedDataset};
use fulmen::data::images::{ImageFolder, ImagePipeline};
use serde_json::{Value, json};

use super::{Args, copy_rate, epoch_rate, loader};
use crate::stats::median;

const BATCH: usize = 64;

pub(crate) fn run(args: &Args, images: &Path, folder: &Path) -> Result<Value, Box<dyn Error>> {
    let pipeline = ImagePipeline::rgb().random_resized_crop(args.size).horizontal_flip(0.5);
    let data = || ImageFolder::open(images).and_then(|folder| folder.decode(pipeline.clone()));
    let start = Instant::now();
    let cache = data()?.cache(folder).workers(args.workers).open()?;
    let warming = start.elapsed().as_secs_f64();
    let sample: usize =
        cache.fields().iter().map(|field| field.sample_bytes()).sum::<Result<usize, _>>()?;
    let bytes = sample * cache.len();
    drop(cache);

    // A new mapping: the pages are in memory, but not in this process's page table.
    let start = Instant::now();
    let cached = CachedDataset::open(folder)?;
    let opening = start.elapsed().as_secs_f64();
    let decoding = loader(data()?, BATCH, args.workers, true)?;
    let random = loader(cached.clone(), BATCH, args.workers, true)?;
    let in_order = loader(cached.clone(), BATCH, args.workers, false)?;
    let first = epoch_rate(&random, 0)?;
    let mut uncached = Vec::new();
    let mut shuffled = Vec::new();
    let mut ordered = Vec::new();
    let mut copies = Vec::new();
    for round in 0..args.rounds.max(1) as u64 {
        uncached.push(epoch_rate(&decoding, round)?);
        copies.push(copy_rate(args.workers));
        // Several epochs, because one of 2,000 images is too short to measure.
        for epoch in 1..4 {
            shuffled.push(epoch_rate(&random, 4 * round + epoch)?);
            ordered.push(epoch_rate(&in_order, 0)?);
        }
        copies.push(copy_rate(args.workers));
    }
    let uncached = median(&uncached);
    let shuffled = median(&shuffled);
    let ordered = median(&ordered);
    let copies = median(&copies);
    let rate = |images: f64| images * sample as f64;
    println!(
        "{} images of {} × {}: {uncached:.0} images/s decoded; cached {shuffled:.0} in random order ({:.1} ×), \
         {ordered:.0} in order ({:.1} ×), {first:.0} in the first epoch after opening",
        cached.len(),
        args.size,
        args.size,
        shuffled / uncached,
        ordered / uncached
    );
    println!(
        "  {:.2} GB/s in random order, {:.2} GB/s in order; {} threads copy memory with {:.2} GB/s: {:.0} % and {:.0} %",
        rate(shuffled) / 1e9,
        rate(ordered) / 1e9,
        args.workers,
        copies / 1e9,
        100.0 * rate(shuffled) / copies,
        100.0 * rate(ordered) / copies
    );
    println!(
        "  {:.1} MB made in {warming:.2} s, opened in {:.2} ms",
        bytes as f64 / 1e6,
        opening * 1e3
    );
    Ok(
        json!({ "samples": cached.len(), "size": args.size, "workers": args.workers, "rounds": args.rounds,
        "uncached_per_s": uncached, "cached_random_per_s": shuffled, "cached_in_order_per_s": ordered,
        "cached_first_epoch_per_s": first, "random_bytes_per_s": rate(shuffled), "in_order_bytes_per_s": rate(ordered),
        "copy_bytes_per_s": copies, "ratio": shuffled / uncached, "share_of_copy": rate(shuffled) / copies,
        "warming_s": warming, "opening_s": opening, "bytes": bytes }),
    )
}
