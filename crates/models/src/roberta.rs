//! RoBERTa: transformers' `RobertaForMaskedLM` and `RobertaForSequenceClassification`, Liu et al.
//! 2019. The encoder is [BERT's](crate::bert); positions are counted after the padding's id, and
//! the heads differ.

use fulmen_nn::{Dropout, Init, LayerNorm, Linear, Module, Parameter, activation};
use fulmen_tensor::{AsTensor, Tensor};
use serde_json::{Map, Value};

use crate::attention::tokens;
use crate::bert::{Config, Encoder, FIXED_SETTINGS, HARMLESS_SETTINGS};
use crate::{MODELS, Pretrained, Result, init};

/// RoBERTa for masked tokens.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::bert::Config;
/// use fulmen_models::roberta::RobertaForMaskedLm;
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config { vocab_size: 50, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, ..Config::roberta() };
/// let model = RobertaForMaskedLm::new(config)?;
/// model.initialize(0);
/// model.eval();
/// let logits = model.forward(Tensor::ones(DType::I32, [4, 16]), None);
/// assert_eq!(logits.ty().to_string(), "f32[4, 16, 50]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct RobertaForMaskedLm {
    /// Embeddings and layers.
    pub roberta: Encoder,
    /// The output projection from features to logits.
    pub lm_head: LmHead,
    #[module(skip)]
    config: Config,
}

/// A linear layer, a normalization, and the token embedding with a bias as the output.
#[derive(Module)]
pub struct LmHead {
    /// `[vocabulary]`.
    pub bias: Parameter,
    /// `[features, features]`.
    pub dense: Linear,
    /// The normalization of the result.
    pub layer_norm: LayerNorm,
    /// `[vocabulary, features]`.
    pub decoder: Linear,
}

impl RobertaForMaskedLm {
    /// The logits `[batch, length, vocabulary]` of each token.
    ///
    /// `ids` are integers `[batch, length]`. `attention_mask`, of the same shape, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor, attention_mask: Option<&Tensor>) -> Tensor {
        MODELS.record("RobertaForMaskedLm", || {
            let x = self.roberta.forward(ids.as_tensor(), None, attention_mask)?;
            let LmHead { dense, layer_norm, decoder, .. } = &self.lm_head;
            let x = layer_norm.forward(activation::gelu(&dense.forward(x)));
            Ok(tokens(decoder.forward(x), "vocab"))
        })
    }
}

impl Pretrained for RobertaForMaskedLm {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["roberta"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = FIXED_SETTINGS;
    const HARMLESS_SETTINGS: &'static [&'static str] = HARMLESS_SETTINGS;
    const BASE_MODEL_PREFIX: &'static str = "roberta";
    const HEAD: &'static [&'static str] = &["lm_head."];
    const IGNORED_KEYS: &'static [&'static str] = &["pooler.", "classifier.", "position_ids"];

    fn new(config: Config) -> Result<RobertaForMaskedLm> {
        let roberta = Encoder::new(&config)?;
        let bias = Parameter::new([config.vocab_size], Init::zeros());
        let decoder = config.decoder(&roberta.embeddings.word_embeddings, &bias);
        let dense = Linear::new(config.hidden_size, config.hidden_size);
        let lm_head = LmHead { bias, dense, layer_norm: config.norm(), decoder };
        let model = RobertaForMaskedLm { roberta, lm_head, config };
        init::normal(&model, model.config.initializer_range);
        Ok(model)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        "RobertaForMaskedLM".into()
    }
}

/// RoBERTa that classifies a text by its first token.
///
/// ```no_run
/// use fulmen_models::roberta::RobertaForSequenceClassification;
/// use fulmen_models::{Labels, Pretrained};
///
/// // The classifier is new. The Trainer initializes it.
/// let model = RobertaForSequenceClassification::from_folder_with("roberta-base", |config| {
///     config.labels = Labels::new(["negative", "positive"]);
/// })?;
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct RobertaForSequenceClassification {
    /// Embeddings and layers.
    pub roberta: Encoder,
    /// Maps the features of the first token to logits.
    pub classifier: ClassificationHead,
    #[module(skip)]
    config: Config,
}

/// Two layers with a `tanh` in between.
#[derive(Module)]
pub struct ClassificationHead {
    /// `[features, features]`.
    pub dense: Linear,
    dropout: Dropout,
    /// `[classes, features]`.
    pub out_proj: Linear,
}

impl RobertaForSequenceClassification {
    /// The logits `[batch, classes]`. `ids`, integers `[batch, length]`; `attention_mask`, the same
    /// shape, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor, attention_mask: Option<&Tensor>) -> Tensor {
        MODELS.record("RobertaForSequenceClassification", || {
            let x = self.roberta.forward(ids.as_tensor(), None, attention_mask)?;
            let ClassificationHead { dense, dropout, out_proj } = &self.classifier;
            let x = dense.forward(dropout.forward(x.index(1, 0))).tanh();
            Ok(out_proj.forward(dropout.forward(x)))
        })
    }
}

impl Pretrained for RobertaForSequenceClassification {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["roberta"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = FIXED_SETTINGS;
    const HARMLESS_SETTINGS: &'static [&'static str] = HARMLESS_SETTINGS;
    const BASE_MODEL_PREFIX: &'static str = "roberta";
    const HEAD: &'static [&'static str] = &["classifier."];
    const IGNORED_KEYS: &'static [&'static str] = &["lm_head.", "pooler.", "position_ids"];

    fn new(config: Config) -> Result<RobertaForSequenceClassification> {
        let features = config.hidden_size;
        let classifier = ClassificationHead {
            dense: Linear::new(features, features),
            dropout: config.head_dropout(),
            out_proj: Linear::new(features, config.labels.len()),
        };
        let model = RobertaForSequenceClassification {
            roberta: Encoder::new(&config)?,
            classifier,
            config,
        };
        init::normal(&model, model.config.initializer_range);
        Ok(model)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        "RobertaForSequenceClassification".into()
    }
}
