//! Masks in PNG files: the stored numbers, which may be indices into a palette.
//!
//! Out of scope: images for the eye (`decode`).

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Transformations};

use crate::decode::Limits;
use crate::{Image, ImagePipeline};
use fulmen_data::{Error, Result};

impl ImagePipeline {
    /// Decodes a mask: the numbers that a PNG file stores for its pixels, unchanged. In a file with
    /// a palette, as in Pascal VOC, these are the indices, as in Pillow.
    ///
    /// ```
    /// use fulmen_images::{Encoding, Image, ImagePipeline, encode_image};
    ///
    /// let classes = Image::new(2, 1, 1, vec![0, 7])?;
    /// let file = encode_image(&classes, Encoding::Png)?;
    /// assert_eq!(ImagePipeline::rgb().decode_mask(&file)?, classes);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A file that is not a PNG (JPEG and WebP change the numbers), or that has several numbers for
    /// each pixel, or numbers of 16 bits; more pixels than
    /// [`max_pixels`](ImagePipeline::max_pixels).
    pub fn decode_mask(&self, file: &[u8]) -> Result<Image> {
        decode(file, &self.limits)
    }
}

fn decode(file: &[u8], limits: &Limits) -> Result<Image> {
    let refuse = |error: png::DecodingError| {
        Error::content(format!("cannot decode this mask as PNG: {error}"))
    };
    if !file.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Err(Error::content(
            "the mask is not a PNG file; other formats change its numbers: convert it",
        ));
    }
    // Metadata must not take more memory than the size of the file.
    let mut decoder = Decoder::new_with_limits(
        Cursor::new(file),
        png::Limits { bytes: (file.len() * 4).max(1 << 20) },
    );
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(refuse)?;
    let (color, depth) = reader.output_color_type();
    let width = reader.info().width as usize;
    let height = reader.info().height as usize;
    if width as u64 * height as u64 > limits.pixels {
        return Err(Error::content(format!(
            "the mask claims {width} x {height} pixels, over the limit of {}",
            limits.pixels
        )));
    }
    let bits = match (color, depth) {
        (ColorType::Grayscale | ColorType::Indexed, BitDepth::One) => 1,
        (ColorType::Grayscale | ColorType::Indexed, BitDepth::Two) => 2,
        (ColorType::Grayscale | ColorType::Indexed, BitDepth::Four) => 4,
        (ColorType::Grayscale | ColorType::Indexed, BitDepth::Eight) => 8,
        _ => {
            return Err(Error::content(format!(
                "the mask is {color:?} of {depth:?} bits, expected one number of up to 8 bits for each pixel: gray, \
                 or indices into a palette"
            )));
        }
    };
    let mut mask = Image::black(width, height, 1)?;
    let too_large = || Error::content("the mask's pixels do not fit in memory");
    let size = reader.output_buffer_size().ok_or_else(too_large)?;
    let mut packed = Vec::new();
    packed.try_reserve_exact(size).map_err(|_| too_large())?;
    packed.resize(size, 0);
    let line = reader.next_frame(&mut packed).map_err(refuse)?.line_size;
    for (values, line) in mask.pixels_mut().chunks_exact_mut(width).zip(packed.chunks_exact(line)) {
        unpack(line, bits, values);
    }
    Ok(mask)
}

/// Numbers of `bits` bits, the first one in the highest bits of a byte.
fn unpack(line: &[u8], bits: usize, values: &mut [u8]) {
    let in_byte = 8 / bits;
    let highest = ((1u16 << bits) - 1) as u8;
    for (index, value) in values.iter_mut().enumerate() {
        let shift = 8 - bits * (index % in_byte + 1);
        *value = line[index / in_byte] >> shift & highest;
    }
}
