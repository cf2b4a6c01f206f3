//! The workloads, as the peers have them: model, batch, optimizer and synthetic data.

use fulmen::data::TensorDataset;
use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{Conv2d, Linear, MaxPool2d};
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
            "W1" => {
                Model::Mlp(Mlp { fc1: Linear::new(784, 512), fc2: Linear::new(512, 256), fc3: Linear::new(256, 10) })
            }
            _ => Model::LeNet(LeNet {
                conv1: Conv2d::new(1, 20, 5),
                conv2: Conv2d::new(20, 50, 5),
                pool: MaxPool2d::new(2),
                fc1: Linear::new(800, 500),
                fc2: Linear::new(500, 10),
            }),
        }
    }
}

#[derive(Module)]
pub(crate) struct Mlp {
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

#[derive(Module)]
pub(crate) struct LeNet {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

/// One of the models.
pub(crate) enum Model {
    Mlp(Mlp),
    LeNet(LeNet),
}

impl Module for Model {
    fn visit(&self, visit: &mut fulmen::nn::Visit<'_>) {
        match self {
            Model::Mlp(model) => model.visit(visit),
            Model::LeNet(model) => model.visit(visit),
        }
    }
}

impl TrainingModule for Model {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        let logits = match self {
            Model::Mlp(m) => m.fc3.forward(&m.fc2.forward(&m.fc1.forward(&x).relu()).relu()),
            Model::LeNet(m) => {
                let x = m.pool.forward(&m.conv1.forward(&x).relu());
                let x = m.pool.forward(&m.conv2.forward(&x).relu());
                m.fc2.forward(&m.fc1.forward(&x.flatten(1, -1)).relu())
            }
        };
        cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        match self {
            Model::Mlp(_) => Box::new(optim::Sgd::new(1e-2).momentum(0.9)),
            Model::LeNet(_) => Box::new(optim::Adam::new(1e-3)),
        }
    }
}
