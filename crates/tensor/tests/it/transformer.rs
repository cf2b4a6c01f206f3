//! A transformer block with its derivatives: attention with a causal mask, layer norm, and an MLP
//! with GELU. It is compared in f64 with differences, under autocast with f32, and compiled for a
//! TPU.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_pjrt::CompileOptions;
use fulmen_tensor::{
    DType, Function, Literal, Runtime, Tensor, TensorType, autocast, grad, random,
};

struct Sizes {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
}

const SMALL: Sizes = Sizes { batch: 2, time: 5, width: 8, heads: 2, vocabulary: 11 };

impl Sizes {
    /// The tokens and their classes, then the weights.
    fn types(&self, dtype: DType) -> Vec<TensorType> {
        let d = self.width;
        let tokens = TensorType::new(DType::I32, [self.batch, self.time]);
        let weights: [&[usize]; 13] = [
            &[self.vocabulary, d],
            &[d],
            &[d],
            &[d, 3 * d],
            &[3 * d],
            &[d, d],
            &[d],
            &[d],
            &[d],
            &[d, 4 * d],
            &[4 * d],
            &[4 * d, d],
            &[d],
        ];
        let weights = weights.into_iter().map(|shape| TensorType::new(dtype, shape));
        [tokens.clone(), tokens].into_iter().chain(weights).collect()
    }

