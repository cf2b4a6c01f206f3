//! Comparison with the results of PyTorch for the same state dicts.

use fulmen_nn::weights::{Strictness, load_weights};

use super::*;
use crate::reference::{ExpectedValues, folder};

/// The settings of the stored state dicts.
fn small() -> Config {
    Config {
        resolution: 32,
        ch: 2,
        n_classes: 3,
        dim_z: 8,
        shared_dim: 4,
        attention: Some(16),
        ..Config::default()
    }
}

#[test]
fn state_dicts_of_pytorch_give_its_images_and_logits() {
    let expected = ExpectedValues::read("biggan");
    let config = small();
    let generator = Generator::new(&config).unwrap();
    let discriminator = Discriminator::new(&config).unwrap();
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

/// The images, logits, gradients, statistics and singular vectors of a training step.
fn training_step(gradient_checkpointing: bool) -> Vec<Vec<f32>> {
    let config = small();
    let mut generator = Generator::new(&config).unwrap();
    let mut discriminator = Discriminator::new(&config).unwrap();
    generator.gradient_checkpointing = gradient_checkpointing;
    discriminator.gradient_checkpointing = gradient_checkpointing;
    load_weights(&generator, folder("biggan").join("G.pth"), Strictness::Strict).unwrap();
    load_weights(&discriminator, folder("biggan").join("D.pth"), Strictness::Strict).unwrap();
    let expected = ExpectedValues::read("biggan");
    let classes = expected.tensor("classes");
    let images = generator.forward(expected.tensor("z"), &classes);
    let logits = discriminator.forward(&images, &classes);
    let parameters: Vec<Tensor> = [generator.parameters(), discriminator.parameters()]
        .concat()
        .into_iter()
        .map(|(_, parameter)| parameter.get())
        .collect();
    let gradients = fulmen_tensor::grad(&logits.sum_all(), &parameters);
    let buffers = [generator.buffers(), discriminator.buffers()].concat();
    let floats = buffers.into_iter().map(|(_, buffer)| buffer.get());
    let state = floats.filter(|value| value.dtype().is_float());
    let all: Vec<Tensor> = [images, logits].into_iter().chain(gradients).chain(state).collect();
    let values = fulmen_tensor::Runtime::global().unwrap().eval_many(&all).unwrap();
    values.iter().map(|value| value.to_vec::<f32>().unwrap()).collect()
}

#[test]
fn recomputed_blocks_give_the_same_step() {
    let plain = training_step(false);
    let recomputed = training_step(true);
    assert_eq!(plain.len(), recomputed.len());
    for (plain, recomputed) in plain.iter().zip(&recomputed) {
        let largest = plain.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (x, y) in plain.iter().zip(recomputed) {
            assert!((x - y).abs() <= 1e-4 * largest.max(0.1), "{x} and {y}");
        }
    }
}
