//! [`Router`]: which experts compute a token, and with which weights. [`Routing`] has the losses that
//! keep experts equally busy.

use fulmen_durable::messages::quantity;
use fulmen_tensor::{DType, Refusal, Tensor, autocast};

use crate::layers::linear::bias_init;
use crate::library::NN;
use crate::loss::load_balancing_loss;
use crate::precision::wide;
use crate::{Buffer, Module, Parameter};

/// How the logits of a router become scores between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouterScores {
    /// A softmax over all experts.
    #[default]
    Softmax,
    /// The sigmoid of each logit, as in DeepSeek-V3.
    Sigmoid,
}

/// Selects experts for each token: those with the largest scores of a linear layer. Its products and
/// scores are f32 in mixed precision, too.
#[derive(Clone, Debug, Module)]
pub struct Router {
    /// `[experts, features]`.
    pub weight: Parameter,
    /// `[experts]`, f32: what DeepSeek-V3 adds to scores to select experts, but not to their weights.
    /// [`balance`](Router::balance) changes it.
    pub e_score_correction_bias: Option<Buffer>,
    pub(super) top_k: usize,
    pub(super) normalize: bool,
    #[module(skip)]
    pub(super) scores: RouterScores,
    /// The number of groups of experts, and of those that a token may use.
    #[module(skip)]
    pub(super) groups: Option<(usize, usize)>,
    /// The number of scores of a group that count.
    pub(super) scores_per_group: usize,
    pub(super) scale: f64,
    pub(super) experts: usize,
}

impl Router {
    pub(super) fn new(features: usize, experts: usize) -> Router {
        let weight = Parameter::new([experts, features], bias_init(features));
        weight.with_axes([None, Some("embed")]);
        Router {
            weight,
            e_score_correction_bias: None,
            top_k: 2.min(experts),
            normalize: true,
            scores: RouterScores::Softmax,
            groups: None,
            scores_per_group: 2,
            scale: 1.0,
            experts,
        }
    }

    /// Rejects settings that contradict each other.
    pub(super) fn check(&self) -> Result<(), String> {
        let Router { experts, top_k, scores_per_group, .. } = *self;
        let of_groups = match self.groups {
            None => experts,
            Some((groups, used)) => {
                let size = experts.checked_div(groups).unwrap_or(0);
                if scores_per_group == 0 {
                    return Err("scores_per_group is 0; it must be at least 1".into());
                }
                let is_equal = groups * size == experts;
                if !is_equal || size < scores_per_group || used == 0 || used > groups {
                    let least = quantity(scores_per_group, "expert");
                    return Err(format!(
                        "{experts} experts in {groups} groups, and a token uses {used} groups: the groups must be equal, \
                         have at least {least}, and be at least as many as are used"
                    ));
                }
                used * size
            }
        };
        if top_k == 0 || top_k > of_groups {
            return Err(format!(
                "top_k is {top_k}, but a token selects from {of_groups} experts; it must be from 1 to {of_groups}"
            ));
        }
        Ok(())
    }