    /// The loss of one block between an embedding and its transpose as the output layer.
    fn loss(&self, x: &[Tensor]) -> Tensor {
        let [
            tokens,
            target,
            table,
            scale_1,
            shift_1,
            qkv,
            qkv_bias,
            out,
            out_bias,
            scale_2,
            shift_2,
            up,
            up_bias,
            down,
            down_bias,
        ] = x
        else {
            panic!("fifteen parameters")
        };
        let b = self.batch;
        let t = self.time;
        let d = self.width;
        let h = self.heads;
        let linear = |x: &Tensor, w: &Tensor, bias: &Tensor| {
            let y = x.matmul(w);
            &y + bias.to_dtype(y.dtype())
        };
        let norm = |x: &Tensor, scale: &Tensor, shift: &Tensor| {
            (x - x.mean_keepdim(-1)) * (x.var_keepdim(-1) + 1e-5).rsqrt() * scale + shift
        };
        let x = table.take(0, tokens);
        let heads = linear(&norm(&x, scale_1, shift_1), qkv, qkv_bias).reshape([b, t, 3, h, d / h]);
        let [q, k, v] = [0, 1, 2].map(|i| heads.narrow(2, i, 1).squeeze(2).permute([0, 2, 1, 3]));
        let scores = q.matmul(&k.t()) * (h as f64 / d as f64).sqrt();
        let past = Tensor::ones(DType::Bool, [t, t]).tril(0);
        let attention =
            past.select(&scores, &Tensor::full(scores.dtype(), [], f64::NEG_INFINITY)).softmax(-1);
        let mixed = attention.matmul(&v).permute([0, 2, 1, 3]).reshape([b, t, d]);
        let x = &x + linear(&mixed, out, out_bias);
        let wide = linear(&norm(&x, scale_2, shift_2), up, up_bias);
        let gelu = &wide * 0.5 * ((&wide * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0);
        let x = &x + linear(&gelu, down, down_bias);
        let logits = x.matmul(&table.t());
        let chosen = target.one_hot(self.vocabulary);
        -(logits.log_softmax(-1) * chosen).sum_all() / (b * t) as f64
    }

    /// The loss and the gradient of each weight.
    fn step(&self, dtype: DType, cast: Option<DType>) -> Function {
        Function::trace("block", &self.types(dtype), |x| {
            let loss = autocast(cast, || self.loss(&x));
            let mut results = grad(&loss, &x[2..]);
            results.insert(0, loss);
            results
        })
    }

    /// The values of the parameters, drawn and computed on the host, so that every dtype gets the
    /// same.
    fn values(&self) -> Vec<Tensor> {
        let draw = |i: usize, ty: &TensorType| {
            let key = random::fold_in(&random::key(3), i as u32);
            match ty.dtype {
                DType::I32 => {
                    random::uniform(&key, DType::F32, &ty.shape, 0.0, self.vocabulary as f64)
                        .to_dtype(DType::I32)
                }
                dtype => (random::normal(&key, DType::F32, &ty.shape) * 0.4).to_dtype(dtype),
            }
        };
        self.types(DType::F32).iter().enumerate().map(|(i, ty)| draw(i, ty)).collect()
    }
}

/// The values of a function's results at these parameters.
fn call(f: impl Fn(&[Tensor]) -> Vec<Tensor>, parameters: &[Tensor]) -> Vec<Vec<f64>> {
    let values: Vec<Literal> = Runtime::global().unwrap().eval_many(parameters).unwrap();
    let leaves: Vec<Tensor> = values.iter().map(Literal::to_tensor).collect();
    let results = f(&leaves);
    let literals = Runtime::global().unwrap().eval_many(&results).unwrap();
    literals.iter().map(Literal::to_f64).collect()
}

fn loss_and_gradients(sizes: &Sizes, x: &[Tensor], cast: Option<DType>) -> Vec<Tensor> {
    let loss = autocast(cast, || sizes.loss(x));
    let mut results = grad(&loss, &x[2..]);
    results.insert(0, loss);
    results
}

#[test]
fn the_gradient_in_f64_is_that_of_differences() {
    let values: Vec<Tensor> = SMALL
        .values()
        .into_iter()
        .map(|t| if t.dtype().is_float() { t.to_dtype(DType::F64) } else { t })
        .collect();
    // One direction through all weights: an error of any gradient shows along it.
    let along = |x: &[Tensor], h: f64| {
        let mut moved = x.to_vec();
        for t in &mut moved[2..] {
            let direction = (Tensor::arange(DType::F64, t.shape().num_elements()) * 0.7 + 0.3)
                .sin()
                .reshape(t.shape());
            *t = &*t + direction * h;
        }
        moved
    };
    let h = 1e-5;
    let slopes = call(
        |x| {
            let mut slope = Tensor::scalar(0.0f64);
            for ((gradient, moved), x) in loss_and_gradients(&SMALL, x, None)[1..]
                .iter()
                .zip(&along(x, 1.0)[2..])
                .zip(&x[2..])
            {
                slope = slope + (gradient * (moved - x)).sum_all();
            }
            vec![slope, (SMALL.loss(&along(x, h)) - SMALL.loss(&along(x, -h))) / (2.0 * h)]
        },
        &values,
    );
    let gradient = slopes[0][0];
    let difference = slopes[1][0];
    assert!(
        difference.abs() > 0.1 && (gradient - difference).abs() < 1e-7,
        "{gradient}, by differences {difference}"
    );
}

#[test]
fn under_autocast_loss_and_gradients_are_f32_and_close_to_those_in_f32() {
    let values = SMALL.values();
    let step = SMALL.step(DType::F32, Some(DType::Bf16));
    assert!(step.results().iter().all(|t| t.check().unwrap().dtype() == DType::F32));
    let exact = call(|x| loss_and_gradients(&SMALL, x, None), &values);
    let mixed = call(|x| loss_and_gradients(&SMALL, x, Some(DType::Bf16)), &values);
    for (i, (exact, mixed)) in exact.iter().zip(&mixed).enumerate() {
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        let size = norm(&mut exact.iter().copied());
        let apart = norm(&mut exact.iter().zip(mixed).map(|(a, b)| a - b));
        assert!(size > 1e-3 && apart > 0.0 && apart < 0.03 * size, "result {i}: {apart} of {size}");
    }
}

#[test]
fn a_block_under_autocast_compiles_for_a_tpu_and_multiplies_in_bf16() {
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    let sizes = Sizes { batch: 4, time: 128, width: 256, heads: 2, vocabulary: 512 };
    let step = sizes.step(DType::F32, Some(DType::Bf16));
    let text = step.stablehlo().unwrap();
    let products: Vec<&str> =
        text.lines().filter(|l| l.contains("stablehlo.dot_general")).collect();
    // Seven forward products (qkv, scores, mix, out, up, down, logits), each with two derivatives.
    assert_eq!(products.len(), 21);
    assert!(
        products.iter().all(|p| p.split(" : ").last().unwrap().matches("bf16>").count() == 3),
        "{products:?}"
    );

    let topology = plugin.topology("v5e:1x1").unwrap();
    let program = plugin.compile(&topology, &text, &CompileOptions::new()).unwrap();
    let tokens = sizes.batch * sizes.time;
    let d = sizes.width;
    let forward = 2 * tokens * d * (12 * d + sizes.vocabulary + 2 * sizes.time);
    let flops = program.cost_analysis().unwrap().flops().unwrap();
    let products = 3.0 * forward as f64;
    assert!((products..1.2 * products).contains(&flops), "{flops} for products of {products}");
}
