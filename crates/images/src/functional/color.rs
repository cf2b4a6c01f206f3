//! Brightness, contrast, saturation, hue, gamma, and conversion to gray.
//!
//! Out of scope: operations on the values of each channel separately (`tone`).

use super::lut::{apply_lut, colors, lut};
use super::{check_factor, check_finite};
use crate::Image;
use fulmen_data::internal::quantity;
use fulmen_data::{Error, Result};

/// The weights of red, green and blue in a gray value (ITU-R BT.601), rounded like torchvision's.
/// Their sum is 0.9999, so gray pixels lose a level.
const LUMA: [f32; 3] = [0.2989, 0.587, 0.114];

/// The gray value of an RGB pixel.
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|channel| f32::from(pixel[channel]) * LUMA[channel]);
    (r + g + b) as u8
}

/// A blend of two values, with `ratio` of the first, clipped to 0 to 255.
fn blend(value: u8, other: f32, ratio: f32) -> u8 {
    (f32::from(value) * ratio + other * (1.0 - ratio)).clamp(0.0, 255.0) as u8
}

/// Multiplies every value by `factor`: 0 gives black, 1 the original.
///
/// # Errors
/// A negative factor.
pub fn adjust_brightness(image: Image, factor: f64) -> Result<Image> {
    check_factor("brightness factor", factor)?;
    let factor = factor as f32;
    Ok(apply_lut(image, &lut(|value| (f32::from(value) * factor).clamp(0.0, 255.0) as u8)))
}

/// Blends the image with the mean of its gray values: 0 gives an image of this mean, 1 the
/// original.
///
/// # Errors
/// A negative factor.
pub fn adjust_contrast(image: Image, factor: f64) -> Result<Image> {
    check_factor("contrast factor", factor)?;
    let pixels = image.width() * image.height();
    if pixels == 0 {
        return Ok(image);
    }
    let sum: u64 = match colors(&image) {
        1 => image.pixels().iter().map(|&value| u64::from(value)).sum(),
        _ => {
            image.pixels().chunks_exact(image.channels()).map(|pixel| u64::from(luma(pixel))).sum()
        }
    };
    let mean = (sum as f64 / pixels as f64) as f32;
    let factor = factor as f32;
    Ok(apply_lut(image, &lut(|value| blend(value, mean, factor))))
}

/// Blends the image with its gray version: 0 gives the gray version, 1 the original. Gray images
/// stay the same.
///
/// # Errors
/// A negative factor.
pub fn adjust_saturation(mut image: Image, factor: f64) -> Result<Image> {
    check_factor("saturation factor", factor)?;
    if colors(&image) == 1 {
        return Ok(image);
    }
    let channels = image.channels();
    let factor = factor as f32;
    for pixel in image.pixels_mut().chunks_exact_mut(channels) {
        let gray = f32::from(luma(pixel));
        pixel[..3].iter_mut().for_each(|value| *value = blend(*value, gray, factor));
    }
    Ok(image)
}

/// Shifts the hue by `factor` of the color circle: 0.5 and -0.5 give the opposite color, 0 nearly
/// the original. Gray images stay the same.
///
/// # Errors
/// A factor outside -0.5 to 0.5.
pub fn adjust_hue(mut image: Image, factor: f64) -> Result<Image> {
    if !(-0.5..=0.5).contains(&factor) {
        return Err(Error::usage(format!(
            "the hue factor is {factor}; it must be from -0.5 to 0.5"
        )));
    }
    if colors(&image) == 1 {
        return Ok(image);
    }
    let channels = image.channels();
    let turn = factor as f32;
    for pixel in image.pixels_mut().chunks_exact_mut(channels) {
        let (hue, saturation, value) = to_hsv([pixel[0], pixel[1], pixel[2]]);
        // The hue is periodic.
        let shifted = hue + turn;
        let rgb = from_hsv(shifted - shifted.floor(), saturation, value);
        // Like torchvision, divides 0 to 1 into 256 equal steps.
        pixel[..3]
            .iter_mut()
            .zip(rgb)
            .for_each(|(channel, value)| *channel = (value * 255.999) as u8);
    }
    Ok(image)
}

