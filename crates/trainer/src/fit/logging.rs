//! Log points: logged values on their way from the device to loggers and callbacks.

use fulmen_tensor::Literal;

use super::{Fit, Pending, Running};
use crate::LogPoint;
use crate::hosts;
use crate::logs::{GRAD_NORM, LEARNING_RATE, Sums};
use crate::say::note;
use crate::{Error, Result};

impl Fit<'_> {
    /// Starts to read what was logged since the last log point.
    pub(super) fn start_log_point(&mut self, running: &mut Running<'_>) -> Result<()> {
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
    pub(super) fn finish_log_point(&mut self, running: &mut Running<'_>) -> Result<()> {
        let Some(pending) = running.pending.pop_front() else { return Ok(()) };
        let sums = self.take_in(running, &hosts::arrive(self.hosts, pending.values)?)?;
        let (mut metrics, arrays) = self.program.layout.values(&sums, "");
        metrics.push((LEARNING_RATE.into(), sums.learning_rate));
        metrics.extend(sums.grad_norm.map(|norm| (GRAD_NORM.into(), norm)));
        let point = LogPoint { epoch: pending.epoch, global_step: pending.global_step, metrics, arrays };
        self.log(running, &point);
        self.callbacks.iter_mut().for_each(|c| c.on_log(&point));
        Ok(())
    }

    /// Adds what a stretch of steps has logged to the epoch, and looks whether the loss was finite.
    pub(super) fn take_in(&mut self, running: &mut Running<'_>, literals: &[Literal]) -> Result<Sums> {
        let Some(literal) = literals.first() else { return Ok(Sums::default()) };
        let sums = self.program.layout.read(literal)?;
        self.check_finite(running, &sums)?;
        self.position.epoch_sums.add(&sums);
        Ok(sums)
    }

    pub(super) fn check_finite(&self, running: &mut Running<'_>, sums: &Sums) -> Result<()> {
        let Some(step) = sums.bad_step else { return Ok(()) };
        let loss = format!("the training loss `{}`", self.program.loss);
        if self.options.detect_nan {
            return Err(Error::not_finite(step, &loss, self.summary.last_checkpoint.as_deref()));
        }
        if !std::mem::replace(&mut running.warned_of_nan, true) {
            note(&format!("warning: {loss} became NaN or infinite at step {step}; set detect_nan to stop there"));
        }
        Ok(())
    }

    /// Writes a log point to the loggers. A logger that fails is said once; training is worth more than its log.
    pub(super) fn log(&mut self, running: &mut Running<'_>, point: &LogPoint) {
        *self.log_points += 1;
        for logger in self.loggers.iter_mut() {
            if let Err(error) = logger.log(point)
                && !std::mem::replace(&mut running.warned_of_logger, true)
            {
                let folder = self.run_dir.display();
                note(&format!("warning: logged values could not be written in {folder}: {error}"));
            }
        }
    }
}
