//! The kernels of `fulmen_kernels`, values and gradients: on a TPU the programs that Mosaic compiles,
//! elsewhere the loops that compute the same.
//!
//! The same device computes the expected values by plain operations, in f64, or in f32 with the
//! precision `highest` where there is no f64. The part `operations` compares those with JAX.

use fulmen_catalogue::{Comparison, Tolerance, compare};
use fulmen_error::{Error, Result};
use fulmen_kernels::{BuiltIn, LinearCrossEntropy, LogitSums, rms_norm_residual};
use fulmen_nn::attention::{Attention, AttentionMethod};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{
    Argument, DType, Function, Literal, MatmulPrecision, Runtime, Sharding, Tensor, TensorType,
    grad,
};

use super::{DEVICE_KIND, PLUGIN, excerpt, in_parallel};
use crate::event::{Context, Event, Failure, Start};

/// A kernel with a setting.
#[derive(Clone)]
struct Case {
    name: &'static str,
    dtype: DType,
    kernel: Kernel,
    /// Whether a quick test has it.
    is_quick: bool,
}

#[derive(Clone)]
enum Kernel {
    Attention(AttentionCase),
    /// The cross-entropy of a head, with this cap of the logits.
    Loss(Option<f64>),
    /// The RMS norm of a sum, with a weight of this dtype.
    Norm(DType),
}

/// What differs between the cases of attention.
#[derive(Clone)]
struct AttentionCase {
    heads: usize,
    key_heads: usize,
    width: usize,
    causal: bool,
    has_window: bool,
    softcap: Option<f64>,
    has_segments: bool,
}

/// A head of 64 features that sees everything.
const PLAIN: AttentionCase = AttentionCase {
    heads: 1,
    key_heads: 1,
    width: 64,
    causal: false,
    has_window: false,
    softcap: None,
    has_segments: false,
};

/// All cases. Those of a quick test use each feature of the kernels once.
fn cases() -> Vec<Case> {
    let attention = |name, dtype, is_quick, case| {
        let kernel = Kernel::Attention(case);
        Case { name, dtype, kernel, is_quick }
    };
    let norm = |name, dtype, weight, is_quick| {
        let kernel = Kernel::Norm(weight);
        Case { name, dtype, kernel, is_quick }
    };
    let loss = |name, dtype, softcap, is_quick| {
        let kernel = Kernel::Loss(softcap);
        Case { name, dtype, kernel, is_quick }
    };
    let causal = AttentionCase { causal: true, ..PLAIN };
    let grouped = AttentionCase { heads: 4, key_heads: 2, ..causal.clone() };
    let packed = AttentionCase {
        has_window: true,
        softcap: Some(3.0),
        has_segments: true,
        width: 128,
        ..grouped.clone()
    };
    vec![
        attention("causal, grouped heads", DType::F32, true, grouped.clone()),
        attention(
            "causal, grouped heads, window, segments, cap",
            DType::Bf16,
            true,
            packed.clone(),
        ),
        loss("loss of a head", DType::F32, None, true),
        loss("loss of a head, cap", DType::Bf16, Some(3.0), true),
        norm("norm of a sum", DType::F32, DType::F32, true),
        norm("norm of a sum", DType::Bf16, DType::F32, true),
        attention("all keys", DType::F32, false, PLAIN),
        attention("all keys", DType::Bf16, false, PLAIN),
        attention("causal", DType::Bf16, false, causal.clone()),
        attention(
            "window",
            DType::F32,
            false,
            AttentionCase { has_window: true, ..causal.clone() },
        ),
        attention("segments", DType::F32, false, AttentionCase { has_segments: true, ..causal }),
        attention("cap", DType::F32, false, AttentionCase { softcap: Some(3.0), ..PLAIN }),
        attention("grouped heads", DType::Bf16, false, grouped),
        attention("causal, grouped heads, window, segments, cap", DType::F32, false, packed),
        loss("loss of a head", DType::Bf16, None, false),
        norm("norm of a sum, 16-bit weight", DType::Bf16, DType::Bf16, false),
    ]
}

