//! The encoder-decoder Transformer with Vaswani et al.'s training: Adam and label smoothing.

use fulmen::models::marian::Marian;
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;

/// Translates tokens `x` to tokens `y`. To predict a token, the decoder sees the previous tokens of
/// `y`.
#[derive(Module)]
pub(crate) struct Translator {
    pub(crate) model: Marian,
    pub(crate) lr: f64,
}

impl TrainingModule for Translator {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        let y = batch.get("y");
        let start = y.narrow(1, 0, 1).zeros_like();
        let before = Tensor::concatenate(&[&start, &y.narrow(1, 0, y.size(1) - 1)], 1);
        let logits = self.model.forward(x, None, before);
        CrossEntropyLoss::new().label_smoothing(0.1).forward(logits.flatten(0, 1), y.flatten(0, -1))
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Adam::new(self.lr).betas(0.9, 0.98).eps(1e-9))
    }
}
