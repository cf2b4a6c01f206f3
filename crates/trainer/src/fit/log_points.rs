//! Reads log points and outputs of programs from the device, and passes them to loggers and
//! callbacks.

use fulmen_tensor::Literal;
use tracing::debug_span;

use super::Fit;
use crate::executor::fit_read::{FitRead, ReadKind};
use crate::hooks::ProgramOutput;
use crate::logs::{LogRange, Sums};
use crate::position::StepPosition;
use crate::step::training_point;
use crate::{Predicted, Result};

impl Fit<'_> {
    /// A read after the latest step.
    pub(super) fn new_read(&self, kind: ReadKind) -> FitRead {
        FitRead { position: self.step.position.step(), kind }
    }

    /// Starts to read the values that were logged since the last log point.
    pub(super) fn start_log_point(&mut self) -> Result<()> {
        let Some(sums) = self.step.sums.take() else { return Ok(()) };
        let read = self.new_read(ReadKind::Log { factor: self.actions.factor_of_step() });
        let arrays = [sums].into_iter().chain(std::mem::take(&mut self.step.media)).collect();
        self.step.executor.read(read, arrays)
    }

    /// Passes on the values of the oldest read, and waits for them if they have not arrived.
    /// Returns false if there is none.
    pub(super) fn finish_read(&mut self) -> Result<bool> {
        let Some((FitRead { position, kind }, values)) = self.step.executor.next_read()? else {
            return Ok(false);
        };
        let _log_point = debug_span!("log point").entered();
        match kind {
            ReadKind::Log { factor } => {
                let sums = self.add_to_epoch(&values)?;
                self.actions.set_read(sums.learning_rate(), factor);
                let logs = self.step.program().logs();
                let media = values.get(1..).unwrap_or_default();
                let mut point = training_point(logs, &sums, media, LogRange::Steps, position)?;
                self.hooks.callbacks.each(|callback| {
                    let values = callback.log_values(&point);
                    point.metrics.extend(values);
                });
                self.session.log(&point);
                self.write_goodput(false);
                self.hooks.on_log(&point, &mut self.actions);
            }
            ReadKind::Program { name, outputs } => {
                let values =
                    Predicted { values: outputs.into_iter().zip(values).collect(), origins: None };
                let StepPosition { epoch, global_step } = position;
                let output = ProgramOutput { name: name.to_owned(), epoch, global_step, values };
                self.hooks.on_program_end(&output, &mut self.actions);
            }
        }
        Ok(true)
    }

    /// Passes on the values of all reads.
    pub(super) fn finish_reads(&mut self) -> Result<()> {
        while self.finish_read()? {}
        Ok(())
    }

    /// Adds the logged sums of some steps to those of the epoch, and checks that the loss was
    /// finite.
    pub(super) fn add_to_epoch(&mut self, literals: &[Literal]) -> Result<Sums> {
        let Some(literal) = literals.first() else { return Ok(Sums::default()) };
        let sums = self.step.program().logs().read(literal)?;
        self.check_finite(&sums)?;
        self.step.steps[0].logs().add(&mut self.step.position.epoch_sums, &sums);
        Ok(sums)
    }

    /// Checks that the loss was finite. The error names the last checkpoint, including one that is
    /// still being written.
    pub(super) fn check_finite(&mut self, sums: &Sums) -> Result<()> {
        if self.step.reads.check_finite(sums, None).is_err() {
            self.finish_saving()?;
        }
        self.step.reads.check_finite(sums, self.summary.last_checkpoint.as_deref())
    }
}
