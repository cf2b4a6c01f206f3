//! The two networks, their training, and the scores of the drawn images.

use std::path::{Path, PathBuf};

use fulmen::cli::{self, clap};
use fulmen::models::inception::{InceptionV3, Network, fid_input};
use fulmen::models::resnet::ResNet;
use fulmen::models::{Pretrained, biggan, dcgan};
use fulmen::nn::RandomStream;
use fulmen::nn::loss::GanLoss;
use fulmen::nn::metrics::{FrechetDistance, InceptionScore, MetricState};
use fulmen::prelude::*;
use fulmen::tensor::{Interpolation, PadMode, autocast, random};

use crate::data::ImageSet;

/// The networks and the training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The networks. BigGAN's are conditioned on the class.
    #[arg(long, value_enum, default_value_t = Model::Dcgan)]
    model: Model,
    /// The base number of channels: ngf and ndf of DCGAN, ch of BigGAN.
    #[arg(long, default_value_t = 16)]
    width: usize,
    /// The loss; by default bce for DCGAN and hinge for BigGAN.
    #[arg(long, value_enum)]
    loss: Option<Loss>,
    /// The learning rate of the generator.
    #[arg(long, default_value_t = 2e-4)]
    learning_rate: f64,
    /// The learning rate of the discriminator.
    #[arg(long, default_value_t = 2e-4)]
    discriminator_learning_rate: f64,
    /// The decay of Adam's first moment; BigGAN's paper uses 0.
    #[arg(long, default_value_t = 0.5)]
    beta1: f64,
    /// The number of discriminator steps for each generator step.
    #[arg(long, default_value_t = 1)]
    discriminator_steps: u64,
    /// The decay of the weight average, which is validated, used for drawing, and saved; 0 for no
    /// average.
    #[arg(long, default_value_t = 0.999)]
    pub(crate) ema_decay: f64,
    /// BigGAN's backward pass recomputes each block: slower, with less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
}

