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
//! use fulmen_jpeg::{ColorSpace, Jpeg, Region};
//!
//! let mut jpeg = Jpeg::open(&file)?;
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
mod scan;
#[cfg(test)]
mod tests;

#[doc(inline)]
pub use fulmen_error::Error;

use crate::ffi::{Failure, File, Window};
use crate::scan::FirstScan;
use turbojpeg_sys as sys;

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

/// A file whose header has been read.
pub struct Jpeg<'a> {
    file: File<'a>,
    first_scan: FirstScan,
    /// Whether the header has unusual parts, which make no pixels wrong.
    header_warned: bool,
    damage: Option<String>,
}

impl<'a> Jpeg<'a> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// Bytes that are not a JPEG file; a file that ends before its pixels; 12 bits per value; a
    /// lossless JPEG, in which each pixel depends on all earlier ones.
    pub fn open(file: &'a [u8]) -> Result<Jpeg<'a>, Error> {
        let first_scan = FirstScan::find(file);
        let is_jpeg = file.get(..2).is_none_or(|start| start == [0xff, 0xd8]);
        let Some(first_scan) = first_scan.filter(|_| is_jpeg) else {
            let no_pixels = || error::cut_short("the file ends before its pixels begin");
            return Err(match File::open(file) {
                Err(failure) if !is_jpeg => error::from_failure(failure),
                _ => no_pixels(),
            });
        };
        let (file, warning) = File::open(file).map_err(error::from_failure)?;
        let precision = file.get(sys::TJPARAM_TJPARAM_PRECISION);
        if precision != 8 {
            return Err(Error::new(format!(
                "it has {precision} bits per value; only 8 are supported"
            )));
        }
        if file.get(sys::TJPARAM_TJPARAM_LOSSLESS) != 0 {
            return Err(Error::new(
                "parts of a lossless JPEG cannot be decoded; convert it to PNG",
            ));
        }
        Ok(Jpeg { file, first_scan, header_warned: warning.is_some(), damage: None })
    }

    /// The width of the image.
    pub fn width(&self) -> usize {
        self.scaled(8).0
    }

    /// The height of the image.
    pub fn height(&self) -> usize {
        self.scaled(8).1
    }

    /// Whether the image must be decoded as CMYK, because libjpeg-turbo cannot convert it to
    /// another color space.
    pub fn is_cmyk(&self) -> bool {
        self.channels() == 4
    }

    /// The number of channels that the file has: 1 (gray), 3 or 4 (CMYK).
    pub fn channels(&self) -> usize {
        match self.file.get(sys::TJPARAM_TJPARAM_COLORSPACE) as sys::TJCS {
            sys::TJCS_TJCS_GRAY => 1,
            sys::TJCS_TJCS_CMYK | sys::TJCS_TJCS_YCCK => 4,
            _ => 3,
        }
    }

    /// Whether the image is progressive. Every scan then covers the whole image, and nothing can be
    /// skipped.
    pub fn is_progressive(&self) -> bool {
        self.file.get(sys::TJPARAM_TJPARAM_PROGRESSIVE) != 0
    }

    /// The size at a scale of `eighths` / 8, rounded up.
    pub fn scaled(&self, eighths: usize) -> (usize, usize) {
        self.file.scaled(eighths)
    }

    /// Decodes a part of the image at a scale of `eighths` / 8. The region is in pixels of the
    /// scaled image.
    ///
    /// `pixels` is enlarged if necessary; its content outside the part is unspecified. The part
    /// contains the region. Its pixels are the same as those of the whole decoded image, because
    /// the neighbors that chroma upsampling needs are decoded too.
    ///
    /// A file without an end marker is truncated, and an error for every region.
    ///
    /// # Errors
    /// A scale that is not 1 to 8; a region that is empty or not inside the image; a file that is
    /// truncated or cannot be decoded.
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
        let fits = |start: usize, size: usize, all: usize| {
            size > 0 && start.checked_add(size).is_some_and(|end| end <= all)
        };
        if !fits(region.x, region.width, width) || !fits(region.y, region.height, height) {
            return Err(Error::new(format!(
                "{region:?} is not inside the {width} x {height} pixels of the image"
            )));
        }
        if !self.first_scan.complete {
            return Err(error::cut_short("the file is truncated: it has no end marker"));
        }
        let window = self.window(eighths, region);
        self.damage = match self.file.decode(space, eighths, window, pixels) {
            Ok(None) => None,
            Ok(Some(warning)) if self.header_warned || error::is_harmless(&warning) => None,
            Ok(Some(warning)) if error::is_cut_short(&warning) => {
                return Err(error::cut_short(
                    "the file is truncated: its data end before its last row",
                ));
            }
            Ok(Some(warning)) => Some(warning),
            Err(failure) if self.has_failed_below(space, eighths, window, &failure) => {
                failure.warned.then_some(failure.message)
            }
            Err(failure) => return Err(error::from_failure(failure)),
        };
        let Window { left, width, top, rows } = window;
        Ok(Part { x: left, y: top, width, height: rows, stride: width * space.channels() })
    }

    /// The columns and rows to decode for a region.
    fn window(&self, eighths: usize, region: Region) -> Window {
        let (width, height) = self.scaled(eighths);
        // TurboJPEG decodes only whole images of unusual sampling factors.
        if self.file.get(sys::TJPARAM_TJPARAM_SUBSAMP) == sys::TJSAMP_TJSAMP_UNKNOWN {
            return Window { left: 0, width, top: 0, rows: height };
        }
        // Chroma at half the resolution is upsampled with its neighbors, so the window needs a
        // margin. A progressive file with missing scans is also smoothed, using two blocks to the
        // left.
        let smoothed = if self.is_progressive() { 2 * MAX_COLUMNS } else { 0 };
        let columns = self.first_scan.blocks * eighths;
        let left = region.x.saturating_sub(MARGIN + smoothed) / columns * columns;
        let right = (region.x + region.width + MARGIN).min(width);
        Window { left, width: right - left, top: region.y, rows: region.height }
    }

    /// Whether an error occurred below the last row of a window. A file of one scan is read up to its end marker after
    /// the last row, and anything may be there if the data are damaged. The rows themselves cannot fail, so the rows
    /// were decoded if the first one can be; a failure for want of memory is not of this kind.
    fn has_failed_below(
        &mut self,
        space: ColorSpace,
        eighths: usize,
        window: Window,
        failure: &Failure,
    ) -> bool {
        let (_, height) = self.scaled(eighths);
        let first_row = Window { top: 0, rows: 1, ..window };
        height > 1
            && window.top + window.rows == height
            && !failure.message.contains("emory")
            && self.file.decode(space, eighths, first_row, &mut Vec::new()).is_ok()
    }

    /// libjpeg-turbo's message, if some of the decoded data was invalid and pixels are therefore
    /// wrong.
    ///
    /// TurboJPEG tells only the first warning. If a file begins with a harmless one, such as an unknown version of
    /// JFIF, damage after it is not noticed.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// The number of extra columns decoded on each side of a region.
const MARGIN: usize = 8;

/// The maximum width of a group of columns that are decoded together.
const MAX_COLUMNS: usize = 32;
