//! The blocks of Inception-v3: parallel branches, whose channels are concatenated.

use fulmen_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, Conv2d, Init, Linear, MaxPool2d, Module,
};
use fulmen_tensor::Tensor;

/// A convolution, a normalization and ReLU.
#[derive(Debug, Module)]
pub(super) struct BasicConv2d {
    conv: Conv2d,
    bn: BatchNorm2d,
}

impl BasicConv2d {
    /// A convolution that preserves height and width.
    pub(super) fn same(inputs: usize, outputs: usize, kernel: [usize; 2]) -> BasicConv2d {
        let padding = kernel.map(|size| size / 2);
        BasicConv2d::new(Conv2d::new(inputs, outputs, kernel).padding(padding), outputs)
    }

    /// A convolution without padding.
    pub(super) fn valid(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> BasicConv2d {
        BasicConv2d::new(Conv2d::new(inputs, outputs, kernel).stride(stride), outputs)
    }

    /// A 1 × 1 convolution.
    fn pointwise(inputs: usize, outputs: usize) -> BasicConv2d {
        BasicConv2d::valid(inputs, outputs, 1, 1)
    }

    /// Initialized like torchvision's.
    fn new(conv: Conv2d, outputs: usize) -> BasicConv2d {
        let conv = conv.bias(false);
        conv.weight.set_init(Init::TruncNormal { mean: 0.0, std: 0.1, a: -2.0, b: 2.0 });
        BasicConv2d { conv, bn: BatchNorm2d::new(outputs).eps(0.001) }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.bn.forward(self.conv.forward(x)).relu()
    }
}

/// The pooling over 3 × 3 places in a branch. It preserves height and width.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pool {
    Mean,
    MeanWithoutPadding,
    Max,
}

impl Pool {
    fn forward(self, x: &Tensor) -> Tensor {
        let mean = AvgPool2d::new(3).stride(1).padding(1);
        match self {
            Pool::Mean => mean.forward(x),
            Pool::MeanWithoutPadding => mean.count_include_pad(false).forward(x),
            Pool::Max => MaxPool2d::new(3).stride(1).padding(1).forward(x),
        }
    }
}

/// Halves height and width.
fn halve(x: &Tensor) -> Tensor {
    MaxPool2d::new(3).stride(2).forward(x)
}

/// For 35 × 35 places.
#[derive(Debug, Module)]
pub(super) struct MixedA {
    branch1x1: BasicConv2d,
    branch5x5_1: BasicConv2d,
    branch5x5_2: BasicConv2d,
    branch3x3dbl_1: BasicConv2d,
    branch3x3dbl_2: BasicConv2d,
    branch3x3dbl_3: BasicConv2d,
    branch_pool: BasicConv2d,
    #[module(skip)]
    pool: Pool,
}

