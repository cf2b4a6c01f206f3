//! Losses: what a model is trained to make small.

use fulmen_tensor::{DType, Tensor};

use crate::precision::wide;

/// How the losses of the samples become the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their arithmetic mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Each for itself.
    None,
}

impl Reduction {
    #[track_caller]
    fn apply(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
            Reduction::None => losses.clone(),
        }
    }
}

/// `−log softmax(logits)[target]`: logits `[…, classes]` against the index of the right class, integers `[…]`.
///
/// A target outside `0..classes` makes its sample's loss, and the gradient of its logits, NaN: it is never taken for
/// a sample that is right.
///
/// ```
/// use fulmen_nn::loss::{Reduction, cross_entropy};
/// use fulmen_tensor::Tensor;
///
/// let logits = Tensor::from_slice(&[0.0f32, 0.0, 1.0, 1.0], [2, 2]);
/// let loss = cross_entropy(&logits, &Tensor::from_slice(&[0i32, 1], [2]), Reduction::Mean);
/// assert!((loss.eval()?.to_vec::<f32>()?[0] - 2f32.ln()).abs() < 1e-6);
///
/// let wrong = cross_entropy(&logits, &Tensor::from_slice(&[0i32, 2], [2]), Reduction::None);
/// assert!(wrong.eval()?.to_vec::<f32>()?[1].is_nan());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Tensor {
    CrossEntropyLoss::new().reduction(reduction).forward(logits, target)
}

/// [`cross_entropy`] with settings, as PyTorch's `nn.CrossEntropyLoss`.
///
/// ```
/// use fulmen_nn::loss::{CrossEntropyLoss, Reduction};
/// use fulmen_tensor::{DType, Tensor};
///
/// // PyTorch's layout for images: the classes stand on axis 1.
/// let loss = CrossEntropyLoss::new().class_axis(1).ignore_index(255).reduction(Reduction::None);
/// let losses = loss.forward(&Tensor::zeros(DType::F32, [4, 21, 8, 8]), &Tensor::zeros(DType::U8, [4, 8, 8]));
/// assert_eq!(losses.ty().to_string(), "f32[4, 8, 8]");
/// ```
#[derive(Clone, Debug)]
pub struct CrossEntropyLoss {
    reduction: Reduction,
    label_smoothing: f64,
    ignore_index: Option<i64>,
    class_axis: isize,
}

impl CrossEntropyLoss {
    /// The mean, without smoothing; no target is ignored; the classes stand on the last axis.
    pub fn new() -> CrossEntropyLoss {
        CrossEntropyLoss { reduction: Reduction::Mean, label_smoothing: 0.0, ignore_index: None, class_axis: -1 }
    }

    /// What becomes of the samples' losses.
    pub fn reduction(mut self, reduction: Reduction) -> CrossEntropyLoss {
        self.reduction = reduction;
        self
    }

    /// The share of the target, between 0 and 1, that is spread evenly over all classes.
    pub fn label_smoothing(mut self, share: f64) -> CrossEntropyLoss {
        self.label_smoothing = share;
        self
    }

    /// Samples with this target count 0 in the sum and not at all in the mean. PyTorch ignores −100 unless told
    /// otherwise; here nothing is ignored that was not asked for.
    pub fn ignore_index(mut self, target: i64) -> CrossEntropyLoss {
        self.ignore_index = Some(target);
        self
    }

    /// The axis of the logits that the classes stand on; PyTorch's is 1.
    pub fn class_axis(mut self, axis: isize) -> CrossEntropyLoss {
        self.class_axis = axis;
        self
    }

