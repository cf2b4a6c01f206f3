//! The two networks and how they are trained.

use fulmen::nn::RandomStream;
use fulmen::prelude::*;
use fulmen::tensor::random;

/// Numbers that a digit is drawn from.
const NOISE: usize = 64;

/// Draws digits from noise.
#[derive(Module)]
struct Generator {
    fc1: Linear,
    bn1: BatchNorm1d,
    fc2: Linear,
    bn2: BatchNorm1d,
    out: Linear,
}

impl Generator {
    /// From noise `f32[batch, 64]` to pixels `f32[batch, 784]` between -1 and 1.
    fn forward(&self, noise: &Tensor) -> Tensor {
        let x = self.bn1.forward(self.fc1.forward(noise)).relu();
        let x = self.bn2.forward(self.fc2.forward(x)).relu();
        self.out.forward(x).tanh()
    }
}

/// Tells real digits from drawn ones.
#[derive(Module)]
struct Discriminator {
    fc1: Linear,
    fc2: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Discriminator {
    /// From pixels `f32[batch, 784]` to logits `f32[batch]`, above 0 for what looks real.
    fn forward(&self, pixels: &Tensor) -> Tensor {
        let x = activation::leaky_relu(&self.fc1.forward(pixels), 0.2);
        let x = activation::leaky_relu(&self.fc2.forward(self.dropout.forward(x)), 0.2);
        self.out.forward(self.dropout.forward(x)).squeeze(-1)
    }
}

/// Both networks, and the noise that training draws from.
#[derive(Module)]
pub(crate) struct Gan {
    generator: Generator,
    discriminator: Discriminator,
    noise: RandomStream,
}

impl Gan {
    /// Networks without values; the Trainer initializes them.
    pub(crate) fn new() -> Gan {
        Gan {
            generator: Generator {
                fc1: Linear::new(NOISE, 128),
                bn1: BatchNorm1d::new(128),
                fc2: Linear::new(128, 256),
                bn2: BatchNorm1d::new(256),
                out: Linear::new(256, 784),
            },
            discriminator: Discriminator {
                fc1: Linear::new(784, 256),
                fc2: Linear::new(256, 128),
                dropout: Dropout::new(0.3),
                out: Linear::new(128, 1),
            },
            noise: RandomStream::new(),
        }
    }

    /// So many digits as pixels between -1 and 1: `f32[count, 784]`.
    pub(crate) fn draw(&self, key: &Tensor, count: usize) -> Tensor {
        self.generator.forward(&random::normal(key, DType::F32, [count, NOISE]))
    }

    fn loss(&self, pixels: &Tensor, real: bool) -> Tensor {
        let logits = self.discriminator.forward(pixels);
        let target = if real { logits.ones_like() } else { logits.zeros_like() };
        loss::binary_cross_entropy_with_logits(logits, target, Reduction::Mean)
    }
}

impl TrainingModule for Gan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let real = batch.get("image").flatten(1, -1).to_dtype(DType::F32) / 127.5 - 1.0;
        let fake = self.draw(&self.noise.next_key(), batch.size());
        let loss = cx.minimize("discriminator", |_| self.loss(&real, true) + self.loss(&fake.detach(), false));
        // What the generator's step alone needs stands in its closure; the steps that skip it do not compute that.
        cx.minimize("generator", |_| self.loss(&fake, true));
        loss
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let adam = || optim::Adam::new(2e-4).betas(0.5, 0.999);
        let optimizers = Optimizers::new().add("discriminator", ["discriminator.*"], adam()).add(
            "generator",
            ["generator.*"],
            adam(),
        );
        Box::new(optimizers)
    }
}
