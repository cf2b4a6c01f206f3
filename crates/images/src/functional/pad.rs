//! Padding an image.
//!
//! Out of scope: enlarging an image by resizing.

use super::Fill;
use super::warp::reserve;
use crate::Image;
use fulmen_data::{Error, Result};

/// The number of pixels on each side. Convert it from a number (the same on all sides), a pair
/// (left and right, top and bottom) or an array (left, top, right, bottom), as in torchvision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Columns on the left.
    pub left: usize,
    /// Rows on top.
    pub top: usize,
    /// Columns on the right.
    pub right: usize,
    /// Rows at the bottom.
    pub bottom: usize,
}

impl From<usize> for Padding {
    fn from(all: usize) -> Padding {
        Padding::from([all; 4])
    }
}

impl From<(usize, usize)> for Padding {
    fn from((sides, ends): (usize, usize)) -> Padding {
        Padding::from([sides, ends, sides, ends])
    }
}

impl From<[usize; 4]> for Padding {
    fn from([left, top, right, bottom]: [usize; 4]) -> Padding {
        Padding { left, top, right, bottom }
    }
}

/// What fills the padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PaddingMode {
    /// A color.
    Constant(Fill),
    /// The nearest pixel of the edge: `a a | a b c | c c`.
    Edge,
    /// The image mirrored at its outermost pixels, which are not repeated: `c b | a b c | b a`.
    Reflect,
    /// The image mirrored at its edge: `b a | a b c | c b`.
    Symmetric,
}

impl Default for PaddingMode {
    fn default() -> PaddingMode {
        PaddingMode::Constant(Fill::default())
    }
}

/// Pads the image.
///
/// ```
/// use fulmen_images::Image;
/// use fulmen_images::functional::{Padding, PaddingMode, pad};
///
/// let row = Image::new(3, 1, 1, vec![1, 2, 3])?;
/// let padded = pad(&row, Padding::from((2, 0)), &PaddingMode::Reflect)?;
/// assert_eq!(padded.pixels(), [3, 2, 1, 2, 3, 2, 1]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// Padding that is larger than the image can mirror; edge padding of an image without pixels; a
/// fill with a different number of channels.
pub fn pad(image: &Image, padding: Padding, mode: &PaddingMode) -> Result<Image> {
    let width = image.width();
    let height = image.height();
    let channels = image.channels();
    let fill = match mode {
        PaddingMode::Constant(fill) => fill.pixel(image)?,
        _ => [0; 4],
    };
    let columns = sources(width, padding.left, padding.right, mode)?;
    let rows = sources(height, padding.top, padding.bottom, mode)?;
    let mut pixels = reserve(columns.len(), rows.len(), channels)?;
    for row in &rows {
        for column in &columns {
            match (row, column) {
                (Some(y), Some(x)) => {
                    let start = (y * width + x) * channels;
                    pixels.extend_from_slice(&image.pixels()[start..start + channels]);
                }
                _ => pixels.extend_from_slice(&fill[..channels]),
            }
        }
    }
    Image::new(columns.len(), rows.len(), channels, pixels)
}

/// For each position along an axis of the result, the position in the image; `None` in constant
/// padding.
fn sources(
    size: usize,
    before: usize,
    after: usize,
    mode: &PaddingMode,
) -> Result<Vec<Option<usize>>> {
    let reach = match mode {
        PaddingMode::Constant(_) => usize::MAX,
        PaddingMode::Edge if size == 0 => 0,
        PaddingMode::Edge => usize::MAX,
        PaddingMode::Reflect => size.saturating_sub(1),
        PaddingMode::Symmetric => size,
    };
    if before.max(after) > reach {
        let longest = before.max(after);
        return Err(Error::usage(format!(
            "{longest} pixels of padding cannot be taken from {size} pixels along that side of the image, only \
             {reach}; pad by less, or with a constant"
        )));
    }
    let too_large = || {
        Error::usage(format!(
            "{size} pixels with {before} before and {after} after them are too many"
        ))
    };
    let length =
        size.checked_add(before).and_then(|sum| sum.checked_add(after)).ok_or_else(too_large)?;
    let mut indices = Vec::new();
    indices.try_reserve_exact(length).map_err(|_| too_large())?;
    indices.extend((0..length).map(|index| match (index.checked_sub(before), mode) {
        (Some(inside), _) if inside < size => Some(inside),
        (_, PaddingMode::Constant(_)) => None,
        (None, PaddingMode::Edge) => Some(0),
        (Some(_), PaddingMode::Edge) => Some(size - 1),
        (None, PaddingMode::Reflect) => Some(before - index),
        (None, PaddingMode::Symmetric) => Some(before - index - 1),
        (Some(distance), PaddingMode::Reflect) => Some(2 * size - 2 - distance),
        (Some(distance), PaddingMode::Symmetric) => Some(2 * size - 1 - distance),
    }));
    Ok(indices)
}
