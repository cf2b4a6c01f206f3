//! The training loop: take a batch that is on the device, run one program, go on.

mod logging;
mod saving;

pub(crate) use saving::numbered;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_data::{DataLoader, DeviceBatch, DeviceBatches};
use fulmen_tensor::{Argument, Compiled, DeviceArray, Done, Literal, PendingLiterals, Runtime, Sharding};

use crate::bad_samples::BadCount;
use crate::callback::{Actions, Callback, Progress};
use crate::checkpoint::Position;
use crate::evaluate::{Evaluation, for_shape};
use crate::hosts::{self, Hosts};
use crate::in_flight::InFlight;
use crate::interrupt;
use crate::loggers::Logger;
use crate::program::TrainProgram;
use crate::say::note;
use crate::state::{EntryId, State};
use crate::summary::StepTimes;
use crate::{Error, FitSummary, LogPoint, Options, Result, Strategy};

/// Waiting for data is worth a word from this share of the step time on, and when it took so long.
const INPUT_BOUND: (f64, Duration) = (0.03, Duration::from_secs(1));

/// What a fit works with; made by [`Trainer::fit`](crate::Trainer::fit).
pub(crate) struct Fit<'a> {
    pub(crate) runtime: &'a Runtime,
    /// The other processes, if there are any.
    pub(crate) hosts: Option<&'a Arc<Hosts>>,
    pub(crate) options: &'a Options,
    pub(crate) run_dir: &'a Path,
    pub(crate) callbacks: &'a mut [Box<dyn Callback>],
    pub(crate) loggers: &'a mut [Box<dyn Logger>],
    pub(crate) program: &'a TrainProgram,
    /// One for each shape of batches.
    pub(crate) steps: &'a [Compiled],
    pub(crate) train: &'a DataLoader,
    pub(crate) validation: Option<(DataLoader, Evaluation)>,
    /// What converts averages to the module's dtypes, and the places of those.
    pub(crate) averages: Option<(Compiled, Vec<EntryId>)>,
    pub(crate) state: &'a mut State,
    pub(crate) key: DeviceArray,
    pub(crate) position: Position,
    pub(crate) started: Instant,
    pub(crate) log_points: &'a mut u64,
    /// What was logged since the last log point before a resume.
    pub(crate) logs: Option<DeviceArray>,
    /// Outlives a fit that fails.
    pub(crate) summary: &'a mut FitSummary,
}

/// Logged values on their way to the host.
struct Pending {
    epoch: u64,
    global_step: u64,
    values: PendingLiterals,
    /// Kept until its values have arrived.
    _logs: DeviceArray,
}

/// What the loop keeps between steps.
struct Running<'a> {
    /// The vector of logged values since the last log point; none directly after one.
    logs: Option<DeviceArray>,
    in_flight: InFlight<'a>,
    pending: VecDeque<Pending>,
    times: StepTimes,
    warned_of_nan: bool,
    warned_of_logger: bool,
    bad: BadCount,
}

impl<'a> Fit<'a> {
    /// Trains until the last epoch, a callback's wish or Ctrl-C.
    pub(crate) fn run(mut self, interrupt: &interrupt::Guard) -> Result<()> {
        let mut running = Running {
            logs: self.logs.take(),
            in_flight: InFlight::new(self.hosts),
            pending: VecDeque::new(),
            times: StepTimes::default(),
            warned_of_nan: false,
            warned_of_logger: false,
            bad: BadCount::new(self.train, "training"),
        };
        // Of this fit alone.
        self.train.reset_report();
        self.position.data = self.train.description();
        self.position.accumulate = self.options.accumulate_grad_batches;
        // One stream over all epochs, so that the first batches of an epoch are read while the last one ends.
        let epochs = self.position.epoch..self.options.max_epochs;
        let mut batches = self
            .train
            .epochs(epochs, self.position.batch as usize)
            .prefetch_to(self.runtime, &Strategy::batch(self.runtime.mesh()));
        while self.position.epoch < self.options.max_epochs && self.summary.stopped.is_none() {
            if self.epoch(&mut batches, &mut running, interrupt)? {
                running.bad.tell();
                self.save_interrupted(&mut running)?;
                break;
            }
            self.end_epoch(&mut running)?;
        }
        running.in_flight.drain()?;
        self.summary.epochs = self.position.epoch;
        self.summary.global_step = self.position.global_step;
        self.summary.step_time_p50 = running.times.median();
        // A padded batch has fewer samples than rows.
        let samples = self.train.num_samples().min(self.train.len() * self.train.batch_size());
        let samples_a_step = samples as f64 / self.train.len().max(1) as f64;
        self.summary.data_wait_share = running.times.wait_share();
        let report = self.train.report();
        if self.summary.data_wait_share > INPUT_BOUND.0 && running.times.waits > INPUT_BOUND.1 {
            note(&report.verdict());
        }
        self.summary.loader = Some(report);
        self.summary.bad_samples = running.bad.count();
        self.summary.samples_per_second = running.times.steps_per_second() * samples_a_step;
        Ok(())
    }

