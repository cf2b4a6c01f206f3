//! JPEG files. With the feature `turbojpeg`, libjpeg-turbo reads and writes them (`turbo`) and
//! decodes only the needed part. Otherwise, Rust crates read and write them (`pure`) and decode the
//! whole image.
//!
//! Out of scope: EXIF data (`exif`), and which part of an image is needed (`geometry`).

#[cfg(any(not(feature = "turbojpeg"), test))]
mod chroma;
#[cfg(any(not(feature = "turbojpeg"), test))]
mod header;
#[cfg(any(not(feature = "turbojpeg"), test))]
mod pure;
#[cfg(feature = "turbojpeg")]
mod turbo;

#[cfg(not(feature = "turbojpeg"))]
pub(crate) use pure::{Jpeg, encode};
#[cfg(feature = "turbojpeg")]
pub(crate) use turbo::{Jpeg, encode};

/// Whether images can be decoded at 1/2, 1/4 and 1/8 of their size.
pub(crate) const HAS_SCALES: bool = cfg!(feature = "turbojpeg");

/// The library that decodes JPEG files: `zune-jpeg`, or `libjpeg-turbo` with the feature
/// `turbojpeg`.
///
/// For some pixels, the results of the two libraries differ by a few levels. A fingerprint of
/// decoded images should therefore include this name, as the fingerprint of
/// [`ImageDataset`](crate::ImageDataset) does.
///
/// ```
/// assert!(["libjpeg-turbo", "zune-jpeg"].contains(&fulmen_images::jpeg_decoder()));
/// ```
pub fn jpeg_decoder() -> &'static str {
    if cfg!(feature = "turbojpeg") { "libjpeg-turbo" } else { "zune-jpeg" }
}

/// Appends advice to a decoder's message about invalid data.
fn damaged(reason: &str) -> fulmen_data::Error {
    fulmen_data::Error::content(format!(
        "this JPEG is damaged ({reason}), so that some pixels are wrong; copy or download it again, or accept it with \
         ImagePipeline::keep_damaged"
    ))
}

/// Tests both decoders on the same files.
#[cfg(all(test, feature = "turbojpeg"))]
mod tests;
