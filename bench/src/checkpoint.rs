//! `checkpoint`: how long training pauses for a checkpoint of a large state, how long steps take
//! during the write, and the rate of the write in comparison with `dd` on the same disk.
//!
//! In each round these take turns: a fit that saves once, a fit with the same number of steps that
//! saves nothing, a copy of such a state to the host, a checkpoint without training, and `dd`. Most
//! of the state is weights that no step changes, so that the steps stay as short as those of the
//! workload.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fulmen::nn::Visit;
use fulmen::prelude::*;
use fulmen::trainer::{Actions, Callback, CheckpointRole, Progress};
use fulmen_checkpoint::{CheckpointWriter, Dtype, LocalStore, Part, Run};

use crate::row::{Row, print_row};
use crate::workload::{ModelVisitor, Workload};

/// The step after which a checkpoint is saved.
const SAVED: usize = 50;

/// After this number of steps, the device's queue is full again.
const SETTLED: usize = SAVED + 4;

/// The minimum number of counted steps.
const STEPS: usize = SETTLED + 50;

/// The size of one of the constant weights, in bytes.
const WEIGHT: usize = 4 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workload to train, from W1 to W5.
    #[arg(long, default_value = "W1")]
    workload: String,
    /// The size of the constant weights, in megabytes.
    #[arg(long, default_value_t = 1000)]
    megabytes: usize,
    /// The number of rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// A folder on the disk to measure.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let workload = Workload::find(&args.workload)?;
    workload.with_model(Rounds { args, workload })
}

/// A model with additional constant weights.
struct Large<'a, M> {
    model: &'a M,
    weights: Vec<Parameter>,
}

impl<M: Module> Module for Large<'_, M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.child("model", self.model);
        visit.child("weights", &self.weights);
    }
}

impl<M: TrainingModule> TrainingModule for Large<'_, M> {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.model.training_step(batch, cx)
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        self.model.configure_optimizers(plan)
    }
}

/// The rounds of the suite with one workload.
struct Rounds<'a> {
    args: &'a Args,
    workload: Workload,
}

/// The measurements of all rounds, in seconds, except the ratio of steps.
#[derive(Default)]
struct Measurements {
    lost: Vec<f64>,
    ratio: Vec<f64>,
    copy: Vec<f64>,
    save: Vec<f64>,
    dd: Vec<f64>,
}

impl ModelVisitor for Rounds<'_> {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let Rounds { args, workload } = self;
        let weight = || Parameter::new([WEIGHT / 4], Init::zeros());
        let weights: Vec<_> =
            (0..(args.megabytes * 1_000_000).div_ceil(WEIGHT)).map(|_| weight()).collect();
        weights.iter().for_each(|weight| weight.set_requires_grad(false));
        let large = Large { model, weights };
        let loader = workload.loader(1)?;
        let folder = tempfile::tempdir_in(&args.folder)?;
        let builder = || {
            // No callbacks except the requested ones.
            Trainer::builder()
                .accelerator(Accelerator::Cpu)
                .devices(1)
                .max_epochs(u64::MAX / loader.len() as u64)
                .default_root_dir(folder.path())
                .enable_progress_bar(false)
                .enable_model_summary(false)
                .callback(ModelCheckpoint::new().every_n_epochs(u64::MAX))
        };
        let path = folder.path().join("checkpoint");
        let dd = folder.path().join("dd");
        let fit = |save: Option<&Path>, until: usize| -> Result<Vec<SystemTime>, Box<dyn Error>> {
            let clock = Clock { save: save.map(Path::to_owned), until, ends: Arc::default() };
            builder().callback(clock.clone()).build()?.fit(&large, &loader, None)?;
            let mut ends = clock.ends.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(std::mem::take(&mut *ends))
        };
        let mut measurements = Measurements::default();
        let size = args.megabytes as u64 * 1_000_000;
        let mut bytes = 0;
        // The first one does not count.
        for round in 0..=args.rounds {
            // A virtual machine gets its memory at the first write, which is slow. This requests it
            // earlier.
            write(&dd, size)?;
            let saving = fit(Some(&path), STEPS)?;
            let written = fs::metadata(path.join("manifest.json"))?.modified()?;
            bytes = 0;
            for entry in fs::read_dir(&path)? {
                bytes += entry?.metadata()?.len();
            }
            fs::remove_dir_all(&path)?;
            let bare = fit(None, saving.len())?;
            let step =
                seconds(bare[SETTLED], bare[bare.len() - 1]) / (bare.len() - 1 - SETTLED) as f64;
            let lost = seconds(saving[SAVED], saving[SETTLED]) - step * (SETTLED - SAVED) as f64;
            let during = saving[SETTLED..].iter().take_while(|&&end| end < written).count();
            let last = SETTLED + during.saturating_sub(1);
            let ratio = seconds(saving[SETTLED], saving[last]) / (last - SETTLED) as f64 / step;

            let copy = copy(builder().build()?.runtime(), &large)?;
            write(&dd, size)?;
            let save = save(&path, &large)?;
            fs::remove_dir_all(&path)?;
            let dd = write(&dd, bytes)?;
            if round > 0 {
                measurements.lost.push(lost);
                // None, if the write ended before the first step.
                measurements.ratio.extend(Some(ratio).filter(|ratio| ratio.is_finite()));
                measurements.copy.push(copy);
                measurements.save.push(save);
                measurements.dd.push(dd);
            }
        }
        let Measurements { lost, ratio, copy, save, dd } = measurements;
        let name = format!("{:.2} GB with {}", bytes as f64 / 1e9, workload.name);
        let row = |quantity, unit| Row::new("checkpoint", &name, quantity, unit);
        let milliseconds = |times: &[f64]| times.iter().map(|time| time * 1e3).collect::<Vec<_>>();
        let rates =
            |times: &[f64]| times.iter().map(|time| bytes as f64 / 1e6 / time).collect::<Vec<_>>();
        let rows = [
            row("pause of training", "ms").ours(&milliseconds(&lost)).peer(
                "copy to the host",
                "",
                &milliseconds(&copy),
            ),
            row("step during the write against a step without", "×").ours(&ratio),
            row("rate of the write", "MB/s").ours(&rates(&save)).peer("dd", "", &rates(&dd)),
        ];
        for row in &rows {
            print_row(row, args.json)?;
        }
        Ok(())
    }
}

