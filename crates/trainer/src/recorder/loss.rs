//! The loss of an optimizer: checks it and logs it.

use fulmen_tensor::Tensor;
use fulmen_tensor::internal::gradient_end;

use crate::logs::log_entry::{LogEntry, LoggedValue, log_error};
use crate::{Batch, Error, Result};

/// Checks that a loss can be minimized. `source` is the function that computed it, for errors.
pub(crate) fn check_loss(loss: &Tensor, source: &str, batch: &Batch) -> Result<()> {
    loss.check()?;
    let error =
        |problem: String| Error::usage(format!("{source}: {problem}\n  at {}", loss.location()));
    if loss.rank() != 0 || !loss.dtype().is_float() {
        return Err(error(format!(
            "the loss must be a floating-point scalar, but it is {}; take its mean",
            loss.ty()
        )));
    }
    if batch.is_padded() && !loss.depends_on(batch.mask()) {
        return Err(error(
            "the last batch is padded, but the loss does not depend on the batch's mask, so training would use the \
             padding; use batch.mean() on the losses of the samples, or let the loader drop the last batch"
                .into(),
        ));
    }
    Ok(())
}

/// The error of a loss without a gradient with respect to any of `params`, the values of the
/// parameters that it should train. `source` is the function that computed the loss.
pub(super) fn loss_without_gradient(loss: &Tensor, source: &str, params: &[Tensor]) -> Error {
    let cause = match gradient_end(loss, params) {
        Some(end) => format!(
            "the loss has no gradient, so nothing would be trained: the gradient ends at {end}. detach(), argmax, \
             comparisons, rounding and integers have no derivative; use a differentiable loss"
        ),
        None => "the loss depends on none of its parameters, so nothing would be trained".into(),
    };
    Error::usage(format!("{source}: {cause}\n  at {}", loss.location()))
}

/// Logs a loss under this name, unless the user logs it under another. Returns the name of the
/// logged loss.
pub(crate) fn log_loss(logged: &mut Vec<LogEntry>, name: &str, loss: &Tensor) -> Result<String> {
    if let Some(entry) = logged.iter().find(|l| l.name == name).filter(|l| !l.is(loss)) {
        return Err(log_error(
            entry,
            "a loss that is logged automatically has this name; choose another",
        ));
    }
    if let Some(entry) = logged.iter().find(|l| l.is(loss)) {
        return Ok(entry.name.clone());
    }
    let value = LoggedValue::Value(loss.clone());
    logged.insert(0, LogEntry::new(name, value, loss.location()));
    Ok(name.into())
}
