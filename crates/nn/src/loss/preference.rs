//! Losses of preferences between two answers (DPO), of the log-probabilities that a language model
//! and a frozen reference give to them.

use fulmen_tensor::{AsTensor, Refusal, Tensor};

use super::Reduction;
use super::binary::minus_log_sigmoid;
use super::check::{same_floats, same_shape};
use crate::library::{NN, live};
use crate::precision::{precision, wide};

/// The log-probabilities that a language model gives to sequences.
///
/// ```
/// use fulmen_nn::loss::{CrossEntropyLoss, Reduction, SequenceLogProbs};
/// use fulmen_tensor::{DType, Tensor};
///
/// let logits = Tensor::zeros(DType::F32, [1, 3, 4]);
/// let labels = Tensor::from_slice(&[-100i32, 2, 0], [1, 3]); // the first token is of the prompt
/// let losses = CrossEntropyLoss::new().ignore_index(-100).reduction(Reduction::None).forward(&logits, &labels);
/// let log_probs = SequenceLogProbs::of_losses(&losses, &labels, -100);
/// assert!((log_probs.sum.eval()?.to_f64()[0] + 2.0 * 4f64.ln()).abs() < 1e-6);
/// assert_eq!(log_probs.tokens.eval()?.to_f64(), [2.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SequenceLogProbs {
    /// The log-probability of each sequence, `[batch]`: the sum over its tokens that have labels.
    pub sum: Tensor,
    /// How many tokens of each sequence have labels, `[batch]`.
    pub tokens: Tensor,
}

impl SequenceLogProbs {
    /// From the cross-entropies of tokens, `[batch, length]` without a reduction, and their labels,
    /// integers of that shape. Tokens with the label `ignore_index` do not count.
    ///
    /// Poisoned if the shapes differ or have another rank.
    #[track_caller]
    pub fn of_losses(
        losses: impl AsTensor,
        labels: impl AsTensor,
        ignore_index: i64,
    ) -> SequenceLogProbs {
        let losses = losses.as_tensor();
        let labels = labels.as_tensor();
        let is_label = || -> Result<Tensor, Refusal> {
            live(&[losses, labels])?;
            same_shape(&[("loss", losses), ("label", labels)])?;
            if losses.rank() != 2 || !losses.dtype().is_float() {
                let message = format!(
                    "needs floating-point losses [batch, length], got {}; compute them with Reduction::None",
                    losses.ty()
                );
                return Err(message.into());
            }
            Ok(labels.ne(ignore_index as f64))
        };
        let sum = NN.record("SequenceLogProbs", || {
            let losses = wide(losses);
            Ok(-is_label()?.select(&losses, &losses.zeros_like()).sum(-1))
        });
        let tokens = NN.record("SequenceLogProbs", || {
            Ok(is_label()?.to_dtype(precision(losses.dtype())).sum(-1))
        });
        SequenceLogProbs { sum, tokens }
    }
}

/// The formula of a [`DpoLoss`], with TRL's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DpoLossType {
    /// `−log σ(β·Δ)` (Rafailov et al. 2023); with `label_smoothing` ε,
    /// `−(1−ε)·log σ(β·Δ) − ε·log σ(−β·Δ)` (Mitchell 2023).
    #[default]
    Sigmoid,
    /// `max(0, 1 − β·Δ)` (Zhao et al. 2023).
    Hinge,
    /// `(Δ − 1/(2β))²`, where Δ is of means over tokens (Azar et al. 2023).
    Ipo,
}

/// Direct preference optimization (Rafailov et al. 2023): the loss of pairs of answers, where one
/// is preferred. With the log-probabilities `π` of the model and `ref` of a frozen reference,
/// `Δ = (π(chosen) − ref(chosen)) − (π(rejected) − ref(rejected))`; [`DpoLossType`] has the
/// formulas.
///
/// ```
/// use fulmen_nn::loss::{DpoLoss, SequenceLogProbs};
/// use fulmen_tensor::Tensor;
///
/// let log_probs = |sum: f32| SequenceLogProbs {
///     sum: Tensor::from_slice(&[sum], [1]),
///     tokens: Tensor::from_slice(&[3f32], [1]),
/// };
/// let [chosen, rejected] = [log_probs(-4.0), log_probs(-6.0)];
/// let [reference_chosen, reference_rejected] = [log_probs(-5.0), log_probs(-5.0)];
/// let dpo = DpoLoss::new().beta(0.5).forward(&chosen, &rejected, &reference_chosen.sum, &reference_rejected.sum);
/// let margin = 0.5 * 2f64;
/// assert!((dpo.loss.eval()?.to_f64()[0] - (1.0 + (-margin).exp()).ln()).abs() < 1e-6);
/// assert_eq!(dpo.margins().eval()?.to_f64(), [1.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct DpoLoss {
    loss_type: DpoLossType,
    beta: f64,
    label_smoothing: f64,
    reduction: Reduction,
}

/// The loss of pairs of answers, and their rewards, through which no gradient flows.
#[derive(Clone, Debug)]
pub struct DpoOutput {
    /// The loss, by the reduction: a scalar or `[batch]`.
    pub loss: Tensor,
    /// `β·(π − ref)` of the preferred answers, `[batch]`: TRL's `rewards/chosen`.
    pub chosen_rewards: Tensor,
    /// `β·(π − ref)` of the other answers, `[batch]`: TRL's `rewards/rejected`.
    pub rejected_rewards: Tensor,
}

