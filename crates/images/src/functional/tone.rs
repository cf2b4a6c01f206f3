//! What changes the values of each channel by themselves: inverting, cutting bits, stretching.
//!
//! Not here: what mixes the colours (`color`) or neighbours (`filter`).

use super::check_finite;
use super::table::{colors, look_up, look_up_each, table};
use crate::Picture;
use fulmen_data::{Error, Result};

/// The negative: 255 less each value.
pub fn invert(picture: Picture) -> Picture {
    look_up(picture, &table(|value| !value))
}

/// Keeps the highest `bits` bits of each value; 8 keeps all, 0 gives black.
///
/// # Errors
/// More than 8 bits.
pub fn posterize(picture: Picture, bits: u32) -> Result<Picture> {
    if bits > 8 {
        return Err(Error::usage(format!("{bits} bits of a value cannot be kept; it must be 0 to 8")));
    }
    let mask = (0xff00u32 >> bits) as u8;
    Ok(look_up(picture, &table(|value| value & mask)))
}

/// Inverts the values from `threshold` up: 0 inverts all, 256 none.
///
/// # Errors
/// A threshold that is not a number.
pub fn solarize(picture: Picture, threshold: f64) -> Result<Picture> {
    check_finite("threshold", threshold)?;
    Ok(look_up(picture, &table(|value| if f64::from(value) >= threshold { !value } else { value })))
}

/// Stretches each channel so that its least value becomes 0 and its largest 255. A channel of one value stays.
pub fn autocontrast(picture: Picture) -> Picture {
    let mut tables = vec![];
    for histogram in histograms(&picture) {
        let least = histogram.iter().position(|&count| count > 0).unwrap_or(0);
        let most = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
        tables.push(match least == most {
            true => table(|value| value),
            false => {
                let scale = (most - least) as f32 * (1.0 / 255.0);
                table(|value| ((f32::from(value) - least as f32) / scale).clamp(0.0, 255.0) as u8)
            }
        });
    }
    look_up_each(picture, &tables)
}

/// Spreads the values of each channel so that all are about equally frequent, as PIL does it.
pub fn equalize(picture: Picture) -> Picture {
    let pixels = picture.width() * picture.height();
    let mut tables = vec![];
    for histogram in histograms(&picture) {
        // What is not of the largest value, in 255 steps; with fewer pixels than that the channel stays.
        let largest = histogram.iter().rev().find(|&&count| count > 0).copied().unwrap_or(0);
        let step = (pixels - largest) / 255;
        let mut below = step / 2;
        tables.push(std::array::from_fn(|value| {
            if step == 0 {
                return value as u8;
            }
            let level = below / step;
            below += histogram[value];
            level.min(255) as u8
        }));
    }
    look_up_each(picture, &tables)
}

/// How often each value stands in each colour.
fn histograms(picture: &Picture) -> Vec<[usize; 256]> {
    let mut counts = vec![[0; 256]; colors(picture)];
    for pixel in picture.pixels().chunks_exact(picture.channels().max(1)) {
        for (count, &value) in counts.iter_mut().zip(pixel) {
            count[usize::from(value)] += 1;
        }
    }
    counts
}
