//! A decoded image: rows of interleaved 8-bit pixels.
//!
//! Out of scope: decoding (`decode`), resizing (`resize`).

use std::fmt;

use fulmen_data::internal::quantity;
use fulmen_data::{Error, Result};

/// An image with 8 bits per channel, in the order height, width, channels (HWC).
///
/// It has 1 channel (gray), 3 (RGB) or 4 (RGBA, not premultiplied).
///
/// ```
/// use fulmen_images::Image;
///
/// let mut image = Image::new(2, 1, 3, vec![255, 0, 0, 0, 0, 255])?;
/// assert_eq!(image.pixel(1, 0), [0, 0, 255]);
/// image.pixel_mut(1, 0)[1] = 9;
/// assert_eq!(image.pixels(), [255, 0, 0, 0, 9, 255]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    channels: usize,
    pixels: Vec<u8>,
}

impl Image {
    /// An image with these pixels.
    ///
    /// # Errors
    /// A number of channels other than 1, 3 or 4; a number of bytes other than
    /// `width * height * channels`.
    pub fn new(width: usize, height: usize, channels: usize, pixels: Vec<u8>) -> Result<Image> {
        let bytes = Image::bytes(width, height, channels)?;
        if pixels.len() == bytes {
            Ok(Image { width, height, channels, pixels })
        } else {
            Err(Error::usage(format!(
                "an image of {width} x {height} pixels with {} has {bytes} bytes, not {}",
                quantity(channels, "channel"),
                pixels.len()
            )))
        }
    }

    /// A black image, transparent if it has alpha.
    ///
    /// # Errors
    /// A number of channels other than 1, 3 or 4; more bytes than can be allocated.
    pub fn black(width: usize, height: usize, channels: usize) -> Result<Image> {
        let bytes = Image::bytes(width, height, channels)?;
        let mut pixels = Vec::new();
        pixels.try_reserve_exact(bytes).map_err(|_| {
            Error::usage(format!(
                "not enough memory for an image of {width} x {height} pixels with {}",
                quantity(channels, "channel")
            ))
        })?;
        pixels.resize(bytes, 0);
        Ok(Image { width, height, channels, pixels })
    }

    /// The number of bytes of an image.
    fn bytes(width: usize, height: usize, channels: usize) -> Result<usize> {
        if !matches!(channels, 1 | 3 | 4) {
            return Err(Error::usage(format!("an image has 1, 3 or 4 channels, not {channels}")));
        }
        let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(channels));
        bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
            Error::usage(format!(
                "{width} x {height} pixels with {} are more than this machine can address",
                quantity(channels, "channel")
            ))
        })
    }

    /// The width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The number of channels: 1, 3 or 4.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The values of all pixels, `[height, width, channels]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The values of all pixels, mutable.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// The values of all pixels, `[height, width, channels]`.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// The values of row `y`, counted from the top. Panics if the row is out of range, like a
    /// slice.
    pub fn row(&self, y: usize) -> &[u8] {
        let row = self.width * self.channels;
        &self.pixels[y * row..][..row]
    }

    /// The values of the pixel in column `x` of row `y`. Panics if it is out of range, like a
    /// slice.
    pub fn pixel(&self, x: usize, y: usize) -> &[u8] {
        &self.row(y)[x * self.channels..][..self.channels]
    }

    /// Like [`pixel`](Image::pixel), but mutable.
    pub fn pixel_mut(&mut self, x: usize, y: usize) -> &mut [u8] {
        let row = self.width * self.channels;
        &mut self.pixels[y * row..][..row][x * self.channels..][..self.channels]
    }

    /// Converts the image to a different number of channels.
    ///
    /// From gray to color, the value is repeated. From color to gray, the result is ITU-R 601-2's
    /// luma, rounded like Pillow's: (19595 R + 38470 G + 7471 B + 32768) / 65536. Alpha is dropped
    /// without compositing; new alpha is 255.
    ///
    /// # Errors
    /// A number of channels other than 1, 3 or 4.
    pub fn with_channels(self, channels: usize) -> Result<Image> {
        if channels == self.channels {
            return Ok(self);
        }
        let mut pixels = Vec::with_capacity(Image::bytes(self.width, self.height, channels)?);
        convert(&self.pixels, self.channels, &mut pixels, channels);
        Ok(Image { channels, pixels, ..self })
    }
}

/// Converts pixels to a different number of channels and appends them to `into`. Both numbers must
/// be 1, 3 or 4.
pub(crate) fn convert(from: &[u8], from_channels: usize, into: &mut Vec<u8>, channels: usize) {
    let pixels = from.chunks_exact(from_channels);
    match (from_channels, channels) {
        (1, 3) => pixels.for_each(|p| into.extend_from_slice(&[p[0]; 3])),
        (1, 4) => pixels.for_each(|p| into.extend_from_slice(&[p[0], p[0], p[0], 255])),
        (3, 4) => pixels.for_each(|p| into.extend_from_slice(&[p[0], p[1], p[2], 255])),
        (4, 3) => pixels.for_each(|p| into.extend_from_slice(&p[..3])),
        (3 | 4, 1) => pixels.for_each(|p| into.push(luma(p))),
        _ => into.extend_from_slice(from),
    }
}

/// The gray value of red, green and blue.
pub(crate) fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
    ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image u8[{}, {}, {}]", self.height, self.width, self.channels)
    }
}
