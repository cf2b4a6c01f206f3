//! Decodes the needed part of an image file in any supported format.
//!
//! The first bytes of the file determine the format; its name does not matter.
//!
//! Out of scope: which part is needed (`geometry`), and resizing (`resize`).

use super::geometry::{ImageSize, Orientation, Rect};
use super::resize::Pixels;
use super::{jpeg, png, webp};
use fulmen_data::{Error, Result};

/// Limits on what is decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// The maximum number of pixels.
    pub(crate) pixels: u64,
    /// Whether to accept damaged JPEG data.
    pub(crate) keep_damaged: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        // Pillow warns of a decompression bomb above this number.
        Limits { pixels: 89_478_485, keep_damaged: false }
    }
}

/// A thread's reusable memory for decoding.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Pixels with the channels of the file.
    pub(crate) raw: Vec<u8>,
    /// Pixels with the wanted channels.
    pub(crate) pixels: Vec<u8>,
}

impl Buffers {
    /// Makes space for raw pixels.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        lengthen(&mut self.raw, bytes)
    }
}

/// Extends a buffer with zeros to at least this length.
pub(crate) fn lengthen(buffer: &mut Vec<u8>, bytes: usize) -> Result<()> {
    if let Some(missing) = bytes.checked_sub(buffer.len()) {
        buffer.try_reserve(missing).map_err(|_| {
            Error::content(format!("not enough memory for {bytes} bytes of pixels"))
        })?;
        buffer.resize(bytes, 0);
    }
    Ok(())
}

/// The header of a JPEG, PNG or WebP file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Height and width as stored, before any EXIF orientation is applied.
    pub size: ImageSize,
    /// The usual file extension: `jpg`, `png` or `webp`.
    pub extension: &'static str,
    /// The channels of the file: 1 (gray), 2 (gray with alpha), 3 (RGB, also as a palette) or 4
    /// (RGBA, or CMYK in a JPEG).
    pub channels: usize,
}

/// Reads the header, without decoding pixels.
pub(crate) fn header(file: &[u8], limits: &Limits) -> Result<Header> {
    let encoded = open(file, limits)?;
    Ok(Header {
        size: encoded.size(),
        extension: encoded.extension(),
        channels: encoded.channels(),
    })
}

/// A file whose header has been read.
pub(crate) enum ImageFile<'a> {
    Jpeg(jpeg::Jpeg<'a>),
    Png(Box<png::Png<'a>>),
    WebP(Box<webp::WebP<'a>>),
}

/// Reads a file's header.
pub(crate) fn open<'a>(file: &'a [u8], limits: &Limits) -> Result<ImageFile<'a>> {
    let encoded = match file {
        [0xff, 0xd8, 0xff, ..] => ImageFile::Jpeg(jpeg::Jpeg::open(file)?),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => {
            ImageFile::Png(Box::new(png::Png::open(file)?))
        }
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            ImageFile::WebP(Box::new(webp::WebP::open(file)?))
        }
        _ => return Err(Error::content(unknown(file))),
    };
    let ImageSize { width, height } = encoded.size();
    let pixels = width as u64 * height as u64;
    if pixels > limits.pixels {
        return Err(Error::content(format!(
            "the header claims {width} x {height} pixels, over the limit of {}: it may be a decompression bomb; if \
             not, raise the limit with ImagePipeline::max_pixels",
            limits.pixels
        )));
    }
    if pixels == 0 {
        return Err(Error::content(format!(
            "the header claims {width} x {height} pixels; the file is damaged"
        )));
    }
    if let Some(max_pixels) =
        encoded.max_pixels_for(file.len()).filter(|&max_pixels| pixels > max_pixels)
    {
        return Err(Error::content(format!(
            "the file is truncated: the header claims {width} x {height} pixels, but {} bytes can hold at most {max_pixels}",
            file.len()
        )));
    }
    Ok(encoded)
}

