//! The network, its training, and the scores of the drawn digits.

use std::path::Path;

use fulmen::cli::{self, clap};
use fulmen::models::Pretrained;
use fulmen::models::resnet::ResNet;
use fulmen::models::unet::{Config, DownBlockType, UNet, UpBlockType};
use fulmen::nn::RandomStream;
use fulmen::nn::metrics::{FrechetDistance, MetricState};
use fulmen::prelude::*;
use fulmen::tensor::random;

use crate::process::{NoiseSchedule, Process};

/// The network and the training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The channels at 28 × 28, 14 × 14 and 7 × 7, multiples of 8. Fewer numbers leave out the
    /// smaller sizes.
    #[arg(long, value_delimiter = ',', default_value = "16,32,32")]
    channels: Vec<usize>,
    /// The number of residual blocks at each size.
    #[arg(long, default_value_t = 1)]
    layers: usize,
    /// The number of time steps from an image to noise.
    #[arg(long, default_value_t = 1000)]
    timesteps: usize,
    /// The noise schedule: how fast an image becomes noise.
    #[arg(long, value_enum, default_value_t = NoiseSchedule::Cosine)]
    noise_schedule: NoiseSchedule,
    /// The number of steps from noise to an image when drawing digits.
    #[arg(long, default_value_t = 20)]
    sampling_steps: usize,
    /// The highest learning rate, with a warm-up in the first twentieth of the steps and a cosine
    /// decay.
    #[arg(long, default_value_t = 2e-3)]
    learning_rate: f64,
    /// The decay of the weight average, which is validated, used for drawing, and saved; 0 for no
    /// average.
    #[arg(long, default_value_t = 0.995)]
    pub(crate) ema_decay: f64,
}

/// A class-conditional UNet, its random stream for training, and the classifier that scores its
/// digits.
#[derive(Module)]
pub(crate) struct Diffusion {
    unet: UNet,
    random: RandomStream,
    classifier: Option<ResNet>,
    #[module(skip)]
    process: Process,
    #[module(skip)]
    recipe: Recipe,
}

impl Diffusion {
    /// A UNet without values, and the classifier with the values of its checkpoint.
    pub(crate) fn new(recipe: Recipe, classifier: Option<&Path>) -> cli::Result<Diffusion> {
        let Recipe { channels, layers, timesteps, noise_schedule, sampling_steps, .. } =
            recipe.clone();
        if channels.iter().any(|&channels| channels == 0 || channels % 8 != 0)
            || !(1..=3).contains(&channels.len())
        {
            return Err(
                format!("--channels {channels:?}: expected one to three multiples of 8").into()
            );
        }
        if sampling_steps == 0 || sampling_steps > timesteps {
            return Err(format!(
                "--sampling-steps {sampling_steps}: give 1 to --timesteps, {timesteps}"
            )
            .into());
        }
        let smallest = channels.len() - 1;
        let config = Config {
            in_channels: 1,
            out_channels: 1,
            down_block_types: [vec![DownBlockType::Down; smallest], vec![DownBlockType::AttnDown]]
                .concat(),
            up_block_types: [vec![UpBlockType::AttnUp], vec![UpBlockType::Up; smallest]].concat(),
            block_out_channels: channels,
            layers_per_block: layers,
            norm_num_groups: 8,
            num_class_embeds: Some(10),
            ..Config::default()
        };
        let classifier = classifier.map(load_classifier).transpose()?;
        let process = Process::new(noise_schedule, timesteps);
        Ok(Diffusion {
            unet: UNet::new(config)?,
            random: RandomStream::new(),
            classifier,
            process,
            recipe,
        })
    }

    /// The squared error of the predicted noise for each of the batch's digits: `f32[batch]`.
    fn losses(&self, batch: &Batch, timesteps: &Tensor) -> Tensor {
        let digits = pixels(batch);
        let noise = random::normal(self.random.next_key(), DType::F32, digits.shape().clone());
        let noisy = self.process.add_noise(&digits, &noise, timesteps);
        let prediction = self.unet.forward(noisy, timesteps, Some(&batch.get("label")));
        loss::mse_loss(prediction, noise, Reduction::None).mean([1, 2, 3])
    }

    /// Draws digits of the batch's classes from its noise: `f32[batch, 1, 28, 28]` from -1 to 1.
    fn draw(&self, batch: &Batch) -> Tensor {
        let classes = batch.get("label");
        let predict =
            |x: &Tensor, timesteps: &Tensor| self.unet.forward(x, timesteps, Some(&classes));
        self.process.sample(&batch.get("noise"), self.recipe.sampling_steps, predict)
    }
}

/// The batch's digits from -1 to 1: `f32[batch, 1, 28, 28]`.
fn pixels(batch: &Batch) -> Tensor {
    batch.get("image").to_dtype(DType::F32) / 127.5 - 1.0
}

/// Loads the classifier from a checkpoint of `examples/resnet`. It is not trained here.
fn load_classifier(path: &Path) -> cli::Result<ResNet> {
    let classifier = ResNet::from_weights(path)?;
    let channels = classifier.config().in_chans;
    let classes = classifier.config().num_classes;
    if (channels, classes) != (1, 10) {
        let path = path.display();
        let message = format!(
            "--classifier {path}: expected a classifier of 10 classes with 1 channel, but it has {classes} classes and \
             {channels} channels"
        );
        return Err(message.into());
    }
    classifier.set_requires_grad(false);
    Ok(classifier)
}

impl TrainingModule for Diffusion {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let limit = self.process.timesteps() as i64;
        let timesteps =
            random::randint(self.random.next_key(), DType::I32, [batch.size()], 0, limit);
        self.losses(batch, &timesteps).mean_all()
    }

    /// Uses evenly spaced time steps.
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let rows = batch.size();
        let all = self.process.timesteps();
        let timesteps: Vec<i32> = (0..rows).map(|row| (row * all / rows) as i32).collect();
        cx.log("val_loss", self.losses(batch, &Tensor::from_slice(&timesteps, [rows])));
    }

    /// Draws digits of the classes of the test digits. With a classifier, logs the fraction that it
    /// recognizes, and the Fréchet distance between its features of the real and of the drawn
    /// digits.
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let drawn = self.draw(batch);
        cx.log_image("test_samples", (drawn.narrow(0, 0, batch.size().min(64)) + 1.0) / 2.0);
        let Some(classifier) = &self.classifier else { return };
        let [real, drawn] =
            [&pixels(batch), &drawn].map(|digits| classifier.forward_features(digits).mean([2, 3]));
        cx.log_metric(
            "test_frechet",
            MetricState::new(FrechetDistance, &[&real, &drawn], &[batch.size()]),
        );
        cx.log(
            "test_recognized",
            metrics::correct(classifier.fc.forward(drawn), batch.get("label")),
        );
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        [("image", ((self.draw(batch) + 1.0) * 127.5).round().to_dtype(DType::U8))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let warmup = plan.total_steps / 20;
        let cosine =
            schedule::CosineAnnealing::new(self.recipe.learning_rate, plan.total_steps - warmup);
        Box::new(optim::AdamW::new(schedule::Warmup::new(warmup, cosine)))
    }
}
