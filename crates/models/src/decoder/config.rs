//! The settings of a decoder, and what they mean. Their defaults and checks are in files of their own.

mod check;
mod deepseek;
mod defaults;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::Activation;
use crate::settings::default_missing;

pub(super) use deepseek::LatentSizes;
pub use deepseek::{ScoringFunc, TopkMethod};

/// The kind of model, which determines what the settings do not specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelType {
    /// Llama 2 and 3.
    Llama,
    /// Mistral 7B: a sliding window.
    Mistral,
    /// Qwen 2 and 2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen 3: queries and keys are normalized.
    Qwen3,
    /// Gemma: normalizations multiply by `1 + weight`, and embeddings are scaled.
    Gemma,
    /// Gemma 2: four normalizations in each layer; logits are bounded.
    Gemma2,
    /// Gemma 3, text only: queries and keys are normalized; layers with a sliding window use
    /// different angles.
    #[serde(rename = "gemma3_text")]
    Gemma3,
    /// Mixtral: experts.
    Mixtral,
    /// Qwen 1.5 and 2 with experts, some of which all tokens use.
    Qwen2Moe,
    /// Qwen 3 with experts.
    Qwen3Moe,
    /// dots.llm1: the experts of DeepSeek-V3 with Qwen 3's attention.
    Dots1,
    /// GLM-4.5 and 4.6: the experts of DeepSeek-V3; half of the features of queries and keys are
    /// rotated.
    Glm4Moe,
    /// DeepSeek-V2: attention from latent features; softmax scores of experts.
    DeepseekV2,
    /// DeepSeek-V3 and R1: attention from latent features; sigmoid scores of experts.
    DeepseekV3,
}

/// Which tokens a layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All earlier tokens.
    FullAttention,
    /// The last `sliding_window`.
    SlidingAttention,
}

