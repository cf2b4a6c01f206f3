//! [`MixtureOfExperts`]: a feed-forward network; each token uses a part of it.

mod capacity;
mod routing;
mod sorted;

use std::fmt;
use std::sync::Arc;

use fulmen_tensor::{AsTensor, Refusal, Scope, Tensor};

pub use routing::{Router, RouterScores, Routing};

use super::Linear;
use super::linear::bias_init;
use crate::axes::constrain;
use crate::library::NN;
use crate::precision::product_dtype;
use crate::{Buffer, Module, Parameter, activation};

/// A gated feed-forward network with many experts. A router selects a few of them for each token:
/// `Σ weight·down_proj(activation(gate_proj(x))·up_proj(x))` over the selected experts. That of
/// Mixtral, Qwen-MoE and DeepSeek-V3, with the names of transformers.
///
/// Tokens are sorted by expert, and each expert computes its own, in blocks of rows: no token is
/// dropped, and no product is computed for experts that a token did not select, except in the last
/// block of each expert. The backward pass computes the products within the experts again, so
/// neither the sorted tokens nor the values within experts are in memory at once. With a
/// [`capacity_factor`](MixtureOfExperts::capacity_factor), tokens can be dropped.
///
/// The axes of the weights have the names `expert`, `mlp` and `embed`
/// ([`AxisRules`](crate::axes::AxisRules)). With `--strategy expert=4`, each device has a quarter of
/// the experts.
///
/// ```
/// use fulmen_nn::{MixtureOfExperts, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let moe = MixtureOfExperts::new(16, 32, 8).top_k(2); // features, inner features, experts
/// moe.initialize(0);
/// let x = Tensor::ones(DType::F32, [3, 10, 16]); // [batch, length, features]
/// let (y, routing) = moe.forward_with_routing(&x);
/// assert_eq!(y.ty().to_string(), "f32[3, 10, 16]");
/// let loss = y.mean_all() + routing.load_balancing_loss() * 0.01 + routing.z_loss() * 0.001;
/// assert!(loss.eval()?.to_f64()[0].is_finite());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct MixtureOfExperts {
    /// The router.
    pub gate: Router,
    /// The weights of all experts.
    pub experts: Experts,
    /// The network that all tokens use.
    pub shared_experts: Option<SharedExperts>,
    /// `[1, features]`: a factor of its output, the sigmoid of this product. Qwen2-MoE has it.
    pub shared_expert_gate: Option<Linear>,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    capacity_factor: Option<f64>,
    #[module(skip)]
    block_size: Option<usize>,
    features: usize,
}

/// The weights of all experts, in one tensor each.
#[derive(Clone, Debug, Module)]
pub struct Experts {
    /// `[experts, inner, features]`.
    pub gate_proj: Parameter,
    /// `[experts, inner, features]`.
    pub up_proj: Parameter,
    /// `[experts, features, inner]`.
    pub down_proj: Parameter,
}

/// A gated feed-forward network.
#[derive(Clone, Debug, Module)]
pub struct SharedExperts {
    /// `[inner, features]`.
    pub gate_proj: Linear,
    /// `[inner, features]`.
    pub up_proj: Linear,
    /// `[features, inner]`.
    pub down_proj: Linear,
}

/// The function of the gate. Clones share it.
#[derive(Clone)]
struct Activation(Arc<dyn Fn(&Tensor) -> Tensor + Send + Sync>);

impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Activation")
    }
}

impl Activation {
    fn apply(&self, x: &Tensor) -> Tensor {
        let _user = Scope::leave();
        (self.0)(x)
    }
}

/// The values of [`Experts`] in the dtype of products, and the function of the gate.
#[derive(Clone)]
struct ExpertWeights {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    activation: Activation,
}

impl ExpertWeights {
    fn count(&self) -> usize {
        self.gate.size(0)
    }

    /// The outputs of experts for their tokens, with the equations of the products to inner features
    /// and back. `scale` changes the values between them.
    fn products(
        &self,
        x: &Tensor,
        [inner, outer]: [&str; 2],
        scale: impl Fn(Tensor) -> Tensor,
    ) -> Tensor {
        let gate = Tensor::einsum(inner, &[x, &self.gate]);
        let up = Tensor::einsum(inner, &[x, &self.up]);
        let hidden = scale(self.activation.apply(&gate) * up);
        Tensor::einsum(outer, &[&hidden, &self.down])
    }
}

impl Experts {
    fn new(features: usize, inner: usize, experts: usize) -> Experts {
        let weight = |out: usize, of: usize, names| {
            Parameter::new([experts, out, of], bias_init(of)).with_axes(names)
        };
        Experts {
            gate_proj: weight(inner, features, ["expert", "mlp", "embed"]),
            up_proj: weight(inner, features, ["expert", "mlp", "embed"]),
            down_proj: weight(features, inner, ["expert", "embed", "mlp"]),
        }
    }
}

