//! [`TrainStep`]: a compiled training step with its state, for the user's own loops and for `fit`.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{mem, thread};

use fulmen_data::{DataLoader, DeviceBatch};
use fulmen_tensor::{Compiled, DeviceArray, Literal, Runtime, TensorType};

use super::StepLogs;
use super::checks::{check_consistent, check_options, warning_without_gradient};
use super::step_logs::LogReads;
use crate::bad_samples::BadSampleCount;
use crate::checkpoint::Position;
use crate::checkpoint::resume::ResumePoint;
use crate::checkpoint::run_config::RunConfig;
use crate::console::{hint, inform, note, warning};
use crate::executor::Executor;
use crate::executor::fit_read::FitRead;
use crate::executor::progress_file::training_is_at;
use crate::plan::NO_LIMIT;
use crate::process_group::{self, RunFingerprint};
use crate::program::trace_fit::{TracedFit, trace_fit};
use crate::program::{CompiledStep, StepProgram};
use crate::session::Session;
use crate::session::advice::{hints, note_repeated_work};
use crate::state::{EntryId, State, model_summary};
use crate::step_config::StepConfig;
use crate::step_config::limits::Limits;
use crate::{Error, EvaluationSets, Plan, Progress, Result, Strategy, TrainingModule};

/// A compiled training step with its state on the devices, for your own loop.
/// [`Trainer::train_step`] makes it.
///
/// [`run`](TrainStep::run) trains on one batch. One program computes forward, backward, clipping,
/// optimizer, schedule, batch statistics, random keys and the sums of logged values, as in
/// [`Trainer::fit`]. The host runs a few steps ahead of the device and waits only when you read a
/// value. The step holds the module's values while it exists, and returns them when it is dropped.
///
/// ```
/// # use fulmen_data::{DataLoader, TensorDataset};
/// # use fulmen_nn::{Linear, Module, optim};
/// # use fulmen_tensor::Accelerator;
/// # use fulmen_trainer::{Trainer, TrainingFn};
/// # let folder = std::env::temp_dir().join(format!("fulmen-train-step-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let x: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
/// # let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 1.0).collect();
/// # let data = TensorDataset::builder().array("x", [64, 1], x).array("y", [64, 1], y).build()?;
/// # let loader = DataLoader::builder(data).batch_size(16).shuffle(true).build()?;
/// let line = Linear::new(1, 1);
/// let module = TrainingFn::new(
///     &line,
///     |line, batch, _| (line.forward(&batch.get("x")) - batch.get("y")).pow(2.0).mean_all(),
///     |_| optim::Adam::new(0.1),
/// );
/// let mut trainer = Trainer::builder().accelerator(Accelerator::Cpu).max_epochs(50).build()?;
/// let mut step = trainer.train_step(&module, &loader)?;
/// let mut loss = f64::NAN;
/// for batch in step.batches() {
///     let progress = step.run(&batch?)?;
///     if progress.batch == progress.batches {
///         // The mean of the epoch.
///         loss = step.logs()?.wait()?.get("train_loss").unwrap_or(f64::NAN);
///         step.save(folder.join("last"))?;
///     }
/// }
/// drop(step);
/// assert!(loss < 0.01, "{loss}");
/// assert!((line.weight.get().eval()?.to_f64()[0] - 3.0).abs() < 0.3);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With several processes, each makes the same step and runs it on its part of the same batches.
/// All of them must take part in reading, validating, saving and loading.
///
/// [`Trainer::train_step`]: crate::Trainer::train_step
/// [`Trainer::fit`]: crate::Trainer::fit
pub struct TrainStep<'m> {
    pub(super) module: &'m dyn TrainingModule,
    pub(crate) config: StepConfig,
    pub(crate) runtime: Runtime,
    pub(crate) executor: Executor<FitRead>,
    /// The step of each remaining phase. All of them log the same values.
    pub(crate) steps: Vec<CompiledStep>,
    pub(crate) state: State,
    pub(super) key: DeviceArray,
    /// The sums since the last read; `None` directly after a read.
    pub(crate) sums: Option<DeviceArray>,
    /// Media of the latest step.
    pub(crate) media: Vec<DeviceArray>,
    pub(crate) position: Position,
    /// The checkpoint from which training continues.
    pub(super) checkpoint: Option<PathBuf>,
    pub(crate) train: DataLoader,
    pub(crate) limits: Limits,
    plan: Plan,
    pub(crate) reads: LogReads,
    pub(crate) bad_samples: BadSampleCount,
    /// The identity of this step, to reject functions that another step made.
    pub(super) identity: Arc<()>,
    guard: Option<process_group::Guard>,
}

