//! Connectionist temporal classification: the likelihood of a label sequence over all alignments
//! with time.

use fulmen_tensor::internal::{IndexRule, check_indices, check_masked_indices};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, scan};

use super::Reduction;
use crate::library::{NN, live};
use crate::precision::wide;

const LOSS: &str = "ctc_loss";

/// `−log Σ p(alignment)` over all alignments of the targets with time: log-probabilities `[time,
/// batch, classes]`, as from `log_softmax`, and labels `[batch, longest]`, with their lengths,
/// integers `[batch]`. Class 0 is the blank.
///
/// The mean is PyTorch's: each loss is divided by the length of its target, or by 1 if it is empty.
/// Labels after the target's length and time steps after the input's length are ignored.
///
/// ```
/// use fulmen_nn::loss::{Reduction, ctc_loss};
/// use fulmen_tensor::{DType, Tensor};
///
/// // Three steps over {blank, a, b}, all equally likely: "a" can be a--, -a-, --a, aa-, -aa, aaa.
/// let log_p = Tensor::zeros(DType::F32, [3, 1, 3]).log_softmax(-1);
/// let one = |n: i32| Tensor::from_slice(&[n], [1]);
/// let loss = ctc_loss(&log_p, &one(1).reshape([1, 1]), &one(3), &one(1), Reduction::Sum);
/// assert!((loss.eval()?.to_vec::<f32>()?[0] - (27f32 / 6.0).ln()).abs() < 1e-5);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn ctc_loss(
    log_p: impl AsTensor,
    targets: impl AsTensor,
    input_lengths: impl AsTensor,
    target_lengths: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let log_p = log_p.as_tensor();
    let targets = targets.as_tensor();
    let input_lengths = input_lengths.as_tensor();
    let target_lengths = target_lengths.as_tensor();
    CtcLoss::new().reduction(reduction).forward(log_p, targets, input_lengths, target_lengths)
}

/// [`ctc_loss`] with settings, like PyTorch's `nn.CTCLoss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CtcLoss {
    reduction: Reduction,
    blank: usize,
    zero_infinity: bool,
}

impl CtcLoss {
    /// The mean, with blank 0.
    pub fn new() -> CtcLoss {
        CtcLoss::default()
    }

    /// How the losses of the sequences are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> CtcLoss {
        self.reduction = reduction;
        self
    }

    /// The blank class.
    pub fn blank(mut self, class: usize) -> CtcLoss {
        self.blank = class;
        self
    }

    /// Whether the loss is 0 instead of infinite if the target is too long for its input.
    pub fn zero_infinity(mut self, zero: bool) -> CtcLoss {
        self.zero_infinity = zero;
        self
    }

    /// The loss, in time and memory `time·batch·longest`: one loop over time. An infinite loss has
    /// a gradient of 0. A label outside the classes, a blank as a label, or a length beyond its
    /// axis is an error where the host knows it, in a training step and in an evaluation;
    /// elsewhere, it makes the loss of the sequence NaN.
    ///
    /// Poisoned if the shapes do not fit, if targets or lengths are not integers, or if the blank
    /// is not a class.
    #[track_caller]
    pub fn forward(
        &self,
        log_p: impl AsTensor,
        targets: impl AsTensor,
        input_lengths: impl AsTensor,
        target_lengths: impl AsTensor,
    ) -> Tensor {
        NN.record(LOSS, || {
            let log_p = log_p.as_tensor();
            let targets = targets.as_tensor();
            let input_lengths = input_lengths.as_tensor();
            let target_lengths = target_lengths.as_tensor();
            live(&[log_p, targets, input_lengths, target_lengths])?;
            let (time, batch, classes, longest) =
                self.sizes(log_p, targets, input_lengths, target_lengths)?;
            let log_p = wide(log_p);
            let dtype = log_p.dtype();
            let impossible = Tensor::full(dtype, [], f64::NEG_INFINITY);
            let (input_lengths, lengths_fit) =
                self::lengths("an input length", input_lengths, time)?;
            let (target_lengths, short) =
                self::lengths("a target length", target_lengths, longest)?;
            let sound = lengths_fit.and(short);

            // Blanks around and between the labels: states 0, 2, … are blanks, state 2i + 1 is
            // label i.
            let states = 2 * longest + 1;
            let blanks = Tensor::full(DType::I32, [batch, longest], self.blank as f64);
            let used = Tensor::iota(DType::I32, [batch, longest], 1).lt(&target_lengths);
            let index = self.checked(targets, &used, classes)?.to_dtype(DType::I64);
            let right =
                index.ge(0.0).and(index.lt(classes as f64)).and(index.ne(self.blank as f64));
            let unsound = used.and(right.not()).to_dtype(DType::I32).sum_keepdim(1).gt(0.0);
            let labels = used.and(&right).select(&index.to_dtype(DType::I32), &blanks);
            let pairs = Tensor::stack(&[&labels, &blanks], 2).reshape([batch, 2 * longest]);
            let first = Tensor::full(DType::I32, [batch, 1], self.blank as f64);
            let state_labels = Tensor::concatenate(&[&first, &pairs], 1);
            let emitted = log_p.take_along_axis(2, &state_labels.reshape([1, batch, states]));

            // The blank between two labels can be skipped if they differ.
            let state = Tensor::iota(DType::I32, [batch, states], 1);
            let before = shifted(&state_labels, 2, &Tensor::scalar(self.blank as i32));
            let may_skip = state_labels.ne(self.blank as f64).and(state_labels.ne(&before));

            // Before the first step, the only possible state is the first blank.
            let start = state.eq(0.0).select(&Tensor::zeros(dtype, []), &impossible);
            let steps = Tensor::iota(DType::I32, [time], 0);
            let (alpha, ()) = scan(&start, (emitted, steps), |alpha, (emitted, step)| {
                let skip = may_skip.select(&shifted(&alpha, 2, &impossible), &impossible);
                let next = log_sum(&[&alpha, &shifted(&alpha, 1, &impossible), &skip]) + emitted;
                (input_lengths.gt(step).select(&next, &alpha), ())
            });

            // The final states are the last label and the blank after it; without labels, the
            // blank.
            let last = &target_lengths * 2.0;
            let label = state.eq(&last - 1.0);
            let blank = state.eq(&last);
            let label = label.select(&alpha, &impossible);
            let blank = blank.select(&alpha, &impossible);
            // At most one element of each is not −∞, so it is the maximum.
            let likelihood = log_sum(&[&largest(&label), &largest(&blank)]);
            let unsound = unsound.or(sound.not());
            let mut losses = -likelihood;
            if self.zero_infinity {
                losses = losses.eq(f64::INFINITY).select(&losses.zeros_like(), &losses);
            }
            let ones = losses.ones_like();
            losses = unsound.select(&(&ones * f64::NAN), &losses);
            if self.reduction == Reduction::Mean {
                losses = losses / target_lengths.maximum(1.0).to_dtype(dtype);
            }
            Ok(self.reduction.apply(&losses.reshape([batch])))
        })
    }

    /// Checks the labels in use: they are classes, but not the blank.
    fn checked(&self, labels: &Tensor, used: &Tensor, classes: usize) -> Result<Tensor, Refusal> {
        let reason = format!("there are {classes} classes");
        let rule = IndexRule::below(LOSS, "a label", classes, reason);
        let excluded = Some((self.blank as i64, "the blank"));
        check_masked_indices(labels, used, IndexRule { excluded, ..rule })
    }

    /// The number of steps, sequences and classes and the longest target, or why the tensors are
    /// invalid.
    fn sizes(
        &self,
        log_p: &Tensor,
        targets: &Tensor,
        input_lengths: &Tensor,
        target_lengths: &Tensor,
    ) -> Result<(usize, usize, usize, usize), String> {
        let types = || {
            let [p, t, i, l] = [log_p, targets, input_lengths, target_lengths].map(Tensor::ty);
            format!("got {p}, {t}, and the lengths {i} and {l}")
        };
        let integers =
            [targets, input_lengths, target_lengths].iter().all(|t| t.dtype().is_integer());
        let (&[time, batch, classes], &[rows, longest]) =
            (log_p.shape().dims(), targets.shape().dims())
        else {
            return Err(format!(
                "needs log-probabilities [time, batch, classes] and targets [batch, longest], {}",
                types()
            ));
        };
        let lengths = [input_lengths, target_lengths].iter().all(|t| t.shape().dims() == [batch]);
        if !log_p.dtype().is_float() || !integers || rows != batch || !lengths {
            return Err(format!(
                "needs floating-point log-probabilities [time, batch, classes], targets [batch, longest] and lengths \
                 [batch] that are integers, {}",
                types()
            ));
        }
        if self.blank >= classes {
            return Err(format!(
                "the blank is class {}, and there are {classes} classes",
                self.blank
            ));
        }
        if longest.checked_mul(2).and_then(|n| i32::try_from(n).ok()).is_none() {
            return Err(format!("targets of up to {longest} labels are too long, {}", types()));
        }
        Ok((time, batch, classes, longest))
    }
}

