//! `steps`: the Trainer's steady step time against JAX's, or a custom loop's against the Trainer's.
//!
//! A block is an epoch of `Trainer::fit`, everything included: shuffling, gathering, transfer, the step, logging, the
//! read of the epoch's values, which waits for the device. Between two of our blocks the peer runs one of as many
//! steps, so both see the same noise of the machine. Our loader reads up to four batches ahead, also across the end of a
//! block: of the host's work for a block's 100 batches, at most that much falls outside of the time that is taken.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fulmen::prelude::*;
use fulmen::trainer::{Actions, Callback, FitStart, LogPoint};
use serde_json::json;

use crate::peer::{Peer, python};
use crate::stats::median;
use crate::workload::{Visit, Workload};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// W1 (MLP, SGD with momentum), W2 (LeNet, Adam), W3 (ResNet-18, SGD with momentum) or W4 (GPT, AdamW).
    #[arg(long, default_value = "W1")]
    pub(crate) workload: String,
    /// Race a fit with every callback and logger against a bare one, instead of JAX.
    #[arg(long)]
    pub(crate) callbacks: bool,
    /// The devices that the CPU is divided into, on both sides.
    #[arg(long, default_value_t = 1)]
    pub(crate) devices: usize,
    /// Timed blocks of each side.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) rounds: u64,
    /// Worker threads of our loader.
    #[arg(long, default_value_t = 1)]
    pub(crate) num_workers: usize,
    /// Race a loop of one's own (`TrainStep`) against `fit`, instead of `fit` against JAX.
    #[arg(long)]
    custom_loop: bool,
    /// Print one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Blocks of both sides that are run and not counted.
const WARM_UP: u64 = 3;

/// Lets the peer run a block after each of ours, and keeps the times of both, in milliseconds a step.
struct Race {
    peer: Peer,
    steps: u64,
    start: Instant,
    times: Arc<Mutex<Times>>,
}

#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    peer: Vec<f64>,
    losses: Option<(f64, f64)>,
    failed: Option<String>,
}

impl Callback for Race {
    fn name(&self) -> &'static str {
        "Race"
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        self.start = Instant::now();
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let ours = self.start.elapsed().as_secs_f64();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        match self.peer.block(self.steps) {
            Ok(block) => {
                if point.epoch >= WARM_UP {
                    times.ours.push(ours * 1e3 / self.steps as f64);
                    times.peer.push(block.seconds * 1e3 / self.steps as f64);
                }
                times.losses = Some((point.get("train_loss_epoch").unwrap_or(f64::NAN), block.loss));
            }
            Err(error) => {
                times.failed = Some(error.to_string());
                actions.stop("the peer failed");
            }
        }
        self.start = Instant::now();
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let workload = Workload::find(&args.workload)?;
    let peer = match args.custom_loop {
        true => Peer::custom_loop(workload.name, args.devices, args.num_workers)?,
        false => Peer::start(&python()?, workload.name, args.devices)?,
    };
    workload.with_model(Racing { args, workload, peer })
}

/// What the race needs besides the model.
struct Racing<'a> {
    args: &'a Args,
    workload: Workload,
    peer: Peer,
}

impl Visit for Racing<'_> {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let Racing { args, workload, peer } = self;
        let loader = workload.loader(args.num_workers)?;
        check_alike(&workload, model, &peer)?;
        let (jax, python_version) = (peer.ready.jax.clone(), peer.ready.python.clone());

        let folder = tempfile::tempdir()?;
        let times = Arc::new(Mutex::new(Times::default()));
        let race = Race { peer, steps: loader.len() as u64, start: Instant::now(), times: times.clone() };
        let mut trainer = Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .devices(args.devices)
            .callback(race)
            .max_epochs(args.rounds + WARM_UP)
            .default_root_dir(folder.path())
            .enable_checkpointing(false)
            .enable_progress_bar(false)
            .build()?;
        let summary = trainer.fit(model, &loader, None)?;

        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &times.failed {
            return Err(error.clone().into());
        }
        let (fulmen_ms, peer_ms) = (median(&times.ours), median(&times.peer));
        let (fulmen_loss, peer_loss) = times.losses.unwrap_or((f64::NAN, f64::NAN));
        let on = if args.devices == 1 { String::new() } else { format!(" on {} devices", args.devices) };
        let (name, ratio) = (workload.name, if args.custom_loop { peer_ms / fulmen_ms } else { fulmen_ms / peer_ms });
        match args.custom_loop {
            true => println!("{name}{on}: custom loop {peer_ms:.3} ms a step, fit {fulmen_ms:.3} ms, ratio {ratio:.3}"),
            false => {
                let jax = jax.as_deref().unwrap_or_default();
                println!("{name}{on}: {fulmen_ms:.3} ms a step, JAX {jax} {peer_ms:.3} ms, ratio {ratio:.3}");
            }
        }
        if args.json {
            let line = json!({
                "workload": workload.name,
                "devices": args.devices,
                "fulmen_ms": fulmen_ms,
                (if args.custom_loop { "custom_loop_ms" } else { "jax_ms" }): peer_ms,
                "ratio": ratio,
                "rounds": times.ours.len(),
                "steps_per_round": loader.len(),
                "parameters": model.num_parameters(),
                "fulmen_loss": fulmen_loss,
                (if args.custom_loop { "custom_loop_loss" } else { "jax_loss" }): peer_loss,
                "train_compilations": summary.train_compilations,
                "jax": jax,
                "python": python_version,
                "accelerator": trainer.runtime().client().platform_name(),
            });
            println!("{line}");
        }
        Ok(())
    }
}

/// Refuses models of different sizes, and data of different amounts.
fn check_alike(workload: &Workload, model: &impl Module, peer: &Peer) -> Result<(), Box<dyn Error>> {
    let (ours, theirs) = (model.num_parameters() as u64, peer.ready.n_params);
    if ours != theirs {
        return Err(format!("the models differ: {ours} parameters here, {theirs} there").into());
    }
    let (ours, theirs) = (workload.steps_per_epoch as u64, peer.ready.steps_per_epoch);
    if ours != theirs {
        return Err(format!("the data differ: {ours} batches here, {theirs} there").into());
    }
    Ok(())
}