/// The program that converts evaluated weights to the module's dtypes.
pub(crate) struct WeightConversion {
    pub(crate) program: Compiled,
    /// The entries that the program converts.
    pub(crate) entries: Vec<EntryId>,
}

impl<'m> TrainStep<'m> {
    /// Opens a step for a user's loop.
    pub(crate) fn open(
        session: &mut Session,
        module: &'m dyn TrainingModule,
        loader: &DataLoader,
    ) -> Result<TrainStep<'m>> {
        check_options(session)?;
        let config = session.config()?;
        let (start, traced) = ResumePoint::find(
            "train_step",
            &config.options,
            session.process_group.as_ref(),
            |start| {
                let traced = trace_fit(
                    module,
                    &config,
                    start.position.seed,
                    loader,
                    &EvaluationSets::from(None),
                )?;
                let TracedFit { train, layout, program, limits, .. } = &traced;
                start.take_state(
                    train,
                    layout,
                    program.logs(),
                    limits,
                    &config,
                    &session.runtime,
                )?;
                Ok(traced)
            },
        )?;
        check_consistent(session, "train_step", module, &traced, &start)?;
        let mut step = TrainStep::new(session, module, &config, traced, start, None)?;
        step.guard = session.process_group.as_ref().map(|process_group| process_group.guard());
        Ok(step)
    }

    /// Moves the state to the devices and compiles the step.
    pub(crate) fn new(
        session: &mut Session,
        module: &'m dyn TrainingModule,
        config: &StepConfig,
        traced: TracedFit,
        start: ResumePoint,
        interrupt: Option<fulmen_signals::Guard>,
    ) -> Result<TrainStep<'m>> {
        let TracedFit { plan, limits, train, layout, program, .. } = traced;
        let checkpoint = start.checkpoint().map(Path::to_owned);
        let ResumePoint { position, values, logs, .. } = start;
        let runtime = session.runtime.clone();
        let executor = Executor::new(&runtime, session.process_group.as_ref(), interrupt);
        module.initialize(position.seed);
        let first = layout.phases.phase_of(position.batch());
        // Lower the step, and load cached programs, while the devices compute the starting values.
        let (state, mut preloaded) = thread::scope(|scope| {
            let steps = program.steps.get(first).into_iter().flat_map(StepProgram::functions);
            let runtime = &runtime;
            let preload = |step| {
                thread::Builder::new().spawn_scoped(scope, move || runtime.preload(step)).ok()
            };
            let threads: Vec<_> = steps.map_while(preload).collect();
            let state =
                State::new(layout, values, runtime, |f| session.compile_one("starting values", f))?;
            // Compiling the step reports any error.
            let preloaded: Vec<_> =
                threads.into_iter().map_while(|thread| thread.join().ok()?.ok()).collect();
            Ok::<_, Error>((state, preloaded))
        })?;
        if session.choices.options.enable_model_summary {
            inform!("{}", model_summary(module, config, 1));
        }
        if plan.total_steps == NO_LIMIT {
            note!(
                "only max_time ends this run, so the number of steps is not known: a schedule over Plan::total_steps \
                 stays at its start. Set max_steps or max_epochs too for such a schedule"
            );
        }
        warning_without_gradient(&program.without_gradient).iter().for_each(|t| warning!("{t}"));
        session.record.fit_advice.clear();
        session.record.hints = hints(&runtime, config, &train, program.largest().functions())?;
        session.record.hints.iter().for_each(|hint| hint!("{hint}"));
        let losses = program.logs().losses(&program.loss);
        let reads = LogReads::new(program.loss, losses, config.options.detect_nan, train.clone());
        let phases = &state.layout().phases;
        let mut steps = Vec::new();
        for (phase, step) in program.steps.iter().enumerate().skip(first) {
            steps.push(session.compile(
                &phases.title(phase),
                &train,
                step,
                mem::take(&mut preloaded),
            )?);
        }
        session.record.hints.extend(note_repeated_work(&program.steps, &steps, runtime.mesh()));
        let position = Position {
            data: train.description(),
            batches_per_step: config.batches_per_step.every(position.epoch),
            run_config: RunConfig { config: None, ..session.run_config.clone() },
            ..position
        };
        Ok(TrainStep {
            module,
            config: config.clone(),
            executor,
            steps,
            state,
            key: random_key(&runtime, position.seed)?,
            sums: logs.map(|logs| runtime.to_device(&logs)).transpose()?,
            media: Vec::new(),
            position,
            checkpoint,
            bad_samples: BadSampleCount::new(&train, "training"),
            train,
            limits,
            plan,
            reads,
            identity: Arc::default(),
            guard: None,
            runtime,
        })
    }

    /// Returns the remaining batches, moved to the devices and some of them prefetched, as one
    /// stream over all epochs up to `max_epochs` or `max_steps`. Each batch knows its epoch and its
    /// index in the epoch.
    pub fn batches(&self) -> impl Iterator<Item = Result<DeviceBatch>> + use<> {
        let Position { epoch, batch, .. } = self.position;
        let length = self.train.len() as u64;
        let all = self.limits.batches(length, &self.config.batches_per_step);
        let remaining = all.saturating_sub(epoch.saturating_mul(length).saturating_add(batch));
        self.train
            .epochs(epoch..self.limits.epochs, batch as usize)
            .prefetch_to(&self.runtime, &Strategy::batch(self.runtime.mesh()))
            .take(usize::try_from(remaining).unwrap_or(usize::MAX))
    }

    /// Trains on a batch and returns the progress of training. This returns as soon as the step is
    /// queued on the device. [`logs`](TrainStep::logs) reads the step's values.
    ///
    /// All batches count towards the epoch, whether or not they come from the loader.
    ///
    /// # Errors
    /// A batch with other shapes than the loader's; an error of the device in this step or an
    /// earlier one. After an error of the device the state is lost; continue with
    /// [`load`](TrainStep::load).
    #[track_caller]
    pub fn run(&mut self, batch: &DeviceBatch) -> Result<Progress> {
        let checked = self.check(batch, Location::caller());
        let result = checked.and_then(|()| self.launch(batch));
        self.report_error(result)?;
        self.reads.count_step();
        Ok(self.progress())
    }

    /// Queues a step on the device. Returns whether it had to wait for room in the queue.
    pub(crate) fn launch(&mut self, batch: &DeviceBatch) -> Result<bool> {
        if self.position.batch >= self.train.len() as u64 {
            self.position.epoch += 1;
            self.position.batch = 0;
            self.position.epoch_sums = Default::default();
        }
        let phase = self.phase();
        let (busy, media) = self.executor.step(
            &self.steps[phase],
            &mut self.state,
            &mut self.sums,
            Some(&self.key),
            batch,
        )?;
        self.media = media;
        self.position.batch += 1;
        self.position.batches_per_step = self.config.batches_per_step.every(self.position.epoch);
        self.position.global_step += u64::from(self.optimizer_stepped());
        training_is_at(self.position.global_step);
        Ok(busy)
    }

    /// The index of the compiled step for the next batch.
    fn phase(&self) -> usize {
        let phases = &self.state.layout().phases;
        (phases.phase_of(self.position.batch()) + self.steps.len()).saturating_sub(phases.count())
    }

    /// The compiled step for the next batch.
    pub(crate) fn program(&self) -> &CompiledStep {
        &self.steps[self.phase()]
    }

    /// Whether the optimizer stepped after the latest batch.
    pub(crate) fn optimizer_stepped(&self) -> bool {
        let batch = self.position.batch;
        batch.is_multiple_of(self.config.batches_per_step.every(self.position.epoch))
            || batch >= self.train.len() as u64
    }

    /// Checks that the step was recorded for batches like this one.
    fn check(&self, batch: &DeviceBatch, line: &Location<'_>) -> Result<()> {
        let rows = self.train.batch_size();
        let fields = self.train.shapes().get(batch.bucket).map_or(&[][..], |fields| &fields[..]);
        let matches = |(field, array): (&fulmen_data::Field, &DeviceArray)| {
            let dims = array.ty().shape.dims();
            array.dtype() == field.dtype
                && dims.first() == Some(&rows)
                && dims[1..] == field.shape[..]
        };
        if batch.arrays.len() == fields.len() + 1 && fields.iter().zip(&batch.arrays).all(matches) {
            return Ok(());
        }
        let actual: Vec<String> = batch.arrays.iter().map(|array| array.ty().to_string()).collect();
        let expected: Vec<String> = fields
            .iter()
            .map(|field| {
                format!(
                    "{} {}",
                    field.name,
                    TensorType::new(field.dtype, [&[rows], &field.shape[..]].concat())
                )
            })
            .collect();
        Err(Error::usage(format!(
            "run: the batch does not match the loader of this step: it has [{}], expected [{}, mask f32[{rows}]]. \
             Take batches from `batches()`, or make one with `batch()`\n  at {line}",
            actual.join(", "),
            expected.join(", ")
        )))
    }

    /// The progress of training.
    pub fn progress(&self) -> Progress {
        let Position { epoch, batch, global_step, .. } = self.position;
        Progress { epoch, batch, batches: self.train.len() as u64, global_step }
    }

    /// The length of the training according to the options. The optimizer's schedule uses the same
    /// plan.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// How many times the step was compiled: once for each shape of batches, or never if the
    /// programs were cached.
    pub fn compilations(&self) -> u64 {
        self.steps.iter().map(CompiledStep::compilations).sum()
    }

    /// Starts to read the values logged since the last call, without waiting. Numbers are means
    /// over the steps since then. Images, texts and histograms are those of the latest step, if
    /// `log_every_n_steps` divides its number.
    ///
    /// [`StepLogs::wait`] waits for the device. If a loop waits after every step, one line on
    /// standard error reports the cost. To avoid the wait, keep the [`StepLogs`] for a few steps.
    ///
    /// # Errors
    /// An error of the device.
    pub fn logs(&mut self) -> Result<StepLogs> {
        let position = self.position.step();
        let log_point = self.optimizer_stepped()
            && position.global_step.is_multiple_of(self.config.options.log_every_n_steps);
        let media = std::mem::take(&mut self.media).into_iter().filter(|_| log_point);
        let arrays: Vec<_> = self.sums.take().into_iter().chain(media).collect();
        let process_group = self.executor.process_group();
        let logs = self.steps[0].logs();
        let result = self.reads.start(&self.runtime, process_group, arrays, logs, position);
        self.report_error(result)
    }

    /// Waits until the device has finished all steps.
    ///
    /// # Errors
    /// An error of the device in one of them.
    pub fn block_until_ready(&mut self) -> Result<()> {
        let result = self.executor.drain();
        self.report_error(result)
    }

    /// Checks with the other processes, if any, that all are about to do the same.
    pub(super) fn check_consistent(
        &self,
        what: &str,
        facts: impl FnOnce(&mut RunFingerprint) -> Result<()>,
    ) -> Result<()> {
        process_group::check_consistent(
            self.executor.process_group(),
            &self.config.options,
            &self.runtime,
            what,
            facts,
        )
    }

    /// Calls `action` with the evaluated weights, or else with those that are trained.
    pub(crate) fn with_weights<T>(
        &self,
        conversion: Option<&WeightConversion>,
        action: impl FnOnce(&[&DeviceArray]) -> Result<T>,
    ) -> Result<T> {
        let converted = match conversion {
            Some(WeightConversion { program, entries }) => {
                let weights = entries.iter().map(|&id| Ok(self.state.array(id)?.into()));
                program.call(weights.collect::<Result<_>>()?)?.arrays
            }
            None => Vec::new(),
        };
        action(&self.state.validation_weights(&converted)?)
    }

    /// Reports an error to the other processes, which would otherwise wait for this one.
    pub(super) fn report_error<T>(&self, result: Result<T>) -> Result<T> {
        let (Some(_), Some(process_group)) = (&self.guard, self.executor.process_group()) else {
            return result;
        };
        result.map_err(|error| {
            let error = process_group.explain(error);
            process_group.fail(&error);
            error
        })
    }
}

/// The random key of all steps.
pub(super) fn random_key(runtime: &Runtime, seed: u64) -> Result<DeviceArray> {
    runtime.to_device(&Literal::from_slice(&[(seed >> 32) as u32, seed as u32], [2])?)
}
