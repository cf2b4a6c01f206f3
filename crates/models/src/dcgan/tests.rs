//! Comparison with the results of PyTorch for the same state dicts.

use fulmen_nn::weights::{Strictness, load_weights};

use super::*;
use crate::reference::{ExpectedValues, folder};

#[test]
fn state_dicts_of_pytorchs_example_give_its_images() {
    let expected = ExpectedValues::read("dcgan");
    let config = Config { image_size: 16, nc: 1, nz: 5, ngf: 2, ndf: 2 };
    let generator = Generator::new(&config).unwrap();
    let discriminator = Discriminator::new(&config).unwrap();
    load_weights(&generator, folder("dcgan").join("netG.pth"), Strictness::Strict).unwrap();
    load_weights(&discriminator, folder("dcgan").join("netD.pth"), Strictness::Strict).unwrap();
    let images = generator.forward(expected.tensor("z"));
    let logits = discriminator.forward(&images);
    expected.check(&[("pictures", &images), ("logits", &logits)]);
}

#[test]
fn a_size_that_cannot_be_halved_to_4_is_refused() {
    let error = Generator::new(&Config { image_size: 28, ..Config::default() }).unwrap_err();
    assert_eq!(error.to_string(), "config: `image_size` is 28, not a power of 2 from 8 to 4096");
}
