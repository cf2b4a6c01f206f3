//! Cross-entropy of the logits of a linear layer, which never holds the logits of all samples.
//!
//! A loop runs over chunks of the axis before the features. Its body is the plain loss of the
//! chunk's logits, in a [`checkpoint`], so the backward pass computes them again. The derivative of
//! the loop adds up the gradients of the weight and the bias in f32. It uses only operations of
//! XLA, so it runs on every platform. The kernel is in `kernel.rs`.

#[cfg(feature = "kernels")]
mod kernel;

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, checkpoint, map};

use super::classes::Classes;
use super::cross_entropy::{class_weight, mean_by};
use super::{CrossEntropyLoss, LossMethod, Reduction};
use crate::axes::axis_parts;
use crate::composed::scaled_product;
use crate::layers::Linear;
use crate::library::{NN, live};
use crate::padding::pad;
use crate::precision::{product_dtype, wide};

/// A chunk's logits of one sequence need at most this number of bytes in f32, unless the number of
/// positions is set.
const CHUNK_BYTES: usize = 512 << 20;

/// Shorter sequences are mostly padding in the 128 lanes of a TPU.
const SHORTEST: usize = 128;

/// libtpu has compiled the kernel for features of this many bytes.
const WIDEST: usize = 16 << 10;

/// [`cross_entropy`](super::cross_entropy) of the logits `x·weightᵀ`: features `[…, length,
/// features]`, the weight `[classes, features]` of a linear layer, and the index of the right class,
/// integers `[…, length]`. If the logits are large, they are not all in memory at once.
///
/// PyTorch's function of the same name, Liger's fused linear cross-entropy and Apple's cut
/// cross-entropy compute the same. [`LinearCrossEntropyLoss`] has settings.
///
/// ```
/// use fulmen_nn::loss::{Reduction, cross_entropy, linear_cross_entropy};
/// use fulmen_tensor::Tensor;
///
/// let x = Tensor::from_slice(&[1.0f32, -1.0, 0.5, 2.0], [2, 2]);
/// let weight = Tensor::from_slice(&[0.5f32, 1.0, -1.0, 0.0, 2.0, 1.0], [3, 2]);
/// let target = Tensor::from_slice(&[2, 0], [2]);
/// let loss = linear_cross_entropy(&x, &weight, &target, Reduction::Mean);
/// let same = cross_entropy(x.matmul(&weight.t()), &target, Reduction::Mean);
/// assert!((loss - same).eval()?.to_f64()[0].abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn linear_cross_entropy(
    x: impl AsTensor,
    weight: impl AsTensor,
    target: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let x = x.as_tensor();
    let weight = weight.as_tensor();
    let target = target.as_tensor();
    let loss = CrossEntropyLoss::new().reduction(reduction);
    LinearCrossEntropyLoss::new(loss).forward(x, weight, target)
}

/// [`linear_cross_entropy`] with the settings of a [`CrossEntropyLoss`], a bias and a soft cap.
///
/// ```
/// use fulmen_nn::loss::{CrossEntropyLoss, LinearCrossEntropyLoss, LossMethod};
/// use fulmen_nn::{Linear, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let head = Linear::new(16, 1000).bias(false);
/// head.initialize(0);
/// let x = Tensor::ones(DType::F32, [4, 50, 16]); // [batch, length, features]
/// let tokens = Tensor::zeros(DType::I32, [4, 50]);
///
/// let plain = CrossEntropyLoss::new().ignore_index(-100).z_loss(1e-4);
/// let loss = LinearCrossEntropyLoss::new(plain.clone()).method(LossMethod::Chunks).chunk_size(16);
/// let loss = loss.forward(&x, head.weight.get(), &tokens);
/// let same = plain.forward(head.forward(&x), &tokens);
/// assert!((loss - same).eval()?.to_f64()[0].abs() < 1e-5);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LinearCrossEntropyLoss {
    loss: CrossEntropyLoss,
    bias: Option<Tensor>,
    /// The scales of an int8 weight, `[classes]`.
    scales: Option<Tensor>,
    softcap: Option<f64>,
    method: LossMethod,
    chunk_size: Option<usize>,
}

impl LinearCrossEntropyLoss {
    /// This loss of the logits, without a bias and a soft cap. The classes must be on the loss's
    /// last axis.
    pub fn new(loss: CrossEntropyLoss) -> LinearCrossEntropyLoss {
        let method = LossMethod::default();
        LinearCrossEntropyLoss {
            loss,
            bias: None,
            scales: None,
            softcap: None,
            method,
            chunk_size: None,
        }
    }