pub(super) fn run(context: &Context) -> Result<()> {
    let one = context.first_device()?;
    let all = context.runtime()?;
    if context.platform() == Platform::Tpu {
        // Before any case, so that one that ends the process counts for these devices.
        if let Some(device) = one.devices().first() {
            context.fact(DEVICE_KIND, device.kind());
        }
        context.fact(PLUGIN, one.client().plugin().identity()?);
    }
    let is_wanted = |case: &Case| case.is_quick || context.options.full;
    let devices = all.devices().len();
    if devices == 1 {
        context.skip("kernels whose sequences several devices share: there is one");
    } else {
        // All processes of a pod launch these programs in the same order.
        let is_shared = |case: &Case| match case.kernel {
            Kernel::Norm(_) => false,
            Kernel::Attention(_) | Kernel::Loss(_) => {
                context.options.full || case.is_quick && case.dtype == DType::F32
            }
        };
        for case in cases().into_iter().filter(is_shared) {
            Trial::new(context.platform(), &all, case).check(context);
        }
    }
    let of_one = cases().into_iter().filter(is_wanted);
    in_parallel(of_one, |case| Trial::new(context.platform(), &one, case).check(context));
    Ok(())
}

/// A case on some devices.
struct Trial<'a> {
    case: Case,
    platform: Platform,
    runtime: &'a Runtime,
    /// The size of a block of attention. A sequence has two blocks and a part of one.
    block: usize,
}

