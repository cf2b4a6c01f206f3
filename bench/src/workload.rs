//! The workloads that the peers share: model, batch, optimizer and synthetic data.

use std::error::Error;

use fulmen::data::TensorDataset;
use fulmen::models::gpt2;
use fulmen::models::resnet::Config;
use fulmen::nn::attention::AttentionMethod;
use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{Conv2d, Flatten, Linear, MaxPool2d, Relu, Sequential};
use fulmen::prelude::*;

use crate::hardware::Hardware;
use crate::models::{
    Dcgan, Gpt, LanguageModel, PackedDecoder, ResNetClassifier, gpt2_without_dropout,
};
use crate::packed::PackedDocuments;
use crate::synthetic::Random;

/// A workload's name and sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) batch: usize,
    pub(crate) steps_per_epoch: usize,
    /// The shape of one sample.
    shape: &'static [usize],
}

const WORKLOADS: [Workload; 9] = [
    // MLP 784-512-256-10, SGD with momentum.
    Workload { name: "W1", batch: 128, steps_per_epoch: 100, shape: &[784] },
    // LeNet, Adam.
    Workload { name: "W2", batch: 64, steps_per_epoch: 100, shape: &[1, 28, 28] },
    // ResNet-18, SGD with momentum.
    Workload { name: "W3", batch: 32, steps_per_epoch: 5, shape: &[3, 32, 32] },
    // GPT of 4 layers, AdamW.
    Workload { name: "W4", batch: 8, steps_per_epoch: 10, shape: &[Gpt::LENGTH] },
    // DCGAN, an Adam for each network.
    Workload { name: "W5", batch: 32, steps_per_epoch: 5, shape: &[3, 32, 32] },
    // Decoder of 4 layers on packed documents, AdamW. Attention in blocks.
    Workload { name: "W6", batch: 2, steps_per_epoch: 5, shape: &[PackedDecoder::LENGTH] },
    // The same with plain attention.
    Workload { name: "W6-plain", batch: 2, steps_per_epoch: 5, shape: &[PackedDecoder::LENGTH] },
    // ResNet-50 on images of bytes, bf16, SGD with momentum.
    Workload { name: "resnet50", batch: 256, steps_per_epoch: 20, shape: &[3, 224, 224] },
    // GPT-2 with 124 million parameters, bf16, AdamW.
    Workload { name: "gpt2", batch: 16, steps_per_epoch: 20, shape: &[1024] },
];

/// What to do with the workload's model, whose type depends on the workload.
pub(crate) trait ModelVisitor {
    type Output;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output;
}

impl Workload {
    pub(crate) fn find(name: &str) -> Result<Workload, String> {
        WORKLOADS.into_iter().find(|w| w.name == name).ok_or_else(|| {
            let names = WORKLOADS.map(|w| w.name).join(", ");
            format!("there is no workload {name}; there are {names}")
        })
    }

    /// Whether all sides start with the same weights and take the same batches in the same order, so
    /// that their losses agree.
    pub(crate) fn has_same_start(&self) -> bool {
        matches!(self.name, "W6" | "W6-plain")
    }

    /// The workload's data in batches, which are shuffled unless all sides take the same ones.
    pub(crate) fn loader(&self, num_workers: usize) -> Result<DataLoader, Box<dyn Error>> {
        Ok(DataLoader::builder(self.data()?)
            .batch_size(self.batch)
            .shuffle(!self.has_same_start())
            .num_workers(num_workers)
            .drop_last(true)
            .build()?)
    }

