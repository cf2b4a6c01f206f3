//! DCGAN: a generator and a discriminator of plain convolutions. Radford et al. 2015, "Unsupervised
//! Representation Learning with Deep Convolutional Generative Adversarial Networks".
//!
//! Parameters have the names of PyTorch's example (`main.0.weight`, …), so its checkpoints can be
//! loaded.
//!
//! ```
//! use fulmen_models::dcgan::{Config, Discriminator, Generator};
//! use fulmen_nn::Module;
//! use fulmen_tensor::{DType, Tensor};
//!
//! let config = Config { image_size: 32, ngf: 8, ndf: 8, ..Config::default() };
//! let generator = Generator::new(&config)?;
//! let discriminator = Discriminator::new(&config)?;
//! generator.initialize(0);
//! discriminator.initialize(1);
//! let images = generator.forward(Tensor::zeros(DType::F32, [16, 100]));
//! assert_eq!(images.ty().to_string(), "f32[16, 3, 32, 32]");
//! assert_eq!(discriminator.forward(&images).ty().to_string(), "f32[16]");
//! # Ok::<(), fulmen_models::Error>(())
//! ```

#[cfg(test)]
mod tests;

use fulmen_nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, Init, LeakyRelu, Module, Relu, Sequential, Tanh,
};
use fulmen_tensor::{AsTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::{MODELS, Result, error};

/// The settings of both networks, with the names and the defaults of PyTorch's example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The height and width of images: a power of 2 from 8 to 4096.
    pub image_size: usize,
    /// The number of channels of an image.
    pub nc: usize,
    /// The number of random inputs for an image.
    pub nz: usize,
    /// The channels of the generator's last hidden layer; each layer before it has twice as many.
    pub ngf: usize,
    /// The channels of the discriminator's first layer; each layer after it has twice as many.
    pub ndf: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { image_size: 64, nc: 3, nz: 100, ngf: 64, ndf: 64 }
    }
}

impl Config {
    /// How often 4 × 4 positions are doubled before the last layer doubles them to the whole image.
    fn doublings(&self) -> Result<u32> {
        if self.image_size.is_power_of_two() && (8..=4096).contains(&self.image_size) {
            Ok(self.image_size.trailing_zeros() - 3)
        } else {
            let message =
                format!("`image_size` is {}, not a power of 2 from 8 to 4096", self.image_size);
            Err(error::config(message))
        }
    }
}

/// Maps random inputs `[batch, nz]` to images `[batch, nc, image_size, image_size]` with values
/// from -1 to 1.
#[derive(Debug, Module)]
pub struct Generator {
    main: Sequential,
}

/// Maps images `[batch, nc, image_size, image_size]` to logits `[batch]`, positive for real images.
#[derive(Debug, Module)]
pub struct Discriminator {
    main: Sequential,
}

impl Generator {
    /// A generator without values.
    ///
    /// # Errors
    /// The size is not a power of 2 from 8 to 4096.
    pub fn new(config: &Config) -> Result<Generator> {
        let doublings = config.doublings()?;
        let mut channels = config.ngf << doublings;
        let block = |main: Sequential, conv: ConvTranspose2d, channels| {
            main.add(conv.bias(false)).add(BatchNorm2d::new(channels)).add(Relu::new())
        };
        let mut main =
            block(Sequential::new(), ConvTranspose2d::new(config.nz, channels, 4), channels);
        for _ in 0..doublings {
            main = block(
                main,
                ConvTranspose2d::new(channels, channels / 2, 4).stride(2).padding(1),
                channels / 2,
            );
            channels /= 2;
        }
        let last = ConvTranspose2d::new(channels, config.nc, 4).stride(2).padding(1).bias(false);
        Ok(Generator { main: first_values(main.add(last).add(Tanh::new())) })
    }

    /// Images from random inputs `[batch, nz]`, usually normal numbers.
    #[track_caller]
    pub fn forward(&self, z: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        self.main.forward(z.as_tensor().unsqueeze(-1).unsqueeze(-1))
    }
}

impl Discriminator {
    /// A discriminator without values.
    ///
    /// # Errors
    /// The size is not a power of 2 from 8 to 4096.
    pub fn new(config: &Config) -> Result<Discriminator> {
        let mut channels = config.ndf;
        let halve = |from, to| Conv2d::new(from, to, 4).stride(2).padding(1).bias(false);
        let mut main = Sequential::new().add(halve(config.nc, channels)).add(LeakyRelu::new(0.2));
        for _ in 0..config.doublings()? {
            main = main
                .add(halve(channels, 2 * channels))
                .add(BatchNorm2d::new(2 * channels))
                .add(LeakyRelu::new(0.2));
            channels *= 2;
        }
        Ok(Discriminator { main: first_values(main.add(Conv2d::new(channels, 1, 4).bias(false))) })
    }

    /// The logits of images. PyTorch's example returns their sigmoid, which
    /// `binary_cross_entropy_with_logits` includes.
    #[track_caller]
    pub fn forward(&self, images: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        self.main.forward(images).flatten(1, -1).squeeze(1)
    }
}

/// Initializes convolutions with small normal numbers, and the scales of normalizations with normal
/// numbers around 1.
fn first_values(main: Sequential) -> Sequential {
    for (name, parameter) in main.parameters() {
        parameter.set_init(match (parameter.ty().shape.rank(), name.ends_with("weight")) {
            (1, true) => Init::normal(1.0, 0.02),
            (1, false) => Init::zeros(),
            _ => Init::normal(0.0, 0.02),
        });
    }
    main
}
