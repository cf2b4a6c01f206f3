//! Many samples of 28 × 28: the number of files, the time to open them, and the rate of reading.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use fulmen::data::cache::{CacheExt, CachedDataset};
use fulmen::data::{DType, Dataset, Field, Fingerprint, Sample};
use serde_json::{Value, json};

use super::{Args, copy_rate, epoch_rate, loader};
use crate::stats::median;

const BATCH: usize = 256;
const PIXELS: usize = 28 * 28;

/// Samples that cost almost nothing to generate.
struct Digits(usize);

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.0
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("image", DType::U8, [1, 28, 28]), Field::new("label", DType::I32, [])]
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen::data::Result<()> {
        let start = index.wrapping_mul(0x9e37_79b9) >> 7;
        let pixels: [u8; PIXELS] = std::array::from_fn(|i| (start + i * i) as u8);
        sample.write(0, &pixels)?;
        sample.write_value(1, (index % 10) as i32)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> fulmen::data::Result<()> {
        fingerprint.add("digits", self.0.to_le_bytes());
        Ok(())
    }
}

pub(crate) fn run(args: &Args, folder: &Path) -> Result<Value, Box<dyn Error>> {
    let start = Instant::now();
    let cache = Digits(args.samples).cache(folder).workers(args.workers).open()?;
    let warming = start.elapsed().as_secs_f64();
    let paths = std::fs::read_dir(cache.path())?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    let files = paths
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "arrow"))
        .count();
    drop(cache);

    let mut openings = Vec::new();
    let mut ordered = Vec::new();
    let mut shuffled = Vec::new();
    let mut copies = Vec::new();
    for round in 0..args.rounds.max(1) as u64 {
        let start = Instant::now();
        let cached = CachedDataset::open(folder)?;
        openings.push(start.elapsed().as_secs_f64());
        let in_order = loader(cached.clone(), BATCH, args.workers, false)?;
        let random = loader(cached, BATCH, args.workers, true)?;
        // The first epoch fills the process's page table.
        epoch_rate(&in_order, 0)?;
        ordered.push(epoch_rate(&in_order, 1)?);
        shuffled.push(epoch_rate(&random, round)?);
        copies.push(copy_rate(args.workers));
    }
    let opening = median(&openings);
    let ordered = median(&ordered);
    let shuffled = median(&shuffled);
    let copies = median(&copies);
    let bytes = (PIXELS + 4) as f64;
    println!(
        "{} samples of 28 × 28: {files} files, made in {warming:.2} s, opened in {:.2} ms; {ordered:.0} samples/s in \
         order ({:.2} GB/s, {:.0} % of copying), {shuffled:.0} in random order ({:.2} GB/s, {:.0} %)",
        args.samples,
        opening * 1e3,
        ordered * bytes / 1e9,
        100.0 * ordered * bytes / copies,
        shuffled * bytes / 1e9,
        100.0 * shuffled * bytes / copies
    );
    Ok(json!({ "samples": args.samples, "files": files, "warming_s": warming, "opening_s": opening,
        "in_order_per_s": ordered, "random_per_s": shuffled, "copy_bytes_per_s": copies, "workers": args.workers }))
}
