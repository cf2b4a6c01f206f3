//! Cross-entropy and the negative log-likelihood of classes. Out of scope: binary classification
//! (`binary`).

use fulmen_tensor::internal::with_mean_weight;
use fulmen_tensor::{AsTensor, Refusal, Tensor};

use super::Reduction;
use super::classes::Classes;
use crate::library::{NN, live};
use crate::precision::{precision, wide};

/// `−log softmax(logits)[target]`: logits `[…, classes]` and the index of the right class, integers
/// `[…]`; or, with probabilities `[…, classes]` as the target, `−Σ target·log softmax(logits)`.
///
/// A target outside `0..classes` is an error: here if the host knows the target, and otherwise of
/// the training step or evaluation that computes the loss. Elsewhere, it makes the loss of its
/// sample, and the gradient of its logits, NaN.
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
/// let message = wrong.eval().unwrap_err().to_string();
/// assert!(message.starts_with("cross_entropy: a target is 2, but there are 2 classes (row 1)"), "{message}");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy(logits: impl AsTensor, target: impl AsTensor, reduction: Reduction) -> Tensor {
    let logits = logits.as_tensor();
    let target = target.as_tensor();
    CrossEntropyLoss::new().reduction(reduction).forward(logits, target)
}

/// [`cross_entropy`] with settings, like PyTorch's `nn.CrossEntropyLoss`.
///
/// ```
/// use fulmen_nn::loss::{CrossEntropyLoss, Reduction};
/// use fulmen_tensor::{DType, Tensor};
///
/// // PyTorch's layout for images: the classes are on axis 1.
/// let loss = CrossEntropyLoss::new().class_axis(1).ignore_index(255).reduction(Reduction::None);
/// let losses = loss.forward(&Tensor::zeros(DType::F32, [4, 21, 8, 8]), &Tensor::zeros(DType::U8, [4, 8, 8]));
/// assert_eq!(losses.ty().to_string(), "f32[4, 8, 8]");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CrossEntropyLoss {
    pub(super) reduction: Reduction,
    label_smoothing: f64,
    pub(super) ignore_index: Option<i64>,
    pub(super) weight: Option<Tensor>,
    pub(super) class_axis: isize,
    z_loss: f64,
}

impl CrossEntropyLoss {
    /// The mean, without smoothing; no target is ignored; the classes are on the last axis.
    pub fn new() -> CrossEntropyLoss {
        CrossEntropyLoss {
            reduction: Reduction::Mean,
            label_smoothing: 0.0,
            ignore_index: None,
            weight: None,
            class_axis: -1,
            z_loss: 0.0,
        }
    }

