//! Layers with experts: which layers have them, their names in files, and what their routers did.

use fulmen_nn::loss::load_balancing_loss;
use fulmen_nn::weights::StateDict;
use fulmen_nn::{MixtureOfExperts, Module, RouterScores, Visit};
use fulmen_tensor::{DType, Tensor};

use super::config::{Config, ModelType, TopkMethod};
use super::{Mlp, PreNorm};
use crate::Result;

/// The feed-forward network of a layer.
pub enum FeedForward {
    /// One network for all tokens.
    Dense(Mlp),
    /// A router that selects a few of many networks for each token.
    Experts(MixtureOfExperts),
}

impl Module for FeedForward {
    fn visit(&self, visit: &mut Visit<'_>) {
        match self {
            FeedForward::Dense(mlp) => visit.flatten(mlp),
            FeedForward::Experts(experts) => visit.flatten(experts),
        }
    }
}

impl FeedForward {
    pub(super) fn new(config: &Config, layer: usize) -> FeedForward {
        if !config.has_experts(layer) {
            return FeedForward::Dense(Mlp::new(config));
        }
        let features = config.hidden_size;
        let activation = config.activation();
        let mut moe = MixtureOfExperts::new(features, config.expert_size(), config.experts())
            .top_k(config.num_experts_per_tok.unwrap_or(0))
            .normalize(config.norm_topk_prob.unwrap_or(config.model_type == ModelType::Mixtral))
            .activation(move |x| activation.forward(x));
        let groups = config.n_group.unwrap_or(1);
        let used = config.topk_group.unwrap_or(1);
        if config.has_sigmoid_router() {
            moe = moe.scores(RouterScores::Sigmoid).balance_bias(true).groups(groups, used);
        }
        if config.topk_method == Some(TopkMethod::GroupLimitedGreedy) {
            moe = moe.groups(groups, used).scores_per_group(1);
        }
        if config.has_deepseek_experts() {
            let inner = config.expert_size() * config.n_shared_experts.unwrap_or(0);
            moe =
                moe.scale(config.routed_scaling_factor.unwrap_or(1.0)).shared_experts(inner, false);
        }
        if let Some(inner) = config.shared_expert_intermediate_size {
            moe = moe.shared_experts(inner, true);
        }
        FeedForward::Experts(moe)
    }

    /// The output, and with experts the statistics of the router: see [`RouterStatistics`].
    pub(super) fn forward(&self, x: &Tensor, norm: &PreNorm<'_>) -> (Tensor, Option<Tensor>) {
        let moe = match self {
            FeedForward::Dense(mlp) => return (mlp.forward(x, norm), None),
            FeedForward::Experts(moe) => moe,
        };
        let (y, routing) = moe.forward_with_routing(norm.norm.forward(x));
        let one = |x: Tensor| x.to_dtype(DType::F32).reshape([1]);
        let parts = [
            routing.tokens_per_expert(),
            routing.mean_probability(),
            one(routing.z_loss()),
            one(routing.dropped.clone()),
        ];
        (y, Some(Tensor::concatenate(&parts, 0)))
    }

    /// The network, if there is one for all tokens.
    pub fn dense(&self) -> Option<&Mlp> {
        match self {
            FeedForward::Dense(mlp) => Some(mlp),
            FeedForward::Experts(_) => None,
        }
    }

    /// The layer, if it has experts.
    pub fn experts(&self) -> Option<&MixtureOfExperts> {
        match self {
            FeedForward::Dense(_) => None,
            FeedForward::Experts(experts) => Some(experts),
        }
    }
}

/// What the routers of a decoder did, f32. The first axis are the layers that have experts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RouterStatistics {
    /// The fraction of the tokens that selected each expert, `[layers, experts]`.
    pub tokens_per_expert: Tensor,
    /// The mean probability of each expert, `[layers, experts]`.
    pub mean_probability: Tensor,
    /// The z-losses, `[layers]`.
    pub z_loss: Tensor,
    /// The fractions of selected experts that did not compute their token, `[layers]`.
    pub dropped: Tensor,
}

