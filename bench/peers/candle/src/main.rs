//! The candle peer of the interleaved benchmark, on the CPU.

#[path = "../../serve.rs"]
mod serve;

use std::error::Error;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{
    AdamW, Conv2d, Conv2dConfig, Linear, Module as _, Optimizer as _, ParamsAdamW, VarBuilder, VarMap, conv2d, linear,
    loss,
};

/// The layers of a workload.
enum Layers {
    Mlp(Vec<Linear>),
    LeNet(Vec<Conv2d>, Vec<Linear>),
}

impl Layers {
    fn new(workload: &str, vars: &VarBuilder) -> candle_core::Result<Layers> {
        let row = |sizes: &[usize]| -> candle_core::Result<Vec<Linear>> {
            sizes.windows(2).enumerate().map(|(i, pair)| linear(pair[0], pair[1], vars.pp(format!("fc{i}")))).collect()
        };
        if workload == "W1" {
            return Ok(Layers::Mlp(row(&[784, 512, 256, 10])?));
        }
        let conv = |inputs, outputs, name| conv2d(inputs, outputs, 5, Conv2dConfig::default(), vars.pp(name));
        Ok(Layers::LeNet(vec![conv(1, 20, "conv0")?, conv(20, 50, "conv1")?], row(&[800, 500, 10])?))
    }

    fn forward(&self, x: Tensor) -> candle_core::Result<Tensor> {
        let (mut x, linears) = match self {
            Layers::Mlp(linears) => (x, linears),
            Layers::LeNet(convs, linears) => {
                let mut x = x;
                for conv in convs {
                    x = conv.forward(&x)?.relu()?.max_pool2d(2)?;
                }
                (x.flatten_from(1)?, linears)
            }
        };
        for (i, layer) in linears.iter().enumerate() {
            x = layer.forward(&x)?;
            if i + 1 < linears.len() {
                x = x.relu()?;
            }
        }
        Ok(x)
    }
}

/// candle's SGD has no momentum.
struct Momentum {
    vars: Vec<Var>,
    velocities: Vec<Option<Tensor>>,
}

impl Momentum {
    fn step(&mut self, loss: &Tensor) -> candle_core::Result<()> {
        let gradients = loss.backward()?;
        for (var, velocity) in self.vars.iter().zip(&mut self.velocities) {
            let Some(gradient) = gradients.get(var) else { continue };
            let new = match velocity.take() {
                Some(velocity) => ((velocity * 0.9)? + gradient)?,
                None => gradient.clone(),
            };
            // Detached from its graph.
            let new = new.detach();
            var.set(&(var.as_tensor() - (&new * 1e-2)?)?)?;
            *velocity = Some(new);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let workload = serve::workload()?;
    let device = Device::Cpu;
    let vars = VarMap::new();
    let layers = Layers::new(workload.name, &VarBuilder::from_varmap(&vars, DType::F32, &device))?;
    let all = vars.all_vars();
    let parameters = all.iter().map(|var| var.elem_count()).sum();
    let mut momentum = Momentum { velocities: all.iter().map(|_| None).collect(), vars: all.clone() };
    let mut adam = AdamW::new(all, ParamsAdamW { weight_decay: 0.0, ..ParamsAdamW::default() })?;
    let version = serve::version(include_str!("../Cargo.lock"), "candle-core");
    serve::serve(workload, version, parameters, |x, y| {
        let shape = [&[workload.batch], workload.shape].concat();
        let classes: Vec<u32> = y.into_iter().map(|class| class as u32).collect();
        let x = Tensor::from_vec(x, shape, &device)?;
        let y = Tensor::from_vec(classes, workload.batch, &device)?;
        let loss = loss::cross_entropy(&layers.forward(x)?, &y)?;
        match workload.name {
            "W1" => momentum.step(&loss)?,
            _ => adam.backward_step(&loss)?,
        }
        Ok(loss.to_scalar::<f32>()?)
    })
}
