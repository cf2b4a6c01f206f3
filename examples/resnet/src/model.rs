//! The classifier and how it is trained.

use fulmen::cli::clap;
use fulmen::models::resnet::{Config, ResNet};
use fulmen::models::{self, Pretrained};
use fulmen::nn::augment::{IMAGENET_MEAN, IMAGENET_STD, normalize};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;

/// How the model is trained.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate.
    #[arg(long, default_value_t = 0.1)]
    learning_rate: f64,
    /// The way of the learning rate: one-cycle, or cosine after a twentieth of the steps as warm-up.
    #[arg(long, value_enum, default_value_t = Schedule::OneCycle)]
    schedule: Schedule,
    /// Decay of the weights.
    #[arg(long, default_value_t = 5e-4)]
    weight_decay: f64,
    /// The share of a target that is spread over all classes.
    #[arg(long, default_value_t = 0.1)]
    label_smoothing: f64,
    /// Decay of the average of the weights that is validated and saved; 0 for no average.
    #[arg(long, default_value_t = 0.999)]
    pub(crate) ema_decay: f64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Schedule {
    OneCycle,
    Cosine,
}

/// A ResNet, whose parameters have torchvision's names, and the recipe.
#[derive(Module)]
pub(crate) struct Classifier {
    #[module(flatten)]
    resnet: ResNet,
    #[module(skip)]
    recipe: Recipe,
}

impl Classifier {
    pub(crate) fn new(config: Config, recipe: Recipe) -> models::Result<Classifier> {
        Ok(Classifier { resnet: ResNet::new(config)?, recipe })
    }

    /// From pictures `u8[batch, channels, height, width]` to logits `f32[batch, classes]`.
    fn forward(&self, pictures: &Tensor) -> Tensor {
        // Normalized on the device: a byte a pixel crosses the link instead of four.
        self.resnet.forward(match pictures.size(1) {
            3 => normalize(pictures, &IMAGENET_MEAN, &IMAGENET_STD),
            channels => normalize(pictures, &vec![0.5; channels], &vec![0.5; channels]),
        })
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let (logits, labels) = (self.forward(&batch.get("image")), batch.get("label"));
        cx.log(format!("{stage}_loss"), loss::cross_entropy(&logits, &labels, Reduction::None));
        cx.log(format!("{stage}_acc"), metrics::correct(logits, labels));
    }
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let (logits, labels) = (self.forward(&batch.get("image")), batch.get("label"));
        cx.log("train_acc", metrics::correct(&logits, &labels));
        CrossEntropyLoss::new().label_smoothing(self.recipe.label_smoothing).forward(logits, labels)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let probabilities = self.forward(&batch.get("image")).softmax(-1);
        [("class", probabilities.argmax(-1)), ("probability", probabilities.max(&[-1]))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, schedule, weight_decay, .. } = self.recipe;
        let (steps, warmup) = (plan.total_steps, plan.total_steps / 20);
        let sgd = match schedule {
            Schedule::OneCycle => optim::Sgd::new(schedule::OneCycle::new(learning_rate, steps)),
            Schedule::Cosine => {
                let cosine = schedule::CosineAnnealing::new(learning_rate, steps - warmup);
                optim::Sgd::new(schedule::Warmup::new(warmup, cosine))
            }
        };
        Box::new(sgd.momentum(0.9).nesterov(true).weight_decay(weight_decay))
    }
}
