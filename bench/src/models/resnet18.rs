//! ResNet-18 for pictures of any size from 32 × 32 on, and its usual form for pictures as small as that.

use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Linear, MaxPool2d};
use fulmen::prelude::*;

use super::resnet::{Shortcut, conv, join};

#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    shortcut: Option<Shortcut>,
}

impl BasicBlock {
    fn new(inputs: usize, outputs: usize, stride: usize) -> BasicBlock {
        BasicBlock {
            conv1: conv(inputs, outputs, 3, stride),
            bn1: BatchNorm2d::new(outputs),
            conv2: conv(outputs, outputs, 3, 1),
            bn2: BatchNorm2d::new(outputs),
            shortcut: Shortcut::new(inputs, outputs, stride),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y));
        join(&y, x, self.shortcut.as_ref())
    }
}

#[derive(Module)]
pub(crate) struct ResNet18 {
    conv: Conv2d,
    bn: BatchNorm2d,
    pool: Option<MaxPool2d>,
    blocks: Vec<BasicBlock>,
    fc: Linear,
}

impl ResNet18 {
    /// Its first layers make pictures a quarter as wide.
    pub(crate) fn new(classes: usize) -> ResNet18 {
        ResNet18::build(conv(3, 64, 7, 2), Some(MaxPool2d::new(3).stride(2).padding(1)), classes)
    }

    /// For pictures of 32 × 32, which its first layer leaves as large.
    pub(crate) fn small(classes: usize) -> ResNet18 {
        ResNet18::build(conv(3, 64, 3, 1), None, classes)
    }

    fn build(conv: Conv2d, pool: Option<MaxPool2d>, classes: usize) -> ResNet18 {
        let mut blocks = vec![];
        let mut inputs = 64;
        for stage in 0..4 {
            let outputs = 64 << stage;
            for block in 0..2 {
                blocks.push(BasicBlock::new(inputs, outputs, if stage > 0 && block == 0 { 2 } else { 1 }));
                inputs = outputs;
            }
        }
        ResNet18 { conv, bn: BatchNorm2d::new(64), pool, blocks, fc: Linear::new(inputs, classes) }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let mut x = self.bn.forward(&self.conv.forward(x)).relu();
        if let Some(pool) = &self.pool {
            x = pool.forward(&x);
        }
        for block in &self.blocks {
            x = block.forward(&x);
        }
        self.fc.forward(&AdaptiveAvgPool2d::new(1).forward(&x).flatten(1, -1))
    }
}

impl TrainingModule for ResNet18 {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        // Bytes come over the link, and become numbers from -1 to 1 on the device.
        let pictures = batch.get("image").to_dtype(DType::F32) * (2.0 / 255.0) - 1.0;
        cross_entropy(&self.forward(&pictures), &batch.get("label"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Sgd::new(0.01).momentum(0.9))
    }
}
