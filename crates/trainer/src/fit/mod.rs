//! The training loop: take a batch that is on the device, run one program, go on.

mod logging;
mod open;
mod saving;
mod turn;
mod validating;

use std::time::{Duration, Instant};

use fulmen_data::{DataLoader, DeviceBatches};
use fulmen_tensor::{Compiled, DeviceArray};

pub(crate) use open::fit;

use crate::actions::Actions;
use crate::bad_samples::BadCount;
use crate::callback::Progress;
use crate::checkpoint::Position;
use crate::executor::Executor;
use crate::hooks::Hooks;
use crate::hosts;
use crate::limits::Limits;
use crate::logs::Sums;
use crate::program::CompiledStep;
use crate::say::note;
use crate::session::Session;
use crate::state::{EntryId, State};
use crate::summary::StepTimes;
use crate::{Error, FitSummary, LogPoint, Options, Result, Signal, Strategy};
use logging::Reading;
use turn::Program;
use validating::Validation;

/// Waiting for data is worth a word from this share of the step time on, and when it took so long.
const INPUT_BOUND: (f64, Duration) = (0.03, Duration::from_secs(1));

/// A fit that is ready for its first step.
struct Fit<'a> {
    session: &'a mut Session,
    hooks: Hooks<'a>,
    /// What callbacks and the module have asked for since it was last done.
    asked: Actions,
    executor: Executor<Reading>,
    step: CompiledStep,
    /// The name under which the loss is logged.
    loss: String,
    train: DataLoader,
    validation: Vec<Validation>,
    /// What callbacks can ask for.
    programs: Vec<Program>,
    /// What converts averages to the module's dtypes, and which those are.
    averages: Option<(Compiled, Vec<EntryId>)>,
    state: State,
    key: DeviceArray,
    /// The sums of what was logged since the last log point; none directly after one.
    sums: Option<DeviceArray>,
    position: Position,
    limits: Limits,
    /// When the first step began.
    training_since: Instant,
    /// Why a callback wants training to end, until that may be.
    wish: Option<String>,
    times: StepTimes,
    bad: BadCount,
    warned_of_nan: bool,
    warned_of_logger: bool,
    started: Instant,
    summary: FitSummary,
}

