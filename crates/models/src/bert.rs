//! BERT: transformers' `BertForMaskedLM` and `BertForSequenceClassification`, Devlin et al. 2018.
//! RoBERTa has the same encoder and different heads ([`roberta`](crate::roberta)).
//!
//! Adds embeddings of tokens, positions and segments. Each layer consists of attention to all
//! tokens and a feed-forward network, each followed by a residual sum and a normalization.

mod config;

use fulmen_nn::attention::Attention;
use fulmen_nn::{Dropout, Embedding, Init, LayerNorm, Linear, Module, Parameter};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};
use serde_json::{Map, Value};

use crate::attention::{Setting, check_heads, padding_mask, self_attention, tokens};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, MODELS, Pretrained, Result, error, init};

pub use config::Config;

/// Embeddings and layers without a head: `bert` or `roberta` in transformers' models.
#[derive(Module)]
pub struct Encoder {
    /// The input of the first layer.
    pub embeddings: Embeddings,
    /// The layers.
    pub encoder: Layers,
    #[module(skip)]
    first_position: Option<usize>,
}

/// Embeddings of tokens, positions and segments, added and normalized.
#[derive(Module)]
pub struct Embeddings {
    /// `[vocabulary, features]`.
    pub word_embeddings: Embedding,
    /// `[positions, features]`.
    pub position_embeddings: Embedding,
    /// `[segments, features]`.
    pub token_type_embeddings: Embedding,
    /// The normalization of the sum.
    #[module(rename = "LayerNorm")]
    pub layer_norm: LayerNorm,
    dropout: Dropout,
    max_positions: usize,
}

/// The stack of layers.
#[derive(Module)]
pub struct Layers {
    /// The layers.
    pub layer: Vec<Layer>,
    /// Whether the backward pass recomputes each layer, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal layers run as one scan. The program then compiles as fast as with a single
    /// one. Initially false. Generation with a cache
    /// runs the layers in sequence.
    pub scan_layers: bool,
}

/// A layer.
#[derive(Module)]
pub struct Layer {
    /// Attention to all tokens.
    pub attention: SelfAttention,
    /// The first linear layer of the feed-forward network.
    pub intermediate: Dense,
    /// The second linear layer of the feed-forward network.
    pub output: Output,
    #[module(skip)]
    activation: Activation,
}

/// Attention and its output layer.
#[derive(Module)]
pub struct SelfAttention {
    /// Queries, keys and values.
    #[module(rename = "self")]
    pub projections: Projections,
    /// The output projection.
    pub output: Output,
    dropout: Dropout,
    heads: usize,
}

/// The layers that make queries, keys and values.
#[derive(Module)]
pub struct Projections {
    /// `[features, features]`.
    pub query: Linear,
    /// `[features, features]`.
    pub key: Linear,
    /// `[features, features]`.
    pub value: Linear,
}

/// A linear layer under the name `dense`.
#[derive(Module)]
pub struct Dense {
    /// `[out, in]`.
    pub dense: Linear,
}

/// A linear layer followed by a residual sum and a normalization.
#[derive(Module)]
pub struct Output {
    /// `[out, in]`.
    pub dense: Linear,
    /// The normalization of the sum.
    #[module(rename = "LayerNorm")]
    pub layer_norm: LayerNorm,
    dropout: Dropout,
}

impl Output {
    /// `axis` is the name of the input features.
    fn new(config: &Config, from: usize, axis: &str) -> Output {
        let dropout = Dropout::new(config.hidden_dropout_prob);
        let dense = Linear::new(from, config.hidden_size).with_axes("embed", axis);
        Output { dense, layer_norm: config.norm(), dropout }
    }

    fn forward(&self, x: &Tensor, residual: &Tensor) -> Tensor {
        let x = tokens(self.dense.forward(x), "embed");
        self.layer_norm.forward(self.dropout.forward(x) + residual)
    }
}

