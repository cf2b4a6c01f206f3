//! The training loop: it takes a batch that is on the device, runs one program, and repeats.

mod checkpoints;
mod dataloader_reload;
mod goodput;
mod hosts;
mod log_points;
mod report;
mod setup;
mod step_end;
mod step_times;
mod validation;

use std::path::PathBuf;
use std::time::Instant;

use fulmen_data::{DataLoader, DeviceBatches, LoaderReport};
use fulmen_loggers::Status;
use fulmen_tensor::DeviceArray;
use tracing::debug_span;

use crate::callbacks::hook_calls::Hooks;
use crate::checkpoint::locations::RunFiles;
use crate::checkpoint::save::{CopyProgram, SaveThread};
use crate::console::hint;
use crate::goodput::{STEP_TIME, TimeBucket};
use crate::hooks::actions::Actions;
use crate::logs::{LogRange, Sums};
use crate::position::StepPosition;
use crate::process_group;
use crate::session::Session;
use crate::session::advice::{FitMeasurements, HostReads, fit_advice};
use crate::step::{TrainStep, WeightConversion};
use crate::{
    EvaluationSets, FitSummary, LogPoint, Options, Result, Signal, Strategy, TrainingModule, error,
};
use goodput::GoodputFile;
use hosts::HostMeasurements;
pub(crate) use report::report_evaluation;
use report::{Reports, report_failure};
use setup::set_up;
use step_end::Program;
use step_times::StepTimes;
use validation::Validation;

/// Trains a module.
pub(crate) fn fit(
    session: &mut Session,
    module: &dyn TrainingModule,
    train: &DataLoader,
    validation: &EvaluationSets,
) -> Result<FitSummary> {
    let hooks = session.callbacks.with(module);
    session.clock.begin();
    let before = session.record.run_dir.clone();
    let result = match set_up(session, &hooks, module, train, validation) {
        Ok(fit) => fit.run(),
        Err(error) => {
            if session.record.run_dir != before {
                report_failure(session, &error);
            }
            hooks.on_exception(&error, &mut Actions::ignored());
            Err(error)
        }
    };
    let interrupted = result.as_ref().is_ok_and(|summary| summary.interrupted);
    let status = if interrupted { Status::Interrupted } else { Status::Finished };
    // This comes last: it waits until the loggers' thread has done all its work.
    session.finish_logging(status, result.as_ref().err());
    session.clock.pause();
    result
}

/// A fit that is ready for its first step.
struct Fit<'a> {
    session: &'a mut Session,
    hooks: Hooks<'a>,
    /// The actions that callbacks and the module requested and that were not run yet.
    actions: Actions,
    step: TrainStep<'a>,
    validation: Vec<Validation>,
    /// The programs that callbacks can request.
    programs: Vec<Program>,
    conversion: Option<WeightConversion>,
    /// When the first step began.
    training_start: Instant,
    /// Why a callback wants training to end. It is kept until the run may end.
    stop_reason: Option<String>,
    times: StepTimes,
    goodput: GoodputFile,
    /// The measurements of all processes, in process 0 once the fit has ended.
    hosts: Vec<HostMeasurements>,
    /// The checkpoints that are being written.
    running_save: Option<SaveThread>,
    /// The program that copies the state on the devices for a checkpoint.
    copy_program: Option<CopyProgram>,
    /// How many saves in a row failed because the disk was full.
    failed_saves: u32,
    /// The checkpoints that the running save removes at its end.
    running_removals: Vec<PathBuf>,
    /// What shows other programs that this run is alive.
    run_files: RunFiles,
    reports: Reports,
    /// The step at which this fit began.
    first_step: u64,
    /// How many times each line of the program had read from a device when this fit began.
    reads_before: HostReads,
    started: Instant,
    summary: FitSummary,
}

