//! What must hold of a recorded training step: a loss that is one, and padding that gets into nothing.

use fulmen_tensor::Tensor;

use super::values::Values;
use crate::{Batch, Error, Result};

/// Padding must not get into running statistics: what a step makes of a batch must know the mask.
pub(super) fn check_statistics(values: &Values, batch: &Batch) -> Result<()> {
    let layout = &values.layout;
    for id in layout.ids().take(layout.module().len()).filter(|&id| !layout.is_trained(id)) {
        let value = values.after(id);
        let from_batch = batch.inputs().any(|field| !field.is(batch.mask()) && value.depends_on(field));
        if from_batch && !value.depends_on(batch.mask()) {
            return Err(Error::usage(format!(
                "the last batch is padded, and `{}` would take padding into its statistics; let the training loader \
                 drop the last batch\n  at {}",
                layout[id].name,
                value.location()
            )));
        }
    }
    Ok(())
}

/// `of` is what gives the loss.
pub(super) fn check_loss(loss: &Tensor, of: &str, batch: &Batch) -> Result<()> {
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
