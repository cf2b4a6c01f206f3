//! The model, its training and its metrics.

use fulmen::cli::clap;
use fulmen::models::bert::Config;
use fulmen::models::roberta::RobertaForMaskedLm;
use fulmen::models::{self, Pretrained};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::nn::metrics::Mean;
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

/// The label of a token that is not masked.
const NOT_MASKED: i64 = -100;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The optimizer; LAMB is for large batches.
    #[arg(long, value_enum, default_value_t = Algorithm::Adamw)]
    optimizer: Algorithm,
    /// The highest learning rate, which then decreases linearly to 0.
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// The number of steps with an increasing learning rate.
    #[arg(long, default_value_t = 100)]
    warmup_steps: u64,
    /// The weight decay of matrices; biases and norms have none.
    #[arg(long, default_value_t = 0.01)]
    weight_decay: f64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Algorithm {
    Adamw,
    Lamb,
}

/// RoBERTa with the parameter names of transformers.
#[derive(Module)]
pub(crate) struct MaskedLm {
    #[module(flatten)]
    pub(crate) roberta: RobertaForMaskedLm,
    #[module(skip)]
    recipe: Recipe,
}

impl MaskedLm {
    pub(crate) fn new(
        config: Config,
        gradient_checkpointing: bool,
        recipe: Recipe,
    ) -> models::Result<MaskedLm> {
        let mut roberta = RobertaForMaskedLm::new(config)?;
        roberta.roberta.encoder.gradient_checkpointing = gradient_checkpointing;
        Ok(MaskedLm { roberta, recipe })
    }

    /// The logits `f32[batch, length, vocabulary]`. No sample is padded.
    fn forward(&self, batch: &Batch) -> Tensor {
        self.roberta.forward(batch.get("input_ids"), None)
    }

    /// Logs the loss and the accuracy over all masked tokens. Returns 1 for each correct token.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(batch);
        let labels = batch.get("labels");
        let masked = labels.ne(NOT_MASKED as f64);
        let loss = CrossEntropyLoss::new().ignore_index(NOT_MASKED).reduction(Reduction::None);
        let losses = loss.forward(&logits, &labels);
        cx.log_metric(format!("{stage}_loss"), Mean::new().update(losses).masked(&masked));
        let hits = metrics::correct(logits, labels);
        cx.log_metric(format!("{stage}_acc"), Mean::new().update(&hits).masked(&masked));
        hits
    }
}

impl TrainingModule for MaskedLm {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        CrossEntropyLoss::new()
            .ignore_index(NOT_MASKED)
            .forward(self.forward(batch), batch.get("labels"))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    /// Also logs how far the accuracy is above guessing from the previous token.
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let hits = self.evaluate("test", batch, cx);
        let labels = batch.get("labels");
        let margin = hits - batch.get("bigram").eq(&labels).to_dtype(DType::F32);
        cx.log_metric(
            "test_margin",
            Mean::new().update(margin).masked(labels.ne(NOT_MASKED as f64)),
        );
    }

    /// The most likely token at each position.
    fn predict_step(&self, batch: &Batch) -> Predictions {
        [("tokens", self.forward(batch).argmax(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { optimizer, learning_rate, warmup_steps, weight_decay } = self.recipe;
        let linear = schedule::Polynomial::new(
            learning_rate,
            plan.total_steps.saturating_sub(warmup_steps).max(1),
        );
        let rate = schedule::Warmup::new(warmup_steps, linear);
        let groups = match optimizer {
            Algorithm::Adamw => ParamGroups::new(
                optim::AdamW::new(rate).betas(0.9, 0.98).eps(1e-6).weight_decay(weight_decay),
            ),
            Algorithm::Lamb => ParamGroups::new(optim::Lamb::new(rate).weight_decay(weight_decay)),
        };
        Box::new(groups.no_decay_on_biases_and_norms())
    }
}