impl Layer {
    fn new(config: &Config) -> Layer {
        let Config { hidden_size: features, intermediate_size: inner, .. } = *config;
        let projection = || Linear::new(features, features).with_axes("heads", "embed");
        Layer {
            attention: SelfAttention {
                projections: Projections {
                    query: projection(),
                    key: projection(),
                    value: projection(),
                },
                output: Output::new(config, features, "heads"),
                dropout: Dropout::new(config.attention_probs_dropout_prob),
                heads: config.num_attention_heads,
            },
            intermediate: Dense { dense: Linear::new(features, inner).with_axes("mlp", "embed") },
            output: Output::new(config, inner, "mlp"),
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Tensor, attention: &Attention) -> Tensor {
        let SelfAttention { projections, output, dropout, heads } = &self.attention;
        let Projections { query, key, value } = projections;
        let attended =
            self_attention(attention.clone().dropout(dropout), query, key, value, x, *heads);
        let x = output.forward(&attended, x);
        let inner = tokens(self.intermediate.dense.forward(&x), "mlp");
        let inner = self.activation.forward(&inner);
        self.output.forward(&inner, &x)
    }
}

impl Encoder {
    pub(crate) fn new(config: &Config) -> Result<Encoder> {
        let features = config.hidden_size;
        check_heads(
            Setting::new("num_attention_heads", config.num_attention_heads),
            Setting::new("hidden_size", features),
        )?;
        if config.padding() >= config.vocab_size {
            return Err(error::config(format!(
                "`pad_token_id` is {}, expected a token below `vocab_size`, {}",
                config.padding(),
                config.vocab_size
            )));
        }
        let embedding = |rows| Embedding::new(rows, features);
        let embeddings = Embeddings {
            word_embeddings: embedding(config.vocab_size).padding_idx(config.padding()),
            position_embeddings: embedding(config.max_position_embeddings)
                .padding_idx(config.is_roberta().then(|| config.padding())),
            token_type_embeddings: embedding(config.type_vocab_size),
            layer_norm: config.norm(),
            dropout: Dropout::new(config.hidden_dropout_prob),
            max_positions: config.max_length(),
        };
        let layer = (0..config.num_hidden_layers).map(|_| Layer::new(config)).collect();
        Ok(Encoder {
            embeddings,
            encoder: Layers { layer, gradient_checkpointing: false, scan_layers: false },
            first_position: config.first_position(),
        })
    }

    /// The features `[batch, length, features]` of the ids, integers `[batch, length]`. By default,
    /// all tokens are in segment 0, and no token is padding.
    pub(crate) fn forward(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor, Refusal> {
        let ids = ids.live()?;
        let Embeddings { word_embeddings, position_embeddings, token_type_embeddings, .. } =
            &self.embeddings;
        let max_length = self.embeddings.max_positions;
        if ids.rank() != 2 || ids.size(1) > max_length {
            return Err(format!(
                "the ids {} are not [batch, length] with a length of at most {max_length}",
                ids.ty()
            )
            .into());
        }
        for (name, other) in [("segments", token_type_ids), ("mask", attention_mask)] {
            if let Some(other) = other.filter(|other| other.shape() != ids.shape()) {
                return Err(format!(
                    "the {name} {} do not have the shape of the ids, {}",
                    other.ty(),
                    ids.ty()
                )
                .into());
            }
        }
        let positions = match self.first_position {
            None => Tensor::arange(DType::I32, ids.size(1)),
            // Counted over the tokens that are not padding, starting after the padding's id.
            Some(first) => {
                let is_token = ids.ne((first - 1) as f64).to_dtype(DType::I32);
                is_token.cumsum(1) * is_token + (first - 1) as f64
            }
        };
        let segments =
            token_type_ids.cloned().unwrap_or_else(|| Tensor::zeros(DType::I32, ids.shape()));
        let x =
            tokens(word_embeddings.forward(ids), "embed") + token_type_embeddings.forward(segments);
        let x = self.embeddings.layer_norm.forward(x + position_embeddings.forward(positions));
        let x = self.embeddings.dropout.forward(x);
        let attention = attention_mask
            .map_or(Attention::new(), |mask| Attention::new().mask(padding_mask(mask)));
        let Layers { ref layer, gradient_checkpointing, scan_layers } = self.encoder;
        let forward = |i: usize, x: &Tensor, _: Option<&_>| (layer[i].forward(x, &attention), None);
        Ok(run_layers(
            x,
            layer,
            None,
            LayerOptions { gradient_checkpointing, scan_layers, ..LayerOptions::default() },
            |_| true,
            forward,
        )
        .0)
    }
}

/// BERT for masked tokens.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::bert::{BertForMaskedLm, Config};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config { vocab_size: 50, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, ..Config::default() };
/// let model = BertForMaskedLm::new(config)?;
/// model.initialize(0);
/// model.eval();
/// let ids = Tensor::zeros(DType::I32, [4, 16]);
/// let mask = Tensor::ones(DType::I32, [4, 16]); // 0 at padding
/// assert_eq!(model.forward(&ids, None, Some(&mask)).ty().to_string(), "f32[4, 16, 50]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct BertForMaskedLm {
    /// Embeddings and layers.
    pub bert: Encoder,
    /// The output projection from features to logits.
    pub cls: MaskedLmHead,
    #[module(skip)]
    config: Config,
}

/// The head of a [`BertForMaskedLm`].
#[derive(Module)]
pub struct MaskedLmHead {
    /// The layers of the head.
    pub predictions: Predictions,
}

/// A linear layer, a normalization, and the token embedding with a bias as the output.
#[derive(Module)]
pub struct Predictions {
    /// `[vocabulary]`.
    pub bias: Parameter,
    /// The layer and the normalization.
    pub transform: Transform,
    /// `[vocabulary, features]`.
    pub decoder: Linear,
}

/// A linear layer and a normalization, with an activation in between.
#[derive(Module)]
pub struct Transform {
    /// `[features, features]`.
    pub dense: Linear,
    /// The normalization of the result.
    #[module(rename = "LayerNorm")]
    pub layer_norm: LayerNorm,
}

impl BertForMaskedLm {
    /// The logits `[batch, length, vocabulary]` of each token.
    ///
    /// `ids` are integers `[batch, length]`. `token_type_ids`, of the same shape, is the segment of
    /// each token; by default, it is 0. `attention_mask`, of the same shape, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
    #[track_caller]
    pub fn forward(
        &self,
        ids: impl AsTensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Tensor {
        MODELS.record("BertForMaskedLm", || {
            let x = self.bert.forward(ids.as_tensor(), token_type_ids, attention_mask)?;
            let Predictions { transform, decoder, .. } = &self.cls.predictions;
            let x = self.config.hidden_act.forward(&transform.dense.forward(x));
            Ok(tokens(decoder.forward(transform.layer_norm.forward(x)), "vocab"))
        })
    }
}

impl Pretrained for BertForMaskedLm {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["bert"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = FIXED_SETTINGS;
    const HARMLESS_SETTINGS: &'static [&'static str] = HARMLESS_SETTINGS;
    const BASE_MODEL_PREFIX: &'static str = "bert";
    const HEAD: &'static [&'static str] = &["cls."];
    const IGNORED_KEYS: &'static [&'static str] =
        &["pooler.", "cls.seq_relationship.", "classifier.", "position_ids"];