    /// How the samples' losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> CrossEntropyLoss {
        self.reduction = reduction;
        self
    }

    /// The share of the target, between 0 and 1, that is spread evenly over all classes.
    pub fn label_smoothing(mut self, share: f64) -> CrossEntropyLoss {
        self.label_smoothing = share;
        self
    }

    /// Samples with this target do not count in the sum or the mean. PyTorch ignores −100 by
    /// default; here, nothing is ignored by default. Not available for targets that are
    /// probabilities.
    pub fn ignore_index(mut self, target: i64) -> CrossEntropyLoss {
        self.ignore_index = Some(target);
        self
    }

    /// A weight for each class, `[classes]`, which multiplies the class's contribution to a
    /// sample's loss. For index targets, the mean is weighted as in PyTorch: divided by the sum of
    /// the targets' weights.
    pub fn weight(mut self, weight: impl AsTensor) -> CrossEntropyLoss {
        self.weight = Some(weight.as_tensor().clone());
        self
    }

    /// The axis of the classes in the logits; PyTorch's is 1.
    pub fn class_axis(mut self, axis: isize) -> CrossEntropyLoss {
        self.class_axis = axis;
        self
    }

    /// Adds `factor·(log Σ exp(logits))²` to the loss of each sample, which keeps the logits from
    /// drifting; 0 unless set. PaLM and MaxText use it, with 1e-4. Class weights do not multiply
    /// this term.
    ///
    /// ```
    /// use fulmen_nn::loss::CrossEntropyLoss;
    /// use fulmen_tensor::Tensor;
    ///
    /// let logits = Tensor::from_slice(&[0.0f32, 0.0], [1, 2]);
    /// let loss = CrossEntropyLoss::new().z_loss(0.5).forward(&logits, &Tensor::from_slice(&[1], [1]));
    /// let log_sum = 2f32.ln();
    /// assert!((loss.eval()?.to_vec::<f32>()?[0] - (log_sum + 0.5 * log_sum * log_sum)).abs() < 1e-6);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn z_loss(mut self, factor: f64) -> CrossEntropyLoss {
        self.z_loss = factor;
        self
    }

    /// The loss. 16-bit logits are computed in f32.
    ///
    /// Poisoned if the logits are not floating-point or have no classes, if the target is neither
    /// integers of the samples' shape nor probabilities of the logits' shape, and if the settings
    /// are invalid.
    #[track_caller]
    pub fn forward(&self, logits: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("cross_entropy", || {
            let logits = logits.as_tensor();
            let target = target.as_tensor();
            live(&[logits, target])?;
            self.check_factors()?;
            let soft = target.dtype().is_float();
            let axis = class_axis(logits, target, self.class_axis, soft)?;
            if soft && self.ignore_index.is_some() {
                let message =
                    "ignore_index does not apply to targets that are probabilities; remove it, or pass indices";
                return Err(message.into());
            }
            let classes = logits.shape()[axis];
            let weight = class_weight(self.weight.as_ref(), classes, logits)?;
            let order = classes_last(logits.rank(), axis);
            let logits = wide(logits).permute(&order);
            if soft {
                let losses = self.soft(&logits.log_softmax(-1), &wide(target).permute(&order), weight.as_ref());
                return Ok(self.reduction.apply(&self.with_z_loss(losses, || logits.logsumexp(-1))));
            }
            let target = Classes::check("cross_entropy", target, classes, self.ignore_index)?;
            let (losses, targets) = self.losses(&logits, &target, weight.as_ref());
            mean_by(self.reduction, &targets, &losses, weight.as_ref())
        })
    }

    /// Rejects settings that are out of range.
    pub(super) fn check_factors(&self) -> Result<(), Refusal> {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            let share = self.label_smoothing;
            return Err(
                format!("label_smoothing must be between 0 and 1, but it is {share}").into()
            );
        }
        if !(0.0..f64::INFINITY).contains(&self.z_loss) {
            let factor = self.z_loss;
            return Err(format!(
                "z_loss must be a finite number of at least 0, but it is {factor}"
            )
            .into());
        }
        Ok(())
    }

    /// The losses `[samples]` of logits `[samples, classes]`, and the targets, which are checked
    /// already.
    pub(super) fn losses(
        &self,
        logits: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
    ) -> (Tensor, Classes) {
        // −log softmax(x)[t] = log Σ exp(s) − s[t] with s = x − max(x). The derivative of this form
        // needs no sum over the classes, unlike that of log_softmax.
        let largest = logits.detach().max_keepdim(-1);
        let shifted = logits - &largest;
        let log_sum = shifted.exp().sum(-1).log();
        let targets = Classes::of(target, logits.size(-1), self.ignore_index);
        let mut losses = &log_sum - targets.pick(&shifted);
        if let Some(weight) = weight {
            losses = losses * targets.pick(weight);
        }
        if self.label_smoothing != 0.0 {
            let uniform_loss = match weight {
                Some(weight) => &log_sum * weight.mean_all() - (shifted * weight).mean(-1),
                None => &log_sum - shifted.mean(-1),
            };
            losses = losses * (1.0 - self.label_smoothing) + uniform_loss * self.label_smoothing;
        }
        losses = self.with_z_loss(losses, || log_sum + largest.squeeze(-1));
        (targets.masked_losses(&losses), targets)
    }

    /// Whether the mean of the logits that smoothing needs is weighted.
    pub(super) fn smooths_weighted(&self) -> bool {
        self.label_smoothing != 0.0 && self.weight.is_some()
    }

    /// [`losses`](CrossEntropyLoss::losses) from what is known of each sample's logits: the logarithm
    /// of the sum of exponentials, the logit of the target, and the mean.
    #[cfg(feature = "kernels")]
    pub(super) fn losses_of(
        &self,
        [log_sum, of_target, mean]: [&Tensor; 3],
        targets: &Classes,
        weight: Option<&Tensor>,
    ) -> Tensor {
        let mut losses = log_sum - of_target;
        if let Some(weight) = weight {
            losses = losses * targets.pick(weight);
        }
        if self.label_smoothing != 0.0 {
            let uniform_loss = log_sum - mean;
            losses = losses * (1.0 - self.label_smoothing) + uniform_loss * self.label_smoothing;
        }
        targets.masked_losses(&self.with_z_loss(losses, || log_sum.clone()))
    }

    /// Adds the term of [`z_loss`](CrossEntropyLoss::z_loss) to losses `[samples]`.
    fn with_z_loss(&self, losses: Tensor, log_sum: impl FnOnce() -> Tensor) -> Tensor {
        if self.z_loss == 0.0 { losses } else { losses + log_sum().square() * self.z_loss }
    }

    /// The losses `[samples]` for targets that are probabilities.
    fn soft(&self, log_p: &Tensor, target: &Tensor, weight: Option<&Tensor>) -> Tensor {
        let classes = log_p.size(-1) as f64;
        let mut target = target.to_dtype(log_p.dtype());
        if self.label_smoothing != 0.0 {
            target = target * (1.0 - self.label_smoothing) + self.label_smoothing / classes;
        }
        // An impossible class with target 0 costs nothing, although 0 · −∞ would be NaN.
        let nothing = target.eq(0.0).and(log_p.eq(f64::NEG_INFINITY));
        let mut terms = target * nothing.select(&log_p.zeros_like(), log_p);
        if let Some(weight) = weight {
            terms = terms * weight;
        }
        -terms.sum(-1)
    }
}

