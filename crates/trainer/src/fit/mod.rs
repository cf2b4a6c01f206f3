//! The training loop: take a batch that is on the device, run one program, go on.

mod logging;
mod open;
mod saving;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fulmen_data::{DataLoader, DeviceBatches};
use fulmen_tensor::{Argument, Compiled, DeviceArray, Literal, Sharding};

pub(crate) use open::{agree, fit};

use crate::bad_samples::BadCount;
use crate::callback::{Actions, CheckpointRole, Progress};
use crate::checkpoint::Position;
use crate::evaluate::{Evaluated, Evaluation};
use crate::executor::Executor;
use crate::hosts;
use crate::limits::Limits;
use crate::logs::Sums;
use crate::program::CompiledStep;
use crate::say::note;
use crate::session::Session;
use crate::state::{EntryId, State, StepState};
use crate::summary::StepTimes;
use crate::{BatchLimit, Error, FitSummary, LogPoint, Options, Result, Signal, Strategy, TrainDuration};

/// Waiting for data is worth a word from this share of the step time on, and when it took so long.
const INPUT_BOUND: (f64, Duration) = (0.03, Duration::from_secs(1));

/// A fit that is ready for its first step.
struct Fit<'a> {
    session: &'a mut Session,
    /// Each log point that is read has its epoch and its step.
    executor: Executor<(u64, u64)>,
    step: CompiledStep,
    /// The name under which the loss is logged.
    loss: String,
    train: DataLoader,
    validation: Option<Evaluation>,
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

    /// Trains on the rest of an epoch, if no signal or limit ends it.
    fn epoch(&mut self, stream: &mut DeviceBatches) -> Result<End> {
        let batches = self.train.len() as u64;
        let mut last: Option<Instant> = None;
        while self.position.batch < batches {
            let asked = Instant::now();
            let batch = stream.next().ok_or_else(|| Error::data("the loader ended in the middle of an epoch"))??;
            if last.is_some() && self.executor.is_idle() {
                self.times.waited(asked.elapsed());
            }
            let (busy, _) = self.executor.step(&self.step, &mut self.state, &mut self.sums, Some(&self.key), &batch)?;
            if self.summary.time_to_first_step.is_zero() {
                // Waiting once tells when training really began, compilation and first transfers included.
                self.executor.finish_first()?;
                self.summary.time_to_first_step = self.started.elapsed();
            } else if let Some(last) = last {
                self.times.push(last.elapsed(), busy);
            }
            last = Some(Instant::now());
            self.position.batch += 1;
            self.position.global_step += u64::from(self.stepped());
            let progress = Progress {
                epoch: self.position.epoch,
                batch: self.position.batch,
                batches,
                global_step: self.position.global_step,
            };
            self.session.callbacks.iter_mut().for_each(|c| c.on_train_batch_end(&progress));
            let is_log_point =
                self.stepped() && self.position.global_step.is_multiple_of(self.options().log_every_n_steps);
            if is_log_point && !self.options().barebones {
                self.start_log_point()?;
            }
            while self.executor.has_arrived() {
                self.finish_log_point()?;
            }
            if self.position.batch < batches && self.validation_is_due() {
                if let Some(signal) = self.validate_within_epoch()? {
                    return Ok(End::Interrupted(signal));
                }
                last = None;
            }
            if let Some(signal) = self.executor.interrupted()? {
                return Ok(End::Interrupted(signal));
            }
            if self.position.batch < batches
                && self.stepped()
                && let Some(why) = self.ends(is_log_point)?
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

    /// Whether the run ends with this step, and why, if not as it was planned. Several processes agree on the time where
    /// `ask` says so, which is the same in all.
    fn ends(&mut self, ask: bool) -> Result<Option<Option<String>>> {
        let Position { epoch, global_step, .. } = self.position;
        if global_step >= self.limits.steps {
            return Ok(Some(None));
        }
        if epoch < self.limits.min_epochs || global_step < self.limits.min_steps {
            return Ok(None);
        }
        if let Some(wish) = self.wish.take() {
            return Ok(Some(Some(wish)));
        }
        let Some(time) = self.limits.time else { return Ok(None) };
        let mut over = self.trained() >= time;
        if let Some(hosts) = self.executor.hosts() {
            over = ask && hosts.any("max_time", over)?;
        }
        Ok(over.then(|| Some(format!("the time of max_time is over ({})", TrainDuration::Time(time)))))
    }

    /// For how long the run has trained, that before a resume included.
    fn trained(&self) -> Duration {
        let before = Duration::try_from_secs_f64(self.position.seconds.unwrap_or(0.0)).unwrap_or(Duration::MAX);
        before.saturating_add(self.training_since.elapsed())
    }

    /// Whether the latest batch was the last of those that the optimizer steps for.
    fn stepped(&self) -> bool {
        let batch = self.position.batch;
        batch.is_multiple_of(self.options().accumulate_grad_batches) || batch >= self.train.len() as u64
    }

    /// Puts another factor of the learning rate into the state, for the steps to come. That of process 0 is that of all.
    fn set_learning_rate_factor(&mut self, factor: Option<f64>) -> Result<()> {
        let Some(entry) = self.state.layout().optimizer.lr_factor else {
            if factor.is_some() {
                let message =
                    "a callback set the factor of the learning rate; its changes_learning_rate() must be true";
                return Err(Error::usage(message));
            }
            return Ok(());
        };
        let factor = match self.executor.hosts() {
            Some(hosts) => hosts.broadcast("learning rate factor", || Ok(Factor(factor)))?.0,
            None => factor,
        };
        if let Some(factor) = factor {
            let literal = Literal::from_slice(&[factor as f32], [])?;
            self.state.put(entry, self.session.runtime.to_devices(&literal, &Sharding::replicated())?);
            self.position.lr_factor = Some(factor);
        }
        Ok(())
    }

    /// Whether the latest batch is one to validate after.
    fn validation_is_due(&self) -> bool {
        let Position { epoch, batch, global_step, .. } = self.position;
        match self.options().val_check_interval {
            BatchLimit::Count(steps) => self.stepped() && global_step.is_multiple_of(steps),
            BatchLimit::Share(share) => {
                // The n-th validation comes after n shares of the epoch, however they fall on batches.
                let shares = |batch: u64| (batch as f64 / (share * self.train.len() as f64) + 1e-9).floor();
                (epoch + 1).is_multiple_of(self.options().check_val_every_n_epoch)
                    && shares(batch) > shares(batch.saturating_sub(1))
            }
        }
    }

    /// Validates after a step within an epoch.
    fn validate_within_epoch(&mut self) -> Result<Option<Signal>> {
        let Some(validation) = &self.validation else { return Ok(None) };
        let validated = match self.validate(validation, BatchLimit::ALL)? {
            Evaluated::Interrupted(signal) => return Ok(Some(signal)),
            Evaluated::Sums(sums) => sums,
        };
        let pending = self.session.runtime.read(&[&validated])?;
        self.finish_log_points()?;
        let literals = hosts::arrive(self.executor.hosts(), pending)?;
        let (Some(validation), Some(literal)) = (&self.validation, literals.first()) else { return Ok(None) };
        let logs = validation.step.logs();
        let (metrics, arrays) = logs.values(&logs.read(literal)?, "");
        let Position { epoch, global_step, .. } = self.position;
        let point = LogPoint { epoch, global_step, metrics, arrays };
        self.session.log(&point, &mut self.warned_of_logger);
        let mut actions = self.actions(self.position.epoch_sums.learning_rate);
        self.session.callbacks.iter_mut().for_each(|c| c.on_validation_end(&point, &mut actions));
        let saves = self.act(actions)?;
        let logs = if saves.is_empty() { vec![] } else { self.open_logs()? };
        self.save(&saves, logs)?;
        Ok(None)
    }

    /// Runs the first batches of the validation before anything is trained.
    fn try_validation(&mut self) -> Result<()> {
        let (Some(validation), batches @ 1..) = (&self.validation, self.options().num_sanity_val_steps) else {
            return Ok(());
        };
        // A signal is heard again after the first step.
        self.validate(validation, BatchLimit::Count(batches)).map(|_| ())
    }

    /// What callbacks may ask for, after a step with this learning rate.
    fn actions(&self, learning_rate: f64) -> Actions {
        Actions::new(learning_rate, self.position.lr_factor.unwrap_or(1.0))
    }

    /// Does what callbacks asked for, in all processes alike; gives the files to save, of which process 0 has the say.
    fn act(&mut self, mut actions: Actions) -> Result<Vec<(PathBuf, CheckpointRole)>> {
        if let Some(hosts) = self.executor.hosts() {
            // A callback may go by what only its process sees, the time say; but none can go on alone.
            if hosts.any("stop", actions.stop.is_some())? && actions.stop.is_none() {
                actions.stop = Some("a callback of another process asked for it".into());
            }
        }
        if actions.stop.is_some() {
            self.wish = actions.stop;
        }
        self.set_learning_rate_factor(actions.new_learning_rate_factor)?;
        Ok(actions.saves)
    }

    /// Runs the validation step with the weights of now, averages where there are some; the sums stay on the device.
    fn validate(&self, validation: &Evaluation, batches: BatchLimit) -> Result<Evaluated> {
        let converted = match &self.averages {
            Some((convert, entries)) => {
                let averages = entries.iter().map(|&id| Ok(Argument::Borrow(self.state.array(id)?)));
                convert.call(averages.collect::<Result<_>>()?)?.arrays
            }
            None => vec![],
        };
        let interrupted = || self.executor.interrupted();
        let values = self.state.validated(&converted)?;
        validation.run(&self.session.runtime, self.executor.hosts(), &values, batches, interrupted)
    }

    /// Validates, reads what is still on the device in one transfer, and lets the callbacks see the epoch. If a signal ends
    /// the validation, the epoch has not ended: a resumed fit validates again.
    fn end_epoch(&mut self) -> Result<Option<Signal>> {
        self.bad.tell();
        let validation = self.validation.as_ref().filter(|_| self.validation_is_due());
        let validated = match validation.map(|validation| self.validate(validation, BatchLimit::ALL)).transpose()? {
            Some(Evaluated::Interrupted(signal)) => return Ok(Some(signal)),
            Some(Evaluated::Sums(sums)) => Some(sums),
            None => None,
        };
        let trained = self.sums.take();
        let last: Vec<&DeviceArray> = trained.iter().chain(&validated).collect();
        let pending = if last.is_empty() { None } else { Some(self.session.runtime.read(&last)?) };
        self.finish_log_points()?;
        let hosts = self.executor.hosts();
        let literals = pending.map(|values| hosts::arrive(hosts, values)).transpose()?.unwrap_or_default();
        if trained.is_some() {
            self.take_in(&literals)?;
        }
        let sums = std::mem::take(&mut self.position.epoch_sums);
        let mut point = self.epoch_point(&sums);
        if let (Some(validation), Some(_), Some(literal)) = (&self.validation, &validated, literals.last()) {
            let logs = validation.step.logs();
            let validated = logs.values(&logs.read(literal)?, "");
            point.metrics.extend(validated.0);
            point.arrays.extend(validated.1);
        }
        self.session.log(&point, &mut self.warned_of_logger);
        self.position.epoch += 1;
        self.position.batch = 0;
        let mut actions = self.actions(sums.learning_rate);
        self.session.callbacks.iter_mut().for_each(|c| c.on_train_epoch_end(&point, &mut actions));
        self.summary.last_epoch = Some(point);
        let saves = self.act(actions)?;
        self.summary.stopped = self.ends(true)?.flatten();
        self.save(&saves, vec![])?;
        Ok(None)
    }

    /// Ends the run within an epoch: what the epoch has logged so far is told, and the state saved as Ctrl-C does it, so that
    /// a longer run can go on there.
    fn end_within_epoch(&mut self, why: Option<String>) -> Result<()> {
        self.summary.stopped = why;
        self.finish_log_points()?;
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

/// A factor of the learning rate, as process 0 tells the others: its bits, or nothing.
struct Factor(Option<f64>);

impl hosts::Shared for Factor {
    fn to_text(&self) -> Option<String> {
        Some(self.0.map_or(String::new(), |factor| factor.to_bits().to_string()))
    }
    fn from_text(text: &str) -> Option<Factor> {
        if text.is_empty() {
            Some(Factor(None))
        } else {
            text.parse().ok().map(|bits| Factor(Some(f64::from_bits(bits))))
        }
    }
}
