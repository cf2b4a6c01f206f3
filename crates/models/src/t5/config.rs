//! The settings of T5.

use fulmen_nn::{Init, Linear, RmsNorm};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Activation, Result, error};

/// The settings, with the names of `config.json`; by default T5-small's, of 60 million parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `t5`.
    pub model_type: String,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub d_model: usize,
    /// The number of features of a head.
    pub d_kv: usize,
    /// The number of features in the feed-forward network of a block.
    pub d_ff: usize,
    /// The number of blocks of the encoder.
    pub num_layers: usize,
    /// The number of blocks of the decoder; by default, as many as in the encoder.
    pub num_decoder_layers: Option<usize>,
    /// The number of attention heads.
    pub num_heads: usize,
    /// The number of ranges of distances. Each has a separate bias.
    pub relative_attention_num_buckets: usize,
    /// Distances from this one on share the last range.
    pub relative_attention_max_distance: usize,
    /// The probability of all dropouts.
    pub dropout_rate: f64,
    /// The constant that normalizations add to the mean square.
    pub layer_norm_epsilon: f64,
    /// The factor of initial values.
    pub initializer_factor: f64,
    /// The activation of the feed-forward network of a block, such as `relu`; T5 1.1 has
    /// `gated-gelu`.
    pub feed_forward_proj: String,
    /// The activation that `feed_forward_proj` names, which files repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_act_fn: Option<Activation>,
    /// Whether `feed_forward_proj` names a gate, which files repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_gated_act: Option<bool>,
    /// Whether the head shares the weight of the token embedding; not in T5 1.1.
    pub tie_word_embeddings: bool,
    /// Whether the features are divided by the root of `d_model` before the head, as in T5 but not
    /// in T5 1.1. If a config does not set it, it equals `tie_word_embeddings`. transformers 5 sets
    /// it, and declares the head of T5 1.1 as tied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_decoder_outputs: Option<bool>,
    /// The first token of the decoder.
    pub decoder_start_token_id: i32,
    /// The token that the decoder reads for an ignored label; 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<i32>,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: "t5".into(),
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_decoder_layers: None,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            dropout_rate: 0.1,
            layer_norm_epsilon: 1e-6,
            initializer_factor: 1.0,
            feed_forward_proj: "relu".into(),
            dense_act_fn: None,
            is_gated_act: None,
            tie_word_embeddings: true,
            scale_decoder_outputs: None,
            decoder_start_token_id: 0,
            pad_token_id: Some(0),
            other: Map::new(),
        }
    }
}

impl Config {
    /// The function of the network, and whether it is a gate.
    pub(super) fn activation(&self) -> Result<(Activation, bool)> {
        let (name, gated) = match self.feed_forward_proj.strip_prefix("gated-") {
            Some("gelu") => ("gelu_new", true),
            Some(name) => (name, true),
            None => (self.feed_forward_proj.as_str(), false),
        };
        let activation: Activation = serde_json::from_value(json!(name))
            .map_err(|error| error::config(format!("`feed_forward_proj`: {error}")))?;
        let same = self.dense_act_fn.is_none_or(|repeated| repeated.is_same_as(activation));
        if !same || self.is_gated_act.is_some_and(|repeated| repeated != gated) {
            return Err(error::config(format!(
                "`feed_forward_proj` is `{}`, but `dense_act_fn` and `is_gated_act` mean another activation",
                self.feed_forward_proj
            )));
        }
        Ok((activation, gated))
    }

    /// Whether the head is tied, so that the features are scaled before it.
    pub(super) fn is_tied(&self) -> bool {
        self.scale_decoder_outputs.unwrap_or(self.tie_word_embeddings)
    }

    /// The padding token: 0, unless a file names another.
    pub(super) fn padding_token(&self) -> i32 {
        self.pad_token_id.unwrap_or(0)
    }

    pub(super) fn norm(&self) -> RmsNorm {
        RmsNorm::new([self.d_model]).eps(self.layer_norm_epsilon)
    }

    pub(super) fn linear(&self, from: usize, to: usize, std: f64) -> Linear {
        let layer = Linear::new(from, to).bias(false);
        layer.weight.set_init(Init::normal(0.0, self.initializer_factor * std));
        layer
    }
}
