//! Random flips.
//!
//! Out of scope: flips on the host (`fulmen-images`), which are cheap there too.

use fulmen_tensor::{AsTensor, Refusal, Tensor, random};

use super::{computed_once, image_batch, probability};
use crate::library::NN;

/// Flips each image of `[N, C, H, W]` horizontally with probability `p`.
///
/// Poisoned if the images are not such a batch, or if `p` is not a probability.
#[track_caller]
pub fn random_horizontal_flip(key: impl AsTensor, images: impl AsTensor, p: f64) -> Tensor {
    NN.record("random_horizontal_flip", || flip(key.as_tensor(), images.as_tensor(), p, 3))
}

/// Flips each image of `[N, C, H, W]` vertically with probability `p`.
///
/// Poisoned if the images are not such a batch, or if `p` is not a probability.
#[track_caller]
pub fn random_vertical_flip(key: impl AsTensor, images: impl AsTensor, p: f64) -> Tensor {
    NN.record("random_vertical_flip", || flip(key.as_tensor(), images.as_tensor(), p, 2))
}

fn flip(key: &Tensor, images: &Tensor, p: f64, axis: isize) -> Result<Tensor, Refusal> {
    let [n, ..] = image_batch(images)?;
    probability(p)?;
    let flipped = computed_once(random::bernoulli(key, p, [n, 1, 1, 1]));
    Ok(flipped.broadcast_to(images.shape()).select(&images.flip(axis), images))
}
