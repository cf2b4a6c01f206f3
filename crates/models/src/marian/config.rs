//! The settings of Marian.

use fulmen_nn::LayerNorm;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attention::{Setting, check_heads};
use crate::{Activation, Result, error};

/// The settings, with the names of `config.json`. The default is transformers'; [`Config::base`]
/// and [`Config::big`] are those of the paper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `marian`.
    pub model_type: String,
    /// The size of the vocabulary, or of the encoder's, if the decoder's differs.
    pub vocab_size: usize,
    /// The size of the decoder's vocabulary; `vocab_size` if not given.
    pub decoder_vocab_size: Option<usize>,
    /// Whether encoder and decoder share the embedding.
    pub share_encoder_decoder_embeddings: bool,
    /// Whether the head shares the weight of the decoder's token embedding.
    pub tie_word_embeddings: bool,
    /// The maximum number of tokens in a text.
    pub max_position_embeddings: usize,
    /// The number of features of a token.
    pub d_model: usize,
    /// The number of layers of the encoder.
    pub encoder_layers: usize,
    /// The number of features in the feed-forward network of the encoder's layers.
    pub encoder_ffn_dim: usize,
    /// The number of the encoder's attention heads, which must divide the number of features.
    pub encoder_attention_heads: usize,
    /// The number of layers of the decoder.
    pub decoder_layers: usize,
    /// The number of features in the feed-forward network of the decoder's layers.
    pub decoder_ffn_dim: usize,
    /// The number of the decoder's attention heads, which must divide the number of features.
    pub decoder_attention_heads: usize,
    /// The activation of the feed-forward network.
    pub activation_function: Activation,
    /// The dropout of embeddings, and of the output of each part of a layer.
    pub dropout: f64,
    /// The dropout of attention weights.
    pub attention_dropout: f64,
    /// The dropout within the feed-forward networks.
    pub activation_dropout: f64,
    /// The standard deviation of initial values.
    pub init_std: f64,
    /// Whether embeddings are multiplied by the square root of `d_model`.
    pub scale_embedding: bool,
    /// The first token of the decoder.
    pub decoder_start_token_id: i32,
    /// The padding token, if it is in the vocabulary. Looking it up gives its embedding no gradient.
    pub pad_token_id: Option<usize>,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: "marian".into(),
            vocab_size: 58101,
            decoder_vocab_size: None,
            share_encoder_decoder_embeddings: true,
            tie_word_embeddings: true,
            max_position_embeddings: 1024,
            d_model: 1024,
            encoder_layers: 12,
            encoder_ffn_dim: 4096,
            encoder_attention_heads: 16,
            decoder_layers: 12,
            decoder_ffn_dim: 4096,
            decoder_attention_heads: 16,
            activation_function: Activation::Gelu,
            dropout: 0.1,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            init_std: 0.02,
            scale_embedding: false,
            decoder_start_token_id: 58100,
            pad_token_id: Some(58100),
            other: Map::new(),
        }
    }
}

impl Config {
    /// The base Transformer of the paper for this vocabulary, whose last token is the first one of
    /// the decoder: 44 million parameters and 512 for each token.
    pub fn base(vocab_size: usize) -> Config {
        Config {
            vocab_size,
            d_model: 512,
            encoder_layers: 6,
            encoder_ffn_dim: 2048,
            encoder_attention_heads: 8,
            decoder_layers: 6,
            decoder_ffn_dim: 2048,
            decoder_attention_heads: 8,
            activation_function: Activation::Relu,
            scale_embedding: true,
            decoder_start_token_id: i32::try_from(vocab_size).unwrap_or(i32::MAX) - 1,
            pad_token_id: None,
            ..Config::default()
        }
    }

    /// The big Transformer of the paper: 176 million parameters, plus 1024 for each token of the
    /// vocabulary.
    pub fn big(vocab_size: usize) -> Config {
        Config {
            d_model: 1024,
            encoder_ffn_dim: 4096,
            encoder_attention_heads: 16,
            decoder_ffn_dim: 4096,
            decoder_attention_heads: 16,
            dropout: 0.3,
            ..Config::base(vocab_size)
        }
    }

    pub(super) fn target_vocab_size(&self) -> usize {
        self.decoder_vocab_size
            .filter(|_| !self.share_encoder_decoder_embeddings)
            .unwrap_or(self.vocab_size)
    }

    pub(super) fn norm(&self) -> LayerNorm {
        LayerNorm::new([self.d_model])
    }

    /// Checks the settings.
    pub(super) fn check(&self) -> Result<()> {
        let width = self.d_model;
        check_heads(
            Setting::new("encoder_attention_heads", self.encoder_attention_heads),
            Setting::new("d_model", width),
        )?;
        check_heads(
            Setting::new("decoder_attention_heads", self.decoder_attention_heads),
            Setting::new("d_model", width),
        )?;
        if self.pad_token_id.is_some_and(|id| i32::try_from(id).is_err()) {
            let id = self.pad_token_id.unwrap_or(0);
            return Err(error::config(format!(
                "`pad_token_id` is {id}, expected a whole number of 32 bits"
            )));
        }
        match width % 2 {
            0 => Ok(()),
            _ => Err(error::config(format!(
                "`d_model` is {width}, expected an even number: half are sines, half cosines"
            ))),
        }
    }
}