/// Hue, saturation and value of a pixel, each from 0 to 1. The hue of gray is 0.
fn to_hsv(pixel: [u8; 3]) -> (f32, f32, f32) {
    let [r, g, b] = pixel.map(|value| f32::from(value) / 255.0);
    let max = r.max(g).max(b);
    let min = r.min(g).min(b);
    let range = max - min;
    if range == 0.0 {
        return (0.0, 0.0, max);
    }
    // The distance of each color from the largest, as a fraction of the range.
    let [to_r, to_g, to_b] = [r, g, b].map(|color| (max - color) / range);
    let sixths = if max == r {
        to_b - to_g
    } else if max == g {
        2.0 + to_r - to_b
    } else {
        4.0 + to_g - to_r
    };
    let hue = sixths * (1.0 / 6.0) + 1.0;
    (hue - hue.floor(), range / max, max)
}

/// The RGB values of a hue, saturation and value from 0 to 1.
fn from_hsv(hue: f32, saturation: f32, value: f32) -> [f32; 3] {
    let sixths = hue * 6.0;
    let sector = sixths.floor();
    let fraction = sixths - sector;
    let lowest = ((1.0 - saturation) * value).clamp(0.0, 1.0);
    let falling = ((1.0 - saturation * fraction) * value).clamp(0.0, 1.0);
    let rising = ((saturation * fraction + (1.0 - saturation)) * value).clamp(0.0, 1.0);
    match sector as u32 % 6 {
        0 => [value, rising, lowest],
        1 => [falling, value, lowest],
        2 => [lowest, value, rising],
        3 => [lowest, falling, value],
        4 => [rising, lowest, value],
        _ => [value, lowest, falling],
    }
}

/// Computes `255 · gain · (value / 255)^gamma`. A gamma above 1 darkens the shadows; a gamma below
/// 1 brightens them.
///
/// # Errors
/// A negative gamma; a gain that is not finite.
pub fn adjust_gamma(image: Image, gamma: f64, gain: f64) -> Result<Image> {
    check_factor("gamma", gamma)?;
    check_finite("gain", gain)?;
    let curve = |value: u8| {
        let raised = (f64::from(value) / 255.0).powf(gamma) * gain;
        // The tolerance is above the rounding errors of f64, so that 1 gives 255 and exact levels
        // stay exact.
        (raised.clamp(0.0, 1.0) * 255.999 + 1e-9) as u8
    };
    Ok(apply_lut(image, &lut(curve)))
}

/// Converts the image to gray with `num_output_channels` channels: 1, 3, or as many as the image
/// has. With 4 channels, alpha stays the same.
///
/// # Errors
/// Another number of channels.
pub fn rgb_to_grayscale(mut image: Image, num_output_channels: usize) -> Result<Image> {
    let channels = image.channels();
    if !(matches!(num_output_channels, 1 | 3) || num_output_channels == channels) {
        return Err(Error::usage(format!(
            "cannot convert an image with {} to gray with {num_output_channels}; the number must be 1, 3, or that of \
             the image",
            quantity(channels, "channel")
        )));
    }
    if channels == num_output_channels {
        if channels > 1 {
            for pixel in image.pixels_mut().chunks_exact_mut(channels) {
                let gray = luma(pixel);
                pixel[..3].fill(gray);
            }
        }
        return Ok(image);
    }
    let mut pixels = Vec::with_capacity(image.width() * image.height() * num_output_channels);
    for pixel in image.pixels().chunks_exact(channels) {
        let gray = if channels == 1 { pixel[0] } else { luma(pixel) };
        pixels.extend(std::iter::repeat_n(gray, num_output_channels));
    }
    Image::new(image.width(), image.height(), num_output_channels, pixels)
}
