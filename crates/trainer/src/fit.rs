//! The training loop: take a batch that is on the device, run one program, go on.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fulmen_data::{DataLoader, DeviceBatches};
use fulmen_pjrt::{Argument, Buffer, Event};
use fulmen_tensor::{Compiled, Literal, PendingLiterals, Runtime};

use crate::callback::{Actions, Callback, CheckpointRole, LogPoint, Progress};
use crate::checkpoint::{self, LOGS, Position};
use crate::evaluate::Evaluation;
use crate::in_flight::InFlight;
use crate::interrupt;
use crate::loggers::Logger;
use crate::logs::{LEARNING_RATE, Sums};
use crate::program::TrainProgram;
use crate::say::say;
use crate::state::State;
use crate::summary::StepTimes;
use crate::{Error, FitSummary, Options, Result};

/// What a fit works with; made by [`Trainer::fit`](crate::Trainer::fit).
pub(crate) struct Fit<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) options: &'a Options,
    pub(crate) run_dir: &'a Path,
    pub(crate) callbacks: &'a mut [Box<dyn Callback>],
    pub(crate) loggers: &'a mut [Box<dyn Logger>],
    pub(crate) program: &'a TrainProgram,
    pub(crate) step: &'a Compiled,
    pub(crate) train: &'a DataLoader,
    pub(crate) validation: Option<(&'a DataLoader, Evaluation)>,
    pub(crate) state: &'a mut State,
    pub(crate) key: Buffer,
    pub(crate) position: Position,
    pub(crate) started: Instant,
    pub(crate) log_points: &'a mut u64,
    /// What was logged since the last log point before a resume.
    pub(crate) logs: Option<Buffer>,
    /// Outlives a fit that fails.
    pub(crate) summary: &'a mut FitSummary,
}

/// Logged values on their way to the host.
struct Pending {
    epoch: u64,
    global_step: u64,
    values: PendingLiterals,
    /// Kept until its values have arrived.
    _logs: Buffer,
}

/// What the loop keeps between steps.
struct Running {
    /// The vector of logged values since the last log point; none directly after one.
    logs: Option<Buffer>,
    in_flight: InFlight,
    pending: VecDeque<Pending>,
    times: StepTimes,
    warned_of_nan: bool,
    warned_of_logger: bool,
}