    /// The bias of the linear layer, `[classes]`.
    pub fn bias(mut self, bias: impl AsTensor) -> LinearCrossEntropyLoss {
        self.bias = Some(bias.as_tensor().clone());
        self
    }

    /// Limits the logits `x` to between `−cap` and `cap`, as `cap·tanh(x/cap)`. Gemma 2 uses it.
    pub fn softcap(mut self, cap: f64) -> LinearCrossEntropyLoss {
        self.softcap = Some(cap);
        self
    }

    /// How to compute it. The results differ only in rounding.
    pub fn method(mut self, method: LossMethod) -> LinearCrossEntropyLoss {
        self.method = method;
        self
    }

    /// The number of positions of each sequence in a chunk of [`LossMethod::Chunks`]. Unless set,
    /// their logits in f32 need at most 512 MiB, `4·classes·positions` bytes. The chunks are of
    /// about equal size. The batch is not cut: with many sequences on one device, set a smaller
    /// number.
    pub fn chunk_size(mut self, positions: usize) -> LinearCrossEntropyLoss {
        self.chunk_size = Some(positions);
        self
    }

    /// The loss of features `[…, length, features]` with the weight `[classes, features]` and the
    /// targets, integers `[…, length]`. Products have the dtype that they have in a linear layer;
    /// 16-bit logits are converted to f32.
    ///
    /// Poisoned if shapes or dtypes do not fit, if the targets are probabilities, and if the
    /// settings are invalid.
    #[track_caller]
    pub fn forward(
        &self,
        x: impl AsTensor,
        weight: impl AsTensor,
        target: impl AsTensor,
    ) -> Tensor {
        NN.record("linear_cross_entropy", || {
            let x = x.as_tensor();
            let weight = weight.as_tensor();
            let target = target.as_tensor();
            live(&[x, weight, target])?;
            self.bias.as_ref().map(Tensor::live).transpose()?;
            self.scales.as_ref().map(Tensor::live).transpose()?;
            self.check(x, weight, target)?;
            let has_positions = x.rank() > 1 && target.shape().num_elements() > 0;
            let method = if has_positions {
                self.method.decided(weight.size(0), x.size(-2), || self.fits(x, weight))
            } else {
                LossMethod::Plain
            };
            match method {
                LossMethod::Chunks => self.in_chunks(x, weight, target),
                #[cfg(feature = "kernels")]
                LossMethod::Kernel => self.by_kernel(x, weight, target),
                #[cfg(not(feature = "kernels"))]
                LossMethod::Kernel => {
                    Err("the loss by `kernel` needs the feature `kernels` of fulmen".into())
                }
                LossMethod::Auto | LossMethod::Plain => {
                    let logits = self.logits(x, weight, self.bias.as_ref());
                    Ok(self.loss.forward(logits, target))
                }
            }
        })
    }

    /// Whether `auto` may take the kernel for these features and this weight.
    fn fits(&self, x: &Tensor, weight: &Tensor) -> bool {
        let is_whole = |axis: &str| axis_parts(axis) == 1;
        let fits = |dtype: DType| {
            [DType::F32, DType::Bf16].contains(&dtype)
                && x.size(-1) * dtype.size_in_bytes() <= WIDEST
        };
        cfg!(feature = "kernels")
            && self.kernel_lacks().is_none()
            && product_dtype(x.dtype(), weight.dtype()).is_ok_and(fits)
            && x.size(-2) >= SHORTEST
            && ["length", "vocab"].iter().all(|axis| is_whole(axis))
    }

