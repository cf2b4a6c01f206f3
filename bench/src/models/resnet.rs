//! What ResNets of any depth are made of.

use fulmen::nn::{BatchNorm2d, Conv2d};
use fulmen::prelude::*;

/// A convolution that keeps height and width, but for its stride.
pub(super) fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Conv2d {
    Conv2d::new(inputs, outputs, kernel).stride(stride).padding(kernel / 2).bias(false)
}

/// The way past a block that changes the shape.
#[derive(Module)]
pub(super) struct Shortcut {
    conv: Conv2d,
    bn: BatchNorm2d,
}

impl Shortcut {
    /// None where the block keeps the shape.
    pub(super) fn new(inputs: usize, outputs: usize, stride: usize) -> Option<Shortcut> {
        (stride != 1 || inputs != outputs)
            .then(|| Shortcut { conv: conv(inputs, outputs, 1, stride), bn: BatchNorm2d::new(outputs) })
    }
}

/// What a block made of `x`, and `x` itself.
pub(super) fn join(y: &Tensor, x: &Tensor, shortcut: Option<&Shortcut>) -> Tensor {
    match shortcut {
        Some(shortcut) => (y + shortcut.bn.forward(&shortcut.conv.forward(x))).relu(),
        None => (y + x).relu(),
    }
}
