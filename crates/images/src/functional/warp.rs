//! Moving pixels: each one of the result is taken from a place between the pixels of the image.
//!
//! Places are counted in 2⁻³² of a pixel, as integers: a rotation by 30° meets the middle between two pixels exactly
//! where it should, on all machines. Not here: which place it is (`affine`, `perspective`).

use super::Fill;
use crate::{Image, Interpolation};
use fulmen_data::{Error, Result};

/// A place in 2⁻³² of a pixel; the centre of the first pixel is 0.
pub(super) type Place = (i64, i64);

/// A coordinate in pixels as a [`Place`] has it. What is too far away stays far away.
pub(super) fn fixed(pixels: f64) -> i64 {
    // A quarter of the range, so that a sum of two does not overflow.
    (pixels * 4_294_967_296.0).round().clamp(-2.3e18, 2.3e18) as i64
}

/// Refuses what moved pixels cannot be found by.
pub(crate) fn check_interpolation(mode: Interpolation) -> Result<()> {
    match mode {
        Interpolation::Nearest | Interpolation::Bilinear => Ok(()),
        other => Err(Error::usage(format!(
            "moved pixels cannot be found by {other} interpolation; take Interpolation::Nearest or Bilinear"
        ))),
    }
}

/// An image of `size` (width, height) whose rows `places` are taken from those places of this one: from the nearest
/// pixel (in the middle between two, from the one with the even index), or from the four around, weighted by nearness,
/// where those outside have the fill's colour.
pub(super) fn warp<I: Iterator<Item = Place>>(
    image: &Image,
    size: (usize, usize),
    mode: Interpolation,
    fill: &Fill,
    places: impl Fn(usize) -> I,
) -> Result<Image> {
    check_interpolation(mode)?;
    let fill = fill.pixel(image)?;
    match image.channels() {
        1 => channels::<1, _>(image, size, mode, [fill[0]], places),
        3 => channels::<3, _>(image, size, mode, [fill[0], fill[1], fill[2]], places),
        4 => channels::<4, _>(image, size, mode, fill, places),
        other => Err(Error::usage(format!("an image has 1, 3 or 4 channels, this one has {other}"))),
    }
}

/// [`warp`] for a number of channels that the compiler knows.
fn channels<const C: usize, I: Iterator<Item = Place>>(
    image: &Image,
    (width, height): (usize, usize),
    mode: Interpolation,
    fill: [u8; C],
    places: impl Fn(usize) -> I,
) -> Result<Image> {
    let (pixels, _) = image.pixels().as_chunks::<C>();
    let (source_width, source_height) = (image.width(), image.height());
    let at = |x: i64, y: i64| match (x as u64) < source_width as u64 && (y as u64) < source_height as u64 {
        true => pixels.get(y as usize * source_width + x as usize).unwrap_or(&fill),
        false => &fill,
    };
    let mut out = room(width, height, C)?;
    for y in 0..height {
        for place in places(y).take(width) {
            let pixel = match mode {
                Interpolation::Nearest => *at(nearest(place.0), nearest(place.1)),
                _ => {
                    let (x, y) = (place.0 >> 32, place.1 >> 32);
                    let corners = [at(x, y), at(x + 1, y), at(x, y + 1), at(x + 1, y + 1)];
                    // The 16 highest bits of the fraction.
                    let (right, lower) = ((place.0 as u32 >> 16) as u64, (place.1 as u32 >> 16) as u64);
                    let (left, upper) = (0x1_0000 - right, 0x1_0000 - lower);
                    let weights = [left * upper, right * upper, left * lower, right * lower];
                    std::array::from_fn(|channel| {
                        let sum: u64 = corners.iter().zip(weights).map(|(c, w)| u64::from(c[channel]) * w).sum();
                        ((sum + 0x8000_0000) >> 32) as u8
                    })
                }
            };
            out.extend_from_slice(&pixel);
        }
    }
    Image::new(width, height, C, out)
}

/// The whole number nearest to a coordinate; between two, the even one.
fn nearest(coordinate: i64) -> i64 {
    let (below, fraction) = (coordinate >> 32, coordinate as u32);
    let up = fraction > 0x8000_0000 || (fraction == 0x8000_0000 && below & 1 == 1);
    below + i64::from(up)
}

/// An empty vector with room for the pixels of an image.
///
/// # Errors
/// One that is too large for the memory.
pub(super) fn room(width: usize, height: usize, channels: usize) -> Result<Vec<u8>> {
    let too_large =
        || Error::usage(format!("an image of {width}x{height} with {channels} channels is too large for the memory"));
    let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(channels)).ok_or_else(too_large)?;
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(bytes).map_err(|_| too_large())?;
    Ok(pixels)
}
