//! `steps`: the Trainer's step time against the peers', on one device and on several.
//!
//! A block is a complete epoch of `Trainer::fit`: shuffling, gathering, transfer, the step,
//! logging, and the read of the epoch's values, which waits for the device. After each of our
//! blocks, each peer runs a block with the same number of steps, so that all see the same noise of
//! the machine. Our loader reads up to four batches ahead, also across the end of a block. Of the
//! host's work for the 100 batches of a block, at most four batches are therefore outside of the
//! measured time.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fulmen::prelude::*;
use serde_json::{Map, Value};

use crate::hardware::Hardware;
use crate::peer::{self, Peer};
use crate::row::{Row, print_row};
use crate::workload::{ModelVisitor, Workload};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads, separated by commas: W1 (MLP, SGD with momentum), W2 (LeNet, Adam), W3
    /// (ResNet-18, SGD with momentum), W4 (GPT, AdamW), W5 (DCGAN, two Adams), W6 (decoder on packed
    /// documents, attention in blocks, AdamW), W6-plain (the same with plain attention), and for a GPU
    /// resnet50 (bf16, batch 256, SGD with momentum) and gpt2 (124 million parameters, bf16, batch
    /// 16, AdamW).
    #[arg(long, default_value = "W1", value_delimiter = ',')]
    workloads: Vec<String>,
    /// The peers, separated by commas: jax, torch, torch-compile, torch_xla, lightning, burn,
    /// candle, custom-loop (ours with `TrainStep`) and, for W6, plain (ours with plain attention);
    /// an empty text for none. Their requirements are installed. A peer that cannot run is reported.
    #[arg(long, default_value = "jax", value_delimiter = ',')]
    peers: Vec<String>,
    /// The kind of device of all sides: cpu or cuda. On GPUs the peers are jax, torch,
    /// torch-compile and custom-loop, and FULMEN_BENCH_PEERS_PYTHON names a Python with JAX, flax,
    /// optax and PyTorch for GPUs.
    #[arg(long, default_value = "cpu")]
    accelerator: Accelerator,
    /// The numbers of devices of all sides, separated by commas.
    #[arg(long, default_value = "1", value_delimiter = ',')]
    devices: Vec<usize>,
    /// Timed blocks of each side.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rounds: u64,
    /// Worker threads of our loader.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

/// Warm-up blocks of all sides, which do not count.
const WARM_UP: u64 = 3;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let peers: Vec<String> = args.peers.iter().filter(|name| !name.is_empty()).cloned().collect();
    peer::check(&peers)?;
    for name in &args.workloads {
        let workload = Workload::find(name)?;
        for &devices in &args.devices {
            let row = Comparison {
                workload,
                hardware: Hardware { accelerator: args.accelerator, devices },
                rounds: args.rounds,
                num_workers: args.num_workers,
            }
            .run(&peers)?;
            print_row(&row, args.json)?;
        }
    }
    Ok(())
}

/// The settings of a comparison.
pub(crate) struct Comparison {
    pub(crate) workload: Workload,
    pub(crate) hardware: Hardware,
    pub(crate) rounds: u64,
    pub(crate) num_workers: usize,
}

impl Comparison {
    /// The step times of all sides.
    pub(crate) fn run(self, peers: &[String]) -> Result<Row, Box<dyn Error>> {
        let workload = self.workload;
        let (peers, missing) = peer::start_all(peers, workload.name, self.hardware);
        workload.with_model(RunningPeers { settings: self, peers, missing })
    }
}

/// Runs a block of each peer after each of our blocks, and records the times in milliseconds per
/// step.
struct PeerBlocks {
    peers: Vec<Peer>,
    steps: u64,
    start: Instant,
    times: Arc<Mutex<Times>>,
}

struct Times {
    ours: Vec<f64>,
    loss: f64,
    /// The mean of the first epoch's losses.
    first_loss: Option<f64>,
    /// In the order of the peers.
    peers: Vec<PeerTimes>,
}

/// The times of a peer.
#[derive(Default)]
struct PeerTimes {
    values: Vec<f64>,
    loss: f64,
    /// The reason why it no longer runs.
    failed: Option<String>,
}

impl Callback for PeerBlocks {
    fn name(&self) -> &'static str {
        "PeerBlocks"
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        self.start = Instant::now();
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        let ours = self.start.elapsed().as_secs_f64();
        let counts = point.epoch >= WARM_UP;
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = point.get("train_loss_epoch").unwrap_or(f64::NAN);
        times.loss = loss;
        times.first_loss.get_or_insert(loss);
        if counts {
            times.ours.push(ours * 1e3 / self.steps as f64);
        }
        for (peer, times) in
            self.peers.iter_mut().zip(&mut times.peers).filter(|(_, times)| times.failed.is_none())
        {
            match peer.block(self.steps) {
                Ok(block) => {
                    times.loss = block.loss;
                    if counts {
                        times.values.push(block.seconds * 1e3 / self.steps as f64);
                    }
                }
                Err(why) => times.failed = Some(why.to_string()),
            }
        }
        self.start = Instant::now();
    }
}

/// A comparison with peers that have started, and those that could not.
struct RunningPeers {
    settings: Comparison,
    peers: Vec<Peer>,
    missing: Vec<(String, String)>,
}

