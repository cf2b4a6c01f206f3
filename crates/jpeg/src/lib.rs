//! A safe interface to libjpeg-turbo's decoder that decodes a part of an image. Only the blocks of
//! the needed columns are transformed, the rows above them are skipped, and the rows below are not
//! read.
//!
#![cfg_attr(feature = "libjpeg-turbo", doc = "```")]
#![cfg_attr(not(feature = "libjpeg-turbo"), doc = "```ignore")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let pixels = (0..64 * 48 * 3).map(|i| (i % 251) as u8).collect::<Vec<_>>();
//! # let image = turbojpeg::Image { pixels: &pixels[..], width: 64, pitch: 192, height: 48, format: turbojpeg::PixelFormat::RGB };
//! # let file = turbojpeg::compress(image, 90, turbojpeg::Subsamp::Sub2x2)?;
//! use fulmen_jpeg::{ColorSpace, Decoder, Region};
//!
//! let mut decoder = Decoder::new()?;
//! let mut jpeg = decoder.open(&file)?;
//! assert_eq!((jpeg.width(), jpeg.height()), (64, 48));
//! let mut pixels = Vec::new();
//! let part = jpeg.decode(ColorSpace::Rgb, 8, Region { x: 20, y: 10, width: 8, height: 4 }, &mut pixels)?;
//! // It begins with a whole block, and has at least what was asked for.
//! assert!(part.x <= 20 && part.x + part.width >= 28 && part.y <= 10 && part.y + part.height >= 14);
//! assert_eq!(part.stride % 3, 0);
//! # Ok(())
//! # }
//! ```
//!
//! All of it is behind the feature `libjpeg-turbo`, which needs cmake, and nasm on x86-64.
//!
//! Out of scope: resizing, CMYK made red, green and blue, orientation, and other formats.
#![cfg(feature = "libjpeg-turbo")]

mod error;
mod ffi;
#[cfg(test)]
mod tests;

#[doc(inline)]
pub use fulmen_error::Error;

use crate::ffi::{Failure, Handle, Header, OpenFile, Window};

/// The channels of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorSpace {
    /// One channel: luma.
    Gray,
    /// Red, green and blue.
    Rgb,
    /// Values as stored, with Adobe's inversion: 255 means no ink.
    Cmyk,
}

impl ColorSpace {
    /// The number of channels.
    pub fn channels(self) -> usize {
        match self {
            ColorSpace::Gray => 1,
            ColorSpace::Rgb => 3,
            ColorSpace::Cmyk => 4,
        }
    }

    /// The value of J_COLOR_SPACE.
    fn code(self) -> u32 {
        match self {
            ColorSpace::Gray => 1,
            ColorSpace::Rgb => 2,
            ColorSpace::Cmyk => 4,
        }
    }
}

/// A rectangle in an image, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The number of columns to its left.
    pub x: usize,
    /// The number of rows above it.
    pub y: usize,
    /// The width.
    pub width: usize,
    /// The height.
    pub height: usize,
}

/// The decoded part of an image, and its layout in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The number of columns to its left, in pixels of the scaled image.
    pub x: usize,
    /// The number of rows above it.
    pub y: usize,
    /// The width.
    pub width: usize,
    /// The height.
    pub height: usize,
    /// The number of bytes from one row to the next.
    pub stride: usize,
}

/// A decoder that keeps its memory between images.
pub struct Decoder(Handle);

impl Decoder {
    /// Creates a decoder.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new() -> Result<Decoder, Error> {
        Handle::new().map(Decoder).ok_or_else(|| Error::new("not enough memory for a JPEG decoder"))
    }

    /// Reads the header of a file.
    ///
    /// # Errors
    /// Bytes that are not a JPEG file; a file that ends before its pixels; 12 bits per value; a
    /// lossless JPEG, in which each pixel depends on all earlier ones.
    pub fn open<'a>(&'a mut self, file: &'a [u8]) -> Result<Jpeg<'a>, Error> {
        let (open_file, header) = self.0.open(file).map_err(|failure| match failure {
            Failure::CutShort => error::cut_short("the file ends before its pixels begin"),
            failure => error::from_failure(failure),
        })?;
        if header.precision != 8 {
            return Err(Error::new(format!(
                "it has {} bits per value; only 8 are supported",
                header.precision
            )));
        }
        if header.lossless != 0 {
            return Err(Error::new(
                "parts of a lossless JPEG cannot be decoded; convert it to PNG",
            ));
        }
        // An end marker cannot occur in a scan's data. If there is none, the file was truncated.
        let complete = file.get(header.consumed..).is_some_and(has_end);
        Ok(Jpeg { open_file: Some(open_file), header, complete, damage: None })
    }
}

