//! Trains three small models. Their losses are compared with those of one CPU device, which
//! `training.json` has.

mod models;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use fulmen_data::DataLoader;
use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::Runtime;
use fulmen_trainer::callbacks::ModelCheckpoint;
use fulmen_trainer::{
    Actions, Callback, FitSummary, LogPoint, Precision, Progress, Strategy, Trainer, TrainingModule,
};

use crate::event::Context;
use models::{Convolutions, Decoder, Perceptron};

/// Epochs of `STEPS_PER_EPOCH` steps: 50 steps.
const EPOCHS: u64 = 5;
const STEPS_PER_EPOCH: usize = 10;

/// The losses of each model on a CPU, made by the test `the_stored_losses_are_those_of_a_cpu`.
const STORED: &str = include_str!("training.json");

pub(super) fn run(context: &Context) -> Result<()> {
    let runtime = context.runtime()?;
    let stored: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(STORED).map_err(|e| Error::runtime("reading stored losses", e))?;
    let near = |name: &str, losses: &[f64]| {
        let band = band(context.platform(), name);
        context.fact(format!("band of {name}"), format!("{:.1} %", band * 100.0));
        let expected = stored.get(name).map_or(&[][..], Vec::as_slice);
        is_near(losses, expected, band, "on one CPU device")
    };
    context.check("50 steps of a perceptron", || {
        near(PERCEPTRON, &perceptron(context, &runtime, "mlp")?.losses)
    });
    context.check("50 steps of convolutions with batch norm", || {
        near(CONVOLUTIONS, &convolutions(context, &runtime)?.losses)
    });
    context.check("50 steps of a decoder in bf16-mixed", || {
        near(DECODER, &decoder(context, &runtime)?.losses)
    });
    if shares_folder(context) {
        context.check("the same run twice, and a resumed one, have the same bits", || {
            repeats(context, &runtime)
        });
        context
            .check("SIGTERM saves, and the run continues there", || interrupted(context, &runtime));
    } else {
        context.skip(
            "resumed runs: the processes have no temporary folder that all of them see; set TMPDIR to one",
        );
    }
    if runtime.devices().len() > 1 {
        context.check("FSDP has the losses of DDP", || {
            let ddp = perceptron(context, &runtime, "ddp")?;
            let mut fit = Fit::new(context, &runtime, "fsdp");
            fit.strategy = Strategy::Fsdp;
            let fsdp = fit.run(&Perceptron::new(), &models::vectors()?)?;
            is_near(&fsdp.losses, &ddp.losses, band(context.platform(), PERCEPTRON), "with DDP")
        });
    } else {
        context.skip("FSDP against DDP: there is one device");
    }
    Ok(())
}

/// Whether checkpoints can be written: all processes write to one folder.
fn shares_folder(context: &Context) -> bool {
    context.place.is_none_or(|place| place.shares_folder)
}

const PERCEPTRON: &str = "perceptron";
const CONVOLUTIONS: &str = "convolutions";
const DECODER: &str = "decoder";

/// How far a loss may be from the stored one, as a part of it. Devices round products to fewer
/// digits than a CPU, and training makes a difference larger from step to step.
fn band(platform: Platform, model: &str) -> f64 {
    match (platform, model) {
        (Platform::Cpu, DECODER) => 0.01,
        (Platform::Cpu, _) => 0.001,
        (_, DECODER) => 0.05,
        _ => 0.03,
    }
}

/// A small loss may differ by a part of the first one, because it is a small difference of large
/// numbers.
fn is_near(losses: &[f64], expected: &[f64], band: f64, what: &str) -> Result<()> {
    if losses.len() != expected.len() {
        let counts = format!("{} losses, expected {}", losses.len(), expected.len());
        return Err(Error::runtime("comparing losses", counts));
    }
    let first = expected.first().copied().unwrap_or(0.0).abs();
    for (step, (&loss, &other)) in losses.iter().zip(expected).enumerate() {
        let allowed = band * other.abs().max(0.05 * first);
        // A NaN is not near.
        let near = (loss - other).abs() <= allowed;
        if !near {
            let message = format!(
                "the loss of step {} is {loss}; {what} it is {other}; allowed is a difference of {allowed:.2e}",
                step + 1
            );
            return Err(Error::runtime("comparing losses", message));
        }
    }
    Ok(())
}

/// A run and its losses.
struct Trained {
    losses: Vec<f64>,
    summary: FitSummary,
}

/// How a model is trained.
struct Fit<'a> {
    runtime: &'a Runtime,
    folder: PathBuf,
    strategy: Strategy,
    precision: Precision,
    resume: Option<PathBuf>,
    checkpoints: bool,
    /// Whether this process is told to end.
    terminate: bool,
}

