//! [`Trainer`]: the public interface for training, validation, tests and predictions.

pub(crate) mod builder;

use std::path::Path;
use std::thread;

use fulmen_data::DataLoader;
use fulmen_loggers::Status;
use fulmen_tensor::{MetricSnapshot, MetricsSnapshot, Runtime, Unit};
use serde_json::{Map, json};

use crate::console::inform;
use crate::evaluation::evaluate;
use crate::evaluation::predicted_batches::{PredictedBatches, predict};
use crate::fit::{fit, report_evaluation};
use crate::session::Session;
use crate::stage::Stage;
use crate::step::TrainStep;
use crate::{
    EvaluationSets, FitSummary, LogPoint, Options, Precision, Result, Strategy, TrainerBuilder,
    TrainingModule, Weights,
};

/// Trains, validates and tests a [`TrainingModule`].
///
/// ```no_run
/// use fulmen_trainer::Trainer;
/// let trainer = Trainer::builder().max_epochs(3).log_every_n_steps(20).build()?;
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
pub struct Trainer {
    pub(crate) session: Session,
    transfers_before: u64,
}

impl Trainer {
    pub(crate) fn new(session: Session) -> Trainer {
        let transfers_before = session.runtime.metrics().value("TransferFromDeviceTime");
        Trainer { session, transfers_before }
    }

    /// Starts a builder for options, callbacks and loggers.
    pub fn builder() -> TrainerBuilder {
        TrainerBuilder::default()
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.session.choices.options
    }

    /// The opened devices and the programs compiled for them.
    pub fn runtime(&self) -> &Runtime {
        &self.session.runtime
    }

    /// The best checkpoint of the last fit, by its monitored metric.
    pub fn best_checkpoint(&self) -> Option<&Path> {
        self.session.record.best_checkpoint.as_deref()
    }

    /// The last checkpoint of the last fit.
    pub fn last_checkpoint(&self) -> Option<&Path> {
        self.session.record.last_checkpoint.as_deref()
    }

    /// The number of devices that a fit runs on.
    pub fn num_devices(&self) -> usize {
        self.session.runtime.devices().len()
    }

    /// The index of this process, from 0. Process 0 writes logs and checkpoints.
    pub fn process_index(&self) -> usize {
        self.session
            .process_group
            .as_ref()
            .map_or(0, |process_group| process_group.process().index())
    }

    /// The number of processes that train together.
    pub fn num_processes(&self) -> usize {
        self.session.processes()
    }

    /// The element types of the model's parameters and computations.
    pub fn precision(&self) -> Precision {
        self.session.choices.options.precision.resolved()
    }

    /// The folder of this run. None before the first run.
    pub fn run_dir(&self) -> Option<&Path> {
        self.session.record.run_dir.as_deref()
    }

    /// How many times loggers received values: one for each log point of training, for each epoch,
    /// and for each validation or test outside of training.
    pub fn log_points(&self) -> u64 {
        self.session.record.log_points
    }

    /// How many times validation and test steps were compiled.
    pub fn eval_compilations(&self) -> u64 {
        self.session.record.eval_compilations
    }

    /// How many times values were read from the device since this Trainer was built. Values read
    /// together, such as those of a checkpoint, count as one transfer.
    pub fn device_to_host_transfers(&self) -> u64 {
        self.session.runtime.metrics().value("TransferFromDeviceTime") - self.transfers_before
    }

    /// What the runtime did, in the format of PyTorch/XLA's `metrics_report`. The report continues
    /// with the training loader's stages and queues in the latest fit (see
    /// [`LoaderReport`](fulmen_data::LoaderReport)) and with advice to make that fit faster.
    pub fn metrics_report(&self) -> String {
        let mut text = self.session.runtime.metrics().report();
        if let Some(loader) = &self.session.record.loader {
            text.push_str(&format!("Data loader: {loader}\n"));
        }
        self.advice().for_each(|advice| text.push_str(&format!("Advice: {advice}\n")));
        text
    }