impl DpoOutput {
    /// By how much the preferred answers have a larger reward, `[batch]`: TRL's `rewards/margins`.
    #[track_caller]
    pub fn margins(&self) -> Tensor {
        &self.chosen_rewards - &self.rejected_rewards
    }

    /// 1 where the preferred answer has the larger reward, else 0, `[batch]`: TRL's
    /// `rewards/accuracies`.
    #[track_caller]
    pub fn accuracies(&self) -> Tensor {
        self.chosen_rewards.gt(&self.rejected_rewards).to_dtype(self.chosen_rewards.dtype())
    }
}

impl DpoLoss {
    /// The sigmoid loss with β = 0.1 and without smoothing, as in TRL; the mean of the pairs.
    pub fn new() -> DpoLoss {
        DpoLoss {
            loss_type: DpoLossType::Sigmoid,
            beta: 0.1,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }

    /// The formula; the sigmoid one unless set.
    pub fn loss_type(mut self, loss_type: DpoLossType) -> DpoLoss {
        self.loss_type = loss_type;
        self
    }

    /// How strongly the model is held to the reference: the larger, the closer.
    pub fn beta(mut self, beta: f64) -> DpoLoss {
        self.beta = beta;
        self
    }

    /// The share of pairs that are taken to be the wrong way round, from 0 to below 0.5. Only for the
    /// sigmoid loss.
    pub fn label_smoothing(mut self, share: f64) -> DpoLoss {
        self.label_smoothing = share;
        self
    }

    /// How the losses of pairs are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> DpoLoss {
        self.reduction = reduction;
        self
    }

    /// The loss of pairs of answers. The log-probabilities of the reference are sums over tokens,
    /// `[batch]`, through which no gradient flows.
    ///
    /// Poisoned if the shapes differ or the settings are out of range.
    #[track_caller]
    pub fn forward(
        &self,
        chosen: &SequenceLogProbs,
        rejected: &SequenceLogProbs,
        reference_chosen: impl AsTensor,
        reference_rejected: impl AsTensor,
    ) -> DpoOutput {
        let reference_chosen = reference_chosen.as_tensor();
        let reference_rejected = reference_rejected.as_tensor();
        let loss = NN.record("DpoLoss", || {
            self.check()?;
            same_floats(&[
                ("chosen", &chosen.sum),
                ("rejected", &rejected.sum),
                ("reference's chosen", reference_chosen),
                ("reference's rejected", reference_rejected),
            ])?;
            let chosen_ratio = log_ratio(&chosen.sum, reference_chosen);
            let rejected_ratio = log_ratio(&rejected.sum, reference_rejected);
            let logits = (&chosen_ratio - &rejected_ratio) * self.beta;
            let losses = match self.loss_type {
                DpoLossType::Sigmoid if self.label_smoothing == 0.0 => minus_log_sigmoid(&logits),
                DpoLossType::Sigmoid => {
                    minus_log_sigmoid(&logits) * (1.0 - self.label_smoothing)
                        + minus_log_sigmoid(&-&logits) * self.label_smoothing
                }
                DpoLossType::Hinge => (-logits + 1.0).relu(),
                DpoLossType::Ipo => {
                    same_floats(&[("chosen", &chosen.sum), ("number of tokens", &chosen.tokens)])?;
                    same_floats(&[
                        ("rejected", &rejected.sum),
                        ("number of tokens", &rejected.tokens),
                    ])?;
                    let difference =
                        per_token(&chosen_ratio, chosen) - per_token(&rejected_ratio, rejected);
                    (difference - 1.0 / (2.0 * self.beta)).square()
                }
            };
            Ok(self.reduction.apply(&losses))
        });
        let rewards = |answer: &SequenceLogProbs, reference: &Tensor| {
            NN.record("DpoLoss", || {
                same_floats(&[("answer", &answer.sum), ("reference", reference)])?;
                Ok((log_ratio(&answer.sum, reference) * self.beta).detach())
            })
        };
        DpoOutput {
            loss,
            chosen_rewards: rewards(chosen, reference_chosen),
            rejected_rewards: rewards(rejected, reference_rejected),
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        let DpoLoss { beta, label_smoothing, loss_type, .. } = *self;
        if !(beta > 0.0 && beta.is_finite()) {
            return Err(format!("beta must be larger than 0, but it is {beta}").into());
        }
        if !(0.0..0.5).contains(&label_smoothing) {
            return Err(format!(
                "label_smoothing must be from 0 to below 0.5, but it is {label_smoothing}"
            )
            .into());
        }
        if label_smoothing != 0.0 && loss_type != DpoLossType::Sigmoid {
            return Err(format!(
                "label_smoothing is {label_smoothing}, but the loss is {loss_type:?}, which has none; set it to 0"
            )
            .into());
        }
        Ok(())
    }
}

impl Default for DpoLoss {
    fn default() -> DpoLoss {
        DpoLoss::new()
    }
}

fn log_ratio(policy: &Tensor, reference: &Tensor) -> Tensor {
    wide(policy) - wide(reference).detach()
}

fn per_token(ratio: &Tensor, sequence: &SequenceLogProbs) -> Tensor {
    let tokens = wide(&sequence.tokens).detach();
    let is_none = tokens.eq(0.0);
    ratio / is_none.select(&tokens.ones_like(), &tokens)
}