impl<'a> Fit<'a> {
    fn new(context: &Context, runtime: &'a Runtime, folder: &str) -> Fit<'a> {
        Fit {
            runtime,
            folder: context.folder.join(folder),
            strategy: Strategy::Ddp,
            precision: Precision::F32,
            resume: None,
            checkpoints: shares_folder(context),
            terminate: false,
        }
    }

    fn run(&self, module: &impl TrainingModule, loader: &DataLoader) -> Result<Trained> {
        let losses = Losses::default();
        let mut builder = Trainer::builder()
            .runtime(self.runtime.clone())
            .strategy(self.strategy)
            .precision(self.precision)
            .max_epochs(EPOCHS)
            .seed(7)
            .log_every_n_steps(1)
            .loggers("none")
            .enable_progress_bar(false)
            .enable_model_summary(false)
            .enable_checkpointing(self.checkpoints)
            .default_root_dir(&self.folder)
            .callback(losses.clone())
            .callback(ModelCheckpoint::new().keep_all(true));
        if let Some(checkpoint) = &self.resume {
            builder = builder.ckpt_path(checkpoint);
        }
        if self.terminate {
            builder = builder.callback(Terminate);
        }
        let summary = builder.build()?.fit(module, loader, None)?;
        let losses = losses.0.lock().unwrap_or_else(|e| e.into_inner()).clone();
        Ok(Trained { losses, summary })
    }
}

fn perceptron(context: &Context, runtime: &Runtime, folder: &str) -> Result<Trained> {
    Fit::new(context, runtime, folder).run(&Perceptron::new(), &models::vectors()?)
}

fn convolutions(context: &Context, runtime: &Runtime) -> Result<Trained> {
    Fit::new(context, runtime, "cnn").run(&Convolutions::new(), &models::images()?)
}

fn decoder(context: &Context, runtime: &Runtime) -> Result<Trained> {
    let mut fit = Fit::new(context, runtime, "decoder");
    fit.precision = Precision::Bf16Mixed;
    fit.run(&Decoder::new(), &models::tokens()?)
}

fn wrong(message: String) -> Error {
    Error::runtime("comparing runs", message)
}

/// The first step at which two lists of losses differ in a bit.
fn same_bits(losses: &[f64], expected: &[f64], what: &str) -> Result<()> {
    if losses.len() != expected.len() {
        return Err(wrong(format!(
            "{what} has {} losses, expected {}",
            losses.len(),
            expected.len()
        )));
    }
    match losses.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits()) {
        None => Ok(()),
        Some(step) => Err(wrong(format!(
            "{what} has the loss {} after {} steps, expected {}, to the bit",
            losses[step],
            step + 1,
            expected[step]
        ))),
    }
}

fn repeats(context: &Context, runtime: &Runtime) -> Result<()> {
    let first = perceptron(context, runtime, "first")?;
    let second = perceptron(context, runtime, "second")?;
    same_bits(&second.losses, &first.losses, "the second run")?;
    let checkpoint = checkpoint_after(&context.folder.join("first"), 2)?;
    let mut fit = Fit::new(context, runtime, "resumed");
    fit.resume = Some(checkpoint);
    let resumed = fit.run(&Perceptron::new(), &models::vectors()?)?;
    same_bits(&resumed.losses, &first.losses[2 * STEPS_PER_EPOCH..], "the resumed run")
}

/// The checkpoint after `epochs` of the run in a folder.
fn checkpoint_after(folder: &Path, epochs: usize) -> Result<PathBuf> {
    let path = folder.join(format!(
        "version_0/checkpoints/epoch={}-step={}",
        epochs - 1,
        epochs * STEPS_PER_EPOCH
    ));
    if path.is_dir() { Ok(path) } else { Err(wrong("the run wrote no checkpoint".into())) }
}

fn interrupted(context: &Context, runtime: &Runtime) -> Result<()> {
    let whole = perceptron(context, runtime, "whole")?;
    let mut fit = Fit::new(context, runtime, "interrupted");
    // One host of a pod may be told alone.
    fit.terminate = context.place.is_none_or(|place| place.index + 1 == place.count);
    let begun = fit.run(&Perceptron::new(), &models::vectors()?)?;
    if !begun.summary.interrupted {
        return Err(wrong("SIGTERM did not end the run".into()));
    }
    let Some(checkpoint) = begun.summary.last_checkpoint else {
        return Err(wrong("SIGTERM ended the run without a checkpoint".into()));
    };
    let done = begun.summary.global_step as usize;
    let mut fit = Fit::new(context, runtime, "continued");
    fit.resume = Some(checkpoint);
    let rest = fit.run(&Perceptron::new(), &models::vectors()?)?;
    same_bits(&rest.losses, &whole.losses[done..], "the continued run")
}

/// The training loss of each step.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<f64>>>);

impl Callback for Losses {
    fn name(&self) -> &'static str {
        "Losses"
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).extend(point.get("train_loss"));
    }
}

/// Sends SIGTERM to this process within the third epoch.
struct Terminate;

impl Callback for Terminate {
    fn name(&self) -> &'static str {
        "Terminate"
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.global_step != 2 * STEPS_PER_EPOCH as u64 + 3 {
            return;
        }
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
        // The handler runs on a thread of its own.
        let start = Instant::now();
        while !is_handled() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether the thread runs that ends the process after `grace`.
fn is_handled() -> bool {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut names =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.trim() == "fulmen-grace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_tensor::{Accelerator, Devices};

    use crate::Options;

    /// With UPDATE_EXPECT=1, it writes them.
    #[test]
    fn the_stored_losses_are_those_of_a_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::for_test(Options::default(), folder.path());
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
        let losses = BTreeMap::from([
            (PERCEPTRON, perceptron(&context, &runtime, "mlp").unwrap().losses),
            (CONVOLUTIONS, convolutions(&context, &runtime).unwrap().losses),
            (DECODER, decoder(&context, &runtime).unwrap().losses),
        ]);
        for (name, losses) in &losses {
            assert!(losses[49] < 0.8 * losses[0], "{name} does not learn: {losses:?}");
        }
        if std::env::var("UPDATE_EXPECT").as_deref() == Ok("1") {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/parts/training.json");
            fs::write(path, serde_json::to_string_pretty(&losses).unwrap() + "\n").unwrap();
            return;
        }
        let stored: BTreeMap<String, Vec<f64>> = serde_json::from_str(STORED).unwrap();
        for (name, losses) in &losses {
            is_near(losses, &stored[*name], band(Platform::Cpu, name), "stored").unwrap();
            // A band that allows everything would show nothing.
            let others: Vec<f64> = losses.iter().map(|loss| loss * 1.02).collect();
            is_near(&others, &stored[*name], band(Platform::Cpu, name), "stored").unwrap_err();
        }
    }
}
