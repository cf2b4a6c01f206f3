//! From a picture to the bytes of a file.
//!
//! Not here: the way back (`decode`), and which pictures are kept so (`presize`).

use crate::{Picture, jpeg};
use fulmen_data::{Error, Result};

/// In which format a picture is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JPEG of a quality from 1 to 100, with colour at half the resolution. With the feature `turbojpeg` libjpeg-turbo encodes;
    /// files without it are up to 5 % larger.
    Jpeg {
        /// 90 is hardly seen; 95 takes half as many bytes more.
        quality: u8,
    },
    /// PNG, without loss.
    Png,
}

/// A file's bytes of a picture. JPEG drops alpha.
///
/// ```
/// use fulmen_images::{Encoding, Picture, Pictures, encode_picture};
/// use fulmen_data::SampleRandom;
///
/// let photo = Picture::new(60, 40, 3, vec![120; 60 * 40 * 3])?;
/// let file = encode_picture(&photo, Encoding::Png)?;
/// assert_eq!(Pictures::rgb().decode(&file, &mut SampleRandom::new(0, 0, 0))?, photo);
/// assert!(encode_picture(&photo, Encoding::Jpeg { quality: 0 }).is_err());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
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
    match quality {
        1..=100 => jpeg::encode(picture, quality),
        _ => Err(Error::usage(format!("a JPEG's quality is between 1 and 100, not {quality}"))),
    }
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
