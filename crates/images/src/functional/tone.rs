//! Operations on the values of each channel: inverting, posterizing, stretching.
//!
//! Out of scope: operations that mix colors (`color`) or neighbors (`filter`).

use super::check_finite;
use super::lut::{apply_lut, apply_luts, colors, lut};
use crate::Image;
use fulmen_data::{Error, Result};

/// Inverts the image: 255 minus each value.
pub fn invert(image: Image) -> Image {
    apply_lut(image, &lut(|value| !value))
}

/// Keeps the highest `bits` bits of each value; 8 keeps all, 0 gives black.
///
/// # Errors
/// More than 8 bits.
pub fn posterize(image: Image, bits: u32) -> Result<Image> {
    if bits > 8 {
        return Err(Error::usage(format!(
            "cannot keep {bits} bits of a value; the number must be from 0 to 8"
        )));
    }
    let mask = (0xff00u32 >> bits) as u8;
    Ok(apply_lut(image, &lut(|value| value & mask)))
}

/// Inverts the values of at least `threshold`: 0 inverts all, 256 none.
///
/// # Errors
/// A threshold that is NaN.
pub fn solarize(image: Image, threshold: f64) -> Result<Image> {
    check_finite("threshold", threshold)?;
    Ok(apply_lut(image, &lut(|value| if f64::from(value) >= threshold { !value } else { value })))
}

/// Stretches each channel so that its minimum becomes 0 and its maximum 255. A constant channel
/// stays the same.
pub fn autocontrast(image: Image) -> Image {
    let mut tables = Vec::new();
    for histogram in histograms(&image) {
        let darkest = histogram.iter().position(|&count| count > 0).unwrap_or(0);
        let brightest = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
        tables.push(if darkest == brightest {
            lut(|value| value)
        } else {
            let scale = (brightest - darkest) as f32 * (1.0 / 255.0);
            lut(|value| ((f32::from(value) - darkest as f32) / scale).clamp(0.0, 255.0) as u8)
        });
    }
    apply_luts(image, &tables)
}

/// Equalizes the histogram of each channel, as PIL does.
pub fn equalize(image: Image) -> Image {
    let pixels = image.width() * image.height();
    let mut tables = Vec::new();
    for histogram in histograms(&image) {
        // The number of pixels below the largest value is divided into 255 steps. If there are
        // fewer than 255 such pixels, the channel does not change.
        let largest = histogram.iter().rev().find(|&&count| count > 0).copied().unwrap_or(0);
        let step = (pixels - largest) / 255;
        let mut cumulative = step / 2;
        tables.push(std::array::from_fn(|value| {
            if step == 0 {
                return value as u8;
            }
            let level = cumulative / step;
            cumulative += histogram[value];
            level.min(255) as u8
        }));
    }
    apply_luts(image, &tables)
}

/// The histogram of each color channel.
fn histograms(image: &Image) -> Vec<[usize; 256]> {
    let mut counts = vec![[0; 256]; colors(image)];
    for pixel in image.pixels().chunks_exact(image.channels().max(1)) {
        for (count, &value) in counts.iter_mut().zip(pixel) {
            count[usize::from(value)] += 1;
        }
    }
    counts
}
