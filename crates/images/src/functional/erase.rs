//! Painting over a rectangle.
//!
//! Not here: which rectangle (`RandomErasing`).

use crate::Picture;
use fulmen_data::{Error, Result};

/// Replaces the pixels of a rectangle, from row `top` and column `left`, by those that `value` gives for each row and
/// column of it; of the four values of a pixel a picture takes as many as it has channels.
///
/// # Errors
/// A rectangle that is not within the picture.
pub fn erase(
    mut picture: Picture,
    (top, left): (usize, usize),
    (height, width): (usize, usize),
    mut value: impl FnMut(usize, usize) -> [u8; 4],
) -> Result<Picture> {
    let fits = |start: usize, size: usize, all: usize| start.checked_add(size).is_some_and(|end| end <= all);
    if !fits(top, height, picture.height()) || !fits(left, width, picture.width()) {
        return Err(Error::usage(format!(
            "a rectangle of {width}x{height} from column {left} and row {top} is not within a picture of {}x{}",
            picture.width(),
            picture.height()
        )));
    }
    let (stride, channels) = (picture.width() * picture.channels(), picture.channels());
    if width == 0 || channels > 4 {
        return Ok(picture);
    }
    for (y, row) in picture.pixels_mut().chunks_exact_mut(stride).skip(top).take(height).enumerate() {
        let row = &mut row[left * channels..(left + width) * channels];
        for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
            pixel.copy_from_slice(&value(y, x)[..channels]);
        }
    }
    Ok(picture)
}
