//! The library's ResNets, trained like those of the peers.

use fulmen::models::Pretrained;
use fulmen::models::resnet::{Config, ResNet};
use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::prelude::*;

/// A ResNet on images `x` with classes `y`. Images of bytes become numbers from -1 to 1.
#[derive(Module)]
pub(crate) struct ResNetClassifier {
    pub(crate) resnet: ResNet,
    lr: f64,
}

impl ResNetClassifier {
    pub(crate) fn new(config: Config, lr: f64) -> ResNetClassifier {
        ResNetClassifier {
            resnet: ResNet::new(config).expect("a ResNet can be built of any config"),
            lr,
        }
    }

    pub(crate) fn loss(&self, images: &Tensor, classes: &Tensor) -> Tensor {
        cross_entropy(self.resnet.forward(images), classes, Reduction::Mean)
    }
}

impl TrainingModule for ResNetClassifier {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        let x = if x.dtype() == DType::U8 { x.to_dtype(DType::F32) / 127.5 - 1.0 } else { x };
        self.loss(&x, &batch.get("y"))
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Sgd::new(self.lr).momentum(0.9))
    }
}