    /// Trains on the rest of an epoch; true if Ctrl-C ended it.
    fn epoch(
        &mut self,
        stream: &mut DeviceBatches,
        running: &mut Running<'a>,
        interrupt: &interrupt::Guard,
    ) -> Result<bool> {
        let batches = self.train.len() as u64;
        let mut last: Option<Instant> = None;
        while self.position.batch < batches {
            let asked = Instant::now();
            let batch = stream.next().ok_or_else(|| Error::data("the loader ended in the middle of an epoch"))??;
            if last.is_some() && running.in_flight.is_idle() {
                running.times.waited(asked.elapsed());
            }
            let busy = running.in_flight.make_room()?;
            let done = self.step(running, &batch)?;
            if self.summary.time_to_first_step.is_zero() {
                // Waiting once tells when training really began, compilation and first transfers included.
                if let Some(hosts) = self.hosts {
                    hosts.wait_until(|| done.is_ready())?;
                }
                done.wait().map_err(|e| Error::device("the first step failed on the device", e))?;
                self.summary.time_to_first_step = self.started.elapsed();
                interrupt.stepped();
            } else {
                running.in_flight.push(done);
                if let Some(last) = last {
                    running.times.push(last.elapsed(), busy);
                }
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
            self.callbacks.iter_mut().for_each(|c| c.on_train_batch_end(&progress));
            if self.is_log_point() {
                self.start_log_point(running)?;
            }
            while running.pending.front().is_some_and(|p| p.values.is_ready()) {
                self.finish_log_point(running)?;
            }
            if self.is_interrupted(interrupt)? {
                return Ok(true);
            }
        }
        // The end of an epoch waits for the device in any case; here its time is that of steps.
        running.in_flight.drain()?;
        if let Some(last) = last {
            running.times.finish(last.elapsed());
        }
        Ok(false)
    }

    /// Whether the latest batch was the last of those that the optimizer steps for.
    fn stepped(&self) -> bool {
        let batch = self.position.batch;
        batch.is_multiple_of(self.options.accumulate_grad_batches) || batch >= self.train.len() as u64
    }

    /// Whether logged values are read after the latest batch.
    fn is_log_point(&self) -> bool {
        self.stepped() && self.position.global_step.is_multiple_of(self.options.log_every_n_steps)
    }

    /// Whether Ctrl-C was pressed. Several processes must end after the same step, so they ask each other, at log points
    /// and at the end of an epoch.
    fn is_interrupted(&self, interrupt: &interrupt::Guard) -> Result<bool> {
        let Some(hosts) = self.hosts else { return Ok(interrupt.requested()) };
        hosts.health()?;
        if !self.is_log_point() && self.position.batch < self.train.len() as u64 {
            return Ok(false);
        }
        hosts.any("interrupt", interrupt.requested())
    }

    /// Hands one step to the device.
    fn step(&mut self, running: &mut Running<'a>, batch: &DeviceBatch) -> Result<Done> {
        let logs = match running.logs.take() {
            Some(logs) => logs,
            None => self.runtime.to_device(&self.program.layout.start()?)?,
        };
        let mut donated = Vec::with_capacity(self.program.changes.len());
        for &entry in &self.program.changes {
            donated.push(self.state.take(entry)?);
        }
        let mut donated = donated.into_iter();
        let mut changes = self.program.changes.iter().peekable();
        let mut arguments = Vec::with_capacity(self.state.layout().entries().len() + batch.arrays.len() + 2);
        for entry in self.state.layout().ids() {
            let changed = changes.next_if(|&&c| c == entry).and_then(|_| donated.next());
            arguments.push(match changed {
                Some(array) => Argument::Donate(array),
                None => Argument::Borrow(self.state.array(entry)?),
            });
        }
        arguments.push(Argument::Donate(logs));
        arguments.push(Argument::Borrow(&self.key));
        arguments.extend(batch.arrays.iter().map(Argument::Borrow));
        let outputs = for_shape(self.steps, batch.bucket)?.call(arguments)?;
        let mut arrays = outputs.arrays.into_iter();
        for &entry in &self.program.changes {
            if let Some(array) = arrays.next() {
                self.state.put(entry, array);
            }
        }
        running.logs = arrays.next();
        Ok(outputs.done)
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
        let factor = match self.hosts {
            Some(hosts) => hosts.broadcast("learning rate factor", || Ok(Factor(factor)))?.0,
            None => factor,
        };
        if let Some(factor) = factor {
            let literal = Literal::from_slice(&[factor as f32], [])?;
            self.state.put(entry, self.runtime.to_devices(&literal, &Sharding::replicated())?);
            self.position.lr_factor = Some(factor);
        }
        Ok(())
    }

    fn converted_averages(&self) -> Result<Vec<DeviceArray>> {
        let Some((convert, places)) = &self.averages else { return Ok(vec![]) };
        let arrays =
            places.iter().map(|&id| Ok(Argument::Borrow(self.state.array(id)?))).collect::<Result<Vec<_>>>()?;
        Ok(convert.call(arrays)?.arrays)
    }

    /// Validates, reads what is still on the device in one transfer, and lets the callbacks see the epoch.
    fn end_epoch(&mut self, running: &mut Running<'a>) -> Result<()> {
        running.bad.tell();
        let due = (self.position.epoch + 1).is_multiple_of(self.options.check_val_every_n_epoch);
        let validated = match &self.validation {
            Some((loader, evaluation)) if due => {
                let converted = self.converted_averages()?;
                let logs = evaluation.run(self.runtime, self.hosts, loader, &self.state.validated(&converted)?)?;
                Some((logs, evaluation.layout.clone()))
            }
            _ => None,
        };
        let trained = running.logs.take();
        let last: Vec<&DeviceArray> = trained.iter().chain(validated.as_ref().map(|v| &v.0)).collect();
        let pending = if last.is_empty() { None } else { Some(self.runtime.read(&last)?) };
        while !running.pending.is_empty() {
            self.finish_log_point(running)?;
        }
        let literals = pending.map(|values| hosts::arrive(self.hosts, values)).transpose()?.unwrap_or_default();
        if trained.is_some() {
            self.take_in(running, &literals)?;
        }
        let sums = std::mem::take(&mut self.position.epoch_sums);
        let (mut metrics, mut arrays) = self.program.layout.values(&sums, "_epoch");
        let loss = format!("{}_epoch", self.program.loss);
        self.summary.train_loss = metrics.iter().find(|m| m.0 == loss).map(|m| m.1);
        if let (Some((_, layout)), Some(literal)) = (&validated, literals.last()) {
            let validated = layout.values(&layout.read(literal)?, "");
            metrics.extend(validated.0);
            arrays.extend(validated.1);
        }
        let point = LogPoint { epoch: self.position.epoch, global_step: self.position.global_step, metrics, arrays };
        self.log(running, &point);
        self.position.epoch += 1;
        self.position.batch = 0;
        let factor = self.position.lr_factor.unwrap_or(1.0);
        let mut actions = Actions::new(sums.learning_rate, factor);
        self.callbacks.iter_mut().for_each(|c| c.on_train_epoch_end(&point, &mut actions));
        self.summary.last_epoch = Some(point);
        if let Some(hosts) = self.hosts {
            // A callback may go by what only its process sees, the time say; but none can go on alone.
            if hosts.any("stop", actions.stop.is_some())? && actions.stop.is_none() {
                actions.stop = Some("a callback of another process asked for it".into());
            }
        }
        self.summary.stopped = actions.stop;
        self.set_learning_rate_factor(actions.new_learning_rate_factor)?;
        self.save(&actions.saves, vec![])
    }
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
