//! [`LinearCrossEntropy`]: the logits of a linear layer, of which only sums leave vector memory,
//! forward and backward.
//!
//! The forward kernel visits all blocks of classes for a block of tokens, and keeps the largest logit
//! and the sum of exponentials so far (Milakov and Gimelshein 2018, "Online normalizer calculation
//! for softmax"). The backward kernels compute the logits again (Wijmans et al. 2024, "Cut Your
//! Losses in Large-Vocabulary Language Models"): one visits the blocks of classes for a block of
//! tokens, the other the blocks of tokens for a block of classes. Logits are transposed, so that the
//! numbers of the tokens are rows.

mod backward;
mod blocks;
mod forward;
#[cfg(test)]
mod planted;

use fulmen_error::Result;
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, TensorType, custom_gradient};

use crate::{Index, KERNELS, Kernel, Memory, Tile, Tiles};
use blocks::Blocks;

/// The logit of a class that is padding. It is finite, so that differences of logits are no NaN.
const HIDDEN: f64 = -1e30;

/// What the cross-entropy of the logits `x·weightᵀ` is computed from, by kernels that never hold all
/// logits (PyTorch's and Liger's `linear_cross_entropy`).
///
/// The loss of a token is `log_sum_exp − of_target`. With the sum of the logits, there is a smoothed
/// one, too.
///
/// ```
/// use fulmen_kernels::LinearCrossEntropy;
/// use fulmen_tensor::Tensor;
///
/// let x = Tensor::from_slice(&[1.0f32, -1.0, 0.5, 2.0], [1, 2, 2]); // [groups, tokens, width]
/// let weight = Tensor::from_slice(&[0.5f32, 1.0, -1.0, 0.0, 2.0, 1.0], [3, 2]); // [classes, width]
/// let targets = Tensor::from_slice(&[2, 0], [1, 2]);
/// let sums = LinearCrossEntropy::new().forward(&x, &weight, &targets);
/// let logits = x.matmul(&weight.t()); // −½, −1, 1 and 2¼, −½, 3
/// let losses = (&sums.log_sum_exp - &sums.of_target).eval()?.to_vec::<f32>()?;
/// let exact = (logits.logsumexp(-1) - Tensor::from_slice(&[1.0f32, 2.25], [1, 2])).eval()?;
/// assert!(losses.iter().zip(exact.to_vec::<f32>()?).all(|(a, b)| (a - b).abs() < 1e-6));
/// assert_eq!(sums.sum.eval()?.to_vec::<f32>()?, [-0.5, 4.75]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "this only describes the computation; call forward()"]
pub struct LinearCrossEntropy {
    softcap: Option<f64>,
    block_size: usize,
}

/// Sums over the logits of each token, `[groups, tokens]`, in f32, or in f64 for f64.
#[derive(Clone, Debug)]
pub struct LogitSums {
    /// `log Σ exp(logits)`.
    pub log_sum_exp: Tensor,
    /// The logit of the target; 0 if there is no such class.
    pub of_target: Tensor,
    /// The sum of the logits.
    pub sum: Tensor,
}

/// The sizes and the dtype of one call.
#[derive(Clone, Copy)]
struct Sizes {
    groups: usize,
    tokens: usize,
    classes: usize,
    width: usize,
    dtype: DType,
}

/// A kernel with the sizes of its blocks.
struct Sized {
    kernel: Kernel,
    blocks: Blocks,
}

/// The kernels of one call.
struct Kernels {
    forward: Sized,
    /// To the cotangents of the features.
    of_tokens: Sized,
    /// To the cotangents of the weight, of each group.
    of_classes: Sized,
}

impl Default for LinearCrossEntropy {
    fn default() -> LinearCrossEntropy {
        LinearCrossEntropy::new()
    }
}

impl LinearCrossEntropy {
    /// Logits without a cap.
    pub fn new() -> LinearCrossEntropy {
        LinearCrossEntropy { softcap: None, block_size: 512 }
    }

    /// Limits the logits `x` to `cap·tanh(x/cap)`.
    pub fn softcap(mut self, cap: Option<f64>) -> LinearCrossEntropy {
        self.softcap = cap;
        self
    }

    /// The largest numbers of tokens and of classes in a block; 512 unless set. Blocks of many
    /// features are smaller, so that they fit into vector memory.
    pub fn block_size(mut self, block_size: usize) -> LinearCrossEntropy {
        self.block_size = block_size;
        self
    }

