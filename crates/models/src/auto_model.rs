//! [`AutoModelForSequenceClassification`]: a text classifier of the family that `config.json`
//! names.

use std::path::Path;

use fulmen_nn::Module;
use fulmen_tensor::{AsTensor, Tensor};
use serde_json::{Map, Value};

use crate::bert::{BertForSequenceClassification, Config, FIXED_SETTINGS, HARMLESS_SETTINGS};
use crate::roberta::RobertaForSequenceClassification;
use crate::{Pretrained, Result, error};

/// A text classifier with `model_type` `bert` or `roberta`, with the parameter names of that
/// family.
///
/// ```
/// use fulmen_models::bert::Config;
/// use fulmen_models::{AutoModelForSequenceClassification, Labels, Pretrained};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config {
///     vocab_size: 50,
///     hidden_size: 8,
///     num_hidden_layers: 1,
///     num_attention_heads: 2,
///     labels: Labels::new(["negative", "neutral", "positive"]),
///     ..Config::roberta()
/// };
/// let model = AutoModelForSequenceClassification::new(config)?; // or from_folder_with("roberta-base", …)
/// model.initialize(0);
/// model.eval();
/// let logits = model.forward(Tensor::ones(DType::I32, [4, 16]), None, None);
/// assert_eq!(logits.ty().to_string(), "f32[4, 3]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub enum AutoModelForSequenceClassification {
    /// BERT.
    Bert(BertForSequenceClassification),
    /// RoBERTa.
    Roberta(RobertaForSequenceClassification),
}

use AutoModelForSequenceClassification::{Bert, Roberta};

impl AutoModelForSequenceClassification {
    /// The logits `[batch, classes]`.
    ///
    /// `ids` are integers `[batch, length]`. `token_type_ids`, of the same shape, is the segment of
    /// each token; by default, it is 0. RoBERTa ignores it. `attention_mask`, of the same shape, is
    /// 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
    #[track_caller]
    pub fn forward(
        &self,
        ids: impl AsTensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Tensor {
        match self {
            Bert(model) => model.forward(ids, token_type_ids, attention_mask),
            Roberta(model) => model.forward(ids, attention_mask),
        }
    }
}

impl Pretrained for AutoModelForSequenceClassification {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["bert", "roberta"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = FIXED_SETTINGS;
    const HARMLESS_SETTINGS: &'static [&'static str] = HARMLESS_SETTINGS;
    const HEAD: &'static [&'static str] = &["classifier.", "bert.pooler."];

    fn new(config: Config) -> Result<Self> {
        match config.model_type.as_str() {
            "bert" => BertForSequenceClassification::new(config).map(Bert),
            "roberta" => RobertaForSequenceClassification::new(config).map(Roberta),
            other => Err(error::config(format!(
                "`model_type` is `{other}`, expected `bert` or `roberta`"
            ))),
        }
    }

    fn config(&self) -> &Config {
        match self {
            Bert(model) => model.config(),
            Roberta(model) => model.config(),
        }
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        match self {
            Bert(model) => model.architecture(),
            Roberta(model) => model.architecture(),
        }
    }

    #[track_caller]
    fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        match Self::config_from_folder(&folder)?.model_type.as_str() {
            "bert" => BertForSequenceClassification::from_folder(folder).map(Bert),
            _ => RobertaForSequenceClassification::from_folder(folder).map(Roberta),
        }
    }

    #[track_caller]
    fn from_folder_with(
        folder: impl AsRef<Path>,
        change: impl FnOnce(&mut Config),
    ) -> Result<Self> {
        match Self::config_from_folder(&folder)?.model_type.as_str() {
            "bert" => BertForSequenceClassification::from_folder_with(folder, change).map(Bert),
            _ => RobertaForSequenceClassification::from_folder_with(folder, change).map(Roberta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{ExpectedValues, borrow_tensors, folder};

    #[test]
    fn the_config_decides_which_family_it_is() {
        let load = |name: &str| {
            let model = AutoModelForSequenceClassification::from_folder(folder(name))
                .unwrap_or_else(|e| panic!("{e}"));
            (model, ExpectedValues::read(name))
        };
        let (model, expected) = load("bert-classifier");
        let [ids, kinds, mask] =
            ["input_ids", "token_type_ids", "attention_mask"].map(|name| expected.tensor(name));
        expected
            .check(&borrow_tensors(&[("logits", model.forward(&ids, Some(&kinds), Some(&mask)))]));
        assert_eq!(model.architecture(), "BertForSequenceClassification");

        let (model, expected) = load("roberta-classifier");
        expected.check(&borrow_tensors(&[("logits", model.forward(&ids, None, Some(&mask)))]));
        assert!(model.head_parameters().iter().all(|(name, _)| name.starts_with("classifier.")));
        assert_eq!(model.head_parameters().len(), 4);

        // The files of a masked language model do not have this head, so it is new.
        let model = AutoModelForSequenceClassification::from_folder_with(folder("bert"), |_| ())
            .unwrap_or_else(|e| panic!("{e}"));
        assert!(model.head_parameters().iter().all(|(_, parameter)| !parameter.is_set()));
        let text = AutoModelForSequenceClassification::from_folder(folder("gpt2"))
            .err()
            .map(|e| e.to_string());
        assert!(text.is_some_and(|text| {
            text.contains("`model_type` is `gpt2`, expected `bert`, `roberta`")
        }));
    }
}
