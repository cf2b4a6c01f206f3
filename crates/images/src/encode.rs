//! Encodes an image as a file.
//!
//! Out of scope: decoding (`decode`), and shards of resized images (`presize`).

use crate::{Image, jpeg};
use fulmen_data::{Error, Result};

/// The format of an encoded image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JPEG with a quality from 1 to 100 and color at half the resolution. With the feature
    /// `turbojpeg`, libjpeg-turbo encodes; files without it are up to 5 % larger.
    Jpeg {
        /// At 90, losses are hardly visible; files at 95 are half as large again.
        quality: u8,
    },
    /// PNG, lossless.
    Png,
}

/// Encodes an image as the bytes of a file. JPEG drops alpha.
///
/// ```
/// use fulmen_images::{Encoding, Image, ImagePipeline, encode_image};
/// use fulmen_data::SampleRng;
///
/// let photo = Image::new(60, 40, 3, vec![120; 60 * 40 * 3])?;
/// let file = encode_image(&photo, Encoding::Png)?;
/// assert_eq!(ImagePipeline::rgb().decode(&file, &mut SampleRng::new(0, 0, 0))?, photo);
/// assert!(encode_image(&photo, Encoding::Jpeg { quality: 0 }).is_err());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// A quality that is not between 1 and 100; an image without pixels or too large for the format.
pub fn encode_image(image: &Image, encoding: Encoding) -> Result<Vec<u8>> {
    match encoding {
        Encoding::Jpeg { quality } => jpeg(image, quality),
        Encoding::Png => png(image),
    }
}

fn jpeg(image: &Image, quality: u8) -> Result<Vec<u8>> {
    match quality {
        1..=100 => jpeg::encode(image, quality),
        _ => Err(Error::usage(format!(
            "the quality of a JPEG must be between 1 and 100, not {quality}"
        ))),
    }
}

fn png(image: &Image) -> Result<Vec<u8>> {
    let refuse = |error: ::png::EncodingError| {
        Error::usage(format!("cannot encode {image:?} as PNG: {error}"))
    };
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, side(image.width()), side(image.height()));
    encoder.set_color(match image.channels() {
        1 => ::png::ColorType::Grayscale,
        3 => ::png::ColorType::Rgb,
        _ => ::png::ColorType::Rgba,
    });
    let mut writer = encoder.write_header().map_err(refuse)?;
    writer.write_image_data(image.pixels()).map_err(refuse)?;
    writer.finish().map_err(refuse)?;
    Ok(bytes)
}
