//! Log points: logged values on their way from the device to loggers and callbacks.

use fulmen_tensor::Literal;

use super::Fit;
use crate::logs::{GRAD_NORM, LEARNING_RATE, Over, Sums};
use crate::say::note;
use crate::{Error, Result};

impl Fit<'_> {
    /// Starts to read what was logged since the last log point.
    pub(super) fn start_log_point(&mut self) -> Result<()> {
        let Some(sums) = self.sums.take() else { return Ok(()) };
        let read = [sums].into_iter().chain(std::mem::take(&mut self.media)).collect();
        self.executor.read((self.position.epoch, self.position.global_step), read)
    }

    /// Hands on the values of the oldest log point, waiting for them if they have not arrived; false if there is none.
    pub(super) fn finish_log_point(&mut self) -> Result<bool> {
        let Some((at, values)) = self.executor.arrived()? else { return Ok(false) };
        let sums = self.take_in(&values)?;
        let logs = self.step.logs();
        let mut point = logs.point(&sums, Over::Steps, at);
        point.metrics.push((LEARNING_RATE.into(), sums.learning_rate));
        point.metrics.extend(sums.grad_norm.map(|norm| (GRAD_NORM.into(), norm)));
        point.media = logs.media(values.get(1..).unwrap_or_default())?;
        self.session.log(&point, &mut self.warned_of_logger);
        self.session.callbacks.iter_mut().for_each(|c| c.on_log(&point));
        Ok(true)
    }

    /// Hands on the values of all log points.
    pub(super) fn finish_log_points(&mut self) -> Result<()> {
        while self.finish_log_point()? {}
        Ok(())
    }

    /// Adds what a stretch of steps has logged to the epoch, and looks whether the loss was finite.
    pub(super) fn take_in(&mut self, literals: &[Literal]) -> Result<Sums> {
        let Some(literal) = literals.first() else { return Ok(Sums::default()) };
        let sums = self.step.logs().read(literal)?;
        self.check_finite(&sums)?;
        self.step.logs().add(&mut self.position.epoch_sums, &sums);
        Ok(sums)
    }

    pub(super) fn check_finite(&mut self, sums: &Sums) -> Result<()> {
        let Some(step) = sums.bad_step else { return Ok(()) };
        let kept = self.summary.last_checkpoint.as_deref();
        if let Some(anomaly) = &sums.anomaly {
            return Err(Error::anomaly(step, anomaly, kept));
        }
        let loss = format!("the training loss `{}`", self.loss);
        if self.options().detect_nan {
            return Err(Error::not_finite(step, &loss, kept));
        }
        if !std::mem::replace(&mut self.warned_of_nan, true) {
            note(&format!("warning: {loss} became NaN or infinite at step {step}; set detect_nan to stop there"));
        }
        Ok(())
    }
}
