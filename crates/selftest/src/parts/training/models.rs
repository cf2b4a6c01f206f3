//! The three models and their data, which are the same on every machine.

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_error::Result;
use fulmen_nn::attention::Attention;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, Sgd};
use fulmen_nn::{BatchNorm2d, Conv2d, Embedding, LayerNorm, Linear, Module, MultiheadAttention};
use fulmen_tensor::Tensor;
use fulmen_trainer::{Batch, Plan, StepContext, TrainingModule};

use super::STEPS_PER_EPOCH;

const BATCH: usize = 32;
const SAMPLES: usize = BATCH * STEPS_PER_EPOCH;
const FEATURES: usize = 16;
const CLASSES: usize = 4;
const SIDE: usize = 12;
const VOCABULARY: usize = 32;
const LENGTH: usize = 16;
const WIDTH: usize = 32;

/// A number in [-2, 2) without a pattern.
fn number(i: usize) -> f32 {
    ((i as f32 * 0.754_877_7).fract() - 0.5) * 4.0
}

fn loader(data: TensorDataset) -> Result<DataLoader> {
    DataLoader::builder(data).batch_size(BATCH).drop_last(true).build()
}

/// The largest of the first numbers of each sample is its class.
fn classes(x: &[f32], sample: usize) -> Vec<i32> {
    let largest = |row: &[f32]| {
        let better = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (1..CLASSES).fold(0, better) as i32
    };
    x.chunks(sample).map(largest).collect()
}

/// Vectors with classes.
pub(super) fn vectors() -> Result<DataLoader> {
    let x: Vec<f32> = (0..SAMPLES * FEATURES).map(number).collect();
    let y = classes(&x, FEATURES);
    let data = TensorDataset::builder().array("x", [SAMPLES, FEATURES], x);
    loader(data.array("y", [SAMPLES], y).build()?)
}

/// Images with three channels, with classes.
pub(super) fn images() -> Result<DataLoader> {
    let size = 3 * SIDE * SIDE;
    let noise = (0..SAMPLES * size).map(|i| number(i) * 0.25);
    // The class is the brightness of a stripe.
    let x: Vec<f32> = noise
        .enumerate()
        .map(|(i, noise)| {
            let class = i / size % CLASSES;
            let column = i % SIDE;
            noise + if column / 3 == class { 1.0 } else { 0.0 }
        })
        .collect();
    let y: Vec<i32> = (0..SAMPLES).map(|i| (i % CLASSES) as i32).collect();
    let data = TensorDataset::builder().array("x", [SAMPLES, 3, SIDE, SIDE], x);
    loader(data.array("y", [SAMPLES], y).build()?)
}

/// Sequences in which each token follows from the one before.
pub(super) fn tokens() -> Result<DataLoader> {
    let mut ids = Vec::new();
    for sample in 0..SAMPLES {
        let mut token = (sample * 7) % VOCABULARY;
        for _ in 0..=LENGTH {
            ids.push(token as i32);
            token = (token * 5 + 3 + sample % 2) % VOCABULARY;
        }
    }
    let data = TensorDataset::builder().array("ids", [SAMPLES, LENGTH + 1], ids);
    loader(data.build()?)
}

/// Two hidden layers.
#[derive(Module)]
pub(super) struct Perceptron {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Perceptron {
    pub(super) fn new() -> Perceptron {
        Perceptron {
            first: Linear::new(FEATURES, 64),
            second: Linear::new(64, 64),
            last: Linear::new(64, CLASSES),
        }
    }
}

impl TrainingModule for Perceptron {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.first.forward(batch.get("x")).tanh();
        let logits = self.last.forward(self.second.forward(x).relu());
        cross_entropy(&logits, batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(1e-3))
    }
}

/// Two convolutions, each with batch norm.
#[derive(Module)]
pub(super) struct Convolutions {
    first: Conv2d,
    first_norm: BatchNorm2d,
    second: Conv2d,
    second_norm: BatchNorm2d,
    last: Linear,
}

impl Convolutions {
    pub(super) fn new() -> Convolutions {
        Convolutions {
            first: Conv2d::new(3, 8, 3).padding(1).bias(false),
            first_norm: BatchNorm2d::new(8),
            second: Conv2d::new(8, 16, 3).stride(2).bias(false),
            second_norm: BatchNorm2d::new(16),
            last: Linear::new(16 * 25, CLASSES),
        }
    }
}

impl TrainingModule for Convolutions {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.first_norm.forward(self.first.forward(batch.get("x"))).relu();
        let x = self.second_norm.forward(self.second.forward(x)).relu();
        let logits = self.last.forward(x.flatten(1, -1));
        cross_entropy(&logits, batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.002).momentum(0.9))
    }
}

/// A decoder with one layer.
#[derive(Module)]
pub(super) struct Decoder {
    tokens: Embedding,
    positions: Embedding,
    attention_norm: LayerNorm,
    attention: MultiheadAttention,
    forward_norm: LayerNorm,
    expand: Linear,
    contract: Linear,
    last: Linear,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder {
            tokens: Embedding::new(VOCABULARY, WIDTH),
            positions: Embedding::new(LENGTH, WIDTH),
            attention_norm: LayerNorm::new([WIDTH]),
            attention: MultiheadAttention::new(WIDTH, 4),
            forward_norm: LayerNorm::new([WIDTH]),
            expand: Linear::new(WIDTH, 4 * WIDTH),
            contract: Linear::new(4 * WIDTH, WIDTH),
            last: Linear::new(WIDTH, VOCABULARY),
        }
    }
}

impl TrainingModule for Decoder {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let ids = batch.get("ids");
        let places = Tensor::arange(fulmen_tensor::DType::I32, LENGTH);
        let x = self.tokens.forward(ids.narrow(1, 0, LENGTH)) + self.positions.forward(places);
        let normed = self.attention_norm.forward(&x);
        let causal = Attention::new().causal(true);
        let x = x + self.attention.forward(&normed, &normed, &normed, &causal);
        let hidden = self.expand.forward(self.forward_norm.forward(&x)).relu();
        let logits = self.last.forward(x + self.contract.forward(hidden));
        let logits = logits.reshape([BATCH * LENGTH, VOCABULARY]);
        let targets = ids.narrow(1, 1, LENGTH).reshape([BATCH * LENGTH]);
        cross_entropy(&logits, targets, Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(1e-3))
    }
}
