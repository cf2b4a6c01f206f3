//! Erasing a rectangle.
//!
//! Out of scope: which rectangle (`RandomErasing`).

use crate::Image;
use fulmen_data::{Error, Result};

/// A rectangle of pixels within an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rectangle {
    /// Its first row.
    pub top: usize,
    /// Its first column.
    pub left: usize,
    /// The height.
    pub height: usize,
    /// The width.
    pub width: usize,
}

/// Replaces the pixels of a rectangle by those that `value` returns for each row and column of the
/// rectangle. An image uses as many of the four values as it has channels.
///
/// # Errors
/// The rectangle is not within the image.
pub fn erase(
    mut image: Image,
    rectangle: Rectangle,
    mut value: impl FnMut(usize, usize) -> [u8; 4],
) -> Result<Image> {
    let Rectangle { top, left, height, width } = rectangle;
    let fits = |start: usize, size: usize, all: usize| {
        start.checked_add(size).is_some_and(|end| end <= all)
    };
    if !fits(top, height, image.height()) || !fits(left, width, image.width()) {
        return Err(Error::usage(format!(
            "a rectangle of {width}x{height} from column {left} and row {top} is not within an image of {}x{}",
            image.width(),
            image.height()
        )));
    }
    let stride = image.width() * image.channels();
    let channels = image.channels();
    if width == 0 || channels > 4 {
        return Ok(image);
    }
    for (y, row) in image.pixels_mut().chunks_exact_mut(stride).skip(top).take(height).enumerate() {
        let row = &mut row[left * channels..(left + width) * channels];
        for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
            pixel.copy_from_slice(&value(y, x)[..channels]);
        }
    }
    Ok(image)
}
