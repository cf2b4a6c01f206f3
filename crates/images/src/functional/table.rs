//! Changing each value of a picture by a table of 256: what depends on one value alone is computed once for each.
//!
//! Not here: what stands in the tables.

use crate::Picture;

/// What each value becomes.
pub(super) type Table = [u8; 256];

/// The table of a function.
pub(super) fn table(f: impl Fn(u8) -> u8) -> Table {
    std::array::from_fn(|value| f(value as u8))
}

/// How many channels of a picture are colours: all but alpha.
pub(super) fn colors(picture: &Picture) -> usize {
    picture.channels().min(3)
}

/// Replaces the values of all colours by those of one table. Alpha stays.
pub(super) fn look_up(mut picture: Picture, table: &Table) -> Picture {
    match picture.channels() {
        4 => {
            for pixel in picture.pixels_mut().chunks_exact_mut(4) {
                pixel[..3].iter_mut().for_each(|value| *value = table[usize::from(*value)]);
            }
        }
        _ => picture.pixels_mut().iter_mut().for_each(|value| *value = table[usize::from(*value)]),
    }
    picture
}

/// Replaces the values of each colour by those of a table of its own.
pub(super) fn look_up_each(mut picture: Picture, tables: &[Table]) -> Picture {
    let channels = picture.channels();
    for pixel in picture.pixels_mut().chunks_exact_mut(channels.max(1)) {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
    picture
}
