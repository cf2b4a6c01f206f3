//! Resampling: each pixel of the result comes from a point between pixels of the image.
//!
//! Coordinates are integers in units of 2⁻³² of a pixel, so that a rotation by 30° hits the middle
//! between two pixels exactly on all machines. Out of scope: the map (`affine`, `perspective`).

use super::Fill;
use crate::{Image, Interpolation};
use fulmen_data::internal::quantity;
use fulmen_data::{Error, Result};

/// A point in units of 2⁻³² of a pixel; the center of the first pixel is 0.
pub(super) type SourcePoint = (i64, i64);

/// Converts a coordinate from pixels to fixed point. Large values saturate.
pub(super) fn to_fixed_point(pixels: f64) -> i64 {
    // The limit is a quarter of the range, so that the sum of two coordinates does not overflow.
    (pixels * 4_294_967_296.0).round().clamp(-2.3e18, 2.3e18) as i64
}

/// Rejects interpolations that cannot resample at arbitrary points.
pub(crate) fn check_interpolation(mode: Interpolation) -> Result<()> {
    match mode {
        Interpolation::Nearest | Interpolation::Bilinear => Ok(()),
        other => Err(Error::usage(format!(
            "cannot resample with {other} interpolation; use Interpolation::Nearest or Bilinear"
        ))),
    }
}

/// Resamples to an image of `size` (width, height). `points` has the source points of each row of
/// the result. The color is that of the nearest pixel (of two equally near, the one with the even
/// index), or the mean of the four surrounding pixels, weighted by distance, with the fill's color
/// outside.
pub(super) fn warp<I: Iterator<Item = SourcePoint>>(
    image: &Image,
    size: (usize, usize),
    mode: Interpolation,
    fill: &Fill,
    points: impl Fn(usize) -> I,
) -> Result<Image> {
    check_interpolation(mode)?;
    let fill = fill.pixel(image)?;
    match image.channels() {
        1 => channels::<1, _>(image, size, mode, [fill[0]], points),
        3 => channels::<3, _>(image, size, mode, [fill[0], fill[1], fill[2]], points),
        4 => channels::<4, _>(image, size, mode, fill, points),
        other => {
            Err(Error::usage(format!("an image has 1, 3 or 4 channels, this one has {other}")))
        }
    }
}

/// [`warp`] for a number of channels that is known at compile time.
fn channels<const C: usize, I: Iterator<Item = SourcePoint>>(
    image: &Image,
    (width, height): (usize, usize),
    mode: Interpolation,
    fill: [u8; C],
    points: impl Fn(usize) -> I,
) -> Result<Image> {
    let (pixels, _) = image.pixels().as_chunks::<C>();
    let source_width = image.width();
    let source_height = image.height();
    let source_pixel = |x: i64, y: i64| {
        if (x as u64) < source_width as u64 && (y as u64) < source_height as u64 {
            pixels.get(y as usize * source_width + x as usize).unwrap_or(&fill)
        } else {
            &fill
        }
    };
    let mut out = reserve(width, height, C)?;
    for y in 0..height {
        for point in points(y).take(width) {
            let pixel = match mode {
                Interpolation::Nearest => *source_pixel(nearest(point.0), nearest(point.1)),
                _ => {
                    let x = point.0 >> 32;
                    let y = point.1 >> 32;
                    let corners = [
                        source_pixel(x, y),
                        source_pixel(x + 1, y),
                        source_pixel(x, y + 1),
                        source_pixel(x + 1, y + 1),
                    ];
                    // The 16 highest bits of the fraction.
                    let right = (point.0 as u32 >> 16) as u64;
                    let lower = (point.1 as u32 >> 16) as u64;
                    let left = 0x1_0000 - right;
                    let upper = 0x1_0000 - lower;
                    let weights = [left * upper, right * upper, left * lower, right * lower];
                    std::array::from_fn(|channel| {
                        let sum: u64 = corners
                            .iter()
                            .zip(weights)
                            .map(|(c, w)| u64::from(c[channel]) * w)
                            .sum();
                        ((sum + 0x8000_0000) >> 32) as u8
                    })
                }
            };
            out.extend_from_slice(&pixel);
        }
    }
    Image::new(width, height, C, out)
}

/// Rounds a coordinate to the nearest integer, ties to even.
fn nearest(coordinate: i64) -> i64 {
    let floor = coordinate >> 32;
    let fraction = coordinate as u32;
    let rounds_up = fraction > 0x8000_0000 || (fraction == 0x8000_0000 && floor & 1 == 1);
    floor + i64::from(rounds_up)
}

/// An empty vector with capacity for the pixels of an image.
///
/// # Errors
/// The image does not fit in memory.
pub(super) fn reserve(width: usize, height: usize, channels: usize) -> Result<Vec<u8>> {
    let too_large = || {
        Error::usage(format!(
            "an image of {width}x{height} with {} does not fit in memory",
            quantity(channels, "channel")
        ))
    };
    let bytes = width
        .checked_mul(height)
        .and_then(|pixels| pixels.checked_mul(channels))
        .ok_or_else(too_large)?;
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(bytes).map_err(|_| too_large())?;
    Ok(pixels)
}