/// Whether the data has an end marker. The search starts at the end, where it normally is.
fn has_end(data: &[u8]) -> bool {
    data.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// A file whose header has been read.
pub struct Jpeg<'a> {
    /// `None` after decoding.
    open_file: Option<OpenFile<'a>>,
    header: Header,
    complete: bool,
    damage: Option<String>,
}

impl Jpeg<'_> {
    /// The width of the image.
    pub fn width(&self) -> usize {
        self.header.width as usize
    }

    /// The height of the image.
    pub fn height(&self) -> usize {
        self.header.height as usize
    }

    /// Whether the image must be decoded as CMYK, because libjpeg-turbo cannot convert it to
    /// another color space.
    pub fn is_cmyk(&self) -> bool {
        // JCS_CMYK, JCS_YCCK.
        matches!(self.header.space, 4 | 5)
    }

    /// The number of channels that the file has: 1 (gray), 3 or 4 (CMYK).
    pub fn channels(&self) -> usize {
        match self.header.space {
            // JCS_GRAYSCALE.
            1 => 1,
            _ if self.is_cmyk() => 4,
            _ => 3,
        }
    }

    /// Whether the image is progressive. Every scan then covers the whole image, and nothing can be
    /// skipped.
    pub fn is_progressive(&self) -> bool {
        self.header.progressive != 0
    }

    /// The size at a scale of `eighths` / 8, rounded up.
    pub fn scaled(&self, eighths: usize) -> (usize, usize) {
        ((self.width() * eighths).div_ceil(8), (self.height() * eighths).div_ceil(8))
    }

    /// Decodes a part of the image at a scale of `eighths` / 8. It can be called once. The region
    /// is in pixels of the scaled image.
    ///
    /// `pixels` is enlarged if necessary; its content outside the part is unspecified. The part
    /// contains the region. Its pixels are the same as those of the whole decoded image, because
    /// the neighbors that chroma upsampling needs are decoded too.
    ///
    /// A file without an end marker is decoded to its last row even if the region ends earlier, so
    /// that a truncated file is detected for every region.
    ///
    /// # Errors
    /// A scale that is not 1 to 8; a region that is empty or not inside the image; a file that is
    /// truncated or cannot be decoded; a second call.
    pub fn decode(
        &mut self,
        space: ColorSpace,
        eighths: usize,
        region: Region,
        pixels: &mut Vec<u8>,
    ) -> Result<Part, Error> {
        if !(1..=8).contains(&eighths) {
            return Err(Error::new(format!("the scale {eighths} / 8 is not from 1/8 to 8/8")));
        }
        let (width, height) = self.scaled(eighths);
        let Region { x, y, .. } = region;
        let fits = |start: usize, size: usize, all: usize| {
            size > 0 && start.checked_add(size).is_some_and(|end| end <= all)
        };
        if !fits(x, region.width, width) || !fits(y, region.height, height) {
            return Err(Error::new(format!(
                "{region:?} is not inside the {width} x {height} pixels of the image"
            )));
        }
        let Some(mut open_file) = self.open_file.take() else {
            return Err(Error::new("the image was decoded before; open it again"));
        };
        // Chroma at half the resolution is upsampled with its neighbors, so the window needs a
        // margin. A progressive file with missing scans is also smoothed, using two blocks to the
        // left.
        let smoothed = if self.is_progressive() { 2 * BLOCK } else { 0 };
        let left = x.saturating_sub(MARGIN + smoothed);
        let right = (x + region.width + MARGIN).min(width);
        let bottom = if self.complete { y + region.height } else { height };
        // The left edge moves to the start of a group of columns, which is at most 4 * 8 columns
        // wide.
        let stride = (right - left + BLOCK).min(width) * space.channels();
        let window = Window {
            left: left as u32,
            width: (right - left) as u32,
            top: y as u32,
            rows: (bottom - y) as u32,
        };
        let decoded = open_file.decode(
            space.code(),
            space.channels(),
            eighths as u32,
            window,
            pixels,
            stride,
        );
        self.damage = open_file.damage();
        let window = decoded.map_err(|failure| match failure {
            Failure::CutShort => {
                error::cut_short("the file is truncated: its data end before its last row")
            }
            failure => error::from_failure(failure),
        })?;
        Ok(Part {
            x: window.left as usize,
            y,
            width: window.width as usize,
            height: region.height,
            stride,
        })
    }

    /// libjpeg-turbo's warning, if some of the decoded data was invalid and pixels are therefore
    /// wrong.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// The number of extra columns decoded on each side of a region.
const MARGIN: usize = 8;

/// The maximum width of a group of columns that are decoded together.
const BLOCK: usize = 32;
