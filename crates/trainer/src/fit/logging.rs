//! Log points, and outputs of programs: values on their way from the device to loggers and callbacks.

use fulmen_tensor::Literal;

use super::Fit;
use crate::callback::ProgramOutput;
use crate::logs::{GRAD_NORM, LEARNING_RATE, Sums};
use crate::say::note;
use crate::{Error, LogPoint, Predicted, Result};

/// What is being read, of which epoch and step.
pub(super) struct Reading {
    pub(super) epoch: u64,
    pub(super) global_step: u64,
    pub(super) what: What,
}

pub(super) enum What {
    /// A log point, and the factor that its learning rate was computed with.
    Log { factor: f64 },
    /// The results of a program, by their names.
    Program { name: &'static str, outputs: Vec<String> },
}

impl Fit<'_> {
    /// What is to be read after the latest step.
    pub(super) fn reading(&self, what: What) -> Reading {
        Reading { epoch: self.position.epoch, global_step: self.position.global_step, what }
    }

    /// Starts to read what was logged since the last log point.
    pub(super) fn start_log_point(&mut self) -> Result<()> {
        let Some(sums) = self.sums.take() else { return Ok(()) };
        let reading = self.reading(What::Log { factor: self.asked.factor_of_step() });
        self.executor.read(reading, vec![sums])
    }

    /// Hands on the oldest values that are being read, waiting for them if they have not arrived; false if there are none.
    pub(super) fn finish_read(&mut self) -> Result<bool> {
        let Some((Reading { epoch, global_step, what }, values)) = self.executor.arrived()? else { return Ok(false) };
        match what {
            What::Log { factor } => {
                let sums = self.take_in(&values)?;
                self.asked.set_read(sums.learning_rate, factor);
                let (mut metrics, arrays) = self.step.logs().values(&sums, "");
                metrics.push((LEARNING_RATE.into(), sums.learning_rate));
                metrics.extend(sums.grad_norm.map(|norm| (GRAD_NORM.into(), norm)));
                let point = LogPoint { epoch, global_step, metrics, arrays };
                self.session.log(&point, &mut self.warned_of_logger);
                self.hooks.on_log(&point, &mut self.asked);
            }
            What::Program { name, outputs } => {
                let values = Predicted { values: outputs.into_iter().zip(values).collect() };
                let output = ProgramOutput { name: name.to_owned(), epoch, global_step, values };
                self.hooks.on_program_end(&output, &mut self.asked);
            }
        }
        Ok(true)
    }

    /// Hands on all values that are being read.
    pub(super) fn finish_reads(&mut self) -> Result<()> {
        while self.finish_read()? {}
        Ok(())
    }

    /// Adds what a stretch of steps has logged to the epoch, and looks whether the loss was finite.
    pub(super) fn take_in(&mut self, literals: &[Literal]) -> Result<Sums> {
        let Some(literal) = literals.first() else { return Ok(Sums::default()) };
        let sums = self.step.logs().read(literal)?;
        self.check_finite(&sums)?;
        self.position.epoch_sums.add(&sums);
        Ok(sums)
    }

    pub(super) fn check_finite(&mut self, sums: &Sums) -> Result<()> {
        let Some(step) = sums.bad_step else { return Ok(()) };
        let loss = format!("the training loss `{}`", self.loss);
        if self.options().detect_nan {
            return Err(Error::not_finite(step, &loss, self.summary.last_checkpoint.as_deref()));
        }
        if !std::mem::replace(&mut self.warned_of_nan, true) {
            note(&format!("warning: {loss} became NaN or infinite at step {step}; set detect_nan to stop there"));
        }
        Ok(())
    }
}