impl SharedExperts {
    fn new(features: usize, inner: usize) -> SharedExperts {
        let to_inner = || Linear::new(features, inner).bias(false).with_axes("mlp", "embed");
        SharedExperts {
            gate_proj: to_inner(),
            up_proj: to_inner(),
            down_proj: Linear::new(inner, features).bias(false).with_axes("embed", "mlp"),
        }
    }

    fn forward(&self, x: &Tensor, activation: &Activation) -> Tensor {
        let inner = |layer: &Linear| named(layer.forward(x), "mlp");
        let hidden = activation.apply(&inner(&self.gate_proj)) * inner(&self.up_proj);
        named(self.down_proj.forward(hidden), "embed")
    }
}

/// Names the axes of an activation, if it is `[batch, length, features]`.
fn named(x: Tensor, features: &str) -> Tensor {
    if x.rank() == 3 { constrain(x, ["batch", "length", features]) } else { x }
}

impl MixtureOfExperts {
    /// Experts with `inner` features inside. Each token uses two of them, with softmax scores that
    /// are divided by the sum of the selected ones, and with SiLU. Weights are initialized uniformly
    /// in `±1/√in`, as those of [`Linear`].
    pub fn new(features: usize, inner: usize, experts: usize) -> MixtureOfExperts {
        MixtureOfExperts {
            gate: Router::new(features, experts),
            experts: Experts::new(features, inner, experts),
            shared_experts: None,
            shared_expert_gate: None,
            activation: Activation(Arc::new(|x| activation::silu(x))),
            capacity_factor: None,
            block_size: None,
            features,
        }
    }

    /// The number of experts for each token.
    pub fn top_k(mut self, experts: usize) -> MixtureOfExperts {
        self.gate.top_k = experts;
        self
    }

    /// Whether the weights of the selected experts are divided by their sum; initially true.
    pub fn normalize(mut self, normalize: bool) -> MixtureOfExperts {
        self.gate.normalize = normalize;
        self
    }

    /// How logits become scores.
    pub fn scores(mut self, scores: RouterScores) -> MixtureOfExperts {
        self.gate.scores = scores;
        self
    }

    /// Whether a bias that is not trained is added to scores to select experts, as in DeepSeek-V3;
    /// [`Router::balance`] changes it.
    pub fn balance_bias(mut self, bias: bool) -> MixtureOfExperts {
        let zeros = || Buffer::new(Tensor::zeros(fulmen_tensor::DType::F32, [self.gate.experts]));
        self.gate.e_score_correction_bias = bias.then(zeros);
        self
    }

    /// Experts are in `groups` equal groups. A token may use `used` of them: those whose best scores
    /// have the largest sum. [`scores_per_group`](MixtureOfExperts::scores_per_group) is their number,
    /// initially two.
    pub fn groups(mut self, groups: usize, used: usize) -> MixtureOfExperts {
        self.gate.groups = (groups > 1).then_some((groups, used));
        self
    }