    fn new(config: Config) -> Result<BertForMaskedLm> {
        let bert = Encoder::new(&config)?;
        let bias = Parameter::new([config.vocab_size], Init::zeros());
        let decoder = config.decoder(&bert.embeddings.word_embeddings, &bias);
        let dense = Linear::new(config.hidden_size, config.hidden_size);
        let transform = Transform { dense, layer_norm: config.norm() };
        let cls = MaskedLmHead { predictions: Predictions { bias, transform, decoder } };
        let model = BertForMaskedLm { bert, cls, config };
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
        "BertForMaskedLM".into()
    }
}

/// BERT that classifies a text by its first token.
///
/// ```no_run
/// use fulmen_models::bert::BertForSequenceClassification;
/// use fulmen_models::{Labels, Pretrained};
///
/// // The classifier is new. The Trainer gives it its first values.
/// let model = BertForSequenceClassification::from_folder_with("bert-base-uncased", |config| {
///     config.labels = Labels::new(["negative", "positive"]);
/// })?;
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct BertForSequenceClassification {
    /// Embeddings, layers and pooler.
    pub bert: PooledEncoder,
    dropout: Dropout,
    /// `[classes, features]`.
    pub classifier: Linear,
    #[module(skip)]
    config: Config,
}

/// An encoder and a layer over its first token.
#[derive(Module)]
pub struct PooledEncoder {
    /// Embeddings and layers.
    #[module(flatten)]
    pub encoder: Encoder,
    /// The layer over the first token.
    pub pooler: Dense,
}

impl BertForSequenceClassification {
    /// The logits `[batch, classes]`.
    ///
    /// `ids` are integers `[batch, length]`. `token_type_ids`, of the same shape, is the segment of
    /// each token; by default, it is 0. `attention_mask`, of the same shape, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
    #[track_caller]
    pub fn forward(
        &self,
        ids: impl AsTensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Tensor {
        MODELS.record("BertForSequenceClassification", || {
            let x = self.bert.encoder.forward(ids.as_tensor(), token_type_ids, attention_mask)?;
            let pooled = self.bert.pooler.dense.forward(x.index(1, 0)).tanh();
            Ok(self.classifier.forward(self.dropout.forward(pooled)))
        })
    }
}

impl Pretrained for BertForSequenceClassification {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["bert"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = FIXED_SETTINGS;
    const HARMLESS_SETTINGS: &'static [&'static str] = HARMLESS_SETTINGS;
    const BASE_MODEL_PREFIX: &'static str = "bert";
    /// The pooler is part of the head, because files of masked language models have none.
    const HEAD: &'static [&'static str] = &["classifier.", "bert.pooler."];
    const IGNORED_KEYS: &'static [&'static str] = &["cls.", "position_ids"];

    fn new(config: Config) -> Result<BertForSequenceClassification> {
        let features = config.hidden_size;
        let pooler = Dense { dense: Linear::new(features, features) };
        let model = BertForSequenceClassification {
            bert: PooledEncoder { encoder: Encoder::new(&config)?, pooler },
            dropout: config.head_dropout(),
            classifier: Linear::new(features, config.labels.len()),
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
        "BertForSequenceClassification".into()
    }
}

