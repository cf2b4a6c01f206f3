//! PNG files: gray, palette or color, with or without alpha, 1 to 16 bits, interlaced or not.
//!
//! Only the upper 8 of 16 bits are kept. Only the first frame of an animation is read.
//!
//! Out of scope: decoding, which the crate `png` does.

use std::io::Cursor;

use png::{ColorType, Decoder, Reader, Transformations};

use super::decode::{Buffers, convert_whole};
use super::exif;
use super::geometry::{ImageSize, Orientation};
use super::resize::Pixels;
use fulmen_data::{Error, Result};

pub(crate) struct Png<'a>(Reader<Cursor<&'a [u8]>>);

fn refuse(error: png::DecodingError) -> Error {
    Error::content(format!("cannot decode this PNG: {error}; copy or download it again"))
}

impl<'a> Png<'a> {
    pub(crate) fn open(file: &'a [u8]) -> Result<Png<'a>> {
        // Metadata must not take more memory than the size of the file.
        let mut decoder = Decoder::new_with_limits(
            Cursor::new(file),
            png::Limits { bytes: (file.len() * 4).max(1 << 20) },
        );
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        Ok(Png(decoder.read_info().map_err(refuse)?))
    }

    pub(crate) fn size(&self) -> ImageSize {
        let (width, height) = self.0.info().size();
        ImageSize { height: height as usize, width: width as usize }
    }

    /// The number of channels of the pixels; a palette counts as RGB.
    pub(crate) fn channels(&self) -> usize {
        stored_channels(self.0.output_color_type().0)
    }

    pub(crate) fn orientation(&self) -> Orientation {
        self.0.info().exif_metadata.as_deref().map(exif::from_exif).unwrap_or_default()
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
            .ok_or_else(|| Error::content("the PNG's pixels do not fit in memory"))?;
        buffers.reserve(bytes)?;
        let output = self.0.next_frame(&mut buffers.raw[..bytes]).map_err(refuse)?;
        Ok(convert_whole(size, stored_channels(output.color_type), channels, buffers))
    }
}

fn stored_channels(color: ColorType) -> usize {
    match color {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    }
}
