//! Color of half the resolution at the right and the lower edge.
//!
//! zune-jpeg interpolates the color of all blocks, so at these edges it mixes in what the blocks
//! hold beyond the image, which may be anything. libjpeg repeats the last value there, and does not
//! interpolate images of up to four columns at all. Here, the values before the interpolation are
//! computed from the interpolated ones, exact to about 1.
//!
//! Out of scope: decoding (`pure`).

use super::header::Header;
use crate::geometry::ImageSize;

/// Whether a component has half the columns and half the rows of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Halved {
    pub(super) columns: bool,
    pub(super) rows: bool,
}

/// The number of columns up to which libjpeg repeats color without interpolation.
const MAX_REPEATED: usize = 4;

/// Whether the last column or row of any component depends on values beyond the image.
pub(super) fn has_wrong_edge(header: &Header) -> bool {
    let ImageSize { height, width } = header.size;
    // An odd column lies before the last value, and a whole block has nothing beyond it.
    let is_wrong =
        |side: usize, block: usize| side.is_multiple_of(2) && !side.is_multiple_of(block);
    header.halved.iter().any(|halved| {
        halved.columns && (width <= MAX_REPEATED || is_wrong(width, header.block.width))
            || halved.rows && is_wrong(height, header.block.height)
    })
}

/// Corrects the edges of an image of three components, which are not converted to RGB yet.
pub(super) fn correct_edges(pixels: &mut [u8], header: &Header) {
    let ImageSize { height, width } = header.size;
    for (component, halved) in header.halved.iter().enumerate() {
        let row = |y: usize| Line { start: 3 * y * width + component, stride: 3, length: width };
        let column =
            |x: usize| Line { start: 3 * x + component, stride: 3 * width, length: height };
        let is_repeated = halved.columns && width <= MAX_REPEATED;
        if halved.rows {
            for x in 0..width {
                if is_repeated { column(x).repeat(pixels) } else { column(x).correct_end(pixels) }
            }
        }
        if halved.columns {
            for y in 0..height {
                if is_repeated { row(y).repeat(pixels) } else { row(y).correct_end(pixels) }
            }
        }
    }
}

/// The values of a component in a row or a column. Of two values that come from one value before
/// the interpolation, the first is `(3 · own + previous) / 4`, and the second `(3 · own + next) / 4`.
struct Line {
    start: usize,
    stride: usize,
    length: usize,
}

impl Line {
    fn position(&self, index: usize) -> usize {
        self.start + index * self.stride
    }

    /// The value before the interpolation from which the pair `2 * pair` and `2 * pair + 1` comes.
    fn own(&self, pixels: &[u8], pair: usize) -> u8 {
        let value = |index: usize| i32::from(pixels[self.position(index)]);
        match pair {
            0 => pixels[self.position(0)],
            _ => ((3 * value(2 * pair) - value(2 * pair - 1)) >> 1).clamp(0, 255) as u8,
        }
    }

    /// Replaces the last value, if there is no next value before the interpolation.
    fn correct_end(&self, pixels: &mut [u8]) {
        if self.length.is_multiple_of(2) {
            pixels[self.position(self.length - 1)] = self.own(pixels, self.length / 2 - 1);
        }
    }

    /// Replaces all values by those before the interpolation, each twice.
    fn repeat(&self, pixels: &mut [u8]) {
        // From the end, because a value depends on the pair before it.
        for pair in (0..self.length.div_ceil(2)).rev() {
            let own = self.own(pixels, pair);
            for index in 2 * pair..self.length.min(2 * pair + 2) {
                pixels[self.position(index)] = own;
            }
        }
    }
}

/// Converts YCbCr to RGB as libjpeg does.
pub(super) fn convert_to_rgb(pixels: &mut [u8]) {
    const HALF: i32 = 1 << 15;
    for pixel in pixels.chunks_exact_mut(3) {
        let y = i32::from(pixel[0]);
        let cb = i32::from(pixel[1]) - 128;
        let cr = i32::from(pixel[2]) - 128;
        let clamped = |value: i32| value.clamp(0, 255) as u8;
        pixel[0] = clamped(y + ((91_881 * cr + HALF) >> 16));
        pixel[1] = clamped(y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16));
        pixel[2] = clamped(y + ((116_130 * cb + HALF) >> 16));
    }
}
