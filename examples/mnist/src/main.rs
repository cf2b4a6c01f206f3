//! Trains a small convolutional network on handwritten digits, keeps the best checkpoint and tests it.

mod model;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use fulmen::data::{Mnist, Split, random_split};
use fulmen::prelude::*;
use serde_json::json;

use model::Digits;

#[derive(Parser)]
#[command(about = "Trains a small convolutional network on handwritten digits")]
struct Args {
    /// A folder with MNIST in IDX format: train-images-idx3-ubyte[.gz] and so on.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data"))]
    data_dir: PathBuf,
    /// Samples a step.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The highest learning rate of the one-cycle schedule.
    #[arg(long, default_value_t = 4e-3)]
    learning_rate: f64,
    /// Worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// Keep the checkpoint of every epoch.
    #[arg(long)]
    every_epoch: bool,
    /// Print the runtime's metrics at the end.
    #[arg(long)]
    metrics: bool,
    /// End the output with one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trainer: TrainerArgs,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();

    let mut trainer = Trainer::builder()
        .callback(ModelCheckpoint::new().monitor("val_acc", Mode::Max).every_epoch(args.every_epoch))
        .args(args.trainer)
        .build()?;

    // A tenth of the training digits is held back to choose the best epoch by.
    let digits = Mnist::open(&args.data_dir, Split::Train)?;
    let held_back = digits.len() / 10;
    let mut parts = random_split(digits.clone(), &[digits.len() - held_back, held_back], 0)?;
    let (Some(validation), Some(train)) = (parts.pop(), parts.pop()) else {
        return Err("the training digits could not be split in two".into());
    };
    // A run that is resumed needs the same seed here, so that it sees the same batches.
    let train = DataLoader::builder(train)
        .batch_size(args.batch_size)
        .shuffle(true)
        .seed(trainer.options().seed)
        .num_workers(args.num_workers)
        .last_batch(LastBatch::Drop)
        .build()?;
    let whole = |dataset: Box<dyn Dataset>| {
        DataLoader::builder(dataset).batch_size(args.batch_size).num_workers(args.num_workers).build()
    };
    let validation = whole(Box::new(validation))?;
    let test = whole(Box::new(Mnist::open(&args.data_dir, Split::Test)?))?;

    let module = Digits::new(args.learning_rate);
    let before_fit = started.elapsed();
    let fit = trainer.fit(&module, &train, Some(&validation))?;
    let mut test_accuracy = None;
    if fit.interrupted {
        if let Some(path) = trainer.last_checkpoint() {
            println!("to go on: the same command with --ckpt-path {}", path.display());
        }
    } else {
        let weights = if trainer.best_checkpoint().is_some() { Weights::Best } else { Weights::Current };
        test_accuracy = trainer.test(&module, &test, weights)?.get("test_acc");
        println!("test accuracy: {:.4}", test_accuracy.unwrap_or(f64::NAN));
        if let Some(path) = trainer.best_checkpoint() {
            println!("best checkpoint: {}", path.display());
        }
    }
    if let Some(folder) = trainer.run_dir() {
        println!("metrics: {}", folder.join("metrics.csv").display());
    }
    if args.metrics {
        print!("{}", trainer.metrics_report());
    }
    if args.json {
        let line = json!({
            "test_accuracy": test_accuracy,
            "train_loss": fit.train_loss,
            "steps": fit.global_step,
            "epochs": fit.epochs,
            "train_compilations": fit.train_compilations,
            "eval_compilations": trainer.eval_compilations(),
            "device_to_host_transfers": trainer.device_to_host_transfers(),
            "log_points": trainer.log_points(),
            "images_per_second": fit.samples_per_second,
            "step_ms_p50": fit.step_time_p50.as_secs_f64() * 1e3,
            "time_to_first_step_s": (before_fit + fit.time_to_first_step).as_secs_f64(),
            "accelerator": trainer.runtime().client().platform_name(),
            "devices": trainer.num_devices(),
            "precision": trainer.precision().name(),
        });
        println!("{line}");
    }
    Ok(())
}
