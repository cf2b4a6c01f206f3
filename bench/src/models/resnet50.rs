//! ResNet-50 for 224 × 224 pictures and 1000 classes, with the stride in the 3 × 3 convolutions.

use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Linear, MaxPool2d};
use fulmen::prelude::*;

use super::resnet::{Shortcut, conv, join};

#[derive(Module)]
struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    shortcut: Option<Shortcut>,
}

impl Bottleneck {
    fn new(inputs: usize, channels: usize, stride: usize) -> Bottleneck {
        let outputs = 4 * channels;
        Bottleneck {
            conv1: conv(inputs, channels, 1, 1),
            bn1: BatchNorm2d::new(channels),
            conv2: conv(channels, channels, 3, stride),
            bn2: BatchNorm2d::new(channels),
            conv3: conv(channels, outputs, 1, 1),
            bn3: BatchNorm2d::new(outputs),
            shortcut: Shortcut::new(inputs, outputs, stride),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y)).relu();
        let y = self.bn3.forward(&self.conv3.forward(&y));
        join(&y, x, self.shortcut.as_ref())
    }
}

#[derive(Module)]
pub(crate) struct ResNet50 {
    conv: Conv2d,
    bn: BatchNorm2d,
    blocks: Vec<Bottleneck>,
    fc: Linear,
}

impl ResNet50 {
    pub(crate) fn new() -> ResNet50 {
        let mut blocks = vec![];
        let mut inputs = 64;
        for (stage, count) in [3, 4, 6, 3].into_iter().enumerate() {
            let channels = 64 << stage;
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Bottleneck::new(inputs, channels, stride));
                inputs = 4 * channels;
            }
        }
        ResNet50 { conv: conv(3, 64, 7, 2), bn: BatchNorm2d::new(64), blocks, fc: Linear::new(inputs, 1000) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.bn.forward(&self.conv.forward(x)).relu();
        let mut x = MaxPool2d::new(3).stride(2).padding(1).forward(&x);
        for block in &self.blocks {
            x = block.forward(&x);
        }
        self.fc.forward(&AdaptiveAvgPool2d::new(1).forward(&x).flatten(1, -1))
    }
}

impl TrainingModule for ResNet50 {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("x"));
        cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Sgd::new(0.1).momentum(0.9))
    }
}
