//! The loss of a language model, whose head is a linear layer over the vocabulary.

use fulmen_nn::Linear;
use fulmen_nn::loss::{CrossEntropyLoss, LinearCrossEntropyLoss, LossMethod};

/// `loss` of the logits of this head, of which not all need to be in memory at once.
pub(crate) fn head_loss(
    head: &Linear,
    loss: &CrossEntropyLoss,
    method: LossMethod,
) -> LinearCrossEntropyLoss {
    let loss = LinearCrossEntropyLoss::new(loss.clone()).method(method);
    match &head.bias {
        Some(bias) => loss.bias(bias.get()),
        None => loss,
    }
}