impl Trial<'_> {
    fn new(platform: Platform, runtime: &Runtime, case: Case) -> Trial<'_> {
        // A TPU gets the blocks of a training, another device small ones: its loops are slow.
        let block = if platform == Platform::Tpu { 512 } else { 32 };
        Trial { case, platform, runtime, block }
    }

    fn kernel_name(&self) -> &'static str {
        match self.case.kernel {
            Kernel::Attention(_) => BuiltIn::FlashAttention.name(),
            Kernel::Loss(_) => BuiltIn::LinearCrossEntropy.name(),
            Kernel::Norm(_) => BuiltIn::RmsNormResidual.name(),
        }
    }

    fn setting(&self) -> String {
        let devices = self.runtime.devices().len();
        let over = if devices > 1 { format!(", shared by {devices}") } else { String::new() };
        format!("{}{over}", self.case.dtype)
    }

    /// Computes the case and reports what differs.
    fn check(&self, context: &Context) {
        let doing = format!("{}: {} ({})", self.kernel_name(), self.case.name, self.setting());
        let results = match context.start(&doing) {
            Start::Ended => return,
            Start::Fatal(how) => vec![self.failure(None, how, None)],
            Start::Begun(_turn) => match self.compute() {
                Ok(values) => self.compare(&values),
                Err(error) => vec![self.failure(None, error.to_string(), None)],
            },
        };
        context.end(&doing, results);
    }

    /// The kernel's results and gradients, and then the expected ones.
    fn compute(&self) -> Result<Vec<Literal>> {
        let inputs = self.inputs()?;
        let function = self.function(&inputs);
        let compiled = self.runtime.compile(&function)?;
        let arrays = inputs
            .iter()
            .zip(function.parameter_shardings())
            .map(|(input, sharding)| self.runtime.to_devices(input, sharding))
            .collect::<Result<Vec<_>>>()?;
        let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect())?;
        let values = self.runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()?;
        outputs.completion.wait()?;
        let count = 2 * self.result_names().len();
        if values.len() != count {
            let message = format!("the program has {} results, expected {count}", values.len());
            return Err(Error::runtime(self.kernel_name(), message));
        }
        Ok(values)
    }

    fn compare(&self, values: &[Literal]) -> Vec<Event> {
        let names = self.result_names();
        let (own, expected) = values.split_at(names.len());
        let mut passed = 0;
        let mut events = Vec::new();
        for ((name, own), expected) in names.iter().zip(own).zip(expected) {
            let compared = expected
                .to_dtype(own.ty().dtype)
                .map(|expected| compare(own, &expected, self.tolerance()));
            match compared {
                Ok(Comparison { difference: None, .. }) => passed += 1,
                Ok(Comparison { difference: Some(text), ulps }) => {
                    events.push(self.failure(Some(name), text, Some(ulps)));
                }
                Err(error) => events.push(self.failure(Some(name), error.to_string(), None)),
            }
        }
        events.push(Event::Passed(passed));
        events
    }

    fn failure(&self, result: Option<&str>, message: String, ulps: Option<f64>) -> Event {
        let of = result.map_or_else(String::new, |result| format!(", {result}"));
        let inputs = self.inputs().unwrap_or_default();
        let program = self.runtime.stablehlo(&self.function(&inputs)).ok();
        Event::Failed(Failure {
            name: format!("{}: {}{of}", self.kernel_name(), self.case.name),
            setting: self.setting(),
            message,
            inputs: inputs.iter().map(|input| input.ty().to_string()).collect(),
            ulps,
            program: program.map(excerpt),
        })
    }

    /// Sums are f32. In bf16 the inputs of other products are rounded, also those of a gradient in f32.
    /// On a TPU, the kernel multiplies f32 numbers in one pass of bf16.
    fn tolerance(&self) -> Tolerance {
        let both = |size: f64| Tolerance { relative: size, of_largest: size };
        let has_products = !matches!(self.case.kernel, Kernel::Norm(_));
        match (self.case.dtype, self.platform) {
            (DType::Bf16, _) => both(2e-2),
            (_, Platform::Tpu) if has_products => both(2e-2),
            (_, Platform::Tpu) => Tolerance { relative: 1e-3, of_largest: 1e-4 },
            _ => both(2e-5),
        }
    }

    /// The dtype of the expected values.
    fn exact(&self) -> DType {
        if self.platform == Platform::Tpu { DType::F32 } else { DType::F64 }
    }

    fn result_names(&self) -> &'static [&'static str] {
        match self.case.kernel {
            Kernel::Attention(_) => &["means", "gradient of q", "gradient of k", "gradient of v"],
            Kernel::Loss(_) => &[
                "log-sum-exp",
                "logit of the target",
                "sum of the logits",
                "gradient of the features",
                "gradient of the weight",
            ],
            Kernel::Norm(_) => &[
                "norm",
                "sum",
                "gradient of x",
                "gradient of the residual",
                "gradient of the weight",
            ],
        }
    }

    /// The number of classes of a loss, not a multiple of a block.
    fn classes(&self) -> usize {
        2 * self.block + 11
    }

    /// The arguments, and the factors of the results in the loss.
    fn inputs(&self) -> Result<Vec<Literal>> {
        let dtype = self.case.dtype;
        let length = 2 * self.block + self.block / 3;
        let batch = self.runtime.devices().len().max(2);
        let shapes: Vec<(DType, Vec<usize>)> = match &self.case.kernel {
            Kernel::Attention(case) => {
                let of_heads = |heads| (dtype, vec![batch, heads, length, case.width]);
                [case.heads, case.key_heads, case.key_heads, case.heads].map(of_heads).to_vec()
            }
            Kernel::Loss(_) => {
                let of_token = || (dtype, vec![batch, length]);
                let weight = (dtype, vec![self.classes(), 128]);
                let x = (dtype, vec![batch, length, 128]);
                vec![x, weight, of_token(), of_token(), of_token()]
            }
            Kernel::Norm(weight) => {
                let rows = || (dtype, vec![batch, length, 256]);
                vec![rows(), rows(), (*weight, vec![256]), rows(), rows()]
            }
        };
        let numbers = shapes.iter().enumerate().map(|(number, (dtype, shape))| {
            let count = shape.iter().product();
            let drawn = uniform(number as u64, count);
            Literal::from_slice(&drawn, &shape[..])?.to_dtype(*dtype)
        });
        let mut inputs = numbers.collect::<Result<Vec<_>>>()?;
        if matches!(&self.case.kernel, Kernel::Attention(case) if case.has_segments) {
            // Three documents, which begin elsewhere in each sequence.
            let id = |i: usize| ((i % length + 5 * (i / length)) / (length / 2)) as i32;
            let ids: Vec<i32> = (0..batch * length).map(id).collect();
            inputs.push(Literal::from_slice(&ids, [batch, length])?);
        }
        if let Kernel::Loss(_) = self.case.kernel {
            // Each seventh target is ignored.
            let target = |i: usize| {
                if i.is_multiple_of(7) { -100 } else { (i * 37 % self.classes()) as i32 }
            };
            let targets: Vec<i32> = (0..batch * length).map(target).collect();
            inputs.push(Literal::from_slice(&targets, [batch, length])?);
        }
        Ok(inputs)
    }

    fn function(&self, inputs: &[Literal]) -> Function {
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty().clone()).collect();
        let record = |x: &[Tensor]| {
            let exact = self.exact();
            let as_exact =
                |x: &Tensor| if x.dtype().is_float() { x.to_dtype(exact) } else { x.clone() };
            let wide: Vec<Tensor> = x.iter().map(as_exact).collect();
            match &self.case.kernel {
                Kernel::Attention(case) => {
                    let mut all = self.attention(case, AttentionMethod::Kernel, x);
                    all.extend(self.attention(case, AttentionMethod::Plain, &wide));
                    all
                }
                Kernel::Loss(softcap) => {
                    let how = LinearCrossEntropy::new().softcap(*softcap).block_size(self.block);
                    let mut all = of_sums(x, how.forward(&x[0], &x[1], &x[5]), exact);
                    all.extend(of_sums(&wide, plain_sums(&wide, *softcap), exact));
                    all
                }
                Kernel::Norm(_) => {
                    let mut all = of_norm(x, rms_norm_residual(&x[0], &x[1], &x[2], EPS), exact);
                    all.extend(of_norm(&wide, plain_norm(&wide), exact));
                    all
                }
            }
        };
        let mut function = Function::trace(self.kernel_name(), &types, |x| record(&x));
        if self.runtime.devices().len() > 1 {
            let axes = self.runtime.mesh().axes().iter().map(|axis| axis.0.as_str()).collect();
            let split = Sharding::over([axes]);
            let is_weight = |number| number == 1 && matches!(self.case.kernel, Kernel::Loss(_));
            for number in (0..types.len()).filter(|&number| !is_weight(number)) {
                function = function.shard_parameter(number, split.clone());
            }
        }
        // Of plain operations: a kernel has its own.
        function.matmul_precision(MatmulPrecision::Highest)
    }

    /// The means, and their gradients with respect to q, k and v.
    fn attention(
        &self,
        case: &AttentionCase,
        method: AttentionMethod,
        x: &[Tensor],
    ) -> Vec<Tensor> {
        let mut how = Attention::new().enable_gqa(true).causal(case.causal).method(method);
        how = how.block_size(self.block);
        if case.has_window {
            // Longer than a block, and no multiple of one.
            how = how.window(self.block + self.block / 4);
        }
        if let Some(cap) = case.softcap {
            how = how.softcap(cap);
        }
        if let Some(ids) = x.get(4) {
            how = how.segment_ids(ids);
        }
        let means = how.forward(&x[0], &x[1], &x[2]);
        let loss = (&means * &x[3]).to_dtype(self.exact()).sum_all();
        let mut all = vec![means];
        all.extend(grad(&loss, &[&x[0], &x[1], &x[2]]));
        all
    }
}

