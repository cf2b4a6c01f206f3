//! JPEG files with libjpeg-turbo, decoding only the needed part.
//!
//! Out of scope: the bindings (the crate `fulmen-jpeg`), and the other decoder (`pure`).

use fulmen_jpeg::{ColorSpace, Part, Region};

use crate::decode::{Buffers, Limits};
use crate::exif;
use crate::geometry::{ImageSize, Orientation, Rect};
use crate::image::{self, Image};
use crate::resize::Pixels;
use fulmen_data::{Error, Result};

pub(crate) struct Jpeg<'a> {
    file: &'a [u8],
    jpeg: fulmen_jpeg::Jpeg<'a>,
}

fn refuse(error: fulmen_jpeg::Error) -> Error {
    let hint = if error.is_cut_short() { "; copy or download it again" } else { "" };
    Error::content(format!("cannot decode this JPEG: {error}{hint}"))
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(file: &'a [u8]) -> Result<Jpeg<'a>> {
        Ok(Jpeg { file, jpeg: fulmen_jpeg::Jpeg::open(file).map_err(refuse)? })
    }

    pub(crate) fn size(&self) -> ImageSize {
        ImageSize { height: self.jpeg.height(), width: self.jpeg.width() }
    }

    pub(crate) fn channels(&self) -> usize {
        self.jpeg.channels()
    }

    pub(crate) fn orientation(&self) -> Orientation {
        exif::from_jpeg(self.file)
    }

    pub(crate) fn decode<'b>(
        mut self,
        rect: Rect,
        eighths: usize,
        channels: usize,
        limits: &Limits,
        buffers: &'b mut Buffers,
    ) -> Result<Pixels<'b>> {
        let (width, height) = self.jpeg.scaled(eighths);
        let axis = |start: isize, length: usize, all: usize| {
            let low = start as usize * eighths / 8;
            (low, ((start as usize + length) * eighths).div_ceil(8).min(all) - low)
        };
        let (x, width) = axis(rect.x, rect.width, width);
        let (y, height) = axis(rect.y, rect.height, height);
        let region = Region { x, y, width, height };
        let space = match (self.jpeg.is_cmyk(), channels) {
            (true, _) => ColorSpace::Cmyk,
            (false, 1) => ColorSpace::Gray,
            (false, _) => ColorSpace::Rgb,
        };
        let Buffers { raw, pixels } = buffers;
        let part = self.jpeg.decode(space, eighths, region, raw).map_err(refuse)?;
        if let Some(damage) = self.jpeg.damage().filter(|_| !limits.keep_damaged) {
            return Err(super::damaged(damage));
        }
        let Part { x, y, width, height, stride } = part;
        let rect = Rect { x: x as isize, y: y as isize, width, height };
        if space.channels() == channels && space != ColorSpace::Cmyk {
            return Ok(Pixels { bytes: raw, stride, channels, rect, eighths });
        }
        pixels.clear();
        for row in raw.chunks_exact(stride).take(height) {
            let row = &row[..width * space.channels()];
            match space {
                ColorSpace::Cmyk => {
                    row.chunks_exact(4).for_each(|cmyk| push_cmyk(cmyk, pixels, channels))
                }
                _ => image::convert(row, space.channels(), pixels, channels),
            }
        }
        Ok(Pixels { bytes: pixels, stride: width * channels, channels, rect, eighths })
    }
}

/// Converts Adobe's inverted CMYK to RGB, rounded like Pillow's conversion.
fn push_cmyk(cmyk: &[u8], into: &mut Vec<u8>, channels: usize) {
    let black = u32::from(cmyk[3]);
    let light = |ink: u8| {
        let product = (255 - u32::from(ink)) * black + 128;
        (black - (((product >> 8) + product) >> 8)) as u8
    };
    let rgb = [light(cmyk[0]), light(cmyk[1]), light(cmyk[2])];
    image::convert(&rgb, 3, into, channels);
}

/// Encodes an image as JPEG, with color at half the resolution. The quality is already validated.
pub(crate) fn encode(image: &Image, quality: u8) -> Result<Vec<u8>> {
    let format = match image.channels() {
        1 => turbojpeg::PixelFormat::GRAY,
        3 => turbojpeg::PixelFormat::RGB,
        _ => turbojpeg::PixelFormat::RGBA,
    };
    let sampling = match image.channels() {
        1 => turbojpeg::Subsamp::Gray,
        _ => turbojpeg::Subsamp::Sub2x2,
    };
    let pixels = turbojpeg::Image {
        pixels: image.pixels(),
        width: image.width(),
        pitch: image.width() * image.channels(),
        height: image.height(),
        format,
    };
    let bytes = turbojpeg::compress(pixels, i32::from(quality), sampling);
    bytes
        .map(|bytes| bytes.to_vec())
        .map_err(|error| Error::usage(format!("cannot encode {image:?} as JPEG: {error}")))
}
