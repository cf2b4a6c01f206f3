//! Augmentation of whole batches on the device, as part of the training step: normalization from
//! `u8`, mixing of images, flips and erasing.
//!
//! Images are transferred as `u8`, a quarter of the bytes of `f32`, and converted on the device,
//! where the arithmetic is cheap compared with the model's. All functions record expressions; a
//! mistake gives a poisoned tensor, as everywhere in `fulmen_tensor`. Random numbers depend only on
//! a key: they are the same on one device and on eight.
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
//! Out of scope: augmentation of single images on the host (`fulmen-images`).

mod erasing;
mod flip;
mod mix;
mod normalize;

pub use erasing::RandomErasing;
pub use flip::{random_horizontal_flip, random_vertical_flip};
pub use mix::{CutMix, MixUp, MixUpOrCutMix, Mixed};
pub use normalize::{IMAGENET_MEAN, IMAGENET_STD, normalize};

use fulmen_tensor::{Refusal, Tensor};

/// The size of a batch of images, `[N, C, H, W]`, or a fault.
fn image_batch(images: &Tensor) -> Result<[usize; 4], Refusal> {
    match **images.live()?.shape() {
        [n, c, h, w] => Ok([n, c, h, w]),
        _ => {
            Err(format!("images must be [batch, channels, height, width], not {}", images.ty())
                .into())
        }
    }
}

/// Makes the compiler compute a drawn value once, before the loop over pixels, instead of for each
/// pixel.
fn computed_once(drawn: Tensor) -> Tensor {
    Tensor::optimization_barrier(&[&drawn]).pop().unwrap_or(drawn)
}

/// A fault if `p` is not a probability.
fn probability(p: f64) -> Result<(), Refusal> {
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(format!("the probability p is {p}; it must be from 0 to 1").into())
    }
}