    /// Learnable data: samples of classes or, for the GPT, words that count upwards. It is
    /// generated on the host, so that it does not add to the memory of the training.
    fn data(&self) -> Result<TensorDataset, Box<dyn Error>> {
        let n = self.batch * self.steps_per_epoch;
        let size = self.shape.iter().product::<usize>();
        let shape = [&[n], self.shape].concat();
        let mut random = Random(1);
        if self.has_same_start() {
            return self.documents().dataset();
        }
        if self.name == "resnet50" {
            let (x, y) = random.byte_images(n, size);
            return Ok(TensorDataset::builder().array("x", shape, x).array("y", [n], y).build()?);
        }
        if let "W4" | "gpt2" = self.name {
            let vocabulary =
                if self.name == "W4" { Gpt::WORDS } else { gpt2::Config::default().vocab_size };
            let rows: Vec<[usize; 2]> =
                (0..n).map(|_| [random.below(vocabulary), 1 + random.below(7)]).collect();
            let words = |from: usize| -> Vec<i32> {
                let word = |[start, stride]: [usize; 2], index: usize| {
                    ((start + stride * index) % vocabulary) as i32
                };
                rows.iter()
                    .flat_map(|&row| (from..from + size).map(move |index| word(row, index)))
                    .collect()
            };
            let x = words(0);
            let y = words(1);
            return Ok(TensorDataset::builder()
                .array("x", shape.clone(), x)
                .array("y", shape, y)
                .build()?);
        }
        let (x, y) = random.samples(n, size);
        Ok(TensorDataset::builder().array("x", shape, x).array("y", [n], y).build()?)
    }

    /// The data of a workload with packed documents.
    pub(crate) fn documents(&self) -> PackedDocuments {
        let samples = self.batch * self.steps_per_epoch;
        PackedDocuments::new(samples, PackedDecoder::LENGTH, PackedDecoder::WORDS)
    }

    /// A trainer on these devices, with the workload's precision.
    pub(crate) fn trainer(&self, hardware: Hardware) -> Result<TrainerBuilder, Box<dyn Error>> {
        let is_half = matches!(self.name, "resnet50" | "gpt2");
        let precision = if is_half { Precision::Bf16Mixed } else { Precision::F32 };
        Ok(hardware.trainer()?.precision(precision))
    }

    pub(crate) fn with_model<V: ModelVisitor>(&self, visitor: V) -> V::Output {
        match self.name {
            "W1" => visitor.visit(&Layers {
                layers: Sequential::new()
                    .add(Linear::new(784, 512))
                    .add(Relu::new())
                    .add(Linear::new(512, 256))
                    .add(Relu::new())
                    .add(Linear::new(256, 10)),
                optimizer: || Box::new(optim::Sgd::new(1e-2).momentum(0.9)),
            }),
            "W2" => visitor.visit(&Layers {
                layers: Sequential::new()
                    .add(Conv2d::new(1, 20, 5))
                    .add(Relu::new())
                    .add(MaxPool2d::new(2))
                    .add(Conv2d::new(20, 50, 5))
                    .add(Relu::new())
                    .add(MaxPool2d::new(2))
                    .add(Flatten::new())
                    .add(Linear::new(800, 500))
                    .add(Relu::new())
                    .add(Linear::new(500, 10)),
                optimizer: || Box::new(optim::Adam::new(1e-3)),
            }),
            "W3" => visitor.visit(&ResNetClassifier::new(
                Config { num_classes: 10, small_images: true, ..Config::resnet18() },
                0.01,
            )),
            "W4" => visitor.visit(&Gpt::new(DType::F32)),
            "W6" => visitor.visit(&PackedDecoder::new(AttentionMethod::Blocks)),
            "W6-plain" => visitor.visit(&PackedDecoder::new(AttentionMethod::Plain)),
            "resnet50" => visitor.visit(&ResNetClassifier::new(Config::resnet50(), 0.1)),
            "gpt2" => {
                visitor.visit(&LanguageModel::gpt2(gpt2_without_dropout(gpt2::Config::default())))
            }
            _ => visitor.visit(&Dcgan::new()),
        }
    }
}

/// Sequential layers with the workload's optimizer.
#[derive(Module)]
struct Layers {
    layers: Sequential,
    #[module(skip)]
    optimizer: fn() -> Box<dyn Optimizer>,
}

impl TrainingModule for Layers {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        cross_entropy(&self.layers.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}
