//! JPEG files in pure Rust: zune-jpeg decodes, jpeg-encoder encodes.
//!
//! zune-jpeg decodes whole images at full size. If the data ends too early, zune-jpeg silently
//! treats the rest as zeros. To detect this, it gets a copy of the file with invalid codes after
//! the data of each scan (`guarded_copy`).
//!
//! Out of scope: the other decoder (`turbo`).

use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::chroma;
use super::header::{self, ADOBE, Header, next_marker, refuse};
use crate::Image;
use crate::decode::{Buffers, Limits, convert_whole};
use crate::exif;
use crate::geometry::{ImageSize, Orientation, Rect};
use crate::resize::Pixels;
use fulmen_data::{Error, Result};

/// The marker at the end of a file.
const END: [u8; 2] = [0xff, 0xd9];

/// libjpeg-turbo's limit on scans. A small file with more scans could keep a thread busy for
/// minutes.
const MAX_SCANS: usize = 500;

pub(crate) struct Jpeg<'a> {
    file: &'a [u8],
    header: Header,
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(file: &'a [u8]) -> Result<Jpeg<'a>> {
        Ok(Jpeg { file, header: header::read(file)? })
    }

    pub(crate) fn size(&self) -> ImageSize {
        self.header.size
    }

    #[cfg_attr(
        feature = "turbojpeg",
        expect(dead_code, reason = "compiled for tests that compare pixels alone")
    )]
    pub(crate) fn channels(&self) -> usize {
        self.header.components
    }

    #[cfg_attr(
        feature = "turbojpeg",
        expect(dead_code, reason = "compiled for tests that compare pixels alone")
    )]
    pub(crate) fn orientation(&self) -> Orientation {
        exif::from_jpeg(self.file)
    }

    /// Decodes the whole image, even if only a part is needed.
    pub(crate) fn decode<'b>(
        self,
        _: Rect,
        _: usize,
        channels: usize,
        limits: &Limits,
        buffers: &'b mut Buffers,
    ) -> Result<Pixels<'b>> {
        let Jpeg { file, header } = self;
        let mut guarded = guarded_copy(file, &header)?;
        let DecodedFormat { mut space, channels: mut stored, is_luma_first } =
            decoded_format(&header, channels, &mut guarded);
        let is_edge_wrong = stored == 3 && !is_luma_first && chroma::has_wrong_edge(&header);
        let is_converted_here = is_edge_wrong && space == ColorSpace::RGB && !header.is_named_rgb;
        if is_converted_here {
            space = ColorSpace::YCbCr;
        }
        let ImageSize { height, width } = header.size;
        let bytes = width * height * stored;
        buffers.reserve(bytes)?;
        let mut decode = |is_strict| -> Result<(), DecodeErrors> {
            let options = DecoderOptions::default()
                .set_max_width(usize::MAX)
                .set_max_height(usize::MAX)
                .jpeg_set_max_scans(usize::MAX)
                .jpeg_set_out_colorspace(space);
            let mut decoder = JpegDecoder::new_with_options(
                ZCursor::new(&guarded),
                options.set_strict_mode(false),
            );
            // Unknown bytes between the markers of a header do not affect pixels.
            decoder.decode_headers()?;
            decoder.set_options(options.set_strict_mode(is_strict));
            decoder.decode_into(&mut buffers.raw[..bytes])
        };
        if let Err(error) = decode(true) {
            if !limits.keep_damaged {
                return Err(super::damaged(&message(&error)));
            }
            decode(false).map_err(|error| refuse(&message(&error)))?;
        }
        if is_edge_wrong {
            chroma::correct_edges(&mut buffers.raw[..bytes], &header);
        }
        if is_converted_here {
            chroma::convert_to_rgb(&mut buffers.raw[..bytes]);
        }
        if is_luma_first {
            (0..width * height).for_each(|pixel| buffers.raw[pixel] = buffers.raw[3 * pixel]);
            stored = 1;
        }
        Ok(convert_whole(header.size, stored, channels, buffers))
    }
}

/// zune-jpeg's message, shortened because it quotes data of the file.
fn message(error: &DecodeErrors) -> String {
    error.to_string().trim().trim_matches('"').to_owned()
}

/// The pixel format to request from zune-jpeg.
struct DecodedFormat {
    space: ColorSpace,
    channels: usize,
    /// Whether only the first of three channels is needed.
    is_luma_first: bool,
}

