//! ResNet-18 on pictures that take longer to decode than to train on: how much of the step time the device waits for data,
//! with decoding and with the cache.
//!
//! Pictures are small, so that even a CPU is faster than the decoder. The waiting is the loader's own count: from when the
//! Trainer asks for a batch on the device until it has one.

use std::error::Error;
use std::path::Path;

use fulmen::data::{DataLoader, Dataset, ImageFolder, LoaderReport, Pictures};
use fulmen::prelude::*;
use serde_json::{Value, json};

use super::Args;
use crate::models::ResNet18;

const BATCH: usize = 32;

pub(crate) fn run(args: &Args, images: &Path, folder: &Path) -> Result<Value, Box<dyn Error>> {
    let pictures = Pictures::rgb().random_resized_crop(args.training_size).horizontal_flip(0.5);
    let data = || ImageFolder::open(images).and_then(|folder| folder.decode(pictures.clone()));
    let classes = ImageFolder::open(images)?.classes().len();
    let cached = data()?.cache(folder).workers(args.workers).open()?;
    let mut lines = vec![];
    for (name, workers) in [("decoded, no workers", 0), ("decoded, 1 worker", 1), ("cached, 1 worker", 1)] {
        let builder = match name.starts_with("cached") {
            true => DataLoader::builder(cached.clone()),
            false => DataLoader::builder(data()?),
        };
        let loader =
            builder.batch_size(BATCH).shuffle(true).num_workers(workers).last_batch(LastBatch::Drop).build()?;
        let report = train(&loader, args.steps, classes)?;
        let step = (report.waiting + report.busy).as_secs_f64() / report.steps.max(1) as f64;
        let share = report.waiting_share();
        println!("ResNet-18, {name}: {:.1} ms a step, of which {:.2} % wait for data", step * 1e3, 100.0 * share);
        println!("  {}", report.verdict());
        lines.push(json!({ "data": name, "steps": report.steps, "step_s": step, "waiting_share": share }));
    }
    Ok(json!({ "batch": BATCH, "size": args.training_size, "runs": lines }))
}

/// Trains for some steps. All count, the first too, which waits for the first batch.
fn train(loader: &DataLoader, steps: usize, classes: usize) -> Result<LoaderReport, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let epochs = steps.div_ceil(loader.len()) as u64;
    let mut trainer = Trainer::builder()
        .max_epochs(epochs)
        .default_root_dir(folder.path())
        .enable_checkpointing(false)
        .enable_progress_bar(false)
        .build()?;
    trainer.fit(&ResNet18::new(classes), loader, None)?;
    Ok(loader.report())
}