impl Default for CrossEntropyLoss {
    fn default() -> CrossEntropyLoss {
        CrossEntropyLoss::new()
    }
}

/// `−log_p[target]`: log-probabilities `[…, classes]`, as from `log_softmax`, and the index of the
/// right class, integers `[…]`. A target outside `0..classes` is an error, as in [`cross_entropy`].
///
/// ```
/// use fulmen_nn::loss::{Reduction, nll_loss};
/// use fulmen_tensor::Tensor;
///
/// let log_p = Tensor::from_slice(&[-0.5f32, -1.0, -2.0, -0.1], [2, 2]);
/// let losses = nll_loss(&log_p, &Tensor::from_slice(&[1i32, 1], [2]), Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [1.0, 0.1]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn nll_loss(log_p: impl AsTensor, target: impl AsTensor, reduction: Reduction) -> Tensor {
    let log_p = log_p.as_tensor();
    let target = target.as_tensor();
    NllLoss::new().reduction(reduction).forward(log_p, target)
}

/// [`nll_loss`] with settings, like PyTorch's `nn.NLLLoss`.
#[derive(Clone, Debug)]
#[must_use]
pub struct NllLoss {
    reduction: Reduction,
    ignore_index: Option<i64>,
    weight: Option<Tensor>,
    class_axis: isize,
}

impl NllLoss {
    /// The mean; no target is ignored; the classes are on the last axis.
    pub fn new() -> NllLoss {
        NllLoss { reduction: Reduction::Mean, ignore_index: None, weight: None, class_axis: -1 }
    }

