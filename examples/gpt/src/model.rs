//! The model, its training, and its answers.

use fulmen::cli::clap;
use fulmen::models::gpt2::{Config, Gpt2};
use fulmen::models::{self, GenerationConfig, Pretrained, Prompt, generate};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate, which decreases along a cosine to a tenth.
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// The number of steps with an increasing learning rate.
    #[arg(long, default_value_t = 100)]
    warmup_steps: u64,
    /// The weight decay of matrices; biases and norms have none.
    #[arg(long, default_value_t = 0.1)]
    weight_decay: f64,
}

/// GPT-2 with the parameter names of transformers.
#[derive(Module)]
pub(crate) struct Gpt {
    #[module(flatten)]
    gpt2: Gpt2,
    #[module(skip)]
    recipe: Recipe,
    #[module(skip)]
    answers: GenerationConfig,
}

impl Gpt {
    pub(crate) fn new(
        config: Config,
        gradient_checkpointing: bool,
        recipe: Recipe,
        answers: GenerationConfig,
    ) -> models::Result<Gpt> {
        let mut gpt2 = Gpt2::new(config)?;
        gpt2.gradient_checkpointing = gradient_checkpointing;
        Ok(Gpt { gpt2, recipe, answers })
    }

    /// The loss of each token, `f32[batch, length]`; 0 after the end of the text.
    fn losses(&self, batch: &Batch) -> Tensor {
        let logits = self.gpt2.forward(batch.get("input_ids"));
        CrossEntropyLoss::new()
            .ignore_index(-100)
            .reduction(Reduction::None)
            .forward(logits, batch.get("labels"))
    }
}

impl TrainingModule for Gpt {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.losses(batch).mean([0, 1])
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", self.losses(batch).mean(-1));
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("test_loss", self.losses(batch).mean(-1));
    }

    /// The tokens that follow the prompts.
    fn predict_step(&self, batch: &Batch) -> Predictions {
        [("tokens", generate(&self.gpt2, &Prompt::from(&batch.get("input_ids")), &self.answers))]
            .into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, warmup_steps, weight_decay } = self.recipe;
        let steps = plan.total_steps.saturating_sub(warmup_steps).max(1);
        let cosine =
            schedule::CosineAnnealing::new(learning_rate, steps).eta_min(learning_rate / 10.0);
        let adam = optim::AdamW::new(schedule::Warmup::new(warmup_steps, cosine)).betas(0.9, 0.95);
        Box::new(ParamGroups::new(adam.weight_decay(weight_decay)).no_decay_on_biases_and_norms())
    }
}
