//! Changing each value of an image by a table of 256: what depends on one value alone is computed once for each.
//!
//! Not here: what stands in the tables.

use crate::Image;

/// What each value becomes.
pub(super) type Lut = [u8; 256];

/// The table of a function.
pub(super) fn lut(f: impl Fn(u8) -> u8) -> Lut {
    std::array::from_fn(|value| f(value as u8))
}

/// How many channels of an image are colours: all but alpha.
pub(super) fn colors(image: &Image) -> usize {
    image.channels().min(3)
}

/// Replaces the values of all colours by those of one table. Alpha stays.
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

/// Replaces the values of each colour by those of a table of its own.
pub(super) fn apply_luts(mut image: Image, tables: &[Lut]) -> Image {
    let channels = image.channels();
    for pixel in image.pixels_mut().chunks_exact_mut(channels.max(1)) {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
    image
}