    /// How the samples' losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> NllLoss {
        self.reduction = reduction;
        self
    }

    /// Samples with this target do not count in the sum or the mean.
    pub fn ignore_index(mut self, target: i64) -> NllLoss {
        self.ignore_index = Some(target);
        self
    }

    /// A weight for each class, `[classes]`; the mean is divided by the sum of the targets'
    /// weights.
    pub fn weight(mut self, weight: impl AsTensor) -> NllLoss {
        self.weight = Some(weight.as_tensor().clone());
        self
    }

    /// The axis of the classes; PyTorch's is 1.
    pub fn class_axis(mut self, axis: isize) -> NllLoss {
        self.class_axis = axis;
        self
    }

    /// The loss. Poisoned like [`CrossEntropyLoss::forward`], and if the targets are probabilities.
    #[track_caller]
    pub fn forward(&self, log_p: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("nll_loss", || {
            let log_p = log_p.as_tensor();
            let target = target.as_tensor();
            live(&[log_p, target])?;
            let axis = class_axis(log_p, target, self.class_axis, false)?;
            let classes = log_p.shape()[axis];
            let weight = class_weight(self.weight.as_ref(), classes, log_p)?;
            let log_p = wide(log_p).permute(&classes_last(log_p.rank(), axis));
            let weighted = match &weight {
                Some(weight) => &log_p * weight,
                None => log_p,
            };
            let targets = Classes::new("nll_loss", target, classes, self.ignore_index)?;
            mean_by(
                self.reduction,
                &targets,
                &targets.masked_losses(&-targets.pick(&weighted)),
                weight.as_ref(),
            )
        })
    }
}

impl Default for NllLoss {
    fn default() -> NllLoss {
        NllLoss::new()
    }
}

/// Reduces the losses. The mean uses the weights of the targets, and brings their sum.
pub(super) fn mean_by(
    reduction: Reduction,
    targets: &Classes,
    losses: &Tensor,
    weight: Option<&Tensor>,
) -> Result<Tensor, Refusal> {
    match (reduction, targets.counts(weight, losses.dtype())) {
        (Reduction::Mean, Some(counts)) => {
            let total = counts.sum_all();
            with_mean_weight(&(losses.sum_all() / &total), &total)
        }
        _ => Ok(reduction.apply(losses)),
    }
}

/// The permutation of axes that moves the classes to the last.
fn classes_last(rank: usize, axis: usize) -> Vec<isize> {
    let other_axes = (0..rank).filter(|&a| a != axis);
    other_axes.chain([axis]).map(|a| a as isize).collect()
}

/// The weights of the classes in the dtype of the losses.
pub(super) fn class_weight(
    weight: Option<&Tensor>,
    classes: usize,
    logits: &Tensor,
) -> Result<Option<Tensor>, Refusal> {
    let Some(weight) = weight else { return Ok(None) };
    if weight.live()?.shape().dims() != [classes] {
        let logits = logits.ty();
        let weight = weight.ty();
        return Err(format!(
            "the logits {logits} have {classes} classes, but the weight is {weight}"
        )
        .into());
    }
    Ok(Some(weight.to_dtype(precision(logits.dtype()))))
}

/// The axis of the classes, or why the tensors are invalid.
fn class_axis(logits: &Tensor, target: &Tensor, axis: isize, soft: bool) -> Result<usize, String> {
    let l = logits.ty();
    let t = target.ty();
    if !l.dtype.is_float() {
        return Err(format!("the logits must be floating-point numbers, but they are {l}"));
    }
    if !soft && !t.dtype.is_integer() {
        return Err(format!(
            "the targets must be integer indices of the classes, but they are {t}"
        ));
    }
    let axis = l.shape.axis(axis).map_err(|e| format!("no classes in the logits {l}: {e}"))?;
    let mut samples = l.shape.to_vec();
    let classes = samples.remove(axis);
    if soft && classes > 0 && l.shape == t.shape {
        return Ok(axis);
    }
    if soft || classes == 0 || samples != t.shape.dims() {
        return Err(format!(
            "the logits {l} are of {samples:?} samples in {classes} classes; the target must be integer indices {samples:?}, \
             or probabilities of the logits' shape, but it is {t}"
        ));
    }
    Ok(axis)
}