    /// The sums over the logits of `x`, `[groups, tokens, width]`, with the weight `[classes, width]`
    /// of the same dtype. The targets are integers `[groups, tokens]`.
    ///
    /// Devices share the groups if their number divides that of the groups. The gradient of the
    /// weight is computed for each group, and then added up.
    ///
    /// Poisoned if the types do not fit, or if a size is 0.
    #[track_caller]
    pub fn forward(
        &self,
        x: impl AsTensor,
        weight: impl AsTensor,
        targets: impl AsTensor,
    ) -> LogitSums {
        let [log_sum_exp, of_target, sum] = KERNELS.record("linear_cross_entropy", || {
            let tensors = [x.as_tensor(), weight.as_tensor(), targets.as_tensor()];
            for tensor in tensors {
                tensor.live()?;
            }
            let sizes = self.sizes(tensors)?;
            let kernels = self.kernels(&sizes).map_err(|error| error.to_string())?;
            let [x, weight, targets] = tensors;
            let results =
                kernels.call([x.clone(), weight.clone(), targets.to_dtype(DType::I32)], sizes);
            <[Tensor; 3]>::try_from(results)
                .map_err(|_| Refusal::from("the kernel has three results"))
        });
        LogitSums { log_sum_exp, of_target, sum }
    }

    fn kernels(&self, sizes: &Sizes) -> Result<Kernels> {
        Ok(Kernels {
            forward: self.forward_kernel(sizes)?,
            of_tokens: self.token_kernel(sizes)?,
            of_classes: self.class_kernel(sizes)?,
        })
    }

    fn sizes(&self, [x, weight, targets]: [&Tensor; 3]) -> Result<Sizes, Refusal> {
        let (&[groups, tokens, width], &[classes, weight_width]) =
            (x.shape().dims(), weight.shape().dims())
        else {
            return Err(self.refusal([x, weight, targets]));
        };
        let fits = weight_width == width
            && targets.shape().dims() == [groups, tokens]
            && [groups, tokens, width, classes].iter().all(|&size| size > 0)
            && x.dtype().is_float()
            && weight.dtype() == x.dtype()
            && targets.dtype().is_integer();
        if !fits {
            return Err(self.refusal([x, weight, targets]));
        }
        if self.block_size == 0 {
            return Err("the block size must be at least 1".into());
        }
        Ok(Sizes { groups, tokens, classes, width, dtype: x.dtype() })
    }

    fn refusal(&self, [x, weight, targets]: [&Tensor; 3]) -> Refusal {
        format!(
            "x must be [groups, tokens, width], the weight [classes, width] of the same floating-point dtype, and the \
             targets integers [groups, tokens], without sizes of 0; got {}, {} and {}",
            x.ty(),
            weight.ty(),
            targets.ty()
        )
        .into()
    }

    /// The kernels of calls that use each feature.
    pub(crate) fn examples() -> Result<Vec<Kernel>, Refusal> {
        let mut all = Vec::new();
        for (dtype, softcap) in [(DType::F32, None), (DType::Bf16, Some(1.5))] {
            let x = Tensor::zeros(dtype, [2, 40, 8]);
            let weight = Tensor::zeros(dtype, [50, 8]);
            let targets = Tensor::zeros(DType::I32, [2, 40]);
            let how = LinearCrossEntropy::new().block_size(16).softcap(softcap);
            let sizes = how.sizes([&x, &weight, &targets])?;
            let kernels = how.kernels(&sizes).map_err(|error| error.to_string())?;
            let Kernels { forward, of_tokens, of_classes } = kernels;
            all.extend([forward, of_tokens, of_classes].map(|of| of.kernel));
        }
        Ok(all)
    }
}

impl Kernels {
    /// The three sums of each token, with their derivatives.
    fn call(self, inputs: [Tensor; 3], sizes: Sizes) -> Vec<Tensor> {
        let Kernels { forward, of_tokens, of_classes } = self;
        custom_gradient(
            &inputs,
            move |inputs| forward.sums(&inputs, &sizes),
            move |inputs, results, cotangents| {
                let numbers = [&results[..1], cotangents].concat();
                let of_x = of_tokens.cotangent(inputs, &numbers).narrow(1, 0, sizes.tokens);
                let of_groups = of_classes.cotangent(inputs, &numbers);
                let of_weight = of_groups.narrow(1, 0, sizes.classes).sum(0);
                vec![of_x, of_weight, inputs[2].zeros_like()]
            },
        )
    }
}