/// Chooses the pixel format to request from zune-jpeg.
///
/// zune-jpeg does not support all color transforms in Adobe's segment, so this function replaces
/// unsupported ones in the copy of the file.
fn decoded_format(header: &Header, channels: usize, copy: &mut [u8]) -> DecodedFormat {
    let transform = header.transform.map(|offset| copy[offset]);
    if let Some(offset) = header.transform {
        match (header.components, transform) {
            // CMYK.
            (4, Some(0)) => {}
            // YCCK, or an unknown transform, which libjpeg treats as YCCK.
            (4, _) => copy[offset] = 2,
            // A segment without Adobe's name is ignored.
            _ => copy[offset - ADOBE] = 0,
        }
    }
    let stored = |space, channels| DecodedFormat { space, channels, is_luma_first: false };
    match (header.components, header.is_named_rgb, transform, channels) {
        (1, ..) => stored(ColorSpace::Luma, 1),
        // RGB. It is declared as YCbCr so that zune-jpeg does not convert it.
        (3, false, Some(0), _) => stored(ColorSpace::YCbCr, 3),
        // For luma of such an image, zune-jpeg would read twice the number of rows.
        (3, false, _, 1) if header.is_vertical => {
            DecodedFormat { is_luma_first: true, ..stored(ColorSpace::YCbCr, 3) }
        }
        (3, false, _, 1) => stored(ColorSpace::Luma, 1),
        _ => stored(ColorSpace::RGB, 3),
    }
}

/// Eight escaped bytes of 255. A Huffman code never has 16 ones, so a decoder that reads beyond the
/// data finds an invalid code.
const GUARD: [u8; 16] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0];

/// Copies the file and inserts guards after the data of its scans.
///
/// zune-jpeg skips a guard when it looks for the marker at the end of a restart interval, of a
/// baseline image, or of a progressive scan. It does not skip one after the first progressive scan
/// and between the scans of a baseline image, so no guard is inserted there.
fn guarded_copy(file: &[u8], header: &Header) -> Result<Vec<u8>> {
    // The marker cannot occur in the data. If it is missing, the file was truncated.
    if !file[header.scan..].windows(2).rev().any(|pair| pair == END) {
        return Err(refuse(
            "the file is truncated: its data end before its last row; copy or download it again",
        ));
    }
    let mut copy = Vec::with_capacity(file.len() + file.len() / 8 + 64);
    let mut copied = 0;
    let mut position = header.scan;
    let mut scans = 1;
    // There may be other segments between two scans; only the first of them follows data.
    let mut is_data = true;
    // `next_marker` is `None` if damage looks like a segment beyond the end.
    while let Some((marker, marker_position)) = next_marker(file, position) {
        copy.extend_from_slice(&file[copied..marker_position - 1]);
        copied = marker_position - 1;
        position = marker_position + 1;
        let is_guarded = match marker {
            0xd0..=0xd7 => true,
            _ if header.is_progressive => scans > 1,
            _ => marker == END[1],
        };
        if is_data && is_guarded {
            copy.extend(GUARD);
        }
        match marker {
            0xd9 => break,
            0x01 | 0xd0..=0xd8 => {}
            _ => {
                is_data = marker == 0xda;
                scans += usize::from(is_data);
                if scans > MAX_SCANS {
                    return Err(refuse(&format!(
                        "it has more than {MAX_SCANS} scans, more than any valid file"
                    )));
                }
                let length = file
                    .get(position..position + 2)
                    .map_or(0, |bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
                position += length.max(2);
            }
        }
    }
    copy.extend_from_slice(&file[copied..]);
    Ok(copy)
}

/// Encodes an image as JPEG, with color at half the resolution. The quality is already validated.
pub(crate) fn encode(image: &Image, quality: u8) -> Result<Vec<u8>> {
    let refuse =
        |reason: String| Error::usage(format!("cannot encode {image:?} as JPEG: {reason}"));
    let side = |pixels| {
        u16::try_from(pixels).map_err(|_| refuse("a side has more than 65535 pixels".to_owned()))
    };
    let color = match image.channels() {
        1 => ColorType::Luma,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    };
    let width = side(image.width())?;
    let height = side(image.height())?;
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    encoder
        .encode(image.pixels(), width, height, color)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(bytes)
}
