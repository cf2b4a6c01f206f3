//! A perceptron, 784-512-256-10.

use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{Linear, Relu, Sequential};
use fulmen::prelude::*;

#[derive(Module)]
pub(crate) struct Mlp(Sequential);

impl Mlp {
    pub(crate) fn new() -> Mlp {
        let hidden = Sequential::new()
            .add(Linear::new(784, 512))
            .add(Relu::new())
            .add(Linear::new(512, 256))
            .add(Relu::new());
        Mlp(hidden.add(Linear::new(256, 10)))
    }
}

impl TrainingModule for Mlp {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.0.forward(&batch.get("x"));
        cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Sgd::new(0.1).momentum(0.9))
    }
}