/// The error message for bytes that are not in a supported format.
fn unknown(file: &[u8]) -> String {
    let kind = match file {
        [] => return "the file is empty (0 bytes); copy or download it again".into(),
        [b'G', b'I', b'F', b'8', ..] => "a GIF",
        [b'B', b'M', ..] => "a BMP",
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => "a TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "an AVIF, HEIC or video file",
        [b'<', ..] => "text, perhaps a web page: did the download fail?",
        [0xff, 0xd8, ..] => "a JPEG that ends after its first bytes",
        _ => {
            let start = &file[..file.len().min(8)];
            return format!("not a JPEG, PNG or WebP file: it starts with the bytes {start:02x?}");
        }
    };
    format!("not a JPEG, PNG or WebP file but {kind}; convert it, or leave it out")
}

impl ImageFile<'_> {
    /// The file extensions.
    pub(crate) fn extension(&self) -> &'static str {
        match self {
            ImageFile::Jpeg(_) => "jpg",
            ImageFile::Png(_) => "png",
            ImageFile::WebP(_) => "webp",
        }
    }

    /// Height and width as stored.
    pub(crate) fn size(&self) -> ImageSize {
        match self {
            ImageFile::Jpeg(jpeg) => jpeg.size(),
            ImageFile::Png(png) => png.size(),
            ImageFile::WebP(webp) => webp.size(),
        }
    }

    pub(crate) fn channels(&self) -> usize {
        match self {
            ImageFile::Jpeg(jpeg) => jpeg.channels(),
            ImageFile::Png(png) => png.channels(),
            ImageFile::WebP(webp) => webp.channels(),
        }
    }

    /// The orientation from the file's EXIF data.
    pub(crate) fn orientation(&mut self) -> Orientation {
        match self {
            ImageFile::Jpeg(jpeg) => jpeg.orientation(),
            ImageFile::Png(png) => png.orientation(),
            ImageFile::WebP(webp) => webp.orientation(),
        }
    }

    /// Whether the file can be decoded at 1/2, 1/4 and 1/8 of its size.
    pub(crate) fn has_scales(&self) -> bool {
        jpeg::HAS_SCALES && matches!(self, ImageFile::Jpeg(_))
    }

    /// The maximum number of pixels in a file of this size, if the format implies one.
    fn max_pixels_for(&self, bytes: usize) -> Option<u64> {
        let bytes = bytes as u64;
        match self {
            // A block of 64 pixels takes at least one bit.
            ImageFile::Jpeg(_) => bytes.checked_mul(8 * 64),
            // Deflate expands one byte to at most 1032 bytes, each with at most 8 pixels.
            ImageFile::Png(_) => bytes.checked_mul(1032 * 8),
            ImageFile::WebP(_) => None,
        }
    }

    /// Decodes a part of the source at a scale in eighths of its size, with 1, 3 or 4 channels.
    pub(crate) fn decode<'b>(
        self,
        rect: Rect,
        eighths: usize,
        channels: usize,
        limits: &Limits,
        buffers: &'b mut Buffers,
    ) -> Result<Pixels<'b>> {
        match self {
            ImageFile::Jpeg(jpeg) => jpeg.decode(rect, eighths, channels, limits, buffers),
            ImageFile::Png(png) => png.decode(channels, buffers),
            ImageFile::WebP(webp) => webp.decode(channels, buffers),
        }
    }
}

/// Converts whole images to the wanted channels, from `raw` to `pixels`.
pub(crate) fn convert_whole<'b>(
    size: ImageSize,
    stored: usize,
    channels: usize,
    buffers: &'b mut Buffers,
) -> Pixels<'b> {
    let Buffers { raw, pixels } = buffers;
    let raw = &raw[..size.width * size.height * stored];
    let bytes: &[u8] = if stored == channels {
        raw
    } else {
        pixels.clear();
        match stored {
            // Gray with alpha, which `Image` does not have: alpha is kept only if it is wanted.
            2 => gray_alpha(raw, pixels, channels),
            _ => super::image::convert(raw, stored, pixels, channels),
        }
        pixels
    };
    Pixels { bytes, stride: size.width * channels, channels, rect: Rect::all(size), eighths: 8 }
}

fn gray_alpha(from: &[u8], into: &mut Vec<u8>, channels: usize) {
    for pixel in from.chunks_exact(2) {
        match channels {
            1 => into.push(pixel[0]),
            3 => into.extend_from_slice(&[pixel[0]; 3]),
            _ => into.extend_from_slice(&[pixel[0], pixel[0], pixel[0], pixel[1]]),
        }
    }
}
