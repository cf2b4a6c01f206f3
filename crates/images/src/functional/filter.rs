//! Filters that mix a pixel with its neighbors: sharpness and blur.
//!
//! Out of scope: resampling (`warp`).

use super::check_factor;
use super::lut::colors;
use crate::Image;
use fulmen_data::{Error, Result};

/// Blends the image with a smoothed version, in which a pixel has the weight 5 and each of its 8
/// neighbors the weight 1: 0 gives the smoothed version, 1 the original, 2 a sharper image. The
/// outermost pixels stay the same, and so do images of at most 2 rows or columns.
///
/// # Errors
/// A negative factor.
pub fn adjust_sharpness(mut image: Image, factor: f64) -> Result<Image> {
    check_factor("sharpness factor", factor)?;
    let width = image.width();
    let height = image.height();
    let channels = image.channels();
    let colors = colors(&image);
    if width <= 2 || height <= 2 {
        return Ok(image);
    }
    let before = image.pixels().to_vec();
    let stride = width * channels;
    let ratio = 1.0 - factor as f32;
    let after = image.pixels_mut();
    for y in 1..height - 1 {
        let rows = [y - 1, y, y + 1].map(|row| &before[row * stride..(row + 1) * stride]);
        for index in channels..stride - channels {
            if index % channels >= colors {
                continue;
            }
            let sum: u32 = rows
                .iter()
                .flat_map(|row| [row[index - channels], row[index], row[index + channels]])
                .map(u32::from)
                .sum();
            let center = rows[1][index];
            // Rounds to nearest: an integer sum is never halfway between multiples of 13.
            let smooth = (2 * (sum + 4 * u32::from(center)) + 13) / 26;
            let value = f32::from(center) + (smooth as f32 - f32::from(center)) * ratio;
            after[y * stride + index] = value.clamp(0.0, 255.0) as u8;
        }
    }
    Ok(image)
}

/// Convolves with a Gaussian of standard deviation `sigma` (in pixels, along x and y), truncated to
/// `kernel_size` (width and height). Beyond its edges, the image is mirrored at the outermost
/// pixels.
///
/// # Errors
/// Kernel sizes that are even or too large for the mirrored image; deviations that are not
/// positive.
pub fn gaussian_blur(
    image: Image,
    kernel_size: (usize, usize),
    sigma: (f64, f64),
) -> Result<Image> {
    check_gaussian(kernel_size, sigma)?;
    let width = image.width();
    let height = image.height();
    if width == 0 || height == 0 {
        return Ok(image);
    }
    if kernel_size.0 / 2 >= width || kernel_size.1 / 2 >= height {
        return Err(Error::usage(format!(
            "a blur with a kernel of {}x{} needs an image of at least {}x{}, this one is {width}x{height}",
            kernel_size.0,
            kernel_size.1,
            kernel_size.0 / 2 + 1,
            kernel_size.1 / 2 + 1
        )));
    }
    let channels = image.channels();
    let stride = width * channels;
    // First along the rows, with f32 results, then along the columns.
    let kernel = gaussian(kernel_size.0, sigma.0);
    let reach = kernel_size.0 / 2;
    let mut rows = vec![0f32; height * stride];
    let mut edged = vec![0f32; stride + 2 * reach * channels];
    for (row, out) in image.pixels().chunks_exact(stride).zip(rows.chunks_exact_mut(stride)) {
        for (x, pixel) in edged.chunks_exact_mut(channels).enumerate() {
            let from = mirrored(x as isize - reach as isize, width) * channels;
            pixel.iter_mut().zip(&row[from..]).for_each(|(sum, &value)| *sum = f32::from(value));
        }
        for (tap, &weight) in kernel.iter().enumerate() {
            let shifted = &edged[tap * channels..];
            out.iter_mut().zip(shifted).for_each(|(sum, value)| *sum += value * weight);
        }
    }
    let kernel = gaussian(kernel_size.1, sigma.1);
    let reach = kernel_size.1 / 2;
    let mut sums = vec![0f32; stride];
    let mut image = image;
    for (y, out) in image.pixels_mut().chunks_exact_mut(stride).enumerate() {
        sums.fill(0.0);
        for (tap, &weight) in kernel.iter().enumerate() {
            let from = mirrored(y as isize + tap as isize - reach as isize, height) * stride;
            sums.iter_mut()
                .zip(&rows[from..from + stride])
                .for_each(|(sum, value)| *sum += value * weight);
        }
        out.iter_mut().zip(&sums).for_each(|(byte, sum)| *byte = sum.round_ties_even() as u8);
    }
    Ok(image)
}

/// Rejects an invalid kernel size or deviation.
pub(crate) fn check_gaussian(kernel_size: (usize, usize), sigma: (f64, f64)) -> Result<()> {
    if kernel_size.0.is_multiple_of(2) || kernel_size.1.is_multiple_of(2) {
        let (width, height) = kernel_size;
        return Err(Error::usage(format!(
            "the kernel size {width}x{height} must be odd in both directions"
        )));
    }
    if ![sigma.0, sigma.1].iter().all(|sigma| sigma.is_finite() && *sigma > 0.0) {
        return Err(Error::usage(format!(
            "the standard deviations of a blur, {sigma:?}, must be above 0"
        )));
    }
    Ok(())
}

/// The weights of a Gaussian at the `size` pixels around its center; their sum is 1.
fn gaussian(size: usize, sigma: f64) -> Vec<f32> {
    let centre = (size / 2) as f64;
    let weight = |tap: usize| (-(tap as f64 - centre).powi(2) / (2.0 * sigma * sigma)).exp();
    let sum: f64 = (0..size).map(weight).sum();
    (0..size).map(|tap| (weight(tap) / sum) as f32).collect()
}

/// Mirrors an index that is up to `size - 1` beyond the ends.
fn mirrored(position: isize, size: usize) -> usize {
    let last = size as isize - 1;
    let position = position.abs();
    (if position > last { 2 * last - position } else { position }) as usize
}
