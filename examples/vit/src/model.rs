//! The classifier and its training.

use fulmen::cli::clap;
use fulmen::models::Pretrained;
use fulmen::models::vit::ViT;
use fulmen::nn::RandomStream;
use fulmen::nn::augment::{IMAGENET_MEAN, IMAGENET_STD, MixUpOrCutMix, normalize};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate, which decreases along a cosine to 0. With --from, 5e-5 is a good
    /// value.
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// The fraction of the steps with an increasing learning rate.
    #[arg(long, default_value_t = 0.1)]
    warmup: f64,
    /// The weight decay of matrices; biases and norms have none.
    #[arg(long, default_value_t = 0.05)]
    weight_decay: f64,
    /// The label smoothing.
    #[arg(long, default_value_t = 0.1)]
    label_smoothing: f64,
    /// The strength of MixUp or CutMix: the alpha of their Beta distribution; 0 disables them.
    #[arg(long, default_value_t = 0.2)]
    mixup: f64,
    /// The mean and standard deviation for normalizing pixels: 0.5 as in Google's models, or
    /// ImageNet's.
    #[arg(long, value_enum, default_value_t = Normalization::Half)]
    normalization: Normalization,
    /// The number of epochs in which only the head is trained.
    #[arg(long, default_value_t = 0)]
    pub(crate) freeze_epochs: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Normalization {
    Half,
    Imagenet,
}

/// A Vision Transformer with the parameter names of transformers, and the recipe.
#[derive(Module)]
pub(crate) struct Classifier {
    #[module(flatten)]
    vit: ViT,
    random: RandomStream,
    #[module(skip)]
    recipe: Recipe,
}

impl Classifier {
    pub(crate) fn new(vit: ViT, recipe: Recipe) -> Classifier {
        Classifier { vit, random: RandomStream::new(), recipe }
    }

    /// The normalized images of the batch. They are transferred to the device as
    /// `u8[batch, 3, height, width]`, a quarter of the size of floats.
    fn images(&self, batch: &Batch) -> Tensor {
        match self.recipe.normalization {
            Normalization::Half => normalize(batch.get("image"), &[0.5; 3], &[0.5; 3]),
            Normalization::Imagenet => normalize(batch.get("image"), &IMAGENET_MEAN, &IMAGENET_STD),
        }
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let logits = self.vit.forward(self.images(batch));
        let labels = batch.get("label");
        cx.log(format!("{stage}_loss"), loss::cross_entropy(&logits, &labels, Reduction::None));
        cx.log(format!("{stage}_acc"), metrics::correct(logits, labels));
    }
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let images = self.images(batch);
        let labels = batch.get("label");
        let loss = CrossEntropyLoss::new().label_smoothing(self.recipe.label_smoothing);
        if self.recipe.mixup == 0.0 {
            return loss.forward(self.vit.forward(images), labels);
        }
        let mix = MixUpOrCutMix::new(self.vit.config().labels.len()).alpha(self.recipe.mixup);
        let mixed = mix.apply(self.random.next_key(), images, labels);
        loss.forward(self.vit.forward(mixed.images), mixed.targets)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let probabilities = self.vit.forward(self.images(batch)).softmax(-1);
        [("class", probabilities.argmax(-1)), ("probability", probabilities.max(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, warmup, weight_decay, .. } = self.recipe;
        let warmup = (plan.total_steps as f64 * warmup) as u64;
        let steps = plan.total_steps.saturating_sub(warmup).max(1);
        let cosine = schedule::CosineAnnealing::new(learning_rate, steps);
        let adam =
            optim::AdamW::new(schedule::Warmup::new(warmup, cosine)).weight_decay(weight_decay);
        Box::new(ParamGroups::new(adam).no_decay_on_biases_and_norms())
    }
}