impl Recipe {
    /// The number of random inputs for an image.
    pub(crate) fn noise_size(&self, images: &ImageSet) -> usize {
        match self.model {
            Model::Dcgan => 100,
            // 20 for the first layer and as many for each doubling of 4 × 4.
            Model::Biggan => 20 * (images.size.next_power_of_two().ilog2() as usize - 1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Model {
    Dcgan,
    Biggan,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Loss {
    Bce,
    Hinge,
}

/// The files with the networks that score drawn images.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Scores")]
pub(crate) struct Scores {
    /// A checkpoint of examples/resnet on the same data: its classifier scores the drawn images.
    #[arg(long)]
    pub(crate) classifier: Option<PathBuf>,
    /// The weights of an Inception-v3, a file or a folder, for FID and Inception Score:
    /// pt_inception-2015-12-05-….pth for numbers that can be compared with those of papers, or
    /// torchvision's.
    #[arg(long)]
    pub(crate) inception: Option<PathBuf>,
}

/// Both networks, their random stream for training, and the networks that score drawn images.
#[derive(Module)]
pub(crate) struct Gan {
    generator: Generator,
    discriminator: Discriminator,
    noise: RandomStream,
    classifier: Option<ResNet>,
    inception: Option<InceptionV3>,
    /// The number of random inputs for an image.
    noise_size: usize,
    /// The number of pixels on each side by which the networks' images are larger than the data's.
    margin: i64,
    #[module(skip)]
    recipe: Recipe,
}

#[derive(Module)]
enum Generator {
    Dcgan(dcgan::Generator),
    BigGan(Box<biggan::Generator>),
}

#[derive(Module)]
enum Discriminator {
    Dcgan(dcgan::Discriminator),
    BigGan(Box<biggan::Discriminator>),
}

impl Gan {
    /// Networks without values, and those that score with the values of their files.
    pub(crate) fn new(recipe: Recipe, images: &ImageSet, scores: &Scores) -> cli::Result<Gan> {
        let size = images.size.next_power_of_two();
        let channels = images.channels;
        let width = recipe.width;
        let noise_size = recipe.noise_size(images);
        let (generator, discriminator) = match recipe.model {
            Model::Dcgan => {
                let config = dcgan::Config {
                    image_size: size,
                    nc: channels,
                    nz: noise_size,
                    ngf: width,
                    ndf: width,
                };
                let discriminator = Discriminator::Dcgan(dcgan::Discriminator::new(&config)?);
                (Generator::Dcgan(dcgan::Generator::new(&config)?), discriminator)
            }
            Model::Biggan => {
                let config = biggan::Config {
                    resolution: size,
                    channels,
                    ch: width,
                    n_classes: images.classes,
                    dim_z: noise_size,
                    // At 64 × 64 in the paper, for 128 and larger.
                    attention: (size >= 64).then_some(64.min(size / 2)),
                    ..biggan::Config::default()
                };
                let mut generator = biggan::Generator::new(&config)?;
                let mut discriminator = biggan::Discriminator::new(&config)?;
                generator.gradient_checkpointing = recipe.gradient_checkpointing;
                discriminator.gradient_checkpointing = recipe.gradient_checkpointing;
                let discriminator = Discriminator::BigGan(Box::new(discriminator));
                (Generator::BigGan(Box::new(generator)), discriminator)
            }
        };
        let classifier =
            scores.classifier.as_ref().map(|path| load_classifier(path, images)).transpose()?;
        let inception = scores.inception.as_ref().map(load_inception).transpose()?;
        let noise = RandomStream::new();
        let margin = (size - images.size) as i64 / 2;
        Ok(Gan {
            generator,
            discriminator,
            noise,
            classifier,
            inception,
            noise_size,
            margin,
            recipe,
        })
    }

    /// The batch's images from -1 to 1, with a margin: `f32[batch, channels, size, size]`.
    fn real(&self, batch: &Batch) -> Tensor {
        let images = batch.get("image").to_dtype(DType::F32) / 127.5 - 1.0;
        images.pad_mode(&[(self.margin, self.margin); 2], PadMode::Constant(-1.0))
    }

    fn generate(&self, noise: &Tensor, classes: &Tensor) -> Tensor {
        match &self.generator {
            Generator::Dcgan(generator) => generator.forward(noise),
            Generator::BigGan(generator) => generator.forward(noise, classes),
        }
    }

    /// Logits `f32[batch]`, positive for images that look real.
    fn discriminate(&self, images: &Tensor, classes: &Tensor) -> Tensor {
        match &self.discriminator {
            Discriminator::Dcgan(discriminator) => discriminator.forward(images),
            Discriminator::BigGan(discriminator) => discriminator.forward(images, classes),
        }
    }

    /// Cuts off the margin, so that images have the size of the data's.
    fn without_margin(&self, images: &Tensor) -> Tensor {
        images.pad_mode(&[(-self.margin, -self.margin); 2], PadMode::Zeros)
    }

    /// Draws images from the batch's noise, and logs a grid of them. With a classifier, logs the
    /// Fréchet distance between its features of the real and of the drawn images and, for BigGAN,
    /// the fraction of images whose class it recognizes.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let real = self.real(batch);
        let classes = batch.get("label");
        let drawn = self.generate(&batch.get("noise"), &classes);
        let [real, drawn] = [real, drawn].map(|images| self.without_margin(&images));
        let sheet = drawn.narrow(0, 0, batch.size().min(64));
        cx.log_image(format!("{stage}_samples"), (sheet + 1.0) / 2.0);
        if let Some(inception) = &self.inception {
            // Not in the precision of the training.
            autocast(None, || score(inception, stage, &real, &drawn, cx));
        }
        let Some(classifier) = &self.classifier else { return };
        let [real, drawn] =
            [real, drawn].map(|images| classifier.forward_features(images).mean([2, 3]));
        let distance = MetricState::new(FrechetDistance, &[&real, &drawn], &[batch.size()]);
        cx.log_metric(format!("{stage}_frechet"), distance);
        if self.recipe.model == Model::Biggan {
            cx.log(
                format!("{stage}_recognized"),
                metrics::correct(classifier.fc.forward(drawn), classes),
            );
        }
    }
}

/// Loads the network for FID and Inception Score, which gets images from -1 to 1. It is not trained
/// here.
fn load_inception(path: impl AsRef<Path>) -> cli::Result<InceptionV3> {
    let inception = InceptionV3::from_weights(path)?.transform_input(false);
    inception.set_requires_grad(false);
    Ok(inception)
}

/// Logs FID and Inception Score of images from -1 to 1. The names say if the network is not that of
/// papers.
fn score(
    inception: &InceptionV3,
    stage: &str,
    real: &Tensor,
    drawn: &Tensor,
    cx: &mut StepContext,
) {
    let kind = match inception.config().network {
        Network::Fid => "",
        Network::Torchvision => "_torchvision",
    };
    let [real, drawn] =
        [real, drawn].map(|images| inception.features(inception_input(inception, images)));
    let logits = inception.unbiased_logits(&drawn);
    let batch = drawn.size(0);
    let distance = MetricState::new(FrechetDistance, &[&real, &drawn], &[batch]);
    cx.log_metric(format!("{stage}_fid{kind}"), distance);
    let splits = InceptionScore::new(1).update(logits, Tensor::zeros(DType::I32, [batch]));
    cx.log_metric(format!("{stage}_inception_score{kind}"), splits);
}

/// The network's input for images from -1 to 1. Gray images become colored.
fn inception_input(inception: &InceptionV3, images: &Tensor) -> Tensor {
    let shape = [images.size(0), 3, images.size(2), images.size(3)];
    // As in a file: 256 values.
    let pixels = ((images + 1.0) * 127.5).round().clamp(0.0, 255.0).broadcast_to(shape);
    match inception.config().network {
        Network::Fid => fid_input(pixels),
        Network::Torchvision => (pixels / 127.5 - 1.0)
            .interpolate(&[299, 299], Interpolation::Linear { align_corners: false }),
    }
}

/// Loads the classifier from a checkpoint of `examples/resnet`. It is not trained here.
fn load_classifier(path: &Path, images: &ImageSet) -> cli::Result<ResNet> {
    let classifier = ResNet::from_weights(path)?;
    let channels = classifier.config().in_chans;
    let classes = classifier.config().num_classes;
    if (channels, classes) != (images.channels, images.classes) {
        let message = format!(
            "--classifier {}: it has {classes} classes and {channels} channels, but the data has {} classes and {} channels; \
             give a classifier that was trained on this data",
            path.display(),
            images.classes,
            images.channels
        );
        return Err(message.into());
    }
    classifier.set_requires_grad(false);
    Ok(classifier)
}

impl TrainingModule for Gan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let gan_loss = match (self.recipe.loss, self.recipe.model) {
            (Some(Loss::Bce), _) | (None, Model::Dcgan) => GanLoss::NonSaturating,
            (Some(Loss::Hinge), _) | (None, Model::Biggan) => GanLoss::Hinge,
        };
        let real = self.real(batch);
        let classes = batch.get("label");
        let noise =
            random::normal(self.noise.next_key(), DType::F32, [batch.size(), self.noise_size]);
        let drawn = self.generate(&noise, &classes);
        let loss = cx.minimize("discriminator", |_| {
            let [real, drawn] =
                [&real, &drawn.detach()].map(|images| self.discriminate(images, &classes));
            gan_loss.discriminator(real, drawn, Reduction::Mean)
        });
        // Operations that only the generator's step needs are in its closure, so that other steps
        // do not compute them.
        cx.minimize("generator", |_| {
            gan_loss.generator(self.discriminate(&drawn, &classes), Reduction::Mean)
        });
        loss
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let drawn = self.without_margin(&self.generate(&batch.get("noise"), &batch.get("label")));
        [("image", ((drawn + 1.0) * 127.5).round().to_dtype(DType::U8))].into()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let Recipe {
            learning_rate, discriminator_learning_rate, beta1, discriminator_steps, ..
        } = self.recipe;
        let adam = |learning_rate: f64| optim::Adam::new(learning_rate).betas(beta1, 0.999);
        let optimizers = Optimizers::new()
            .add("discriminator", ["discriminator.*"], adam(discriminator_learning_rate))
            .add("generator", ["generator.*"], adam(learning_rate))
            .every("generator", discriminator_steps);
        Box::new(optimizers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded but not run, because it takes long to compile.
    #[test]
    fn both_models_draw_images_of_the_size_of_the_data() {
        for model in [Model::Dcgan, Model::Biggan] {
            let recipe = Recipe {
                model,
                width: 8,
                loss: None,
                learning_rate: 1e-4,
                discriminator_learning_rate: 1e-4,
                beta1: 0.0,
                discriminator_steps: 1,
                ema_decay: 0.0,
                gradient_checkpointing: false,
            };
            for size in [32, 64] {
                let images = ImageSet::fake(size);
                let gan = Gan::new(recipe.clone(), &images, &Scores::default()).unwrap();
                gan.initialize(0);
                let noise = [3, recipe.noise_size(&images)];
                let classes = Tensor::zeros(DType::I32, [3]);
                let drawn =
                    gan.without_margin(&gan.generate(&Tensor::zeros(DType::F32, noise), &classes));
                drawn.check().unwrap();
                assert_eq!(drawn.ty().to_string(), format!("f32[3, 3, {size}, {size}]"));
                assert_eq!(gan.discriminate(&drawn, &classes).ty().to_string(), "f32[3]");
            }
        }
    }
}