    /// [`metrics_report`](Trainer::metrics_report) as JSON: `metrics` and `counters` by name, with
    /// times in seconds; `data_loader`, a text; `advice`, a list.
    ///
    /// ```
    /// # use fulmen_trainer::Trainer;
    /// let trainer = Trainer::builder().accelerator("cpu").build()?;
    /// assert!(trainer.metrics_json()["advice"].as_array().is_some_and(Vec::is_empty));
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    pub fn metrics_json(&self) -> serde_json::Value {
        let MetricsSnapshot { metrics, counters } = self.session.runtime.metrics().snapshot();
        let metrics: Map<_, _> =
            metrics.iter().map(|metric| (metric.name.to_owned(), metric_json(metric))).collect();
        let counters: Map<_, _> =
            counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({
            "metrics": metrics,
            "counters": counters,
            "data_loader": self.session.record.loader.as_ref().map(ToString::to_string),
            "advice": self.advice().collect::<Vec<_>>(),
        })
    }

    fn advice(&self) -> impl Iterator<Item = &String> {
        self.session.record.hints.iter().chain(&self.session.record.fit_advice)
    }

    /// Trains the module on `train`. If the module's `validation_step` logs something, it also
    /// validates on `validation`: `None`, `&loader`, or several named [sets](crate::EvaluationSet).
    ///
    /// A module without values is initialized with the Trainer's seed. When training ends, even
    /// with an error, the module has the trained values.
    ///
    /// # Errors
    /// A mistake in a step, reported with your line; a sample that cannot be read; a loss that is
    /// not finite (with `detect_nan`); a checkpoint that cannot be read or written; any error of
    /// the device.
    pub fn fit<M: TrainingModule>(
        &mut self,
        module: &M,
        train: &DataLoader,
        validation: impl Into<EvaluationSets>,
    ) -> Result<FitSummary> {
        let result = self.session.with_process_group(|session| {
            let summary = fit(session, module, train, &validation.into())?;
            session.callbacks.with(module).on_fit_end(&summary);
            Ok(summary)
        });
        if self.session.choices.options.strategy == Strategy::Debug {
            inform!("{}", self.metrics_report().trim_end());
        }
        result
    }