/// Copies an array with the size of the weights from the device to the host, and returns the time.
fn copy<M: Module>(runtime: &Runtime, module: &M) -> Result<f64, Box<dyn Error>> {
    let mut arrays = Vec::new();
    for (_, parameter) in module.parameters() {
        let ty = parameter.ty();
        arrays.push(
            runtime.to_device(&Literal::from_bytes(ty.clone(), &vec![0; ty.size_in_bytes()])?)?,
        );
    }
    arrays.iter().try_for_each(|array| array.block_until_ready())?;
    let begin = Instant::now();
    runtime.read(&arrays.iter().collect::<Vec<_>>())?.wait()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Writes a checkpoint of such weights from the host, and returns the time.
fn save<M: Module>(path: &Path, module: &M) -> Result<f64, Box<dyn Error>> {
    let root = path.parent().ok_or("no folder")?;
    let name = path.file_name().ok_or("no name")?;
    let parts = module.parameters().into_iter().map(|(name, parameter)| {
        let dims: Vec<u64> = parameter.ty().shape.dims().iter().map(|&dim| dim as u64).collect();
        Part::whole(name, Dtype::F32, dims)
    });
    let sizes =
        module.parameters().into_iter().map(|(_, parameter)| parameter.ty().size_in_bytes());
    let values = vec![1; sizes.max().unwrap_or(0)];
    let begin = Instant::now();
    let writer = CheckpointWriter::new(Arc::new(LocalStore::new(root)), &name.to_string_lossy())?;
    let mut shard = writer.shard("shard_0.safetensors", parts.collect())?;
    while let Some(part) = shard.next_part() {
        let bytes = part.bytes() as usize;
        shard.write(&values[..bytes])?;
    }
    writer.commit(Run::default(), vec![shard.commit()?])?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Writes this number of bytes with `dd`, and returns the time.
fn write(file: &Path, bytes: u64) -> Result<f64, Box<dyn Error>> {
    let mut command = Command::new("dd");
    command
        .args(["if=/dev/zero", "bs=1M", "iflag=count_bytes", "conv=fsync"])
        .arg(format!("count={bytes}"));
    command.arg(format!("of={}", file.display())).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let time = begin.elapsed().as_secs_f64();
    fs::remove_file(file)?;
    if status.success() { Ok(time) } else { Err(format!("{command:?}: {status}").into()) }
}

fn seconds(from: SystemTime, to: SystemTime) -> f64 {
    to.duration_since(from).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// The time at which each step was enqueued. Ends the fit after a number of steps, but not before
/// its checkpoint is written.
#[derive(Clone)]
struct Clock {
    save: Option<PathBuf>,
    until: usize,
    ends: Arc<Mutex<Vec<SystemTime>>>,
}

impl Callback for Clock {
    fn name(&self) -> &'static str {
        "Clock"
    }

    fn on_train_batch_end(&mut self, _: &Progress, actions: &mut Actions) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.push(SystemTime::now());
        // The checkpoint is saved after this returns.
        if let Some(path) = self.save.as_ref().filter(|_| ends.len() == SAVED + 1) {
            actions.save_checkpoint(path, CheckpointRole::Extra);
        }
        let written = || self.save.as_ref().is_none_or(|path| path.join("manifest.json").exists());
        if ends.len() >= self.until && written() {
            actions.stop("the measurement is complete");
        }
    }
}
