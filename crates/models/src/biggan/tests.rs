//! Comparison with the results of PyTorch for the same state dicts.

use fulmen_nn::weights::{Strictness, load_weights};

use super::*;
use crate::reference::{ExpectedValues, folder};

#[test]
fn state_dicts_of_pytorch_give_its_images_and_logits() {
    let expected = ExpectedValues::read("biggan");
    let config = Config {
        resolution: 32,
        ch: 2,
        n_classes: 3,
        dim_z: 8,
        shared_dim: 4,
        attention: Some(16),
        ..Config::default()
    };
    let (generator, discriminator) =
        (Generator::new(&config).unwrap(), Discriminator::new(&config).unwrap());
    load_weights(&generator, folder("biggan").join("G.pth"), Strictness::Strict).unwrap();
    load_weights(&discriminator, folder("biggan").join("D.pth"), Strictness::Strict).unwrap();
    generator.eval();
    discriminator.eval();
    let [z, classes] = ["z", "classes"].map(|name| expected.tensor(name));
    let images = generator.forward(&z, &classes);
    let logits = discriminator.forward(&images, &classes);
    generator.train();
    let train_images = generator.forward(&z, &classes);
    expected.check(&[
        ("pictures", &images),
        ("logits", &logits),
        ("train_pictures", &train_images),
    ]);
}

#[test]
fn the_one_for_imagenet_has_the_size_that_is_known() {
    let config = Config::default();
    assert_eq!(Generator::new(&config).unwrap().num_parameters() / 100_000, 704);
    assert_eq!(Discriminator::new(&config).unwrap().num_parameters() / 100_000, 879);
    let error = Generator::new(&Config { dim_z: 128, ..config }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "config: `dim_z` is 128, which cannot be split into 6 equal parts"
    );
}
