//! The settings of BERT and RoBERTa.

use fulmen_nn::{Dropout, Embedding, LayerNorm, Linear, Parameter};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::settings::default_missing;
use crate::{Activation, Labels};

/// The settings, with the names of `config.json`; by default BERT-base's, of 110 million
/// parameters.
///
/// A key that a file does not have gets transformers' default for the file's `model_type`.
/// RoBERTa's are those of BERT except for the vocabulary: [`Config::roberta`] differs from them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Config {
    /// `bert` or `roberta`.
    pub model_type: String,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub hidden_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of attention heads, which must divide the number of features.
    pub num_attention_heads: usize,
    /// The number of features in the feed-forward network of a layer.
    pub intermediate_size: usize,
    /// The activation of the feed-forward network of a layer.
    pub hidden_act: Activation,
    /// The dropout of embeddings and of the output of each part of a layer.
    pub hidden_dropout_prob: f64,
    /// The dropout of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// The dropout before the classifier; `hidden_dropout_prob` if not given.
    pub classifier_dropout: Option<f64>,
    /// Rows of the table of positions. RoBERTa's first rows, up to the padding's, are unused.
    pub max_position_embeddings: usize,
    /// The number of segment types.
    pub type_vocab_size: usize,
    /// The constant that normalizations add to the variance.
    pub layer_norm_eps: f64,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// The padding token; by default 0 for BERT and 1 for RoBERTa. Looking it up gives its
    /// embedding no gradient, and RoBERTa counts no positions for it.
    pub pad_token_id: Option<usize>,
    /// Whether the head of the masked language model shares the weight of the token embedding.
    pub tie_word_embeddings: bool,
    /// The classes.
    #[serde(flatten)]
    pub labels: Labels,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: "bert".into(),
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            classifier_dropout: None,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            initializer_range: 0.02,
            pad_token_id: None,
            tie_word_embeddings: true,
            labels: Labels::default(),
            other: Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let all = default_missing(deserializer, |given| {
            let is_roberta = given.get("model_type").is_some_and(|kind| kind == "roberta");
            let vocab_size = if is_roberta { 50265 } else { 30522 };
            Ok(json!({ "vocab_size": vocab_size }))
        })?;
        Config::deserialize(all).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Config::serialize(self, serializer)
    }
}

impl Config {
    /// RoBERTa-base's settings.
    pub fn roberta() -> Config {
        Config {
            model_type: "roberta".into(),
            vocab_size: 50265,
            max_position_embeddings: 514,
            type_vocab_size: 1,
            layer_norm_eps: 1e-5,
            ..Config::default()
        }
    }

    /// The maximum number of tokens in a text.
    pub fn max_length(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position().unwrap_or(0))
    }

    /// The row of the first token in RoBERTa's table of positions.
    pub(super) fn first_position(&self) -> Option<usize> {
        self.is_roberta().then(|| self.padding().saturating_add(1))
    }

    pub(super) fn is_roberta(&self) -> bool {
        self.model_type == "roberta"
    }

    /// The padding token.
    pub(super) fn padding(&self) -> usize {
        self.pad_token_id.unwrap_or(usize::from(self.is_roberta()))
    }

    /// The dropout before a classifier.
    pub(crate) fn head_dropout(&self) -> Dropout {
        Dropout::new(self.classifier_dropout.unwrap_or(self.hidden_dropout_prob))
    }

    pub(crate) fn norm(&self) -> LayerNorm {
        LayerNorm::new([self.hidden_size]).eps(self.layer_norm_eps)
    }

    /// The output projection to the vocabulary. If the weights are tied, its weight is the
    /// embedding's. Its bias is `bias`.
    pub(crate) fn decoder(&self, embedding: &Embedding, bias: &Parameter) -> Linear {
        let mut decoder = Linear::new(self.hidden_size, self.vocab_size);
        if self.tie_word_embeddings {
            decoder.weight = embedding.weight.clone();
        }
        decoder.bias = Some(bias.clone());
        decoder.with_axes("vocab", "embed")
    }
}