/// Lengths as a column of i32, and whether they are valid for an axis of size `max`; invalid ones
/// become 0.
fn lengths(what: &'static str, x: &Tensor, max: usize) -> Result<(Tensor, Tensor), Refusal> {
    let rule = IndexRule::below(LOSS, what, max + 1, format!("it must be from 0 to {max}"));
    let x = check_indices(x, rule)?;
    // Checked before the conversion, which loses the high bits.
    let x = x.to_dtype(DType::I64).reshape([x.size(0), 1]);
    let sound = x.ge(0.0).and(x.le(max as f64));
    Ok((sound.select(&x, &x.zeros_like()).to_dtype(DType::I32), sound))
}

/// Shifts the states by `offset`; the first ones become `value`.
fn shifted(x: &Tensor, offset: i64, value: &Tensor) -> Tensor {
    x.pad(value, &[0, offset], &[0, -offset], &[0, 0])
}

/// The maximum of a row, `[batch, 1]`, in which at most one element is not −∞; its gradient goes to
/// that element.
fn largest(x: &Tensor) -> Tensor {
    let possible = x.ne(f64::NEG_INFINITY);
    let sum = possible.select(x, &x.zeros_like()).sum_keepdim(1);
    let any_possible = possible.to_dtype(DType::I32).sum_keepdim(1).gt(0.0);
    any_possible.select(&sum, &Tensor::full(x.dtype(), [], f64::NEG_INFINITY))
}

/// `log Σ exp(x)` of tensors of one shape, elementwise; −∞, without gradient, if all are −∞.
fn log_sum(terms: &[&Tensor]) -> Tensor {
    let Some((first, others)) = terms.split_first() else {
        return Tensor::poison(LOSS, "a sum of nothing");
    };
    let mut max = (*first).clone();
    for other in others {
        max = max.maximum(*other);
    }
    let all_impossible = max.eq(f64::NEG_INFINITY);
    let max = all_impossible.select(&max.zeros_like(), &max).detach();
    let mut sum = max.zeros_like();
    for term in terms {
        sum = sum + (*term - &max).exp();
    }
    let log = all_impossible.select(&sum.ones_like(), &sum).log() + &max;
    all_impossible.select(&Tensor::full(max.dtype(), [], f64::NEG_INFINITY), &log)
}
