//! WebP files, lossy and lossless. Only the first frame of an animation is read.
//!
//! Out of scope: decoding, which the crate `image-webp` does.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::decode::{Buffers, convert_whole};
use super::exif;
use super::geometry::{ImageSize, Orientation};
use super::resize::Pixels;
use fulmen_data::{Error, Result};

pub(crate) struct WebP<'a>(WebPDecoder<Cursor<&'a [u8]>>);

fn refuse(error: DecodingError) -> Error {
    Error::content(format!("cannot decode this WebP file: {error}; copy or download it again"))
}

impl<'a> WebP<'a> {
    pub(crate) fn open(file: &'a [u8]) -> Result<WebP<'a>> {
        let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(refuse)?;
        // Metadata must not take more memory than the size of the file.
        decoder.set_memory_limit(file.len());
        Ok(WebP(decoder))
    }

    pub(crate) fn size(&self) -> ImageSize {
        let (width, height) = self.0.dimensions();
        ImageSize { height: height as usize, width: width as usize }
    }

    pub(crate) fn channels(&self) -> usize {
        if self.0.has_alpha() { 4 } else { 3 }
    }

    pub(crate) fn orientation(&mut self) -> Orientation {
        // Unreadable EXIF data is ignored.
        self.0.exif_metadata().ok().flatten().as_deref().map(exif::from_exif).unwrap_or_default()
    }

    pub(crate) fn decode<'b>(
        mut self,
        channels: usize,
        buffers: &'b mut Buffers,
    ) -> Result<Pixels<'b>> {
        let size = self.size();
        let bytes = self
            .0
            .output_buffer_size()
            .ok_or_else(|| Error::content("the WebP's pixels do not fit in memory"))?;
        buffers.reserve(bytes)?;
        self.0.read_image(&mut buffers.raw[..bytes]).map_err(refuse)?;
        let stored = self.channels();
        Ok(convert_whole(size, stored, channels, buffers))
    }
}