impl RouterStatistics {
    /// The statistics of all layers, each a vector of [`FeedForward::forward`].
    pub(super) fn new(layers: &[(usize, Tensor)]) -> Option<RouterStatistics> {
        let vectors: Vec<&Tensor> = layers.iter().map(|(_, vector)| vector).collect();
        let experts = (vectors.first()?.size(0).saturating_sub(2)) / 2;
        let all = Tensor::stack(&vectors, 0);
        Some(RouterStatistics {
            tokens_per_expert: all.narrow(1, 0, experts).detach(),
            mean_probability: all.narrow(1, experts, experts),
            z_loss: all.index(1, 2 * experts as isize),
            dropped: all.index(1, 2 * experts as isize + 1).detach(),
        })
    }

    /// The loss that is smallest if all experts get the same number of tokens: transformers'
    /// `load_balancing_loss_func`, of the means over all layers. A scalar.
    #[track_caller]
    pub fn load_balancing_loss(&self) -> Tensor {
        load_balancing_loss(&self.tokens_per_expert.mean(0), &self.mean_probability.mean(0))
    }
}

/// The names of an expert's weights in the model, in most files, and in Mixtral's.
const WEIGHTS: [[&str; 3]; 3] = [
    ["gate_proj", "gate_proj", "w1"],
    ["up_proj", "up_proj", "w3"],
    ["down_proj", "down_proj", "w2"],
];

/// A folder's values for the model: one tensor for all experts. Files have a matrix for each, or, from
/// transformers 5 itself, the gates and the projections to inner features in one tensor.
pub(super) fn read_values(values: &StateDict) -> Result<StateDict> {
    let one_of_many = |name: &str| {
        let (start, rest) = name.rsplit_once(".experts.")?;
        let (number, weight) = rest.strip_suffix(".weight")?.split_once('.')?;
        let names = WEIGHTS.iter().find(|names| names.contains(&weight))?;
        Some((format!("{start}.experts.{}", names[0]), number.parse().ok()?))
    };
    let joined = |name: &str| {
        let start = name.strip_suffix(".experts.gate_up_proj")?;
        let part = |weight: &str| format!("{start}.experts.{weight}");
        Some((1, vec![part("gate_proj"), part("up_proj")]))
    };
    without_prediction_layers(values)?.stack(one_of_many)?.split(joined)
}

/// The values without the layers that predict further tokens, which published folders of GLM
/// and DeepSeek-V3 have and transformers does not read. Such a layer is the only one with an `eh_proj`.
fn without_prediction_layers(values: &StateDict) -> Result<StateDict> {
    let layers: Vec<String> = values
        .iter()
        .filter_map(|(name, _)| name.strip_suffix("eh_proj.weight").map(str::to_owned))
        .collect();
    let is_kept = |name: &str| !layers.iter().any(|layer| name.starts_with(layer));
    values.rename_with(|name| is_kept(name).then(|| name.to_owned()))
}

/// The name in the model of a value in a file.
pub(super) fn current_name(name: &str) -> String {
    name.replace(".block_sparse_moe.", ".mlp.").replace(".shared_expert.", ".shared_experts.")
}

/// The values of a file for a parameter, as published folders have them.
pub(super) fn written_values(
    model_type: ModelType,
    name: String,
    value: &Tensor,
) -> Vec<(String, Tensor)> {
    let is_mixtral = model_type == ModelType::Mixtral;
    let name = match model_type {
        ModelType::Mixtral => name.replace(".mlp.", ".block_sparse_moe."),
        ModelType::Qwen2Moe => name.replace(".shared_experts.", ".shared_expert."),
        _ => name,
    };
    let found = name.rsplit_once(".experts.").and_then(|(start, weight)| {
        let names = WEIGHTS.iter().find(|names| names[0] == weight)?;
        Some((start, names[if is_mixtral { 2 } else { 1 }]))
    });
    let Some((start, weight)) = found else { return vec![(name, value.clone())] };
    (0..value.size(0))
        .map(|i| (format!("{start}.experts.{i}.{weight}.weight"), value.index(0, i as isize)))
        .collect()
}
