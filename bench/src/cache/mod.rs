//! `cache`: what a cached dataset gains: images a second against decoding them, bytes a second against copying memory,
//! many small samples, and how long a training waits for data.
//!
//! Everything that is compared runs in turns. Pictures come from a folder of classes, such as `bench/peers/make_jpegs.py`
//! makes.

mod pictures;
mod small;
mod training;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use fulmen::data::{DataLoader, Dataset};
use serde_json::{Map, Value};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder of pictures by class. Without it only small samples are measured.
    #[arg(long)]
    images: Option<PathBuf>,
    /// The side of the pictures in the cache.
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// The side of the pictures that ResNet-18 trains on; small, so that the device is faster than decoding.
    #[arg(long, default_value_t = 32)]
    training_size: usize,
    /// Threads of each loader, and of copying memory.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// How often everything is measured.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How many samples of 28 × 28.
    #[arg(long, default_value_t = 560_000)]
    samples: usize,
    /// Steps of each training.
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Which of pictures, small and training to run, separated by commas.
    #[arg(long, default_value = "pictures,small,training", value_delimiter = ',')]
    parts: Vec<String>,
    /// Where the caches are made; a temporary folder unless set.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// End with one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let temporary = match &args.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let mut report = Map::new();
    let asked = |part: &str| args.parts.iter().any(|asked| asked == part);
    for (part, measure) in [("pictures", pictures::run as Measure), ("training", training::run)] {
        match &args.images {
            Some(images) if asked(part) => {
                report.insert(part.to_owned(), measure(args, images, &temporary.path().join(part))?);
            }
            Some(_) => {}
            None if asked(part) => eprintln!("{part}: left out, as there is no --images"),
            None => {}
        }
    }
    if asked("small") {
        report.insert("small".to_owned(), small::run(args, &temporary.path().join("small"))?);
    }
    if args.json {
        println!("{}", Value::Object(report));
    }
    Ok(())
}

type Measure = fn(&Args, &std::path::Path, &std::path::Path) -> Result<Value, Box<dyn Error>>;

/// A loader as for training, with the given order.
fn loader(data: impl Dataset, batch: usize, workers: usize, shuffle: bool) -> Result<DataLoader, Box<dyn Error>> {
    Ok(DataLoader::builder(data).batch_size(batch).shuffle(shuffle).num_workers(workers).build()?)
}

/// Reads an epoch and throws it away: samples a second.
fn epoch_rate(loader: &DataLoader, epoch: u64) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut samples = 0;
    for batch in loader.epoch(epoch) {
        samples += batch?.valid();
    }
    Ok(samples as f64 / start.elapsed().as_secs_f64())
}

/// Bytes a second that threads copy together, each between two blocks of 64 MB of its own that are in memory. Copied
/// bytes are counted once, as a sample's are.
fn copy_rate(threads: usize) -> f64 {
    const BLOCK: usize = 64_000_000;
    const TIMES: usize = 12;
    let threads = threads.max(1);
    let mut blocks: Vec<_> = (0..threads).map(|i| (vec![i as u8 + 1; BLOCK], vec![1; BLOCK])).collect();
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
