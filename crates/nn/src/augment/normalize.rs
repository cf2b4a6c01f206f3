//! Normalization of `u8` images to a model's input.
//!
//! Out of scope: finding the mean of a data set.

use fulmen_tensor::{AsTensor, DType, Tensor};

use crate::library::NN;

/// The mean of ImageNet's red, green and blue values, scaled to 0 to 1, as torchvision's models
/// expect it.
pub const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
/// The standard deviation of ImageNet's red, green and blue values, scaled to 0 to 1.
pub const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];

/// `(x / 255 - mean) / std` of images `u8[..., C, H, W]`, channel by channel, as f32. `mean` and
/// `std` have one number for each channel, or one for all.
///
/// Computed as `x · scale + offset`, with both numbers of each channel rounded to f32. The result
/// differs from torchvision's `ToDtype(scale=True)` and `Normalize` by at most 3 · 10⁻⁷, relative
/// to the largest result.
///
/// Poisoned if the images are not u8 or have a different number of channels, or if a standard
/// deviation is not above 0.
///
/// ```
/// use fulmen_nn::augment::normalize;
/// use fulmen_tensor::Tensor;
///
/// let images = Tensor::from_slice(&[0u8, 51, 255, 102], [1, 1, 2, 2]);
/// let numbers = normalize(&images, &[0.2], &[0.4]).eval()?.to_vec::<f32>()?;
/// assert!(numbers.iter().zip([-0.5f32, 0.0, 2.0, 0.5]).all(|(a, b)| (a - b).abs() < 1e-6));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn normalize(images: impl AsTensor, mean: &[f64], std: &[f64]) -> Tensor {
    NN.record("normalize", || {
        let images = images.as_tensor().live()?;
        if images.dtype() != DType::U8 || images.rank() < 3 {
            let message = format!(
                "images to normalize must be u8[..., channels, height, width], but these are {}",
                images.ty()
            );
            return Err(message.into());
        }
        let channels = images.shape()[images.rank() - 3];
        for (name, numbers) in [("mean", mean), ("std", std)] {
            if numbers.len() != channels && numbers.len() != 1 {
                let message = format!(
                    "{} numbers of the {name} do not fit the {channels} channels of {}",
                    numbers.len(),
                    images.ty()
                );
                return Err(message.into());
            }
            let wrong = |x: &&f64| !x.is_finite() || (name == "std" && **x <= 0.0);
            if let Some(wrong) = numbers.iter().find(wrong) {
                let limit = if name == "std" { " above 0" } else { "" };
                let message = format!(
                    "the {name} of a channel is {wrong}; it must be a finite number{limit}"
                );
                return Err(message.into());
            }
        }
        let value = |numbers: &[f64], channel: usize| {
            if numbers.len() == 1 { numbers[0] } else { numbers[channel] }
        };
        let column = |f: &dyn Fn(usize) -> f64| {
            let values: Vec<f32> = (0..channels).map(|channel| f(channel) as f32).collect();
            Tensor::from_slice(&values, [channels, 1, 1])
        };
        let scale = column(&|channel| 1.0 / (255.0 * value(std, channel)));
        let offset = column(&|channel| -value(mean, channel) / value(std, channel));
        Ok(images.to_dtype(DType::F32) * scale + offset)
    })
}