    /// The number of scores that a group of experts is judged by, the best ones: 2 in DeepSeek-V3, 1 in
    /// DeepSeek-V2. Initially 2. Without [`groups`](MixtureOfExperts::groups), it has no effect.
    ///
    /// ```
    /// use fulmen_nn::{MixtureOfExperts, Module};
    /// use fulmen_tensor::Tensor;
    ///
    /// let moe = MixtureOfExperts::new(1, 2, 4).top_k(1).groups(2, 1);
    /// moe.initialize(0);
    /// // The second group has the best score, the first one has the best two.
    /// moe.gate.weight.set(Tensor::from_slice(&[2.0f32, 2.0, 2.1, -9.0], [4, 1]));
    /// let selected = |moe: &MixtureOfExperts| {
    ///     let (_, routing) = moe.forward_with_routing(Tensor::from_slice(&[1.0f32], [1, 1]));
    ///     routing.experts.eval()?.to_vec::<i32>()
    /// };
    /// assert!(selected(&moe)?[0] < 2);
    /// assert_eq!(selected(&moe.scores_per_group(1))?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn scores_per_group(mut self, scores: usize) -> MixtureOfExperts {
        self.gate.scores_per_group = scores;
        self
    }

    /// A factor of all weights, DeepSeek's `routed_scaling_factor`.
    pub fn scale(mut self, factor: f64) -> MixtureOfExperts {
        self.gate.scale = factor;
        self
    }

    /// The function of the gate; initially [`activation::silu`].
    pub fn activation(
        mut self,
        function: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static,
    ) -> MixtureOfExperts {
        self.activation = Activation(Arc::new(function));
        self
    }

    /// A network with `inner` features inside, which all tokens use, too. With `gated`, its output is
    /// multiplied by the sigmoid of a product with the token.
    pub fn shared_experts(mut self, inner: usize, gated: bool) -> MixtureOfExperts {
        self.shared_experts = Some(SharedExperts::new(self.features, inner));
        let gate = || Linear::new(self.features, 1).bias(false).with_axes(None, "embed");
        self.shared_expert_gate = gated.then(gate);
        self
    }

    /// Each expert computes at most `⌈factor·length·top_k/experts⌉` tokens of a sequence. Others get
    /// nothing from it: first the second choices of tokens and later, then tokens at the end of the
    /// sequence. [`Routing::dropped`] is their fraction. All experts are then one product, with
    /// `factor` times the operations, whatever the router selects.
    pub fn capacity_factor(mut self, factor: f64) -> MixtureOfExperts {
        self.set_capacity_factor(Some(factor));
        self
    }

    /// [`capacity_factor`](MixtureOfExperts::capacity_factor) of a layer that exists, or none.
    pub fn set_capacity_factor(&mut self, factor: Option<f64>) {
        self.capacity_factor = factor;
    }

    /// The number of rows that an expert computes at a time, without a capacity. Each expert computes
    /// whole blocks. Initially about a quarter of the rows that an expert has on average, from 8 to
    /// 512.
    pub fn block_size(mut self, rows: usize) -> MixtureOfExperts {
        self.block_size = Some(rows);
        self
    }

    /// The outputs for tokens `[…, features]`, in the same shape. In mixed precision, they are in 16
    /// bits, as those of [`Linear`].
    ///
    /// Poisoned if the input has other features or is not floating-point, if `top_k`, groups,
    /// capacity or block size do not fit, or if the input with a capacity is not `[batch, length,
    /// features]`.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("MixtureOfExperts", || Ok(self.compute(x.as_tensor())?.0))
    }

    /// [`forward`](MixtureOfExperts::forward), and the experts of each token. After a mistake, all
    /// tensors are poisoned.
    #[track_caller]
    pub fn forward_with_routing(&self, x: impl AsTensor) -> (Tensor, Routing) {
        let mut routing = None;
        let y = NN.record("MixtureOfExperts", || {
            let (y, found) = self.compute(x.as_tensor())?;
            routing = Some(found);
            Ok(y)
        });
        let routing = routing.unwrap_or_else(|| {
            let [logits, probabilities, experts, weights, dropped] = [(); 5].map(|()| y.clone());
            Routing { logits, probabilities, experts, weights, dropped }
        });
        (y, routing)
    }

    fn compute(&self, x: &Tensor) -> Result<(Tensor, Routing), Refusal> {
        self.check(x.live()?)?;
        let mut routing = self.gate.forward(x)?;
        let Experts { gate_proj, up_proj, down_proj } = &self.experts;
        let product = product_dtype(x.dtype(), gate_proj.ty().dtype)?;
        let [gate, up, down] = [gate_proj, up_proj, down_proj].map(|w| w.get().to_dtype(product));
        let weights = ExpertWeights { gate, up, down, activation: self.activation.clone() };
        let input = x.to_dtype(product);
        let y = match self.capacity_factor {
            Some(factor) => capacity::forward(&input, &mut routing, &weights, factor)?,
            None => sorted::forward(&input, &routing, &weights, self.block_size)?,
        };
        let mut y = named(y, "embed");
        if let Some(shared) = &self.shared_experts {
            let mut output = shared.forward(x, &self.activation);
            if let Some(gate) = &self.shared_expert_gate {
                output = gate.forward(x).sigmoid() * output;
            }
            y = y + output;
        }
        Ok((y, routing))
    }

    fn check(&self, x: &Tensor) -> Result<(), String> {
        let features = self.features;
        if x.rank() < 2 || x.size(-1) != features || !x.dtype().is_float() {
            let ty = x.ty();
            return Err(format!("the input {ty} is not floating-point [.., tokens, {features}]"));
        }
        self.gate.check()?;
        if self.block_size == Some(0) {
            return Err("the block size is 0; it must be at least 1".into());
        }
        let Some(factor) = self.capacity_factor else { return Ok(()) };
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(format!("the capacity factor is {factor}; it must be above 0"));
        }
        if x.rank() != 3 {
            return Err(format!(
                "the input {} is not [batch, length, {features}]; a capacity is that of a sequence",
                x.ty()
            ));
        }
        Ok(())
    }
}

impl fmt::Display for MixtureOfExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Router { experts, top_k, .. } = self.gate;
        write!(f, "MixtureOfExperts({}, {top_k} of {experts} experts)", self.features)
    }
}