/// Settings for which only one value is supported; other values would change the model.
pub(crate) const FIXED_SETTINGS: &[(&str, &str)] = &[("position_embedding_type", "\"absolute\"")];

/// Keys of published BERTs that no code reads any more.
pub(crate) const HARMLESS_SETTINGS: &[&str] = &[
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fulmen_tensor::grad;

    use super::*;
    use crate::Labels;
    use crate::reference::{ExpectedValues, borrow_tensors, folder};
    use crate::roberta::{RobertaForMaskedLm, RobertaForSequenceClassification};

    fn load<M: Pretrained>(name: &str) -> (M, ExpectedValues) {
        (M::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}")), ExpectedValues::read(name))
    }

    /// The masked language model of BERT is a pickle with the names of its first files.
    #[test]
    fn berts_and_robertas_of_transformers_give_its_logits() {
        let (model, expected) = load::<BertForMaskedLm>("bert");
        let [ids, kinds, mask] =
            ["input_ids", "token_type_ids", "attention_mask"].map(|name| expected.tensor(name));
        expected
            .check(&borrow_tensors(&[("logits", model.forward(&ids, Some(&kinds), Some(&mask)))]));

        let (model, expected) = load::<BertForSequenceClassification>("bert-classifier");
        expected
            .check(&borrow_tensors(&[("logits", model.forward(&ids, Some(&kinds), Some(&mask)))]));

        // Positions also skip padding that only the ids show.
        let (model, expected) = load::<RobertaForMaskedLm>("roberta");
        let [ids, mask] = ["input_ids", "attention_mask"].map(|name| expected.tensor(name));
        expected.check(&borrow_tensors(&[("logits", model.forward(&ids, Some(&mask)))]));

        let (model, expected) = load::<RobertaForSequenceClassification>("roberta-classifier");
        expected.check(&borrow_tensors(&[("logits", model.forward(&ids, Some(&mask)))]));
    }

    #[test]
    fn looking_up_padding_gives_no_gradient() {
        let (model, expected) = load::<RobertaForSequenceClassification>("roberta-classifier");
        let ids = expected.tensor("input_ids");
        let parameters = model.parameters().into_iter().collect::<BTreeMap<_, _>>();
        let tables = ["word", "position"].map(|table| {
            let name = format!("roberta.embeddings.{table}_embeddings.weight");
            parameters.get(&name).unwrap_or_else(|| panic!("{name}")).get()
        });
        let gradients = grad(&model.forward(&ids, None).square().sum_all(), &tables);
        let size = |rows: Tensor| rows.abs().sum_all().eval().unwrap().to_vec::<f32>().unwrap()[0];
        let padding = 1;
        assert!(ids.eval().unwrap().to_vec::<i32>().unwrap().contains(&padding));
        for gradient in gradients {
            assert_eq!(size(gradient.narrow(0, padding as usize, 1)), 0.0);
            assert!(size(gradient) > 0.0);
        }
    }

    #[test]
    fn a_new_head_is_begun_anew_and_nothing_else_may_be_missing() {
        let labels = |config: &mut Config| config.labels = Labels::numbered(4);
        let model = BertForSequenceClassification::from_folder_with(folder("bert"), labels)
            .unwrap_or_else(|e| panic!("{e}"));
        let unset: Vec<String> = model
            .parameters()
            .into_iter()
            .filter(|(_, parameter)| !parameter.is_set())
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            unset,
            [
                "bert.pooler.dense.weight",
                "bert.pooler.dense.bias",
                "classifier.weight",
                "classifier.bias"
            ]
        );
        assert_eq!(model.classifier.out_features(), 4);

        let text = match BertForSequenceClassification::from_folder(folder("bert")) {
            Ok(_) => panic!("it has no classifier"),
            Err(error) => error.to_string(),
        };
        assert!(text.contains("missing in the file: bert.pooler.dense.weight"), "{text}");
        let wider = |config: &mut Config| config.intermediate_size += 1;
        let text = match BertForSequenceClassification::from_folder_with(folder("bert"), wider) {
            Ok(_) => panic!("the files are narrower"),
            Err(error) => error.to_string(),
        };
        assert!(
            text.contains("bert.encoder.layer.0.intermediate.dense.weight: the model has"),
            "{text}"
        );
    }
}