impl Fit<'_> {
    fn options(&self) -> &Options {
        &self.session.choices.options
    }

    /// Trains, and keeps what outlives a fit that fails.
    fn run(mut self) -> Result<FitSummary> {
        let result = self.epochs();
        if let Err(error) = &result {
            self.hooks.on_exception(error, &mut self.asked);
            self.save_after_exception();
        }
        let Fit { session, train, summary, .. } = self;
        session.record.loader = Some(train.report());
        session.record.best_checkpoint.clone_from(&summary.best_checkpoint);
        session.record.last_checkpoint.clone_from(&summary.last_checkpoint);
        result?;
        session.record.reached = (summary.epochs.saturating_sub(1), summary.global_step);
        Ok(summary)
    }

    /// Trains until a limit, a callback's wish or a signal.
    fn epochs(&mut self) -> Result<()> {
        // Of this fit alone.
        self.train.reset_report();
        self.position.data = self.train.description();
        self.position.accumulate = self.options().accumulate_grad_batches;
        self.try_validation()?;
        let limits = self.limits;
        let mut batches = self.batches();
        self.training_since = Instant::now();
        while self.position.epoch < limits.epochs
            && self.position.global_step < limits.steps
            && self.summary.stopped.is_none()
        {
            match self.epoch(&mut batches)? {
                End::OfEpoch => {
                    if let Some(signal) = self.end_epoch()? {
                        self.bad.tell();
                        self.save_interrupted(signal)?;
                        break;
                    }
                    if self.overfits() {
                        batches = self.batches();
                    }
                }
                End::Interrupted(signal) => {
                    self.bad.tell();
                    self.save_interrupted(signal)?;
                    break;
                }
                End::OfRun(why) => {
                    self.bad.tell();
                    self.end_within_epoch(why)?;
                    break;
                }
            }
        }
        self.executor.drain()?;
        self.finish_reads()?;
        self.summary.epochs = self.position.epoch;
        self.summary.global_step = self.position.global_step;
        self.summary.step_time_p50 = self.times.median();
        // A padded batch has fewer samples than rows.
        let samples = self.train.num_samples().min(self.train.len().saturating_mul(self.train.batch_size()));
        let samples_a_step = samples as f64 / self.train.len().max(1) as f64;
        self.summary.data_wait_share = self.times.wait_share();
        let report = self.train.report();
        if self.summary.data_wait_share > INPUT_BOUND.0 && self.times.waits > INPUT_BOUND.1 {
            note(&report.verdict());
        }
        self.summary.loader = Some(report);
        self.summary.bad_samples = self.bad.count();
        self.summary.samples_per_second = self.times.steps_per_second() * samples_a_step;
        Ok(())
    }

    /// The batches to come: one stream over all epochs, so that the first batches of an epoch are read while the last one
    /// ends; or the first epoch, again and again.
    fn batches(&self) -> DeviceBatches {
        let epochs = if self.overfits() { 0..1 } else { self.position.epoch..self.limits.epochs };
        let runtime = &self.session.runtime;
        let batches = self.train.epochs(epochs, self.position.batch as usize);
        batches.prefetch_to(runtime, &Strategy::batch(runtime.mesh()))
    }

    /// Whether every epoch has the batches of the first.
    fn overfits(&self) -> bool {
        !self.options().overfit_batches.is_zero()
    }

    /// Where training stands.
    fn progress(&self) -> Progress {
        let Position { epoch, batch, global_step, .. } = self.position;
        Progress { epoch, batch, batches: self.train.len() as u64, global_step }
    }

    /// Trains on the rest of an epoch, if no signal or limit ends it.
    fn epoch(&mut self, stream: &mut DeviceBatches) -> Result<End> {
        let batches = self.train.len() as u64;
        if self.position.batch < batches {
            let progress = self.progress();
            self.hooks.on_train_epoch_start(&progress, &mut self.asked);
            self.act()?;
            // One that was asked for, or that ended unfinished before a resume.
            if let Some(signal) = self.validate_within_epoch()? {
                return Ok(End::Interrupted(signal));
            }
        }
        let mut last: Option<Instant> = None;
        while self.position.batch < batches {
            let asked = Instant::now();
            let batch = stream.next().ok_or_else(|| Error::data("the loader ended in the middle of an epoch"))??;
            if last.is_some() && self.executor.is_idle() {
                self.times.waited(asked.elapsed());
            }
            self.hooks.on_train_batch_start(&self.progress());
            let (busy, _) = self.executor.step(&self.step, &mut self.state, &mut self.sums, Some(&self.key), &batch)?;
            if self.summary.time_to_first_step.is_zero() {
                // Waiting once tells when training really began, compilation and first transfers included.
                self.executor.finish_first()?;
                self.summary.time_to_first_step = self.started.elapsed();
            } else if let Some(last) = last {
                self.times.push(last.elapsed(), busy);
            }
            last = Some(Instant::now());
            self.asked.stepped();
            self.position.batch += 1;
            self.position.global_step += u64::from(self.stepped());
            let progress = self.progress();
            self.position.validation = self.due(&progress);
            self.hooks.on_train_batch_end(&progress, &mut self.asked);
            let is_log_point =
                self.stepped() && self.position.global_step.is_multiple_of(self.options().log_every_n_steps);
            if is_log_point && !self.options().barebones {
                self.start_log_point()?;
            }
            while self.executor.has_arrived() {
                self.finish_read()?;
            }
            let signal = self.turn()?;
            if self.executor.agreed() && self.act()? {
                last = None;
            }
            if let Some(signal) = signal {
                return Ok(End::Interrupted(signal));
            }
            if self.position.batch < batches && !self.position.validation.is_empty() {
                if let Some(signal) = self.validate_within_epoch()? {
                    return Ok(End::Interrupted(signal));
                }
                last = None;
            }
            if self.position.batch < batches
                && self.stepped()
                && let Some(why) = self.ends()
            {
                self.drain_steps(last)?;
                return Ok(End::OfRun(why));
            }
        }
        self.drain_steps(last)?;
        Ok(End::OfEpoch)
    }

    /// Waits for the device, which the end of an epoch does in any case; here the time is that of steps.
    fn drain_steps(&mut self, last: Option<Instant>) -> Result<()> {
        self.executor.drain()?;
        if let Some(last) = last {
            self.times.finish(last.elapsed());
        }
        Ok(())
    }

    /// Whether the latest batch was the last of those that the optimizer steps for.
    fn stepped(&self) -> bool {
        let batch = self.position.batch;
        batch.is_multiple_of(self.options().accumulate_grad_batches) || batch >= self.train.len() as u64
    }

    /// Validates, reads what is still on the device in one transfer, and lets the callbacks see the epoch. If a signal ends
    /// the validation, the epoch has not ended: a resumed fit validates again.
    fn end_epoch(&mut self) -> Result<Option<Signal>> {
        self.bad.tell();
        let due = self.due_with_the_epoch();
        let validated = match self.validate(&due)? {
            Ok(sums) => sums,
            Err(signal) => return Ok(Some(signal)),
        };
        let trained = self.sums.take();
        let last: Vec<&DeviceArray> = trained.iter().chain(&validated).collect();
        let pending = if last.is_empty() { None } else { Some(self.session.runtime.read(&last)?) };
        self.finish_reads()?;
        let hosts = self.executor.hosts();
        let literals = pending.map(|values| hosts::arrive(hosts, values)).transpose()?.unwrap_or_default();
        let (of_training, of_validation) = literals.split_at(usize::from(trained.is_some()));
        self.take_in(of_training)?;
        let sums = std::mem::take(&mut self.position.epoch_sums);
        self.asked.set_read(sums.learning_rate, self.asked.factor_of_step());
        let mut point = self.epoch_point(&sums);
        let validation = self.validation_point(&due, of_validation)?;
        point.metrics.extend(validation.metrics.iter().cloned());
        point.arrays.extend(validation.arrays.iter().cloned());
        self.session.log(&point, &mut self.warned_of_logger);
        if !due.is_empty() {
            self.hooks.on_validation_end(&validation, &mut self.asked);
            self.asked.asked.validate = false;
        }
        self.position.epoch += 1;
        self.position.batch = 0;
        self.position.validation.clear();
        self.hooks.on_train_epoch_end(&point, &mut self.asked);
        self.summary.last_epoch = Some(point);
        self.stop_when_time_is_over();
        self.act()?;
        self.summary.stopped = self.ends().flatten();
        Ok(None)
    }

    /// Ends the run within an epoch: what the epoch has logged so far is told, and the state saved as Ctrl-C does it, so that
    /// a longer run can go on there.
    fn end_within_epoch(&mut self, why: Option<String>) -> Result<()> {
        self.summary.stopped = why;
        let logs = self.open_logs()?;
        let mut sums = self.position.epoch_sums.clone();
        if let Some((_, literal)) = logs.first() {
            sums.add(&self.step.logs().read(literal)?);
        }
        let point = self.epoch_point(&sums);
        self.session.log(&point, &mut self.warned_of_logger);
        self.summary.last_epoch = Some(point);
        self.save_last(logs)
    }

    /// Means over an epoch, of what it has logged so far.
    fn epoch_point(&mut self, sums: &Sums) -> LogPoint {
        let (metrics, arrays) = self.step.logs().values(sums, "_epoch");
        let loss = format!("{}_epoch", self.loss);
        self.summary.train_loss = metrics.iter().find(|m| m.0 == loss).map(|m| m.1);
        LogPoint { epoch: self.position.epoch, global_step: self.position.global_step, metrics, arrays }
    }
}

/// What ended the batches of an epoch.
enum End {
    OfEpoch,
    Interrupted(Signal),
    /// A limit of the run or a callback's wish, with why, if it was not planned.
    OfRun(Option<String>),
}
