//! ResNet-18 on images that take longer to decode than to train on: the fraction of the step time
//! that the device waits for data, with decoding and with the cache.
//!
//! The training images are small, so that even a CPU can be faster than the decoder. With
//! photographs of 12 megapixels it is (`bench/peers/make_jpegs.py FOLDER 64 4000 3000`). The
//! Trainer reports the waiting time.

use std::error::Error;
use std::path::Path;

use fulmen::data::cache::CacheExt;
use fulmen::data::images::{ImageFolder, ImagePipeline};
use fulmen::data::{DataLoader, Dataset, Subset};
use fulmen::models::resnet::Config;
use fulmen::prelude::*;
use fulmen::trainer::FitSummary;
use serde_json::{Value, json};

use super::Args;
use crate::models::ResNetClassifier;

const BATCH: usize = 32;

pub(crate) fn run(args: &Args, images: &Path, folder: &Path) -> Result<Value, Box<dyn Error>> {
    let pipeline =
        ImagePipeline::rgb().random_resized_crop(args.training_size).horizontal_flip(0.5);
    let data = || ImageFolder::open(images).and_then(|folder| folder.decode(pipeline.clone()));
    let classes = ImageFolder::open(images)?.classes().len();
    let cached = data()?.cache(folder).workers(args.workers).open()?;
    let mut lines = Vec::new();
    for (name, workers) in
        [("decoded, no workers", 0), ("decoded, 1 worker", 1), ("cached, 1 worker", 1)]
    {
        let fit = if name.starts_with("cached") {
            train(cached.clone(), workers, args.steps, classes)?
        } else {
            train(data()?, workers, args.steps, classes)?
        };
        let rate = fit.samples_per_second;
        let share = fit.data_wait_share;
        println!(
            "ResNet-18, {name}: {rate:.1} images/s, at most {:.2} % of the step time is spent waiting for data",
            100.0 * share
        );
        if let Some(loader) = &fit.loader {
            println!("  {}", loader.bottleneck());
        }
        lines.push(json!({ "data": name, "steps": fit.global_step, "images_per_s": rate, "waiting_share": share }));
    }
    Ok(json!({ "batch": BATCH, "size": args.training_size, "runs": lines }))
}

/// Trains for some steps in one epoch, which repeats a small folder.
fn train(
    data: impl Dataset,
    workers: usize,
    steps: usize,
    classes: usize,
) -> Result<FitSummary, Box<dyn Error>> {
    let len = data.len();
    let samples =
        Subset::new(data, (0..steps * BATCH).map(|index| index % len).collect::<Vec<_>>())?;
    let loader = DataLoader::builder(samples)
        .batch_size(BATCH)
        .shuffle(true)
        .num_workers(workers)
        .build()?;
    let folder = tempfile::tempdir()?;
    let mut trainer = Trainer::builder()
        .max_epochs(1)
        .default_root_dir(folder.path())
        .enable_checkpointing(false)
        .enable_progress_bar(false)
        .build()?;
    let config = Config { num_classes: classes, ..Config::resnet18() };
    Ok(trainer.fit(&Bytes(ResNetClassifier::new(config, 0.01)), &loader, None)?)
}

/// Images are transferred as bytes, and converted to numbers from -1 to 1 on the device.
#[derive(Module)]
struct Bytes(ResNetClassifier);

impl TrainingModule for Bytes {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.0.loss(
            &(batch.get("image").to_dtype(DType::F32) * (2.0 / 255.0) - 1.0),
            &batch.get("label"),
        )
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        self.0.configure_optimizers(plan)
    }
}
