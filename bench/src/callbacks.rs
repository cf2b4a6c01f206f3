//! `steps --callbacks`: what callbacks, loggers and log points cost. A bare fit and one with all of them take turns, an
//! epoch each.

use std::error::Error;

use fulmen::prelude::*;
use fulmen::trainer::callbacks::{
    DeviceStatsMonitor, Event, LearningRateMonitor, NormMonitor, ProgressBar, SpikeGuard, ThroughputMonitor, Timer,
    every, on,
};
use fulmen::trainer::loggers::CsvLogger;
use serde_json::json;

use crate::stats::median;
use crate::steps::Args;
use crate::workload::{Visit, Workload};

/// Fits of both sides that are run and not counted.
const WARM_UP: u64 = 1;

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let workload = Workload::find(&args.workload)?;
    workload.with_model(Turns { args, workload })
}

struct Turns<'a> {
    args: &'a Args,
    workload: Workload,
}

impl Visit for Turns<'_> {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let Turns { args, workload } = self;
        let loader = workload.loader(args.num_workers)?;
        let folder = tempfile::tempdir()?;
        let builder = || {
            let builder = Trainer::builder().accelerator(Accelerator::Cpu).devices(args.devices).max_epochs(2);
            builder.default_root_dir(folder.path())
        };
        let mut bare = builder().barebones(true).build()?;
        let mut all = builder()
            .log_every_n_steps(10)
            .logger(CsvLogger::new())
            .callback(ProgressBar::new())
            .callback(ModelCheckpoint::new().monitor("train_loss", Mode::Min).save_top_k(2))
            .callback(EarlyStopping::new("train_loss", Mode::Min).patience(1000))
            .callback(ReduceLROnPlateau::new("train_loss", Mode::Min).patience(1000))
            .callback(LearningRateMonitor::new())
            .callback(NormMonitor::new())
            .callback(SpikeGuard::new())
            .callback(ThroughputMonitor::new())
            .callback(DeviceStatsMonitor::new())
            .callback(Timer::new())
            .callback(on(Event::TrainBatchEnd, every(1), |_, _| {}))
            .callback(on(Event::Log, every(1), |_, _| {}))
            .build()?;
        // Of the steps alone: the ends of epochs, which save, are not counted.
        let milliseconds = |trainer: &mut Trainer| -> Result<f64, Box<dyn Error>> {
            Ok(1e3 * workload.batch as f64 / trainer.fit(model, &loader, None)?.samples_per_second)
        };
        let mut times = [vec![], vec![]];
        for round in 0..args.rounds + WARM_UP {
            for (trainer, times) in [&mut bare, &mut all].into_iter().zip(&mut times) {
                let time = milliseconds(trainer)?;
                if round >= WARM_UP {
                    times.push(time);
                }
            }
        }
        let [bare, all] = times.map(|times| median(&times));
        let ratio = all / bare;
        println!(
            "{}: {all:.3} ms a step with callbacks and loggers, {bare:.3} ms without, ratio {ratio:.3}",
            workload.name
        );
        if args.json {
            println!("{}", json!({ "workload": workload.name, "all_ms": all, "bare_ms": bare, "ratio": ratio }));
        }
        Ok(())
    }
}
