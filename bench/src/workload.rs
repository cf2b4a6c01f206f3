//! The workloads, as the peers have them: model, batch, optimizer and synthetic data.

use fulmen::data::TensorDataset;
use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{Conv2d, Flatten, Linear, MaxPool2d, Relu, Sequential};
use fulmen::prelude::*;
use fulmen::tensor::random;

/// A workload's name and sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) batch: usize,
    pub(crate) steps_per_epoch: usize,
    image: [usize; 3],
}

/// MLP 784-512-256-10, batch 128, SGD with momentum.
const W1: Workload = Workload { name: "W1", batch: 128, steps_per_epoch: 100, image: [1, 28, 28] };
/// LeNet on 28×28×1, batch 64, Adam.
const W2: Workload = Workload { name: "W2", batch: 64, steps_per_epoch: 100, image: [1, 28, 28] };

impl Workload {
    pub(crate) fn find(name: &str) -> Result<Workload, String> {
        [W1, W2]
            .into_iter()
            .find(|w| w.name == name)
            .ok_or_else(|| format!("there is no workload {name}; there are W1, W2"))
    }

    /// Learnable data: a prototype a class, half its size, plus noise.
    pub(crate) fn data(&self) -> Result<TensorDataset, Box<dyn std::error::Error>> {
        let n = self.batch * self.steps_per_epoch;
        let pixels: usize = self.image.iter().product();
        let (data, noise) = (random::key(0), random::key(1));
        let prototypes = random::normal(&data, DType::F32, [10, pixels]);
        let label = (random::uniform(&random::fold_in(&data, 1), DType::F32, [n], 0.0, 10.0)).to_dtype(DType::I32);
        let chosen = label.one_hot(10).to_dtype(DType::F32).matmul(&prototypes);
        let x = chosen * 0.5 + random::normal(&noise, DType::F32, [n, pixels]);
        let values = Runtime::global()?.eval_many(&[&x, &label])?;
        let shape: Vec<usize> = match self.name {
            "W1" => vec![n, pixels],
            _ => [&[n], &self.image[..]].concat(),
        };
        Ok(TensorDataset::builder()
            .array("x", shape, values[0].to_vec::<f32>()?)
            .array("y", [n], values[1].to_vec::<i32>()?)
            .build()?)
    }

    pub(crate) fn model(&self) -> Model {
        match self.name {
            "W1" => Model {
                layers: Sequential::new()
                    .push(Linear::new(784, 512))
                    .push(Relu)
                    .push(Linear::new(512, 256))
                    .push(Relu)
                    .push(Linear::new(256, 10)),
                optimizer: || Box::new(optim::Sgd::new(1e-2).momentum(0.9)),
            },
            _ => Model {
                layers: Sequential::new()
                    .push(Conv2d::new(1, 20, 5))
                    .push(Relu)
                    .push(MaxPool2d::new(2))
                    .push(Conv2d::new(20, 50, 5))
                    .push(Relu)
                    .push(MaxPool2d::new(2))
                    .push(Flatten::new())
                    .push(Linear::new(800, 500))
                    .push(Relu)
                    .push(Linear::new(500, 10)),
                optimizer: || Box::new(optim::Adam::new(1e-3)),
            },
        }
    }
}

/// A row of layers with the optimizer that the workload names.
#[derive(Module)]
pub(crate) struct Model {
    layers: Sequential,
    #[module(skip)]
    optimizer: fn() -> Box<dyn Optimizer>,
}

impl TrainingModule for Model {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        cross_entropy(&self.layers.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}