impl Sized {
    /// The results of the forward kernel, without padding.
    fn sums(&self, inputs: &[Tensor], sizes: &Sizes) -> Vec<Tensor> {
        let sums = self.kernel.call(&self.blocks.padded(inputs));
        sums.iter().map(|x| x.squeeze(1).narrow(-1, 0, sizes.tokens)).collect()
    }

    /// The result of a backward kernel, with padding. `numbers` are the logarithms of the sums and
    /// the cotangents of the three results.
    fn cotangent(&self, inputs: &[Tensor], numbers: &[Tensor]) -> Tensor {
        let mut arguments = self.blocks.padded(inputs);
        arguments.extend(numbers.iter().map(|x| self.blocks.row(x)));
        self.kernel.call(&arguments).swap_remove(0)
    }
}

impl Sizes {
    /// The dtype of logits and sums.
    fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }
}

/// The arrays that a step of each kernel sees: a block of tokens and a block of classes.
struct Step<'a> {
    k: &'a Tiles,
    sizes: &'a Sizes,
    blocks: Blocks,
    token: Index,
    class: Index,
    x: Memory,
    weight: Memory,
    targets: Memory,
}

/// The logits of a pair of blocks, `[classes, tokens]`.
struct Logits {
    logits: Tile,
    /// The derivative of the capped logits; `None` if it is 1.
    slope: Option<Tile>,
    is_target: Tile,
    /// Which classes are not padding; `None` if all are.
    is_class: Option<Tile>,
}

impl<'a> Step<'a> {
    /// Declares the inputs. `token` and `class` are the numbers of the blocks.
    fn new(k: &'a Tiles, sizes: &'a Sizes, blocks: Blocks, token: Index, class: Index) -> Step<'a> {
        let zero = || Index::from(0);
        let x = k.input(
            &blocks.x_ty(sizes),
            &[1, blocks.tokens, sizes.width],
            [k.program(0), token.clone(), zero()],
        );
        let weight_ty = TensorType::new(sizes.dtype, [blocks.padded_classes, sizes.width]);
        let weight = k.input(&weight_ty, &[blocks.classes, sizes.width], [class.clone(), zero()]);
        let row = [k.program(0), zero(), token.clone()];
        let targets = k.input(&blocks.row_ty(sizes, DType::I32), &[1, 1, blocks.tokens], row);
        Step { k, sizes, blocks, token, class, x, weight, targets }
    }

    fn row_map(&self) -> [Index; 3] {
        [self.k.program(0), Index::from(0), self.token.clone()]
    }

    /// An input with a number for each token.
    fn row_input(&self) -> Memory {
        let ty = self.blocks.row_ty(self.sizes, self.sizes.wide());
        self.k.input(&ty, &[1, 1, self.blocks.tokens], self.row_map())
    }

    fn logits(&self, softcap: Option<f64>) -> Logits {
        let k = self.k;
        let product = self.weight.load().dot(&self.x.load(), [1, 1], self.sizes.wide());
        let shape = product.shape();
        let class = k.iota(shape, 0, &self.class * self.blocks.classes as i32);
        let is_padded = self.blocks.padded_classes > self.sizes.classes;
        let count = || k.full(DType::I32, shape, self.sizes.classes as f64);
        let is_class = is_padded.then(|| class.lt(&count()));
        let is_target = class.eq(&self.targets.load());
        let (logits, slope) = match softcap {
            None => (product, None),
            Some(cap) => {
                let bounded = (product * (1.0 / cap)).tanh();
                (&bounded * cap, Some(-&(&bounded * &bounded) + 1.0))
            }
        };
        Logits { logits, slope, is_target, is_class }
    }

    /// A tile with another number for the classes that are padding.
    fn hide(&self, is_class: &Option<Tile>, x: &Tile, value: f64) -> Tile {
        let other = || self.k.full(self.sizes.wide(), x.shape(), value);
        is_class.as_ref().map_or_else(|| x.clone(), |is_class| is_class.select(x, &other()))
    }
}