impl ModelVisitor for RunningPeers {
    type Output = Result<Row, Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let RunningPeers { settings, peers, missing } = self;
        let Comparison { workload, hardware, rounds, num_workers } = settings;
        let loader = workload.loader(num_workers)?;
        peers.iter().try_for_each(|peer| check_alike(&workload, model, peer))?;
        let versions: Vec<_> =
            peers.iter().map(|peer| (peer.name.clone(), peer.ready.version.clone())).collect();

        let folder = tempfile::tempdir()?;
        let peer_times = peers.iter().map(|_| PeerTimes::default()).collect();
        let first_losses: Vec<_> =
            peers.iter().map(|peer| (peer.name.clone(), peer.ready.first_losses.clone())).collect();
        let times = Arc::new(Mutex::new(Times {
            ours: Vec::new(),
            loss: f64::NAN,
            first_loss: None,
            peers: peer_times,
        }));
        let peer_blocks = PeerBlocks {
            peers,
            steps: loader.len() as u64,
            start: Instant::now(),
            times: times.clone(),
        };
        let mut trainer = workload
            .trainer(hardware)?
            .callback(peer_blocks)
            .max_epochs(rounds + WARM_UP)
            .default_root_dir(folder.path())
            .enable_checkpointing(false)
            .enable_progress_bar(false)
            .build()?;
        let summary = trainer.fit(model, &loader, None)?;

        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let on_gpu = hardware.accelerator == Accelerator::Cuda;
        let suite = match workload.has_same_start() {
            true => "steps-packed",
            false if on_gpu => "steps-gpu",
            false => "steps",
        };
        let mut row =
            Row::new(suite, label(workload.name, hardware.devices), "step", "ms").ours(&times.ours);
        if on_gpu {
            row.environment.gpu =
                trainer.runtime().devices().first().map(|device| device.kind().to_owned());
        }
        let mut losses = Map::new();
        for ((name, version), times) in versions.iter().zip(&times.peers) {
            row = match &times.failed {
                Some(why) => row.missing(name, why),
                None => {
                    losses.insert(name.clone(), Value::from(times.loss));
                    row.peer(name, version, &times.values)
                }
            };
        }
        row.missing.extend(missing);
        if workload.has_same_start() {
            let ours = times.first_loss.ok_or("the first epoch has no loss")?;
            let difference = check_first_losses(ours, &first_losses)?;
            row = row.detail("first_loss", ours).detail("peers_first_loss_difference", difference);
        }
        Ok(row
            .detail("steps_per_round", loader.len())
            .detail("parameters", model.num_parameters())
            .detail("compilations", summary.train_compilations)
            .detail("loss", times.loss)
            .detail("peers_loss", losses))
    }
}

/// The name of a workload and its devices in rows.
pub(crate) fn label(workload: &str, devices: usize) -> String {
    if devices == 1 { workload.to_owned() } else { format!("{workload} on {devices} devices") }
}

/// How far the means of the first epoch's losses may be from ours, as a part of ours.
const SAME_LOSS: f64 = 1e-4;

/// Rejects peers whose first losses are not ours. Returns the largest difference, as a part of our
/// loss.
fn check_first_losses(
    ours: f64,
    peers: &[(String, Option<Vec<f64>>)],
) -> Result<f64, Box<dyn Error>> {
    let mut largest = 0.0;
    for (name, losses) in peers {
        let losses = losses.as_ref().filter(|losses| !losses.is_empty());
        let losses = losses.ok_or_else(|| format!("{name} does not tell its first losses"))?;
        let theirs = losses.iter().sum::<f64>() / losses.len() as f64;
        let difference = (theirs - ours).abs() / ours.abs();
        if difference.is_nan() || difference > SAME_LOSS {
            return Err(format!(
                "{name}: the first losses differ: their mean is {ours} here, and {theirs} there"
            )
            .into());
        }
        largest = f64::max(largest, difference);
    }
    Ok(largest)
}

/// Rejects models of different sizes, and data of different sizes.
fn check_alike(
    workload: &Workload,
    model: &impl Module,
    peer: &Peer,
) -> Result<(), Box<dyn Error>> {
    let ours = model.num_parameters() as u64;
    let theirs = peer.ready.n_params;
    let name = &peer.name;
    if ours != theirs {
        return Err(format!(
            "{name}: the models differ: ours has {ours} parameters, the peer's {theirs}"
        )
        .into());
    }
    let ours = workload.steps_per_epoch as u64;
    let theirs = peer.ready.steps_per_epoch;
    if ours != theirs {
        return Err(format!(
            "{name}: the data differ: ours has {ours} batches, the peer's {theirs}"
        )
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_first_losses_are_rejected() {
        let peers = |losses: &[f64]| vec![("jax".to_owned(), Some(losses.to_vec()))];
        assert_eq!(check_first_losses(2.0, &peers(&[1.0, 3.0])).unwrap(), 0.0);
        for losses in [&[1.0, 3.1][..], &[f64::NAN], &[]] {
            let error = check_first_losses(2.0, &peers(losses)).unwrap_err().to_string();
            assert!(error.starts_with("jax"), "{error}");
        }
    }
}