    /// Compiles a module's training step and puts its state on the devices, for a loop of your own
    /// instead of [`fit`](Trainer::fit); see [`TrainStep`]. The options for the step and for the
    /// length of training apply. It starts from `ckpt_path` or `resume` if one is given. The loader
    /// declares the shapes of the batches, even if you pass batches that it does not read
    /// ([`TrainStep::batch`]).
    ///
    /// # Errors
    /// As [`Trainer::fit`] before its first step; an option or a callback that only a fit supports.
    pub fn train_step<'m, M: TrainingModule>(
        &mut self,
        module: &'m M,
        loader: &DataLoader,
    ) -> Result<TrainStep<'m>> {
        self.session.with_process_group(|session| TrainStep::open(session, module, loader))
    }

    /// Passes values to the Trainer's loggers, in a loop of your own; a fit does so itself. The
    /// first call makes the run's folder, [`run_dir`](Trainer::run_dir), with the files that
    /// describe the run. It does not wait for the loggers. They have written everything when the
    /// Trainer is dropped.
    ///
    /// With several processes, all call this with the same values, and process 0 writes them.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// use fulmen_trainer::loggers::CsvLogger;
    /// use fulmen_trainer::{LogPoint, Trainer};
    ///
    /// let builder = Trainer::builder().accelerator("cpu").logger(CsvLogger::new());
    /// # let builder = builder.default_root_dir(folder.path());
    /// let mut trainer = builder.build()?;
    /// let metrics = vec![("reward".to_owned(), 0.5)];
    /// trainer.log(&LogPoint { epoch: 0, global_step: 7, metrics, ..LogPoint::default() })?;
    /// let file = trainer.run_dir().ok_or("no run")?.join("metrics.csv");
    /// drop(trainer);
    /// assert_eq!(std::fs::read_to_string(file)?, "epoch,step,reward\n0,7,0.5\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The run's folder cannot be made, or a logger cannot write there. Later, a logger that fails
    /// only causes a warning.
    pub fn log(&mut self, point: &LogPoint) -> Result<()> {
        if self.session.record.run_dir.is_none() {
            self.session.with_process_group(Session::start_run)?;
        }
        self.session.log(point);
        Ok(())
    }

    /// Runs `validation_step` with the module's weights over a loader, or over each of several
    /// [sets](crate::EvaluationSet). Returns the means of the logged values.
    ///
    /// # Errors
    /// As [`Trainer::fit`]; a `validation_step` that logs nothing.
    pub fn validate<M: TrainingModule>(
        &mut self,
        module: &M,
        sets: impl Into<EvaluationSets>,
    ) -> Result<LogPoint> {
        self.validate_with(module, sets, Weights::Current)
    }

    /// Like [`Trainer::validate`], with these weights. Afterwards, the module has these weights.
    ///
    /// # Errors
    /// As [`Trainer::validate`]; weights that do not exist.
    pub fn validate_with<M: TrainingModule>(
        &mut self,
        module: &M,
        sets: impl Into<EvaluationSets>,
        weights: Weights,
    ) -> Result<LogPoint> {
        self.session.with_exception_hooks(module, |session| {
            evaluate(session, module, &sets.into(), Stage::Validation, weights)
                .inspect(|_| report_evaluation(session))
        })
    }

    /// Runs `test_step` over a loader, or over each of several [sets](crate::EvaluationSet).
    /// Returns the means of the logged values. Afterwards, the module has the tested weights.
    ///
    /// # Errors
    /// As [`Trainer::fit`]; a `test_step` that logs nothing; weights that do not exist.
    pub fn test<M: TrainingModule>(
        &mut self,
        module: &M,
        sets: impl Into<EvaluationSets>,
        weights: Weights,
    ) -> Result<LogPoint> {
        self.session.with_exception_hooks(module, |session| {
            evaluate(session, module, &sets.into(), Stage::Test, weights)
                .inspect(|_| report_evaluation(session))
        })
    }

    /// Runs `predict_step` over a loader. Returns the predictions batch by batch, in the loader's
    /// order and without padding. Afterwards, the module has the weights used for the predictions.
    ///
    /// # Errors
    /// As [`Trainer::test`]; a module that predicts nothing, or tensors without one row per sample;
    /// a loader that skips or substitutes samples, because predictions could not be matched to
    /// samples. An error in a later batch is returned in place of that batch.
    pub fn predict<M: TrainingModule>(
        &mut self,
        module: &M,
        loader: &DataLoader,
        weights: Weights,
    ) -> Result<PredictedBatches> {
        self.session
            .with_exception_hooks(module, |session| predict(session, module, loader, weights))
    }
}

impl Drop for Trainer {
    /// Waits until the loggers have written what [`log`](Trainer::log) passed to them.
    fn drop(&mut self) {
        let status = if thread::panicking() { Status::Failed } else { Status::Finished };
        self.session.finish_logging(status, None);
    }
}

/// A metric as JSON, with times in seconds.
fn metric_json(metric: &MetricSnapshot) -> serde_json::Value {
    let (unit, scale) = match metric.unit {
        Unit::Nanoseconds => ("seconds", 1e-9),
        Unit::Bytes => ("bytes", 1.0),
    };
    let percentiles: Map<_, _> = metric
        .percentiles
        .iter()
        .map(|(percent, value)| (percent.to_string(), json!(value * scale)))
        .collect();
    json!({
        "unit": unit,
        "total_samples": metric.count,
        "accumulator": metric.sum * scale,
        "value_rate": metric.rates.map(|rates| rates.sum * scale),
        "rate": metric.rates.map(|rates| rates.count),
        "percentiles": percentiles,
    })
}