/// The settings, with the names of `config.json`; by default Llama 2's of 7 billion parameters.
///
/// Each kind of model has its own defaults, those of transformers: [`Config::new`] returns them. A
/// key that a file does not have gets the default of the file's `model_type`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Config {
    /// The kind of model.
    pub model_type: ModelType,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub hidden_size: usize,
    /// The number of features in the feed-forward network of a layer.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key and value heads, which must divide the number of query heads. By default,
    /// the two numbers are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// The number of features of a head; `hidden_size/num_attention_heads` if not given. In DeepSeek,
    /// it can only be `qk_rope_head_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The number of tokens that the model was trained on.
    pub max_position_embeddings: usize,
    /// The constant that normalizations add to the mean square.
    pub rms_norm_eps: f64,
    /// The activation of the gate; not in Gemma 2 and 3. The first Gemma's `gelu` means
    /// `gelu_pytorch_tanh`, as in transformers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_act: Option<Activation>,
    /// The activation of the gate in Gemma 2 and 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_activation: Option<Activation>,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Whether the layers of the feed-forward network have biases.
    pub mlp_bias: bool,
    /// The dropout of attention weights.
    pub attention_dropout: f64,
    /// Whether the head shares the weight of the token embedding; by default only in Gemma.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie_word_embeddings: Option<bool>,
    /// The rotations as in transformers 5: `rope_theta`, `rope_type` and its settings; or such a
    /// table for each type of layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<Map<String, Value>>,
    /// The base of the angles, in older files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// GLM: the fraction of the features of queries and keys that are rotated, the first ones; 0.5 if
    /// not given. `rope_parameters` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_rotary_factor: Option<f64>,
    /// GLM: whether queries and keys are normalized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_qk_norm: Option<bool>,
    /// DeepSeek: the number of latent features from which the queries of all heads are made; without
    /// it, they are made of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_lora_rank: Option<usize>,
    /// DeepSeek: the number of latent features from which the keys and values of all heads are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_lora_rank: Option<usize>,
    /// DeepSeek: the number of features of a query and a key that are not rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_nope_head_dim: Option<usize>,
    /// DeepSeek: the number of features of a query and a key that are rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_rope_head_dim: Option<usize>,
    /// DeepSeek: the number of features of a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_head_dim: Option<usize>,
    /// DeepSeek-V3: whether adjacent features are rotated together; true if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_interleave: Option<bool>,
    /// How angles are scaled for long sequences, in older files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// The base of the angles of layers with a sliding window, in older files of Gemma 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_local_base_freq: Option<f64>,
    /// The number of tokens that a layer with a sliding window sees, including its own.
    pub sliding_window: Option<usize>,
    /// Whether Qwen has a sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_sliding_window: Option<bool>,
    /// The first layer with Qwen's sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_window_layers: Option<usize>,
    /// Gemma 3: every layer whose number, counted from 1, is a multiple of this sees all tokens; 6
    /// if not given. `layer_types` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window_pattern: Option<usize>,
    /// Which tokens each layer sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Gemma 2 and 3: queries times keys are divided by the square root of this instead of `head_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<usize>,
    /// Gemma 2: the bound `c` of attention scores, `c·tanh(x/c)`.
    pub attn_logit_softcapping: Option<f64>,
    /// Gemma 2 and 3: the bound of the logits, applied in the same way.
    pub final_logit_softcapping: Option<f64>,
    /// The number of experts: Mixtral's key, and that of newer files of Qwen3-MoE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_local_experts: Option<usize>,
    /// Qwen: the number of experts; 128 in Qwen3-MoE if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts: Option<usize>,
    /// dots.llm1, GLM and DeepSeek: the number of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_routed_experts: Option<usize>,
    /// The number of experts for each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts_per_tok: Option<usize>,
    /// The number of features in an expert; Mixtral's is `intermediate_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moe_intermediate_size: Option<usize>,
    /// Qwen2-MoE: the number of features in the network that all tokens use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_expert_intermediate_size: Option<usize>,
    /// dots.llm1, GLM and DeepSeek: the number of experts that all tokens use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_shared_experts: Option<usize>,
    /// Whether the weights of a token's experts are divided by their sum; always in Mixtral.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_topk_prob: Option<bool>,
    /// Qwen: layers whose number, counted from 1, is a multiple of this have experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_sparse_step: Option<usize>,
    /// Qwen: layers without experts, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_only_layers: Option<Vec<usize>>,
    /// dots.llm1, GLM and DeepSeek: the number of layers without experts at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_k_dense_replace: Option<usize>,
    /// dots.llm1, GLM and DeepSeek: the number of groups of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_group: Option<usize>,
    /// dots.llm1, GLM and DeepSeek: the number of groups that a token may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topk_group: Option<usize>,
    /// dots.llm1, GLM and DeepSeek: a factor of all weights of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_scaling_factor: Option<f64>,
    /// DeepSeek: how the experts of a token are selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topk_method: Option<TopkMethod>,
    /// DeepSeek: how logits become scores. Each kind of model has one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scoring_func: Option<ScoringFunc>,
    /// Whether the loss contains the one that balances experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_router_logits: Option<bool>,
    /// The factor of the loss that balances experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_aux_loss_coef: Option<f64>,
    /// Qwen2-MoE: whether queries, keys and values have biases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: ModelType::Llama,
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            max_position_embeddings: 2048,
            rms_norm_eps: 1e-6,
            hidden_act: None,
            hidden_activation: None,
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            tie_word_embeddings: None,
            rope_parameters: None,
            rope_theta: None,
            partial_rotary_factor: None,
            use_qk_norm: None,
            q_lora_rank: None,
            kv_lora_rank: None,
            qk_nope_head_dim: None,
            qk_rope_head_dim: None,
            v_head_dim: None,
            rope_interleave: None,
            rope_scaling: None,
            rope_local_base_freq: None,
            sliding_window: None,
            use_sliding_window: None,
            max_window_layers: None,
            sliding_window_pattern: None,
            layer_types: None,
            query_pre_attn_scalar: None,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            num_local_experts: None,
            num_experts: None,
            n_routed_experts: None,
            num_experts_per_tok: None,
            moe_intermediate_size: None,
            shared_expert_intermediate_size: None,
            n_shared_experts: None,
            norm_topk_prob: None,
            decoder_sparse_step: None,
            mlp_only_layers: None,
            first_k_dense_replace: None,
            n_group: None,
            topk_group: None,
            routed_scaling_factor: None,
            topk_method: None,
            scoring_func: None,
            output_router_logits: None,
            router_aux_loss_coef: None,
            qkv_bias: None,
            initializer_range: 0.02,
            other: Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Config, D::Error> {
        let all = default_missing(deserializer, |given| {
            let model_type = given.get("model_type").cloned();
            let model_type = model_type.map_or(Ok(ModelType::Llama), serde_json::from_value)?;
            Ok(Config::new(model_type))
        })?;
        Config::deserialize(all).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if self.has_latent_attention() && self.q_lora_rank.is_none() {
            // Without the key, a file means the default.
            let mut with_null = self.clone();
            with_null.other.insert("q_lora_rank".into(), Value::Null);
            return Config::serialize(&with_null, serializer);
        }
        Config::serialize(self, serializer)
    }
}

impl Config {
    /// The number of experts.
    pub(super) fn experts(&self) -> usize {
        let given = self.num_local_experts.or(self.num_experts).or(self.n_routed_experts);
        // Files of Qwen3-MoE have one of two keys.
        given.unwrap_or(if self.model_type == ModelType::Qwen3Moe { 128 } else { 0 })
    }

    /// The number of features in an expert.
    pub(super) fn expert_size(&self) -> usize {
        self.moe_intermediate_size.unwrap_or(self.intermediate_size)
    }

    fn is_mixture(&self) -> bool {
        use ModelType::{Mixtral, Qwen2Moe, Qwen3Moe};
        [Mixtral, Qwen2Moe, Qwen3Moe].contains(&self.model_type) || self.has_deepseek_experts()
    }

    /// Whether the experts are those of DeepSeek.
    pub(super) fn has_deepseek_experts(&self) -> bool {
        self.has_sigmoid_router() || self.model_type == ModelType::DeepseekV2
    }

    /// Whether the router is that of DeepSeek-V3.
    pub(super) fn has_sigmoid_router(&self) -> bool {
        use ModelType::{DeepseekV3, Dots1, Glm4Moe};
        matches!(self.model_type, Dots1 | Glm4Moe | DeepseekV3)
    }

