//! Lookup tables of 256 entries: an operation that depends only on a single value is computed once
//! for each possible value.
//!
//! Out of scope: the content of the tables.

use crate::Image;

/// The result for each value.
pub(super) type Lut = [u8; 256];

/// Computes the table of a function.
pub(super) fn lut(f: impl Fn(u8) -> u8) -> Lut {
    std::array::from_fn(|value| f(value as u8))
}

/// The number of color channels: all except alpha.
pub(super) fn colors(image: &Image) -> usize {
    image.channels().min(3)
}

/// Applies one table to all color channels. Alpha stays the same.
pub(super) fn apply_lut(mut image: Image, table: &Lut) -> Image {
    match image.channels() {
        4 => {
            for pixel in image.pixels_mut().chunks_exact_mut(4) {
                pixel[..3].iter_mut().for_each(|value| *value = table[usize::from(*value)]);
            }
        }
        _ => image.pixels_mut().iter_mut().for_each(|value| *value = table[usize::from(*value)]),
    }
    image
}

/// Applies a separate table to each color channel.
pub(super) fn apply_luts(mut image: Image, tables: &[Lut]) -> Image {
    let channels = image.channels();
    for pixel in image.pixels_mut().chunks_exact_mut(channels.max(1)) {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
    image
}
