//! The burn peer of the interleaved benchmark, on its Flex backend.

#[path = "../../serve.rs"]
mod serve;

use std::error::Error;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Convolutions, each with ReLU and pooling, followed by dense layers.
#[derive(Module, Debug)]
struct Network {
    convs: Vec<Conv2d>,
    pool: MaxPool2d,
    layers: Vec<Linear>,
}

impl Network {
    fn new(convs: &[[usize; 2]], layers: &[usize], device: &Device) -> Network {
        Network {
            convs: convs
                .iter()
                .map(|&channels| Conv2dConfig::new(channels, [5, 5]).init(device))
                .collect(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            layers: layers
                .windows(2)
                .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
                .collect(),
        }
    }

    /// The logits of samples, which are rows.
    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        if !self.convs.is_empty() {
            let [batch, _] = x.dims();
            let images = x.reshape([batch, 1, 28, 28]);
            let pool = |x, conv: &Conv2d| self.pool.forward(relu(conv.forward(x)));
            x = self.convs.iter().fold(images, pool).flatten(1, 3);
        }
        let (last, others) = self.layers.split_last().expect("a network has layers");
        last.forward(others.iter().fold(x, |x, layer| relu(layer.forward(x))))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let workload = serve::workload()?;
    let device = Device::flex().autodiff();
    let (model, mut optimizer, learning_rate) = if workload.name == "W1" {
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        let sgd = SgdConfig::new().with_momentum(Some(momentum));
        (Network::new(&[], &[784, 512, 256, 10], &device), sgd.init(), 1e-2)
    } else {
        let model = Network::new(&[[1, 20], [20, 50]], &[800, 500, 10], &device);
        (model, AdamConfig::new().init(), 1e-3)
    };
    let size: usize = workload.shape.iter().product();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let version = serve::version(include_str!("../Cargo.lock"), "burn");
    let parameters = model.num_params();
    // A step takes the model and returns a new one, so that it can reuse the old one's memory.
    let mut model = Some(model);
    serve::serve(workload, version, parameters, |x, y| {
        let now = model.take().ok_or("there is no model")?;
        let x = Tensor::<2>::from_data(TensorData::new(x, [workload.batch, size]), &device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(y, [workload.batch]), &device);
        let loss = loss.forward(now.forward(x), y);
        let gradients = GradientsParams::from_grads(loss.backward(), &now);
        model = Some(optimizer.step(learning_rate, now, gradients));
        Ok(loss.into_scalar())
    })
}