    /// Whether keys and values are made of a few latent features.
    pub(super) fn has_latent_attention(&self) -> bool {
        matches!(self.model_type, ModelType::DeepseekV2 | ModelType::DeepseekV3)
    }

    /// Whether a layer has experts.
    pub(super) fn has_experts(&self, layer: usize) -> bool {
        let is_dense = self.mlp_only_layers.as_ref().is_some_and(|dense| dense.contains(&layer))
            || layer < self.first_k_dense_replace.unwrap_or(0)
            || !(layer + 1).is_multiple_of(self.decoder_sparse_step.unwrap_or(1));
        self.is_mixture() && self.experts() > 0 && !is_dense
    }

    /// The factor of the loss that balances experts.
    pub(super) fn aux_loss_coef(&self) -> f64 {
        let is_used = self.output_router_logits == Some(true);
        self.router_aux_loss_coef.filter(|_| is_used).unwrap_or(0.0)
    }

    /// Whether queries, keys and values have biases in any case.
    pub(super) fn has_qkv_bias(&self) -> bool {
        match self.model_type {
            ModelType::Qwen2 => true,
            ModelType::Qwen2Moe => self.qkv_bias.unwrap_or(true),
            _ => false,
        }
    }

    /// Whether the projection of attention's output has a bias.
    pub(super) fn has_output_bias(&self) -> bool {
        self.attention_bias && self.model_type != ModelType::Glm4Moe
    }

    pub(super) fn is_gemma(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma | ModelType::Gemma2 | ModelType::Gemma3)
    }

    fn is_qwen(&self) -> bool {
        use ModelType::{Qwen2, Qwen2Moe, Qwen3, Qwen3Moe};
        matches!(self.model_type, Qwen2 | Qwen3 | Qwen2Moe | Qwen3Moe)
    }

    /// Whether queries and keys are normalized.
    pub(super) fn has_qk_norm(&self) -> bool {
        use ModelType::{Dots1, Gemma3, Qwen3, Qwen3Moe};
        matches!(self.model_type, Qwen3 | Gemma3 | Qwen3Moe | Dots1)
            || self.use_qk_norm == Some(true)
    }

    /// Whether the outputs of attention and of the feed-forward network are normalized as well.
    pub(super) fn has_post_norms(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma2 | ModelType::Gemma3)
    }

    pub(super) fn key_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The number of features of a query and a key.
    pub(super) fn width(&self) -> usize {
        if self.has_latent_attention() {
            return self.latent_sizes().query();
        }
        self.head_dim.unwrap_or(match self.model_type {
            _ if self.is_gemma() => 256,
            ModelType::Qwen3 => 128,
            _ => self.hidden_size / self.num_attention_heads,
        })
    }

    /// The bound of attention scores. transformers' Gemma 3 has the setting, but does not use it.
    pub(super) fn score_bound(&self) -> Option<f64> {
        self.attn_logit_softcapping.filter(|_| self.model_type == ModelType::Gemma2)
    }

    pub(super) fn is_tied(&self) -> bool {
        self.tie_word_embeddings.unwrap_or(self.is_gemma())
    }

    pub(super) fn activation(&self) -> Activation {
        let given = if self.has_post_norms() { self.hidden_activation } else { self.hidden_act };
        match (given, self.model_type) {
            (None, _) if self.is_gemma() => Activation::GeluPytorchTanh,
            (None, _) => Activation::Silu,
            (Some(Activation::Gelu), ModelType::Gemma) => Activation::GeluPytorchTanh,
            (Some(activation), _) => activation,
        }
    }

    /// The number of tokens that layers with a sliding window see.
    pub(super) fn window(&self) -> Option<usize> {
        let used = !self.is_qwen() || self.use_sliding_window == Some(true);
        self.sliding_window.filter(|_| used)
    }

    pub(super) fn is_sliding(&self, layer: usize) -> bool {
        if self.window().is_none() {
            return false;
        }
        match (&self.layer_types, self.model_type) {
            (Some(types), _) => types.get(layer) == Some(&LayerType::SlidingAttention),
            (None, ModelType::Mistral | ModelType::Mixtral | ModelType::Qwen3Moe) => true,
            (None, ModelType::Qwen2 | ModelType::Qwen3) => {
                layer >= self.max_window_layers.unwrap_or(28)
            }
            (None, ModelType::Qwen2Moe) => {
                layer.is_multiple_of(2) && layer < self.max_window_layers.unwrap_or(28)
            }
            (None, ModelType::Dots1) => layer >= self.max_window_layers.unwrap_or(62),
            (None, ModelType::Gemma2) => layer.is_multiple_of(2),
            (None, ModelType::Gemma3) => {
                !(layer + 1).is_multiple_of(self.sliding_window_pattern.unwrap_or(6))
            }
            (None, ModelType::Llama | ModelType::Gemma | ModelType::Glm4Moe) => false,
            (None, ModelType::DeepseekV2 | ModelType::DeepseekV3) => false,
        }
    }
}