impl MixedA {
    pub(super) fn new(inputs: usize, pool_features: usize, pool: Pool) -> MixedA {
        MixedA {
            branch1x1: BasicConv2d::pointwise(inputs, 64),
            branch5x5_1: BasicConv2d::pointwise(inputs, 48),
            branch5x5_2: BasicConv2d::same(48, 64, [5, 5]),
            branch3x3dbl_1: BasicConv2d::pointwise(inputs, 64),
            branch3x3dbl_2: BasicConv2d::same(64, 96, [3, 3]),
            branch3x3dbl_3: BasicConv2d::same(96, 96, [3, 3]),
            branch_pool: BasicConv2d::pointwise(inputs, pool_features),
            pool,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let b1 = self.branch1x1.forward(x);
        let b5 = self.branch5x5_2.forward(&self.branch5x5_1.forward(x));
        let b3 = self.branch3x3dbl_2.forward(&self.branch3x3dbl_1.forward(x));
        let b3 = self.branch3x3dbl_3.forward(&b3);
        let pooled = self.branch_pool.forward(&self.pool.forward(x));
        Tensor::concatenate(&[b1, b5, b3, pooled], 1)
    }
}

/// From 35 × 35 to 17 × 17 places.
#[derive(Debug, Module)]
pub(super) struct MixedB {
    branch3x3: BasicConv2d,
    branch3x3dbl_1: BasicConv2d,
    branch3x3dbl_2: BasicConv2d,
    branch3x3dbl_3: BasicConv2d,
}

impl MixedB {
    pub(super) fn new(inputs: usize) -> MixedB {
        MixedB {
            branch3x3: BasicConv2d::valid(inputs, 384, 3, 2),
            branch3x3dbl_1: BasicConv2d::pointwise(inputs, 64),
            branch3x3dbl_2: BasicConv2d::same(64, 96, [3, 3]),
            branch3x3dbl_3: BasicConv2d::valid(96, 96, 3, 2),
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let b3 = self.branch3x3.forward(x);
        let double = self.branch3x3dbl_2.forward(&self.branch3x3dbl_1.forward(x));
        let double = self.branch3x3dbl_3.forward(&double);
        Tensor::concatenate(&[b3, double, halve(x)], 1)
    }
}

/// For 17 × 17 places.
#[derive(Debug, Module)]
pub(super) struct MixedC {
    branch1x1: BasicConv2d,
    branch7x7_1: BasicConv2d,
    branch7x7_2: BasicConv2d,
    branch7x7_3: BasicConv2d,
    branch7x7dbl_1: BasicConv2d,
    branch7x7dbl_2: BasicConv2d,
    branch7x7dbl_3: BasicConv2d,
    branch7x7dbl_4: BasicConv2d,
    branch7x7dbl_5: BasicConv2d,
    branch_pool: BasicConv2d,
    #[module(skip)]
    pool: Pool,
}

impl MixedC {
    pub(super) fn new(inputs: usize, width: usize, pool: Pool) -> MixedC {
        MixedC {
            branch1x1: BasicConv2d::pointwise(inputs, 192),
            branch7x7_1: BasicConv2d::pointwise(inputs, width),
            branch7x7_2: BasicConv2d::same(width, width, [1, 7]),
            branch7x7_3: BasicConv2d::same(width, 192, [7, 1]),
            branch7x7dbl_1: BasicConv2d::pointwise(inputs, width),
            branch7x7dbl_2: BasicConv2d::same(width, width, [7, 1]),
            branch7x7dbl_3: BasicConv2d::same(width, width, [1, 7]),
            branch7x7dbl_4: BasicConv2d::same(width, width, [7, 1]),
            branch7x7dbl_5: BasicConv2d::same(width, 192, [1, 7]),
            branch_pool: BasicConv2d::pointwise(inputs, 192),
            pool,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let b1 = self.branch1x1.forward(x);
        let b7 = self.branch7x7_2.forward(&self.branch7x7_1.forward(x));
        let b7 = self.branch7x7_3.forward(&b7);
        let double = self.branch7x7dbl_2.forward(&self.branch7x7dbl_1.forward(x));
        let double = self.branch7x7dbl_4.forward(&self.branch7x7dbl_3.forward(&double));
        let double = self.branch7x7dbl_5.forward(&double);
        let pooled = self.branch_pool.forward(&self.pool.forward(x));
        Tensor::concatenate(&[b1, b7, double, pooled], 1)
    }
}

/// From 17 × 17 to 8 × 8 places.
#[derive(Debug, Module)]
pub(super) struct MixedD {
    branch3x3_1: BasicConv2d,
    branch3x3_2: BasicConv2d,
    branch7x7x3_1: BasicConv2d,
    branch7x7x3_2: BasicConv2d,
    branch7x7x3_3: BasicConv2d,
    branch7x7x3_4: BasicConv2d,
}

impl MixedD {
    pub(super) fn new(inputs: usize) -> MixedD {
        MixedD {
            branch3x3_1: BasicConv2d::pointwise(inputs, 192),
            branch3x3_2: BasicConv2d::valid(192, 320, 3, 2),
            branch7x7x3_1: BasicConv2d::pointwise(inputs, 192),
            branch7x7x3_2: BasicConv2d::same(192, 192, [1, 7]),
            branch7x7x3_3: BasicConv2d::same(192, 192, [7, 1]),
            branch7x7x3_4: BasicConv2d::valid(192, 192, 3, 2),
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let b3 = self.branch3x3_2.forward(&self.branch3x3_1.forward(x));
        let b7 = self.branch7x7x3_2.forward(&self.branch7x7x3_1.forward(x));
        let b7 = self.branch7x7x3_4.forward(&self.branch7x7x3_3.forward(&b7));
        Tensor::concatenate(&[b3, b7, halve(x)], 1)
    }
}

/// For 8 × 8 places.
#[derive(Debug, Module)]
pub(super) struct MixedE {
    branch1x1: BasicConv2d,
    branch3x3_1: BasicConv2d,
    branch3x3_2a: BasicConv2d,
    branch3x3_2b: BasicConv2d,
    branch3x3dbl_1: BasicConv2d,
    branch3x3dbl_2: BasicConv2d,
    branch3x3dbl_3a: BasicConv2d,
    branch3x3dbl_3b: BasicConv2d,
    branch_pool: BasicConv2d,
    #[module(skip)]
    pool: Pool,
}

impl MixedE {
    pub(super) fn new(inputs: usize, pool: Pool) -> MixedE {
        MixedE {
            branch1x1: BasicConv2d::pointwise(inputs, 320),
            branch3x3_1: BasicConv2d::pointwise(inputs, 384),
            branch3x3_2a: BasicConv2d::same(384, 384, [1, 3]),
            branch3x3_2b: BasicConv2d::same(384, 384, [3, 1]),
            branch3x3dbl_1: BasicConv2d::pointwise(inputs, 448),
            branch3x3dbl_2: BasicConv2d::same(448, 384, [3, 3]),
            branch3x3dbl_3a: BasicConv2d::same(384, 384, [1, 3]),
            branch3x3dbl_3b: BasicConv2d::same(384, 384, [3, 1]),
            branch_pool: BasicConv2d::pointwise(inputs, 192),
            pool,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let b1 = self.branch1x1.forward(x);
        let b3 = self.branch3x3_1.forward(x);
        let b3a = self.branch3x3_2a.forward(&b3);
        let b3b = self.branch3x3_2b.forward(&b3);
        let double = self.branch3x3dbl_2.forward(&self.branch3x3dbl_1.forward(x));
        let double_a = self.branch3x3dbl_3a.forward(&double);
        let double_b = self.branch3x3dbl_3b.forward(&double);
        let pooled = self.branch_pool.forward(&self.pool.forward(x));
        Tensor::concatenate(&[b1, b3a, b3b, double_a, double_b, pooled], 1)
    }
}

/// The auxiliary head, for 17 × 17 places.
#[derive(Debug, Module)]
pub(super) struct Head {
    conv0: BasicConv2d,
    conv1: BasicConv2d,
    fc: Linear,
}

impl Head {
    pub(super) fn new(inputs: usize, classes: usize) -> Head {
        let fc = Linear::new(768, classes);
        fc.weight.set_init(Init::TruncNormal { mean: 0.0, std: 0.001, a: -2.0, b: 2.0 });
        Head {
            conv0: BasicConv2d::pointwise(inputs, 128),
            conv1: BasicConv2d::valid(128, 768, 5, 1),
            fc,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.conv0.forward(&AvgPool2d::new(5).stride(3).forward(x));
        let x = AdaptiveAvgPool2d::new(1).forward(self.conv1.forward(&x));
        self.fc.forward(x.flatten(1, -1))
    }
}
