//! The library's language models on tokens `x`. They predict the next token `y`, or masked tokens.

use fulmen::models::decoder::Decoder;
use fulmen::models::gpt2::Gpt2;
use fulmen::models::roberta::RobertaForMaskedLm;
use fulmen::nn::loss::{CrossEntropyLoss, Reduction, cross_entropy};
use fulmen::prelude::*;

/// A decoder that predicts the next token, with AdamW.
#[derive(Module)]
pub(crate) struct LanguageModel(pub(crate) Decoder);

impl TrainingModule for LanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        next_token_loss(&self.0.forward(batch.get("x")), batch)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4))
    }
}

/// GPT-2's architecture in another size, with AdamW.
#[derive(Module)]
pub(crate) struct GptLanguageModel(pub(crate) Gpt2);

impl TrainingModule for GptLanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        next_token_loss(&self.0.forward(batch.get("x")), batch)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4))
    }
}

/// The mean cross-entropy of logits `[batch, length, vocabulary]` with the tokens `y`.
fn next_token_loss(logits: &Tensor, batch: &Batch) -> Tensor {
    cross_entropy(&logits.flatten(0, 1), &batch.get("y").flatten(0, -1), Reduction::Mean)
}

/// RoBERTa with AdamW. Positions whose `y` is -100 are not masked.
#[derive(Module)]
pub(crate) struct MaskedLanguageModel {
    pub(crate) model: RobertaForMaskedLm,
    pub(crate) lr: f64,
}

impl TrainingModule for MaskedLanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.model.forward(batch.get("x"), None);
        let loss = CrossEntropyLoss::new().ignore_index(-100);
        loss.forward(logits.flatten(0, 1), batch.get("y").flatten(0, -1))
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(self.lr).betas(0.9, 0.98))
    }
}
