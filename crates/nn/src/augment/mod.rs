//! What is done to whole batches on the device, as part of the training step: normalization from `u8`, mixing of
//! pictures, flips and erasing.
//!
//! Pictures cross the link as `u8`, a quarter of the bytes of `f32`, and become numbers where arithmetic costs nothing
//! beside the model's. All functions record expressions; a mistake is a poisoned tensor, as everywhere in `fulmen_tensor`.
//! Their random numbers are decided by a key alone: the same on one device and on eight.
//!
//! ```
//! use fulmen_nn::augment::{IMAGENET_MEAN, IMAGENET_STD, MixUp, normalize};
//! use fulmen_tensor::{DType, Tensor, random, Refusal};
//!
//! let images = Tensor::full(DType::U8, [4, 3, 8, 8], 100.0);
//! let labels = Tensor::from_slice(&[0i32, 2, 1, 1], [4]);
//! let images = normalize(&images, &IMAGENET_MEAN, &IMAGENET_STD);
//! let mixed = MixUp::new(3).alpha(0.2).apply(&random::key(0), &images, &labels);
//! assert_eq!(mixed.images.ty().to_string(), "f32[4, 3, 8, 8]");
//! assert_eq!(mixed.targets.ty().to_string(), "f32[4, 3]");
//! let targets = mixed.targets.eval()?.to_vec::<f32>()?;
//! assert!(targets.chunks(3).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
//! # Ok::<(), fulmen_tensor::Error>(())
//! ```
//!
//! Not here: what is done to single pictures on the host (`fulmen-images`).

mod erasing;
mod flip;
mod mix;
mod normalize;

pub use erasing::RandomErasing;
pub use flip::{random_horizontal_flip, random_vertical_flip};
pub use mix::{CutMix, MixUp, MixUpOrCutMix, Mixed};
pub use normalize::{IMAGENET_MEAN, IMAGENET_STD, normalize};

use fulmen_tensor::{Refusal, Tensor};

/// The size of a batch of pictures, `[N, C, H, W]`, or a fault.
fn batch_of_pictures(images: &Tensor) -> Result<[usize; 4], Refusal> {
    match **images.live()?.shape() {
        [n, c, h, w] => Ok([n, c, h, w]),
        _ => Err(format!("pictures come as [batch, channels, height, width], not as {}", images.ty()).into()),
    }
}

/// The same value, computed before the pictures are gone through, and not again for each of their pixels.
fn beforehand(drawn: Tensor) -> Tensor {
    Tensor::optimization_barrier(&[&drawn]).pop().unwrap_or(drawn)
}

/// A fault if `p` is not a probability.
fn probability(p: f64) -> Result<(), Refusal> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(format!("the probability p is {p}; it must be from 0 to 1").into()),
    }
}
