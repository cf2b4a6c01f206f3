//! A loss that an optimizer minimizes: what must hold of it, and the name that it is logged under.

use fulmen_tensor::Tensor;

use crate::logs::logged::{Logged, LoggedValue, refused};
use crate::{Batch, Error, Result};

/// `of` is what gives the loss.
pub(crate) fn check_loss(loss: &Tensor, of: &str, batch: &Batch) -> Result<()> {
    loss.check()?;
    let at = |problem: String| Error::usage(format!("{of}: {problem}\n  at {}", loss.location()));
    if loss.rank() != 0 || !loss.dtype().is_float() {
        return Err(at(format!("the loss must be a floating-point scalar, it is {}; take its mean", loss.ty())));
    }
    if batch.is_padded() && !loss.depends_on(batch.mask()) {
        return Err(at(
            "the last batch is padded, and the loss does not depend on the batch's mask, so padding would be \
                       trained on; use batch.mean() on the losses a sample, or let the loader drop the last batch"
                .into(),
        ));
    }
    Ok(())
}

/// Logs a loss under this name, unless the user logs it under another; gives the name that it has.
pub(crate) fn log_loss(logged: &mut Vec<Logged>, name: &str, loss: &Tensor) -> Result<String> {
    if let Some(entry) = logged.iter().find(|l| l.name == name).filter(|l| !l.is(loss)) {
        return Err(refused(entry, "this name is that of a loss, which is logged by itself; choose another"));
    }
    if let Some(entry) = logged.iter().find(|l| l.is(loss)) {
        return Ok(entry.name.clone());
    }
    let value = LoggedValue::Value(loss.clone());
    logged.insert(0, Logged::new(name, value, loss.location()));
    Ok(name.into())
}
