//! `cache`: the benefit of a cached dataset. It compares images per second with decoding, and bytes
//! per second with copying memory. It also measures many small samples, and the time that a
//! training waits for data.
//!
//! All measurements that are compared take turns. The images come from a folder by class, such as
//! the output of `bench/peers/make_jpegs.py`.

mod images;
mod small_samples;
mod training;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use fulmen::data::{DataLoader, Dataset};
use serde_json::{Map, Value};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder of images by class. Without it, only small samples are measured.
    #[arg(long)]
    images: Option<PathBuf>,
    /// The side of the cached images in pixels.
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// The side of ResNet-18's training images in pixels; small, so that the device is faster than
    /// the decoder.
    #[arg(long, default_value_t = 32)]
    training_size: usize,
    /// Threads of each loader, and of the memory copies.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// The number of repetitions of each measurement.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The number of samples of 28 × 28.
    #[arg(long, default_value_t = 560_000)]
    samples: usize,
    /// Steps of each training.
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// The parts to run: images, small and training, separated by commas.
    #[arg(long, default_value = "images,small,training", value_delimiter = ',')]
    parts: Vec<String>,
    /// The folder of the caches [default: a temporary folder].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let temporary = match &args.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let mut report = Map::new();
    let is_selected = |part: &str| args.parts.iter().any(|selected| selected == part);
    for (part, measure) in [("images", images::run as Measure), ("training", training::run)] {
        match &args.images {
            Some(images) if is_selected(part) => {
                report
                    .insert(part.to_owned(), measure(args, images, &temporary.path().join(part))?);
            }
            Some(_) => {}
            None if is_selected(part) => {
                eprintln!("{part}: skipped, because --images is not given")
            }
            None => {}
        }
    }
    if is_selected("small") {
        report
            .insert("small".to_owned(), small_samples::run(args, &temporary.path().join("small"))?);
    }
    if args.json {
        println!("{}", Value::Object(report));
    }
    Ok(())
}

type Measure = fn(&Args, &std::path::Path, &std::path::Path) -> Result<Value, Box<dyn Error>>;

/// A loader as in a training, with the given order.
fn loader(
    data: impl Dataset,
    batch: usize,
    workers: usize,
    shuffle: bool,
) -> Result<DataLoader, Box<dyn Error>> {
    Ok(DataLoader::builder(data).batch_size(batch).shuffle(shuffle).num_workers(workers).build()?)
}

/// Reads and discards an epoch. Returns samples per second.
fn epoch_rate(loader: &DataLoader, epoch: u64) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut samples = 0;
    for batch in loader.epoch(epoch) {
        samples += batch?.valid();
    }
    Ok(samples as f64 / start.elapsed().as_secs_f64())
}

/// The bytes per second that the threads copy together. Each copies between two blocks of 64 MB of
/// its own, which are in memory. Copied bytes count once, as those of a sample do.
fn copy_rate(threads: usize) -> f64 {
    const BLOCK: usize = 64_000_000;
    const TIMES: usize = 12;
    let threads = threads.max(1);
    let mut blocks: Vec<_> =
        (0..threads).map(|i| (vec![i as u8 + 1; BLOCK], vec![1; BLOCK])).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (from, to) in &mut blocks {
            scope.spawn(move || {
                for _ in 0..TIMES {
                    to.copy_from_slice(std::hint::black_box(from));
                    std::hint::black_box(&mut *to);
                }
            });
        }
    });
    (threads * BLOCK * TIMES) as f64 / start.elapsed().as_secs_f64()
}