    /// The loss. Half-precision logits are computed with as f32.
    #[track_caller]
    pub fn forward(&self, logits: &Tensor, target: &Tensor) -> Tensor {
        if let Some(poisoned) = [logits, target].into_iter().find(|t| t.fault().is_some()) {
            return poisoned.clone();
        }
        let axis = match self.misfit(logits, target) {
            Ok(axis) => axis,
            Err(message) => return Tensor::poison("cross_entropy", message),
        };
        let classes = logits.shape()[axis];
        let mut order: Vec<isize> = (0..logits.rank() as isize).filter(|&a| a != axis as isize).collect();
        order.push(axis as isize);
        let log_p = wide(logits).permute(&order).log_softmax(-1);

        // A short integer cannot count to the number of classes; a long one may lose its high bits. So the range is
        // checked as i64 where i32 does not hold every value.
        let wide = match target.dtype() {
            DType::U32 | DType::I64 | DType::U64 => DType::I64,
            _ => DType::I32,
        };
        let index = target.to_dtype(wide);
        let right = index.ge(0.0).and(index.lt(classes as f64));
        let inside = right.select(&index, &index.zeros_like()).to_dtype(DType::I32);
        // Not a sum of products: 0 · −∞, where a class is impossible, would be NaN.
        let chosen = inside.one_hot(classes).select(&log_p, &log_p.zeros_like());
        let mut losses = -chosen.sum(&[-1], false);
        if self.label_smoothing != 0.0 {
            let even = -log_p.mean(&[-1], false);
            losses = losses * (1.0 - self.label_smoothing) + even * self.label_smoothing;
        }
        // An index that the targets' type cannot hold ignores nothing, and must not wrap to one that does.
        let held = |i: &i64| wide == DType::I64 || i32::try_from(*i).is_ok();
        let ignored = self.ignore_index.filter(held).map(|i| index.eq(Tensor::scalar(i).to_dtype(wide)));
        let sound = ignored.as_ref().map_or_else(|| right.clone(), |ignored| right.or(ignored));
        // Times NaN, so that the gradient is NaN as well.
        let one = losses.ones_like();
        losses = losses * sound.select(&one, &(&one * f64::NAN));
        let Some(ignored) = ignored else { return self.reduction.apply(&losses) };
        let losses = ignored.select(&losses.zeros_like(), &losses);
        match self.reduction {
            Reduction::Mean => losses.sum_all() / ignored.not().to_dtype(losses.dtype()).sum_all(),
            other => other.apply(&losses),
        }
    }

    /// The axis of the classes, or why these tensors or settings cannot be.
    fn misfit(&self, logits: &Tensor, target: &Tensor) -> Result<usize, String> {
        let (l, t) = (logits.ty(), target.ty());
        if !l.dtype.is_float() {
            return Err(format!("logits are floating-point numbers, these are {l}"));
        }
        if !t.dtype.is_integer() {
            return Err(format!("targets are the integer indices of the classes, these are {t}"));
        }
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return Err(format!("label smoothing is a share between 0 and 1, not {}", self.label_smoothing));
        }
        let axis = l.shape.axis(self.class_axis).map_err(|e| format!("no classes in the logits {l}: {e}"))?;
        let mut samples = l.shape.to_vec();
        let classes = samples.remove(axis);
        if classes == 0 || samples != t.shape.dims() {
            return Err(format!(
                "the logits {l} are of {samples:?} samples in {classes} classes; the target must be integers \
                 {samples:?}, it is {t}"
            ));
        }
        Ok(axis)
    }
}

impl Default for CrossEntropyLoss {
    fn default() -> CrossEntropyLoss {
        CrossEntropyLoss::new()
    }
}

/// `(prediction − target)²`. 16-bit floats are computed with as f32.
///
/// Poisoned when the two differ in shape: one of them would be repeated, which is seldom meant.
#[track_caller]
pub fn mse_loss(prediction: &Tensor, target: &Tensor, reduction: Reduction) -> Tensor {
    if let Some(poisoned) = [prediction, target].into_iter().find(|t| t.fault().is_some()) {
        return poisoned.clone();
    }
    if prediction.shape() != target.shape() {
        let message =
            format!("the prediction is {}, the target {}; make their shapes equal", prediction.ty(), target.ty());
        return Tensor::poison("mse_loss", message);
    }
    let difference = wide(prediction) - wide(target);
    reduction.apply(&(&difference * &difference))
}
