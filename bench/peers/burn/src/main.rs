//! burn's side of the interleaved benchmark, on the CPU.

#[path = "../../serve.rs"]
mod serve;

use std::error::Error;

use burn::backend::{Autodiff, NdArray};
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion as _, Int, Tensor, TensorData};

type Cpu = Autodiff<NdArray<f32>>;

/// A model that gives logits of samples, which come as rows.
trait Classifier: AutodiffModule<Cpu> {
    fn forward(&self, x: Tensor<Cpu, 2>) -> Tensor<Cpu, 2>;
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    layers: Vec<Linear<B>>,
}

#[derive(Module, Debug)]
struct LeNet<B: Backend> {
    convs: Vec<Conv2d<B>>,
    pool: MaxPool2d,
    layers: Vec<Linear<B>>,
}

fn row<B: Backend>(sizes: &[usize], device: &B::Device) -> Vec<Linear<B>> {
    sizes.windows(2).map(|pair| LinearConfig::new(pair[0], pair[1]).init(device)).collect()
}

fn through<B: Backend>(layers: &[Linear<B>], mut x: Tensor<B, 2>) -> Tensor<B, 2> {
    for (i, layer) in layers.iter().enumerate() {
        x = layer.forward(x);
        if i + 1 < layers.len() {
            x = relu(x);
        }
    }
    x
}

impl Classifier for Mlp<Cpu> {
    fn forward(&self, x: Tensor<Cpu, 2>) -> Tensor<Cpu, 2> {
        through(&self.layers, x)
    }
}

impl Classifier for LeNet<Cpu> {
    fn forward(&self, x: Tensor<Cpu, 2>) -> Tensor<Cpu, 2> {
        let [batch, _] = x.dims();
        let mut x = x.reshape([batch, 1, 28, 28]);
        for conv in &self.convs {
            x = self.pool.forward(relu(conv.forward(x)));
        }
        through(&self.layers, x.flatten(1, 3))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let workload = serve::workload()?;
    let device = <Cpu as Backend>::Device::default();
    if workload.name == "W1" {
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9).with_dampening(0.0)));
        return train(workload, Mlp { layers: row::<Cpu>(&[784, 512, 256, 10], &device) }, sgd.init(), 1e-2);
    }
    let conv = |channels| Conv2dConfig::new(channels, [5, 5]).init::<Cpu>(&device);
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let model =
        LeNet { convs: vec![conv([1, 20]), conv([20, 50])], pool, layers: row::<Cpu>(&[800, 500, 10], &device) };
    train(workload, model, AdamConfig::new().init(), 1e-3)
}

fn train<M: Classifier>(
    workload: serve::Workload,
    model: M,
    mut optimizer: impl Optimizer<M, Cpu>,
    learning_rate: f64,
) -> Result<(), Box<dyn Error>> {
    let device = <Cpu as Backend>::Device::default();
    let size: usize = workload.shape.iter().product();
    let loss = CrossEntropyLossConfig::new().init::<Cpu>(&device);
    let parameters = model.num_params();
    // A step takes the model and gives another.
    let mut model = Some(model);
    serve::serve(workload, "0.18", parameters, |x, y| {
        let now = model.take().ok_or("there is no model")?;
        let x = Tensor::<Cpu, 2>::from_data(TensorData::new(x, [workload.batch, size]), &device);
        let y = Tensor::<Cpu, 1, Int>::from_data(TensorData::new(y, [workload.batch]), &device);
        let loss = loss.forward(now.forward(x), y);
        let gradients = GradientsParams::from_grads(loss.backward(), &now);
        model = Some(optimizer.step(learning_rate, now, gradients));
        Ok(loss.into_scalar().elem())
    })
}
