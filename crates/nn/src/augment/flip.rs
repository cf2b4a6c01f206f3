//! Mirrored pictures.
//!
//! Not here: flips on the host, which cost nothing there either (`Pictures`).

use fulmen_tensor::{AsTensor, Tensor, random};

use super::{batch_of_pictures, beforehand, probability};

/// Mirrors each picture of `[N, C, H, W]` left to right with the probability `p`.
///
/// Poisoned if the images are no such batch, or if `p` is no probability.
#[track_caller]
pub fn random_horizontal_flip(key: impl AsTensor, images: impl AsTensor, p: f64) -> Tensor {
    let (key, images) = (key.as_tensor(), images.as_tensor());
    flip("random_horizontal_flip", key, images, p, 3)
}

/// Turns each picture of `[N, C, H, W]` upside down, mirrored, with the probability `p`.
///
/// Poisoned if the images are no such batch, or if `p` is no probability.
#[track_caller]
pub fn random_vertical_flip(key: impl AsTensor, images: impl AsTensor, p: f64) -> Tensor {
    let (key, images) = (key.as_tensor(), images.as_tensor());
    flip("random_vertical_flip", key, images, p, 2)
}

#[track_caller]
fn flip(method: &str, key: &Tensor, images: &Tensor, p: f64, axis: isize) -> Tensor {
    match (batch_of_pictures(method, images), probability(method, p)) {
        (Ok([n, ..]), Ok(())) => {
            let flipped = beforehand(random::bernoulli(key, p, [n, 1, 1, 1]));
            flipped.broadcast_to(images.shape()).select(&images.flip(&[axis]), images)
        }
        (Err(poisoned), _) | (_, Err(poisoned)) => poisoned,
    }
}
