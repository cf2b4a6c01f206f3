//! The classifier and its training.

use std::path::Path;

use fulmen::cli::clap;
use fulmen::models::AutoModelForSequenceClassification as Classifier;
use fulmen::models::{self, Lora, Pretrained};
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

/// The linear layers with low-rank updates: all in the encoder.
const LORA_TARGETS: [&str; 4] =
    ["*.query.weight", "*.key.weight", "*.value.weight", "*.layer.*.dense.weight"];

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate, which then decreases linearly to 0.
    #[arg(long, default_value_t = 5e-5)]
    learning_rate: f64,
    /// The fraction of the steps with an increasing learning rate.
    #[arg(long, default_value_t = 0.06)]
    warmup_ratio: f64,
    /// The weight decay of matrices; biases and norms have none.
    #[arg(long, default_value_t = 0.01)]
    weight_decay: f64,
    /// Train updates of this rank (LoRA) and the classifier instead of all weights.
    #[arg(long)]
    pub(crate) lora: Option<usize>,
    /// LoRA multiplies the updates by this number over the rank.
    #[arg(long, default_value_t = 16.0)]
    lora_alpha: f64,
    /// Train only the classifier.
    #[arg(long, conflicts_with = "lora")]
    freeze_backbone: bool,
}

/// A classifier, with the recipe.
#[derive(Module)]
pub(crate) struct TextClassifier {
    #[module(flatten)]
    network: Network,
    #[module(skip)]
    recipe: Recipe,
}

#[derive(Module)]
enum Network {
    Full(Classifier),
    Lora(Lora<Classifier>),
}

impl TextClassifier {
    pub(crate) fn new(model: Classifier, recipe: Recipe) -> models::Result<TextClassifier> {
        let network = match recipe.lora {
            Some(rank) => {
                let head: &[&str] = match &model {
                    Classifier::Bert(_) => &["classifier", "pooler"],
                    Classifier::Roberta(_) => &["classifier"],
                };
                Network::Lora(
                    Lora::new(model, &LORA_TARGETS, rank, recipe.lora_alpha)?
                        .modules_to_save(head)?,
                )
            }
            None => {
                if recipe.freeze_backbone {
                    model.set_requires_grad(false);
                    model
                        .head_parameters()
                        .iter()
                        .for_each(|(_, parameter)| parameter.set_requires_grad(true));
                }
                Network::Full(model)
            }
        };
        Ok(TextClassifier { network, recipe })
    }

    /// Writes the model, with its updates added, as a Hugging Face folder.
    pub(crate) fn save(&self, folder: &Path) -> models::Result<()> {
        match &self.network {
            Network::Full(model) => model.save_pretrained(folder),
            Network::Lora(lora) => lora.apply(|model| model.save_pretrained(folder)),
        }
    }

    /// Writes the updates and the classifier as a peft folder.
    pub(crate) fn save_adapter(&self, folder: &Path) -> models::Result<()> {
        match &self.network {
            Network::Full(_) => Ok(()),
            Network::Lora(lora) => lora.save_pretrained(folder),
        }
    }

    /// The logits `f32[batch, classes]`.
    fn forward(&self, batch: &Batch) -> Tensor {
        let ids = batch.get("input_ids");
        let mask = batch.get("attention_mask");
        match &self.network {
            Network::Full(model) => model.forward(ids, None, Some(&mask)),
            Network::Lora(lora) => lora.apply(|model| model.forward(ids, None, Some(&mask))),
        }
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(batch);
        let labels = batch.get("label");
        cx.log(format!("{stage}_loss"), loss::cross_entropy(&logits, &labels, Reduction::None));
        cx.log(format!("{stage}_acc"), metrics::correct(logits, labels));
    }
}

impl TrainingModule for TextClassifier {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(batch);
        let labels = batch.get("label");
        cx.log("train_acc", metrics::correct(&logits, &labels));
        loss::cross_entropy(logits, labels, Reduction::Mean)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let probabilities = self.forward(batch).softmax(-1);
        [("label", probabilities.argmax(-1)), ("probability", probabilities.max(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, warmup_ratio, weight_decay, .. } = self.recipe;
        let warmup = (plan.total_steps as f64 * warmup_ratio) as u64;
        let linear = schedule::Polynomial::new(
            learning_rate,
            plan.total_steps.saturating_sub(warmup).max(1),
        );
        let adam =
            optim::AdamW::new(schedule::Warmup::new(warmup, linear)).weight_decay(weight_decay);
        Box::new(ParamGroups::new(adam).no_decay_on_biases_and_norms())
    }
}
