//! The classifier and its training.

use fulmen::cli::clap;
use fulmen::models::resnet::{Config, ResNet};
use fulmen::models::{self, Pretrained};
use fulmen::nn::augment::{IMAGENET_MEAN, IMAGENET_STD, normalize};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::nn::optim::ParamGroups;
use fulmen::nn::schedule::Schedule;
use fulmen::prelude::*;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The optimizer: SGD, or LARS for batches of many thousand images.
    #[arg(long, value_enum, default_value_t = Algorithm::Sgd)]
    optimizer: Algorithm,
    /// The highest learning rate.
    #[arg(long, default_value_t = 0.1)]
    learning_rate: f64,
    /// The schedule of the learning rate: one-cycle, or cosine with a warm-up in the first
    /// twentieth of the steps.
    #[arg(long, value_enum, default_value_t = RateSchedule::OneCycle)]
    schedule: RateSchedule,
    /// The weight decay.
    #[arg(long, default_value_t = 5e-4)]
    weight_decay: f64,
    /// The label smoothing.
    #[arg(long, default_value_t = 0.1)]
    label_smoothing: f64,
    /// The decay of the weight average, which is validated and saved; 0 for no average.
    #[arg(long, default_value_t = 0.999)]
    pub(crate) ema_decay: f64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Algorithm {
    Sgd,
    Lars,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RateSchedule {
    OneCycle,
    Cosine,
}

impl Recipe {
    fn learning_rate(&self, plan: &Plan) -> Box<dyn Schedule> {
        let rate = self.learning_rate;
        let steps = plan.total_steps;
        let warmup = plan.total_steps / 20;
        match self.schedule {
            RateSchedule::OneCycle => Box::new(schedule::OneCycle::new(rate, steps)),
            RateSchedule::Cosine => Box::new(schedule::Warmup::new(
                warmup,
                schedule::CosineAnnealing::new(rate, steps - warmup),
            )),
        }
    }
}

/// A ResNet with the parameter names of torchvision, and the recipe.
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

    /// From images `u8[batch, channels, height, width]` to logits `f32[batch, classes]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        // Normalized on the device, so only one byte per pixel is transferred instead of four.
        self.resnet.forward(match images.size(1) {
            3 => normalize(images, &IMAGENET_MEAN, &IMAGENET_STD),
            _ => normalize(images, &[0.5], &[0.5]),
        })
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(&batch.get("image"));
        let labels = batch.get("label");
        cx.log(format!("{stage}_loss"), loss::cross_entropy(&logits, &labels, Reduction::None));
        cx.log(format!("{stage}_acc"), metrics::correct(logits, labels));
    }
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("image"));
        let labels = batch.get("label");
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
        [("class", probabilities.argmax(-1)), ("probability", probabilities.max(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let rate = || self.recipe.learning_rate(plan);
        let decay = self.recipe.weight_decay;
        let sgd = || optim::Sgd::new(rate()).momentum(0.9).nesterov(true);
        match self.recipe.optimizer {
            Algorithm::Sgd => Box::new(sgd().weight_decay(decay)),
            // Biases and norms get no trust ratio.
            Algorithm::Lars => {
                let lars = ParamGroups::new(optim::Lars::new(rate()).weight_decay(decay));
                let norms = ["*bn?.weight", "*downsample.1.weight", "*.bias"];
                Box::new(norms.into_iter().fold(lars, |groups, names| groups.group(names, sgd())))
            }
        }
    }
}