    /// What the kernel does not compute of this loss.
    fn kernel_lacks(&self) -> Option<&'static str> {
        if self.bias.is_some() {
            return Some("a bias");
        }
        if self.scales.is_some() {
            return Some("an int8 weight");
        }
        self.loss.smooths_weighted().then_some("class weights with label smoothing")
    }

    /// The loss of the features `[…, length, features]` with the weight and the bias of this layer. An
    /// int8 weight is not converted as a whole.
    #[doc(hidden)] // for models
    #[track_caller]
    pub fn forward_head(&self, x: impl AsTensor, head: &Linear, target: impl AsTensor) -> Tensor {
        let mut loss = self.clone();
        if let Some(bias) = &head.bias {
            loss = loss.bias(bias.get());
        }
        let weight = match (head.weight.int8(), head.weight.low_rank()) {
            (Some(int8), None) => {
                loss.scales = Some(int8.scale.get());
                head.weight.stored()
            }
            _ => head.weight.get(),
        };
        loss.forward(x, weight, target)
    }

    /// Rejects tensors and settings that do not fit together.
    fn check(&self, x: &Tensor, weight: &Tensor, target: &Tensor) -> Result<(), Refusal> {
        let x_ty = x.ty();
        let weight_ty = weight.ty();
        let target_ty = target.ty();
        if x.rank() == 0 || !x_ty.dtype.is_float() {
            return Err(format!("the input {x_ty} is not floating-point [.., features]").into());
        }
        let fits = weight.rank() == 2 && weight.size(1) == x.size(-1) && weight.size(0) > 0;
        if !fits || !weight_ty.dtype.is_float() && self.scales.is_none() {
            let features = x.size(-1);
            return Err(format!(
                "the weight {weight_ty} must be floating-point [classes, {features}] for the input {x_ty}"
            )
            .into());
        }
        let samples = &x.shape()[..x.rank() - 1];
        if !target_ty.dtype.is_integer() || target.shape().dims() != samples {
            return Err(format!(
                "the targets {target_ty} must be integer indices {samples:?} for the input {x_ty}"
            )
            .into());
        }
        let classes = weight.size(0);
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.shape().dims() != [classes]) {
            let bias = bias.ty();
            return Err(format!("there are {classes} classes, but the bias is {bias}").into());
        }
        let is_last = [-1, samples.len() as isize].contains(&self.loss.class_axis);
        if !is_last {
            let axis = self.loss.class_axis;
            return Err(format!("the classes are on the last axis, not on axis {axis}").into());
        }
        if self.chunk_size == Some(0) {
            return Err("the chunk size is 0; it must be at least 1".into());
        }
        self.loss.check_factors()
    }

    /// The logits, as a linear layer and a cap compute them.
    fn logits(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let product = match &self.scales {
            None => x.matmul(&weight.t()),
            Some(scales) => scaled_product(x, weight, scales),
        };
        let logits = match bias {
            Some(bias) => &product + bias.to_dtype(product.dtype()),
            None => product,
        };
        match self.softcap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }

    /// [`LossMethod::Chunks`], of at least one position.
    fn in_chunks(&self, x: &Tensor, weight: &Tensor, target: &Tensor) -> Result<Tensor, Refusal> {
        let classes = weight.size(0);
        let ignored = self.loss.ignore_index;
        let target = Classes::check("linear_cross_entropy", target, classes, ignored)?;
        // Converted once, not in each step: weights that are split between devices are then
        // gathered once, as 16-bit numbers in mixed precision. Integers are smaller than that.
        let (product, weight) = match &self.scales {
            None => {
                let product = product_dtype(x.dtype(), weight.dtype())?;
                (product, weight.to_dtype(product))
            }
            Some(_) => (product_dtype(x.dtype(), x.dtype())?, weight.clone()),
        };
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(product));
        let length = x.size(-2);
        let largest = self.chunk_size.unwrap_or(CHUNK_BYTES / 4 / classes).max(1);
        let count = length.div_ceil(largest);
        let size = length.div_ceil(count);
        let chunks = (chunks(&x.to_dtype(product), 2, size), chunks(&target, 1, size));
        let logits = Tensor::zeros(product, [target.shape().dims(), &[classes]].concat());
        let class_weight = class_weight(self.loss.weight.as_ref(), classes, &logits)?;
        let losses_of_chunk = |(x, target): (Tensor, Tensor)| {
            let logits = wide(&self.logits(&x, &weight, bias.as_ref()));
            self.loss.losses(&logits, &target, class_weight.as_ref()).0
        };
        let losses = map(|chunk| checkpoint(losses_of_chunk, chunk), chunks);
        let losses = losses.live()?.movedim(0, -2).flatten(-2, -1).narrow(-1, 0, length);
        let targets = Classes::of(&target, classes, ignored);
        mean_by(self.loss.reduction, &targets, &losses, class_weight.as_ref())
    }
}

/// Cuts an axis, counted from the last, into chunks of this size: `[chunks, …, size, …]`. Zeros fill
/// the last chunk.
fn chunks(x: &Tensor, from_last: usize, size: usize) -> Tensor {
    let axis = (x.rank() - from_last) as isize;
    pad(x, from_last, size).unflatten(axis, &[-1, size as isize]).movedim(axis, 0)
}