/// The sums over the logits of each token, by plain operations.
fn plain_sums(x: &[Tensor], softcap: Option<f64>) -> LogitSums {
    let mut logits = x[0].matmul(&x[1].t());
    if let Some(cap) = softcap {
        logits = (logits / cap).tanh() * cap;
    }
    let classes = Tensor::arange(DType::I32, x[1].size(0));
    let is_target = x[5].unsqueeze(-1).eq(&classes);
    LogitSums {
        log_sum_exp: logits.logsumexp(-1),
        of_target: is_target.select(&logits, 0.0).sum(-1),
        sum: logits.sum(-1),
    }
}

/// Sums over logits, and their gradients.
fn of_sums(x: &[Tensor], sums: LogitSums, exact: DType) -> Vec<Tensor> {
    let mut all = vec![sums.log_sum_exp, sums.of_target, sums.sum];
    let terms =
        all.iter().zip(&x[2..5]).map(|(sum, factor)| sum.to_dtype(exact) * factor.to_dtype(exact));
    // The sum of all logits is large.
    let factors = [1.0, 1.0, 1e-2];
    let terms = terms.zip(factors).map(|(term, factor)| term.sum_all() * factor);
    if let Some(loss) = terms.reduce(|loss, term| loss + term) {
        all.extend(grad(&loss, &[&x[0], &x[1]]));
    }
    all
}

/// What is added to the mean of the squares.
const EPS: f64 = 1e-5;

/// The norm of a sum, and the sum, by plain operations.
fn plain_norm(x: &[Tensor]) -> [Tensor; 2] {
    let sum = &x[0] + &x[1];
    let scale = ((&sum * &sum).mean_keepdim(-1) + EPS).rsqrt();
    [&sum * scale * &x[2], sum]
}

/// The results of a norm, and their gradients.
fn of_norm(x: &[Tensor], results: [Tensor; 2], exact: DType) -> Vec<Tensor> {
    let products = [&results[0] * &x[3], &results[1] * &x[4]];
    let [norm, sum] = products.map(|product| product.to_dtype(exact).sum_all());
    let gradients = grad(&(norm + sum), &[&x[0], &x[1], &x[2]]);
    results.into_iter().chain(gradients).collect()
}

/// Numbers between −1 and 1 that the seed determines (SplitMix64).
fn uniform(seed: u64, count: usize) -> Vec<f32> {
    let number = |i: usize| {
        let place = (seed << 32) + i as u64 + 1;
        let mut x = place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // The highest 24 bits are a whole number that an f32 has.
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(number).collect()
}