impl Fit<'_> {
    fn options(&self) -> &Options {
        &self.session.choices.options
    }

    /// Trains, and records measurements and checkpoints in the session, even if the fit fails.
    fn run(mut self) -> Result<FitSummary> {
        let result = match self.epochs().and_then(|()| self.finish_last_save()) {
            Ok(()) => {
                let copies = self.finish_copies();
                copies.inspect_err(|error| self.hooks.on_exception(error, &mut Actions::ignored()))
            }
            Err(error) => {
                self.hooks.on_exception(&error, &mut self.actions);
                self.save_after_exception();
                Err(error)
            }
        };
        if result.is_ok() {
            self.gather_hosts();
        }
        self.summary.goodput = self.write_goodput(true);
        let loader = self.step.train.report();
        self.session.record.fit_advice = self.advice(&loader);
        if result.is_ok() {
            self.session.record.fit_advice.iter().for_each(|advice| hint!("{advice}"));
        }
        self.session.record.loader = Some(loader);
        self.report_end(result.as_ref().err());
        let Fit { session, summary, run_files, .. } = self;
        drop(run_files);
        session.record.best_checkpoint.clone_from(&summary.best_checkpoint);
        session.record.last_checkpoint.clone_from(&summary.last_checkpoint);
        result?;
        session.record.position = StepPosition {
            epoch: summary.epochs.saturating_sub(1),
            global_step: summary.global_step,
        };
        Ok(summary)
    }

    /// Trains until a limit, a callback or a signal ends the run.
    fn epochs(&mut self) -> Result<()> {
        // The report must cover only this fit.
        self.step.train.reset_report();
        self.sanity_check()?;
        let limits = self.step.limits;
        let mut batches = self.batches();
        self.training_start = Instant::now();
        self.session.clock.enter(TimeBucket::Steps);
        while self.step.position.epoch < limits.epochs
            && self.step.position.global_step < limits.steps
            && self.summary.stopped.is_none()
        {
            match self.epoch(&mut batches)? {
                EpochEnd::Epoch => {
                    if let Some(signal) = self.end_epoch()? {
                        self.step.bad_samples.report();
                        self.save_interrupted(signal)?;
                        break;
                    }
                    if self.reload()? || self.overfits() {
                        batches = self.batches();
                    }
                }
                EpochEnd::Interrupted(signal) => {
                    self.step.bad_samples.report();
                    self.save_interrupted(signal)?;
                    break;
                }
                EpochEnd::Run(reason) => {
                    self.step.bad_samples.report();
                    self.end_within_epoch(reason)?;
                    break;
                }
            }
        }
        self.step.executor.drain()?;
        self.finish_reads()?;
        self.summary.epochs = self.step.position.epoch;
        self.summary.global_step = self.step.position.global_step;
        self.summary.step_time_p50 = self.times.median();
        self.summary.data_wait_share = self.times.wait_share();
        self.summary.loader = Some(self.step.train.report());
        self.summary.bad_samples += self.step.bad_samples.count();
        self.summary.samples_per_second = self.samples_per_second();
        Ok(())
    }

    /// Advice on how to make the fit faster, from the measurements of the fit and its loader.
    fn advice(&mut self, loader: &LoaderReport) -> Vec<String> {
        fit_advice(&FitMeasurements {
            loader,
            input_wait_share: self.times.wait_share(),
            input_wait: self.times.waits,
            goodput: self.session.clock.spent(),
            compilations: self.session.record.compilations.len(),
            steps: self.step.position.global_step.saturating_sub(self.first_step),
            reads_before: &self.reads_before,
        })
    }

    fn samples_per_second(&self) -> f64 {
        let train = &self.step.train;
        // A padded batch has fewer samples than rows.
        let samples = train.num_samples().min(train.len().saturating_mul(train.batch_size()));
        self.times.steps_per_second() * (samples as f64 / train.len().max(1) as f64)
    }

    /// The remaining batches, as one stream over all epochs of the loader: the first batches of an
    /// epoch are read while the previous epoch ends. With `overfit_batches`, only the first epoch.
    fn batches(&self) -> DeviceBatches {
        let epochs =
            if self.overfits() { 0..1 } else { self.step.position.epoch..self.next_reload() };
        let runtime = &self.session.runtime;
        let batches = self.step.train.epochs(epochs, self.step.position.batch as usize);
        batches.prefetch_to(runtime, &Strategy::batch(runtime.mesh()))
    }

    /// Whether each epoch has the batches of the first.
    fn overfits(&self) -> bool {
        !self.options().overfit_batches.is_zero()
    }

    /// Trains on the remaining batches of an epoch, until a signal or limit ends it.
    fn epoch(&mut self, stream: &mut DeviceBatches) -> Result<EpochEnd> {
        let batches = self.step.train.len() as u64;
        if self.step.position.batch < batches {
            let progress = self.step.progress();
            self.hooks.on_train_epoch_start(&progress, &mut self.actions);
            self.run_actions()?;
            // A callback may have requested a validation, or a resume may have interrupted one.
            if let Some(signal) = self.validate_within_epoch()? {
                return Ok(EpochEnd::Interrupted(signal));
            }
        }
        let mut last: Option<Instant> = None;
        while self.step.position.batch < batches {
            let _step = debug_span!("step", number = self.step.position.global_step + 1).entered();
            let wait_start = Instant::now();
            let wait = debug_span!("wait for batch").entered();
            let batch = stream
                .next()
                .ok_or_else(|| error::data("the loader ended in the middle of an epoch"))??;
            drop(wait);
            if self.step.executor.is_idle() {
                self.session.clock.reassign(TimeBucket::Data, wait_start);
                if last.is_some() {
                    self.times.add_wait(wait_start.elapsed());
                    self.session.runtime.metrics().record_time("InputWait", wait_start.elapsed());
                }
            }
            self.hooks.on_train_batch_start(&self.step.progress());
            let busy = self.step.launch(&batch)?;
            if self.summary.time_to_first_step.is_zero() {
                // Waiting once measures the time to the first step, including compilation and first
                // transfers.
                self.step.executor.finish_first()?;
                self.summary.time_to_first_step = self.started.elapsed();
                self.show_first_batch(stream);
            } else if let Some(last) = last {
                let time = last.elapsed();
                if self.times.push(self.step.position.global_step, time, busy) {
                    self.session.runtime.metrics().record_time(STEP_TIME, time);
                }
            }
            last = Some(Instant::now());
            self.actions.record_step();
            let progress = self.step.progress();
            self.step.position.validation = self.due(&progress);
            self.hooks.on_train_batch_end(&progress, &mut self.actions);
            let is_log_point = self.step.optimizer_stepped()
                && self.step.position.global_step.is_multiple_of(self.options().log_every_n_steps);
            if is_log_point && !self.options().barebones {
                self.start_log_point()?;
            }
            while self.step.executor.is_read_ready() {
                self.finish_read()?;
            }
            let signal = self.end_step()?;
            if self.step.executor.take_actions_due() && self.run_actions()? {
                last = None;
            }
            if let Some(signal) = signal {
                return Ok(EpochEnd::Interrupted(signal));
            }
            if self.step.position.batch < batches && !self.step.position.validation.is_empty() {
                if let Some(signal) = self.validate_within_epoch()? {
                    return Ok(EpochEnd::Interrupted(signal));
                }
                last = None;
            }
            if self.step.position.batch < batches
                && self.step.optimizer_stepped()
                && let Some(reason) = self.end_reason()
            {
                self.drain_steps(last)?;
                return Ok(EpochEnd::Run(reason));
            }
        }
        self.drain_steps(last)?;
        Ok(EpochEnd::Epoch)
    }

    /// Waits for the device and counts the time as step time. The end of an epoch waits in any
    /// case.
    fn drain_steps(&mut self, last: Option<Instant>) -> Result<()> {
        self.step.executor.drain()?;
        if let Some(last) = last {
            self.times.finish(last.elapsed());
        }
        Ok(())
    }

    /// Validates, reads all remaining values from the device in one transfer, and calls the hooks
    /// for the epoch's end. If a signal ends the validation, the epoch has not ended, and a resumed
    /// fit validates again.
    fn end_epoch(&mut self) -> Result<Option<Signal>> {
        self.step.bad_samples.report();
        let due = self.due_at_epoch_end();
        let validated = match self.validate(&due)? {
            Ok(logged) => logged,
            Err(signal) => return Ok(Some(signal)),
        };
        let trained = self.step.sums.take();
        let last: Vec<&DeviceArray> = trained.iter().chain(&validated).collect();
        let pending = if last.is_empty() { None } else { Some(self.session.runtime.read(&last)?) };
        self.finish_reads()?;
        let process_group = self.step.executor.process_group();
        let literals = pending
            .map(|values| process_group::wait_for_literals(process_group, values))
            .transpose()?
            .unwrap_or_default();
        let (training, evaluated) = literals.split_at(usize::from(trained.is_some()));
        self.add_to_epoch(training)?;
        let sums = std::mem::take(&mut self.step.position.epoch_sums);
        self.actions.set_read(sums.learning_rate(), self.actions.factor_of_step());
        let mut point = self.epoch_point(&sums);
        let validation = self.validation_point(&due, evaluated)?;
        point.extend(&validation);
        self.session.log(&point);
        if !due.is_empty() {
            self.hooks.on_validation_end(&validation, &mut self.actions);
            self.actions.requests.validate = false;
        }
        self.step.position.epoch += 1;
        self.step.position.batch = 0;
        self.step.position.validation.clear();
        self.hooks.on_train_epoch_end(&point, &mut self.actions);
        self.summary.last_epoch = Some(point);
        self.write_goodput(true);
        self.report_epoch();
        self.stop_after_max_time();
        self.run_actions()?;
        self.summary.stopped = self.end_reason().flatten();
        Ok(None)
    }

    /// Ends the run within an epoch. It logs the epoch's values so far, and saves the state as
    /// Ctrl-C does, so that a longer run can continue there.
    fn end_within_epoch(&mut self, reason: Option<String>) -> Result<()> {
        self.summary.stopped = reason;
        let logs = self.open_logs()?;
        let mut sums = self.step.position.epoch_sums.clone();
        if let Some((_, literal)) = logs.first() {
            self.step.program().logs().add(&mut sums, &self.step.program().logs().read(literal)?);
        }
        let point = self.epoch_point(&sums);
        self.session.log(&point);
        self.summary.last_epoch = Some(point);
        self.save_last(logs)
    }

    /// The means over the values that an epoch has logged so far.
    fn epoch_point(&mut self, sums: &Sums) -> LogPoint {
        let position = self.step.position.step();
        let point = self.step.program().logs().point(sums, LogRange::Epoch, position);
        self.summary.train_loss = point.get(&format!("{}_epoch", self.step.reads.loss()));
        point
    }
}

/// What ended the batches of an epoch.
enum EpochEnd {
    Epoch,
    Interrupted(Signal),
    /// A limit of the run or a callback ended the run. The reason is `None` if the end was planned.
    Run(Option<String>),
}