    /// The experts of tokens `[…, features]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Routing, Refusal> {
        let logits = autocast(None, || wide(x).matmul(&wide(&self.weight.get()).t()));
        let scores = match self.scores {
            RouterScores::Softmax => logits.softmax(-1),
            RouterScores::Sigmoid => logits.sigmoid(),
        };
        let mut choice = scores.detach();
        if let Some(bias) = &self.e_score_correction_bias {
            choice = choice + bias.get().to_dtype(scores.dtype());
        }
        if let Some((groups, used)) = self.groups {
            choice = within_groups(&choice, groups, used, self.scores_per_group);
        }
        let (_, experts) = choice.topk(self.top_k);
        let experts = experts.to_dtype(DType::I32);
        let mut weights = scores.gather(-1, &experts);
        if self.normalize {
            // DeepSeek's constant, because sigmoids can all be 0.
            weights = &weights / (weights.sum_keepdim(-1) + 1e-20);
        }
        let probabilities = match self.scores {
            RouterScores::Softmax => scores,
            RouterScores::Sigmoid => &scores / (scores.sum_keepdim(-1) + 1e-20),
        };
        let weights = weights * self.scale;
        experts.live()?;
        let dropped = Tensor::zeros(DType::F32, []);
        Ok(Routing { logits, probabilities, experts, weights, dropped })
    }

    /// Moves the bias of each expert by `rate` up, if it got less than its share of the tokens, or
    /// down, if it got more: DeepSeek-V3's balance without a loss. `tokens_per_expert` is
    /// [`Routing::tokens_per_expert`]. Call it in a training step; DeepSeek-V3's rate is 0.001.
    /// Without a bias, it does nothing.
    ///
    /// ```
    /// use fulmen_nn::{MixtureOfExperts, Module, RouterScores};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let moe = MixtureOfExperts::new(4, 8, 2).scores(RouterScores::Sigmoid).top_k(1).balance_bias(true);
    /// moe.initialize(0);
    /// let (_, routing) = moe.forward_with_routing(Tensor::ones(DType::F32, [1, 3, 4]));
    /// moe.gate.balance(&routing.tokens_per_expert(), 0.001);
    /// let bias = moe.gate.e_score_correction_bias.as_ref().unwrap().get().eval()?.to_vec::<f32>()?;
    /// assert_eq!(bias[0], -bias[1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn balance(&self, tokens_per_expert: &Tensor, rate: f64) {
        let _scope = NN.open();
        if let Some(bias) = &self.e_score_correction_bias {
            let share = tokens_per_expert.mean_keepdim(-1);
            let step = (share - tokens_per_expert).sign() * rate;
            bias.set(bias.get() + step.to_dtype(bias.ty().dtype));
        }
    }
}

/// The scores, and −∞ in the groups that a token does not use. It uses those whose best `count` scores
/// have the largest sum.
fn within_groups(choice: &Tensor, groups: usize, used: usize, count: usize) -> Tensor {
    let by_group = choice.unflatten(-1, &[groups as isize, -1]);
    let best = by_group.topk(count).0.sum(-1);
    let (_, selected) = best.topk(used);
    let is_used = selected.one_hot(groups).any(-2);
    let hidden = Tensor::full(choice.dtype(), [], f64::NEG_INFINITY);
    is_used.unsqueeze(-1).select(&by_group, &hidden).flatten(-2, -1)
}

/// The experts of tokens, as a [`MixtureOfExperts`](crate::MixtureOfExperts) selected them. `…` are
/// the axes of the tokens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Routing {
    /// The logits of the router, `[…, experts]`.
    pub logits: Tensor,
    /// The scores, divided by their sum, `[…, experts]`.
    pub probabilities: Tensor,
    /// The selected experts, i32 `[…, top_k]`.
    pub experts: Tensor,
    /// The factors of their outputs, `[…, top_k]`.
    pub weights: Tensor,
    /// The fraction of selected experts that did not compute their token, because their capacity was
    /// exhausted: a scalar, f32. It is 0 without a capacity.
    pub dropped: Tensor,
}

impl Routing {
    /// The number of tokens that selected each expert, divided by the number of tokens: f32
    /// `[experts]`, whose sum is `top_k`.
    #[track_caller]
    pub fn tokens_per_expert(&self) -> Tensor {
        NN.record("tokens_per_expert", || {
            let counts = self.experts.live()?.one_hot(self.logits.size(-1)).to_dtype(DType::F32);
            Ok(mean_of_tokens(&counts.sum(-2)))
        })
    }

    /// The mean of the probabilities over all tokens, `[experts]`.
    #[track_caller]
    pub fn mean_probability(&self) -> Tensor {
        NN.record("mean_probability", || Ok(mean_of_tokens(self.probabilities.live()?)))
    }

    /// [`load_balancing_loss`] of these tokens.
    #[track_caller]
    pub fn load_balancing_loss(&self) -> Tensor {
        load_balancing_loss(&self.tokens_per_expert(), &self.mean_probability())
    }

    /// The mean over all tokens of `log(Σ exp(logits))²`, which keeps the logits of a router small
    /// (Zoph et al. 2022, "ST-MoE", equation 5). A scalar. Add it to the loss, times 0.001 for
    /// example.
    #[track_caller]
    pub fn z_loss(&self) -> Tensor {
        NN.record("router_z_loss", || {
            let sums = self.logits.live()?.logsumexp(-1);
            Ok((&sums * &sums).mean_all())
        })
    }
}

fn mean_of_tokens(x: &Tensor) -> Tensor {
    let axes: Vec<isize> = (0..x.rank() as isize - 1).collect();
    x.mean(&axes[..])
}
