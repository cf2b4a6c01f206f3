//! Pictures made smaller once, so that each epoch decodes less: from a file's bytes to those of a smaller file.
//!
//! Not here: which files, and where the small ones go (the command).

use super::decode;
use super::pictures::Pictures;
use crate::{Error, Picture, Result, SampleRandom};

/// In which format smaller copies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JPEG of a quality from 1 to 100, with colour at half the resolution.
    Jpeg {
        /// 90 is hardly seen; 95 takes half as many bytes more.
        quality: u8,
    },
    /// PNG, without loss.
    Png,
}

impl Encoding {
    /// What the names of such files end in.
    pub fn extension(self) -> &'static str {
        match self {
            Encoding::Jpeg { .. } => "jpg",
            Encoding::Png => "png",
        }
    }
}

/// A file's bytes with the shorter side of its picture resized to `side` pixels, or as they were where it is not longer.
///
/// A picture that is made smaller is turned as its EXIF data say, since a copy has none, if `turn` is set, and has red, green and
/// blue.
///
/// ```
/// use fulmen_data::{Encoding, Picture, Pictures, SampleRandom, encode_picture, presize};
///
/// let photo = Picture::new(60, 40, 3, vec![120; 60 * 40 * 3])?;
/// let file = encode_picture(&photo, Encoding::Png)?;
/// let small = presize(&file, 20, Encoding::Jpeg { quality: 90 }, false)?.ok_or("it was small before")?;
/// let small = Pictures::rgb().decode(&small, &mut SampleRandom::new(0, 0, 0))?;
/// assert_eq!((small.width(), small.height()), (30, 20));
/// assert!(presize(&file, 40, Encoding::Png, false)?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Pictures::decode`], and a quality that is not between 1 and 100. None stands for a file to be kept as it is.
pub fn presize(file: &[u8], side: usize, encoding: Encoding, turn: bool) -> Result<Option<Vec<u8>>> {
    let pictures = Pictures::rgb().resize(side).exif_orientation(turn);
    pictures.check()?;
    let mut decoder = None;
    let size = decode::open(file, &mut decoder, &pictures.limits)?.size();
    if size.width.min(size.height) <= side {
        return Ok(None);
    }
    let picture = pictures.decode(file, &mut SampleRandom::new(0, 0, 0))?;
    encode_picture(&picture, encoding).map(Some)
}

/// A file's bytes of a picture. JPEG drops alpha.
///
/// # Errors
/// A quality that is not between 1 and 100, and a picture without pixels or greater than the format allows.
pub fn encode_picture(picture: &Picture, encoding: Encoding) -> Result<Vec<u8>> {
    match encoding {
        Encoding::Jpeg { quality } => jpeg(picture, quality),
        Encoding::Png => png(picture),
    }
}

fn jpeg(picture: &Picture, quality: u8) -> Result<Vec<u8>> {
    if !(1..=100).contains(&quality) {
        return Err(Error::usage(format!("a JPEG's quality is between 1 and 100, not {quality}")));
    }
    let format = match picture.channels() {
        1 => turbojpeg::PixelFormat::GRAY,
        3 => turbojpeg::PixelFormat::RGB,
        _ => turbojpeg::PixelFormat::RGBA,
    };
    let sampling = match picture.channels() {
        1 => turbojpeg::Subsamp::Gray,
        _ => turbojpeg::Subsamp::Sub2x2,
    };
    let image = turbojpeg::Image {
        pixels: picture.pixels(),
        width: picture.width(),
        pitch: picture.width() * picture.channels(),
        height: picture.height(),
        format,
    };
    let bytes = turbojpeg::compress(image, i32::from(quality), sampling);
    bytes.map(|bytes| bytes.to_vec()).map_err(|why| Error::usage(format!("cannot encode {picture:?} as JPEG: {why}")))
}

fn png(picture: &Picture) -> Result<Vec<u8>> {
    let refuse = |why: ::png::EncodingError| Error::usage(format!("cannot encode {picture:?} as PNG: {why}"));
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, side(picture.width()), side(picture.height()));
    encoder.set_color(match picture.channels() {
        1 => ::png::ColorType::Grayscale,
        3 => ::png::ColorType::Rgb,
        _ => ::png::ColorType::Rgba,
    });
    let mut writer = encoder.write_header().map_err(refuse)?;
    writer.write_image_data(picture.pixels()).map_err(refuse)?;
    writer.finish().map_err(refuse)?;
    Ok(bytes)
}
