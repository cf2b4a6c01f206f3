//! `overhead`: the host's work in addition to the device's. A fit with every callback, logger and
//! the report alternates with one without any, one epoch each. Then a step that computes almost
//! nothing runs many times. It measures the loop thread's processor time per step, and the growth
//! of memory.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen::prelude::*;
use fulmen::trainer::LoggerSet;
use fulmen::trainer::callbacks::{
    DeviceStatsMonitor, Event, LearningRateMonitor, NormMonitor, ProgressBar, SpikeGuard,
    ThroughputMonitor, Timer, every, on,
};
use rustix::time::{ClockId, clock_gettime};

use crate::process::rss_bytes;
use crate::row::{Row, print_row};
use crate::workload::{ModelVisitor, Workload};

/// Warm-up fits of both sides, which do not count.
const WARM_UP: u64 = 1;

/// Samples in a batch of the empty step, and batches in an epoch.
const BATCH: usize = 8;
const BATCHES: usize = 1000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads to train with all options and with none, from W1 to W5, separated by commas;
    /// an empty text for none.
    #[arg(long, default_value = "W1,W2,W4", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Fits of each side.
    #[arg(long, default_value_t = 30)]
    rounds: u64,
    /// The number of steps between log points. The default is the Trainer's.
    #[arg(long, default_value_t = 50)]
    log_every_n_steps: u64,
    /// The number of empty steps; 0 for none.
    #[arg(long, default_value_t = 1_000_000)]
    empty_steps: u64,
    /// Run the empty steps with nothing on, instead of with all options.
    #[arg(long)]
    barebones: bool,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    for name in args.workloads.iter().filter(|name| !name.is_empty()) {
        let workload = Workload::find(name)?;
        let comparison = FullAgainstBare {
            rounds: args.rounds,
            log_every_n_steps: args.log_every_n_steps,
            workload,
        };
        print_row(&workload.with_model(comparison)?, args.json)?;
    }
    if args.empty_steps > 0 {
        for row in empty_steps(args.empty_steps, args.barebones)? {
            print_row(&row, args.json)?;
        }
    }
    Ok(())
}

/// Turns on all options, with a log point every `log_every_n_steps` steps.
fn with_all_options(builder: TrainerBuilder, log_every_n_steps: u64) -> TrainerBuilder {
    builder
        .log_every_n_steps(log_every_n_steps)
        .loggers(LoggerSet::Only(vec!["csv", "jsonl", "tensorboard"]))
        .callback(ProgressBar::new())
        .callback(ModelCheckpoint::new().monitor("train_loss", Mode::Min).save_top_k(2))
        .callback(EarlyStopping::new("train_loss", Mode::Min).patience(1_000_000))
        .callback(ReduceLROnPlateau::new("train_loss", Mode::Min).patience(1_000_000))
        .callback(LearningRateMonitor::new())
        .callback(NormMonitor::new())
        .callback(SpikeGuard::new())
        .callback(ThroughputMonitor::new())
        .callback(DeviceStatsMonitor::new())
        .callback(Timer::new())
        .callback(on(Event::TrainBatchEnd, every(1), |_, _| {}))
        .callback(on(Event::Log, every(1), |_, _| {}))
}

/// Compares a Trainer with all options with a barebones one, in turns.
struct FullAgainstBare {
    rounds: u64,
    log_every_n_steps: u64,
    workload: Workload,
}

impl ModelVisitor for FullAgainstBare {
    type Output = Result<Row, Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let FullAgainstBare { rounds, log_every_n_steps, workload } = self;
        let loader = workload.loader(1)?;
        let folder = tempfile::tempdir()?;
        let builder = || {
            Trainer::builder()
                .accelerator(Accelerator::Cpu)
                .devices(1)
                .max_epochs(2)
                .default_root_dir(folder.path())
        };
        let mut bare = builder().barebones(true).build()?;
        let mut all = with_all_options(builder(), log_every_n_steps).build()?;
        // Of the steps alone, without the ends of epochs, which save.
        let milliseconds = |trainer: &mut Trainer| -> Result<f64, Box<dyn Error>> {
            Ok(1e3 * workload.batch as f64 / trainer.fit(model, &loader, None)?.samples_per_second)
        };
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds + WARM_UP {
            for (trainer, times) in [&mut all, &mut bare].into_iter().zip(&mut times) {
                let time = milliseconds(trainer)?;
                if round >= WARM_UP {
                    times.push(time);
                }
            }
        }
        let [all, bare] = times;
        let row = Row::new("overhead", workload.name, "step with everything on", "ms");
        Ok(row
            .ours(&all)
            .peer("nothing on", "", &bare)
            .detail("log_every_n_steps", log_every_n_steps))
    }
}