impl Fit<'_> {
    /// Trains until the last epoch, a callback's wish or Ctrl-C.
    pub(crate) fn run(mut self, interrupt: &interrupt::Guard) -> Result<()> {
        let mut running = Running {
            logs: self.logs.take(),
            in_flight: InFlight::default(),
            pending: VecDeque::new(),
            times: StepTimes::default(),
            warned_of_nan: false,
            warned_of_logger: false,
        };
        self.position.batches = self.train.len() as u64;
        self.position.batch_size = self.train.batch_size() as u64;
        // One stream over all epochs, so that the first batches of an epoch are read while the last one ends.
        let epochs = self.position.epoch..self.options.max_epochs;
        let mut batches = self
            .train
            .epochs(epochs, self.position.batch as usize)
            .prefetch_to(self.runtime.client(), self.runtime.device());
        while self.position.epoch < self.options.max_epochs && self.summary.stopped.is_none() {
            if self.epoch(&mut batches, &mut running, interrupt)? {
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
        self.summary.samples_per_second = running.times.steps_per_second() * samples_a_step;
        Ok(())
    }

    /// Trains on the rest of an epoch; true if Ctrl-C ended it.
    fn epoch(
        &mut self,
        stream: &mut DeviceBatches,
        running: &mut Running,
        interrupt: &interrupt::Guard,
    ) -> Result<bool> {
        let batches = self.train.len() as u64;
        let mut last = None;
        while self.position.batch < batches {
            let batch = stream.next().ok_or_else(|| Error::data("the loader ended in the middle of an epoch"))??;
            running.in_flight.make_room()?;
            let done = self.step(running, &batch.buffers)?;
            if self.summary.time_to_first_step.is_zero() {
                // Waiting once tells when training really began, compilation and first transfers included.
                done.wait().map_err(|e| Error::device("the first step failed on the device", e))?;
                self.summary.time_to_first_step = self.started.elapsed();
            } else {
                running.in_flight.push(done);
                if let Some(last) = last {
                    running.times.push(Instant::now().duration_since(last));
                }
            }
            last = Some(Instant::now());
            self.position.batch += 1;
            self.position.global_step += 1;
            let progress = Progress {
                epoch: self.position.epoch,
                batch: self.position.batch,
                batches,
                global_step: self.position.global_step,
            };
            self.callbacks.iter_mut().for_each(|c| c.on_train_batch_end(&progress));
            if self.position.global_step % self.options.log_every_n_steps == 0 {
                self.start_log_point(running)?;
            }
            while running.pending.front().is_some_and(|p| p.values.is_ready()) {
                self.finish_log_point(running)?;
            }
            if interrupt.requested() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Hands one step to the device.
    fn step(&mut self, running: &mut Running, batch: &[Buffer]) -> Result<Event> {
        let logs = match running.logs.take() {
            Some(logs) => logs,
            None => self.runtime.to_device(&self.program.layout.start()?)?,
        };
        let mut donated = Vec::with_capacity(self.program.changes.len());
        for &entry in &self.program.changes {
            donated.push(self.state.take_buffer(entry)?);
        }
        let mut donated = donated.into_iter();
        let mut changes = self.program.changes.iter().peekable();
        let mut arguments = Vec::with_capacity(self.state.entries().len() + batch.len() + 2);
        for entry in 0..self.state.entries().len() {
            let changed = changes.next_if(|&&c| c == entry).and_then(|_| donated.next());
            arguments.push(match changed {
                Some(buffer) => Argument::Donate(buffer),
                None => Argument::Borrow(self.state.buffer(entry)?),
            });
        }
        arguments.push(Argument::Donate(logs));
        arguments.push(Argument::Borrow(&self.key));
        arguments.extend(batch.iter().map(Argument::Borrow));
        let outputs = self.step.call(arguments)?;
        let mut buffers = outputs.buffers.into_iter();
        for &entry in &self.program.changes {
            if let Some(buffer) = buffers.next() {
                self.state.put_buffer(entry, buffer);
            }
        }
        running.logs = buffers.next();
        Ok(outputs.done)
    }

    /// Starts to read what was logged since the last log point.
    fn start_log_point(&mut self, running: &mut Running) -> Result<()> {
        if let Some(logs) = running.logs.take() {
            running.pending.push_back(Pending {
                epoch: self.position.epoch,
                global_step: self.position.global_step,
                values: self.runtime.read(&[&logs])?,
                _logs: logs,
            });
        }
        Ok(())
    }

    /// Hands on the values of the oldest log point, waiting for them if they have not arrived.
    fn finish_log_point(&mut self, running: &mut Running) -> Result<()> {
        let Some(pending) = running.pending.pop_front() else { return Ok(()) };
        let sums = self.take_in(running, &pending.values.wait()?)?;
        let mut metrics = sums.means();
        metrics.push((LEARNING_RATE.into(), sums.learning_rate));
        let point = LogPoint { epoch: pending.epoch, global_step: pending.global_step, metrics };
        self.log(running, &point);
        self.callbacks.iter_mut().for_each(|c| c.on_log(&point));
        Ok(())
    }

    /// Adds what a stretch of steps has logged to the epoch, and looks whether the loss was finite.
    fn take_in(&mut self, running: &mut Running, literals: &[Literal]) -> Result<Sums> {
        let Some(literal) = literals.first() else { return Ok(Sums::default()) };
        let sums = self.program.layout.read(literal)?;
        self.check_finite(running, &sums)?;
        self.position.epoch_sums.add(&sums);
        Ok(sums)
    }

    fn check_finite(&self, running: &mut Running, sums: &Sums) -> Result<()> {
        let Some(step) = sums.bad_step else { return Ok(()) };
        let loss = format!("the training loss `{}`", self.program.loss);
        if self.options.detect_nan {
            return Err(Error::not_finite(step, &loss, self.summary.last_checkpoint.as_deref()));
        }
        if !std::mem::replace(&mut running.warned_of_nan, true) {
            say(&format!("warning: {loss} became NaN or infinite at step {step}; set detect_nan to stop there"));
        }
        Ok(())
    }

    /// Writes a log point to the loggers. A logger that fails is said once; training is worth more than its log.
    fn log(&mut self, running: &mut Running, point: &LogPoint) {
        *self.log_points += 1;
        for logger in self.loggers.iter_mut() {
            if let Err(error) = logger.log(point) {
                if !std::mem::replace(&mut running.warned_of_logger, true) {
                    let folder = self.run_dir.display();
                    say(&format!("warning: logged values could not be written in {folder}: {error}"));
                }
            }
        }
    }

    /// Validates, reads what is still on the device in one transfer, and lets the callbacks see the epoch.
    fn end_epoch(&mut self, running: &mut Running) -> Result<()> {
        let due = (self.position.epoch + 1) % self.options.check_val_every_n_epoch == 0;
        let validated = match &self.validation {
            Some((loader, evaluation)) if due => {
                Some((evaluation.run(self.runtime, loader, &self.state.module()?)?, evaluation.layout.clone()))
            }
            _ => None,
        };
        let trained = running.logs.take();
        let last: Vec<&Buffer> = trained.iter().chain(validated.as_ref().map(|v| &v.0)).collect();
        let pending = if last.is_empty() { None } else { Some(self.runtime.read(&last)?) };
        while !running.pending.is_empty() {
            self.finish_log_point(running)?;
        }
        let literals = pending.map(PendingLiterals::wait).transpose()?.unwrap_or_default();
        if trained.is_some() {
            self.take_in(running, &literals)?;
        }
        let sums = std::mem::take(&mut self.position.epoch_sums);
        let mut metrics: Vec<(String, f64)> =
            sums.means().into_iter().map(|(name, mean)| (format!("{name}_epoch"), mean)).collect();
        self.summary.train_loss = sums.means().iter().find(|m| m.0 == self.program.loss).map(|m| m.1);
        if let (Some((_, layout)), Some(literal)) = (&validated, literals.last()) {
            metrics.extend(layout.read(literal)?.means());
        }
        let point = LogPoint { epoch: self.position.epoch, global_step: self.position.global_step, metrics };
        self.log(running, &point);
        self.position.epoch += 1;
        self.position.batch = 0;
        let mut actions = Actions::default();
        self.callbacks.iter_mut().for_each(|c| c.on_train_epoch_end(&point, &mut actions));
        self.summary.last_epoch = Some(point);
        self.summary.stopped = actions.stop;
        self.save(&actions.saves, vec![])
    }

    /// After Ctrl-C: log points that are on their way arrive, and the state in the middle of the epoch is saved, with
    /// what was logged since the last of them.
    fn save_interrupted(&mut self, running: &mut Running) -> Result<()> {
        self.summary.stopped = Some("interrupted by Ctrl-C".into());
        self.summary.interrupted = true;
        while !running.pending.is_empty() {
            self.finish_log_point(running)?;
        }
        let mut logs = vec![];
        if let Some(buffer) = running.logs.take() {
            for literal in self.runtime.read(&[&buffer])?.wait()? {
                self.check_finite(running, &self.program.layout.read(&literal)?)?;
                logs.push((LOGS.to_owned(), literal));
            }
            self.position.log_names = self.program.layout.names().to_vec();
        }
        if self.options.enable_checkpointing {
            let path = self.run_dir.join("checkpoints").join("last.safetensors");
            self.save(&[(path, CheckpointRole::Last)], logs)?;
        }
        Ok(())
    }

    /// Writes the training state to files, from one read of the device, with further tensors.
    fn save(&mut self, files: &[(PathBuf, CheckpointRole)], further: Vec<(String, Literal)>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut tensors = self.state.read(self.runtime)?;
        if self.options.detect_nan {
            let finite = |l: &Literal| !l.ty().dtype.is_float() || l.to_f64().iter().all(|v| v.is_finite());
            if let Some((name, _)) = tensors.iter().find(|(_, literal)| !finite(literal)) {
                let last = self.summary.last_checkpoint.as_deref();
                return Err(Error::not_finite(self.position.global_step, &format!("`{name}`"), last));
            }
        }
        tensors.extend(further);
        if let Some((best, _)) = files.iter().find(|(_, role)| *role == CheckpointRole::Best) {
            self.position.best_checkpoint = Some(best.clone());
        }
        self.position.callbacks =
            numbered(self.callbacks).filter_map(|(name, callback)| Some((name, callback.state()?))).collect();
        for (path, role) in files {
            checkpoint::save(path, &tensors, &self.position)?;
            match role {
                CheckpointRole::Last => self.summary.last_checkpoint = Some(path.clone()),
                CheckpointRole::Best => self.summary.best_checkpoint = Some(path.clone()),
                CheckpointRole::Extra => {}
            }
        }
        Ok(())
    }
}

/// The callbacks with names that tell two of a kind apart: `Name`, `Name#2`, …
pub(crate) fn numbered(callbacks: &mut [Box<dyn Callback>]) -> impl Iterator<Item = (String, &mut Box<dyn Callback>)> {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    callbacks.iter_mut().map(move |callback| {
        let name = callback.name();
        let count = seen.entry(name).or_default();
        *count += 1;
        (if *count == 1 { name.to_owned() } else { format!("{name}#{count}") }, callback)
    })
}
