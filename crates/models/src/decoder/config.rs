//! The settings of a decoder.

use fulmen_nn::attention::{RotaryEmbedding, RotaryScaling};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attention::{Setting, check_heads};
use crate::{Activation, Error, Result};

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
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
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
    /// The number of features of a head; `hidden_size/num_attention_heads` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The number of tokens that the model was trained on.
    pub max_position_embeddings: usize,
    /// The constant that normalizations add to the mean square.
    pub rms_norm_eps: f64,
    /// The activation of the gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_act: Option<Activation>,
    /// The activation of the gate, under Gemma's name. It takes precedence over `hidden_act`.
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
    /// Which tokens each layer sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Gemma: queries times keys are divided by the square root of this instead of `head_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<usize>,
    /// Gemma 2: the bound `c` of attention scores, `c·tanh(x/c)`.
    pub attn_logit_softcapping: Option<f64>,
    /// Gemma 2: the bound of the logits, applied in the same way.
    pub final_logit_softcapping: Option<f64>,
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
            rope_scaling: None,
            rope_local_base_freq: None,
            sliding_window: None,
            use_sliding_window: None,
            max_window_layers: None,
            layer_types: None,
            query_pre_attn_scalar: None,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            initializer_range: 0.02,
            other: Map::new(),
        }
    }
}

impl Config {
    pub(super) fn is_gemma(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma | ModelType::Gemma2 | ModelType::Gemma3)
    }

    /// Whether queries and keys are normalized.
    pub(super) fn has_qk_norm(&self) -> bool {
        matches!(self.model_type, ModelType::Qwen3 | ModelType::Gemma3)
    }

    /// Whether the outputs of attention and of the feed-forward network are normalized as well.
    pub(super) fn has_post_norms(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma2 | ModelType::Gemma3)
    }

    pub(super) fn key_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(super) fn width(&self) -> usize {
        self.head_dim.unwrap_or(match self.model_type {
            _ if self.is_gemma() => 256,
            ModelType::Qwen3 => 128,
            _ => self.hidden_size / self.num_attention_heads,
        })
    }

    pub(super) fn activation(&self) -> Activation {
        let default = if self.is_gemma() { Activation::GeluPytorchTanh } else { Activation::Silu };
        self.hidden_activation.or(self.hidden_act).unwrap_or(default)
    }

    pub(super) fn is_sliding(&self, layer: usize) -> bool {
        if self.sliding_window.is_none() {
            return false;
        }
        match (&self.layer_types, self.model_type) {
            (Some(types), _) => types.get(layer) == Some(&LayerType::SlidingAttention),
            (None, ModelType::Mistral) => true,
            (None, ModelType::Qwen2 | ModelType::Qwen3) => {
                self.use_sliding_window == Some(true)
                    && layer >= self.max_window_layers.unwrap_or(0)
            }
            (None, ModelType::Gemma2) => layer.is_multiple_of(2),
            (None, ModelType::Gemma3) => !(layer + 1).is_multiple_of(6),
            (None, ModelType::Llama | ModelType::Gemma) => false,
        }
    }

    /// The rotations of a layer.
    pub(super) fn rope(&self, sliding: bool) -> Result<RotaryEmbedding> {
        let kind = if sliding { "sliding_attention" } else { "full_attention" };
        let table = |key: &str, settings: &Map<String, Value>| {
            settings.get(key).and_then(Value::as_object).cloned()
        };
        let settings = self
            .rope_parameters
            .as_ref()
            .map(|all| table(kind, all).unwrap_or_else(|| all.clone()));
        let local = sliding && self.model_type == ModelType::Gemma3 && settings.is_none();
        let scaling = if local { None } else { settings.as_ref().or(self.rope_scaling.as_ref()) };
        let own_theta = settings
            .as_ref()
            .and_then(|settings| settings.get("rope_theta"))
            .and_then(Value::as_f64);
        let theta = if local { self.rope_local_base_freq } else { own_theta.or(self.rope_theta) };
        let Some(scaling) = scaling else {
            return Ok(RotaryEmbedding::new(self.width()).theta(theta.unwrap_or(10_000.0)));
        };
        let number = |key: &str| {
            let number = scaling.get(key).and_then(Value::as_f64);
            number.ok_or_else(|| {
                Error::config(format!("the scaling of rotations has no number `{key}`"))
            })
        };
        let name = scaling
            .get("rope_type")
            .or(scaling.get("type"))
            .and_then(Value::as_str)
            .unwrap_or("default");
        let rule = match name {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: number("factor")? },
            "llama3" => RotaryScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: number("original_max_position_embeddings")?
                    as usize,
            },
            other => {
                let message =
                    format!("`rope_type` is `{other}`, expected `default`, `linear` or `llama3`");
                return Err(Error::config(message));
            }
        };
        if scaling
            .get("partial_rotary_factor")
            .and_then(Value::as_f64)
            .is_some_and(|factor| factor != 1.0)
        {
            return Err(Error::config(
                "`partial_rotary_factor` is not 1; only the rotation of whole heads is supported",
            ));
        }
        Ok(RotaryEmbedding::new(self.width()).theta(theta.unwrap_or(10_000.0)).scaling(rule))
    }

    /// Checks the settings.
    pub(super) fn check(&self) -> Result<()> {
        let Config { num_attention_heads: heads, num_hidden_layers: layers, .. } = *self;
        check_heads(
            Setting::new("num_key_value_heads", self.key_heads()),
            Setting::new("num_attention_heads", heads),
        )?;
        let types = self.layer_types.as_ref().map_or(layers, Vec::len);
        if types == layers {
            Ok(())
        } else {
            Err(Error::config(format!(
                "`layer_types` has {types} entries, `num_hidden_layers` is {layers}"
            )))
        }
    }
}