/// The processor time of this thread. The kernel brings this clock up to date at each reading, unlike
/// `/proc/thread-self/schedstat`, which a thread that runs alone finds unchanged until the next tick.
fn thread_cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The counters of the loop's thread and of the process after a number of steps.
#[derive(Clone, Copy)]
struct Reading {
    step: u64,
    cpu_ns: f64,
    rss_bytes: u64,
}

/// Reads the counters ten times in a fit.
#[derive(Clone)]
struct Readings {
    every: u64,
    values: Arc<Mutex<Vec<Reading>>>,
}

impl Callback for Readings {
    fn name(&self) -> &'static str {
        "Readings"
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.global_step.is_multiple_of(self.every)
            && let Some(rss_bytes) = rss_bytes()
        {
            let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            values.push(Reading { step: progress.global_step, cpu_ns: thread_cpu_ns(), rss_bytes });
        }
    }
}

/// A fit with all options or none, whose step computes almost nothing. Returns the processor time of
/// the loop's thread, and the growth of memory after the first tenth of the steps. XLA's CPU client
/// may run such a small step on that thread; the time then includes it.
fn empty_steps(steps: u64, barebones: bool) -> Result<[Row; 2], Box<dyn Error>> {
    let samples = BATCH * BATCHES;
    let data = TensorDataset::builder().array("x", [samples, 1], vec![1_f32; samples]).build()?;
    let loader = DataLoader::builder(data).batch_size(BATCH).num_workers(1).build()?;
    let line = Linear::new(1, 1);
    let loss = |line: &Linear, batch: &Batch, _: &mut StepContext| {
        line.forward(&batch.get("x")).mean_all()
    };
    let model = TrainingFn::new(&line, loss, |_| optim::Sgd::new(0.0));
    let readings = Readings { every: (steps / 10).max(1), values: Arc::default() };
    let folder = tempfile::tempdir()?;
    let builder = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(1)
        .max_steps(steps)
        .default_root_dir(folder.path());
    let builder = if barebones { builder.barebones(true) } else { with_all_options(builder, 50) };
    let mut trainer = builder.callback(readings.clone()).build()?;
    trainer.fit(&model, &loader, None)?;

    let values = readings.values.lock().unwrap_or_else(PoisonError::into_inner);
    let [first, .., last] = values[..] else {
        return Err("the kernel does not report VmRSS".into());
    };
    let host: Vec<f64> = values
        .windows(2)
        .map(|pair| (pair[1].cpu_ns - pair[0].cpu_ns) / 1e3 / (pair[1].step - pair[0].step) as f64)
        .collect();
    let growth = (last.rss_bytes as f64 - first.rss_bytes as f64) / 1e6;
    let suffix = if barebones { ", nothing on" } else { "" };
    let name = format!("{steps} empty steps{suffix}");
    let host = Row::new("overhead", &name, "the host's time a step", "µs").ours(&host);
    let memory = Row::new("overhead", &name, "growth of memory", "MB").ours(&[growth]);
    Ok([host, memory.detail("rss_bytes", last.rss_bytes)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::OURS;

    #[test]
    fn a_short_fit_measures_time_and_memory() {
        for barebones in [false, true] {
            let [host, memory] = empty_steps(200, barebones).unwrap();
            assert!(host.median(OURS).unwrap() > 0.0, "{host}");
            assert!(memory.median(OURS).is_some(), "{memory}");
        }
    }
}
