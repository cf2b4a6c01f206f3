//! The model, its training and its translations.

use fulmen::cli::clap;
use fulmen::data::text::IGNORE_INDEX;
use fulmen::models::marian::{Config, Marian};
use fulmen::models::{self, Decoding, GenerationConfig, Pretrained, generate};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate, which then decreases with the inverse square root of the step.
    #[arg(long, default_value_t = 7e-4)]
    learning_rate: f64,
    /// The number of steps with an increasing learning rate.
    #[arg(long, default_value_t = 4000)]
    warmup_steps: u64,
    /// The label smoothing.
    #[arg(long, default_value_t = 0.1)]
    label_smoothing: f64,
}

/// The Transformer with the parameter names of transformers' `MarianMTModel`.
#[derive(Module)]
pub(crate) struct Translator {
    #[module(flatten)]
    marian: Marian,
    #[module(skip)]
    recipe: Recipe,
    #[module(skip)]
    answers: GenerationConfig,
}

impl Translator {
    pub(crate) fn new(
        config: Config,
        recipe: Recipe,
        answers: GenerationConfig,
    ) -> models::Result<Translator> {
        Ok(Translator { marian: Marian::new(config)?, recipe, answers })
    }

    pub(crate) fn layers(mut self, gradient_checkpointing: bool, scan_layers: bool) -> Translator {
        (self.marian.gradient_checkpointing, self.marian.scan_layers) =
            (gradient_checkpointing, scan_layers);
        self
    }

    fn pad(&self) -> f64 {
        f64::from(self.answers.pad_token_id.unwrap_or(0))
    }

    /// The encoder's output for the texts.
    fn encode(&self, batch: &Batch) -> Decoding<'_> {
        let ids = batch.get("input_ids");
        self.marian.decoding(&ids, Some(&ids.ne(self.pad())))
    }

    /// The tokens of the translations, `i32[batch, length]`, padded at the end.
    fn translate(&self, texts: &Decoding<'_>) -> Tensor {
        generate(texts, &texts.start(), &self.answers)
    }

    /// Logs the mean loss per token.
    fn evaluate(&self, stage: &str, texts: &Decoding<'_>, labels: &Tensor, cx: &mut StepContext) {
        let logits = texts.forward(texts.shift_right(labels));
        let loss =
            CrossEntropyLoss::new().ignore_index(IGNORE_INDEX.into()).reduction(Reduction::None);
        let losses = metrics::Mean::new().update(loss.forward(logits, labels));
        cx.log_metric(format!("{stage}_loss"), losses.masked(labels.ne(f64::from(IGNORE_INDEX))));
    }
}

impl TrainingModule for Translator {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let texts = self.encode(batch);
        let labels = batch.get("labels");
        let logits = texts.forward(texts.shift_right(&labels));
        let loss = CrossEntropyLoss::new().ignore_index(IGNORE_INDEX.into());
        loss.label_smoothing(self.recipe.label_smoothing).forward(logits, labels)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", &self.encode(batch), &batch.get("labels"), cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let texts = self.encode(batch);
        let labels = batch.get("labels");
        self.evaluate("test", &texts, &labels, cx);
        let translations = self.translate(&texts);
        let bleu = metrics::TokenBleu::new(self.answers.eos_token_id.clone());
        cx.log_metric("test_bleu", bleu.update(&translations, &labels));
        // Pad the labels like the translations.
        let padding = translations.size(1) as i64 - labels.size(1) as i64;
        let pad = Tensor::full(DType::I32, [], self.pad());
        let expected =
            labels.lt(0.0).select(&pad, labels).pad(pad, &[0, 0], &[0, padding], &[0, 0]);
        cx.log("test_exact", translations.eq(expected).all(1).to_dtype(DType::F32));
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        [("tokens", self.translate(&self.encode(batch)))].into()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, warmup_steps, .. } = self.recipe;
        let rate = schedule::InverseSqrt::new(learning_rate, warmup_steps);
        Box::new(optim::Adam::new(rate).betas(0.9, 0.98).eps(1e-9))
    }
}
