//! JPEG files, by crates in Rust alone: zune-jpeg decodes, jpeg-encoder encodes.
//!
//! zune-jpeg decodes whole images, at their full size. It takes data that end too early for zeros, and says nothing;
//! so it is given a copy of the file in which codes that cannot be come after the data of a scan (`guarded`).
//!
//! Not here: the other decoder (`turbo`).

use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::header::{self, ADOBE, Header, next_marker, refuse};
use crate::Image;
use crate::decode::{Buffers, Limits, whole};
use crate::exif;
use crate::geometry::{ImageSize, Orientation, Rect};
use crate::resize::Pixels;
use fulmen_data::{Error, Result};

/// The marker at the end of a file.
const END: [u8; 2] = [0xff, 0xd9];

/// As many scans as libjpeg-turbo is allowed: a small file with more of them could keep a thread busy for minutes.
const MOST_SCANS: usize = 500;

/// What a thread keeps from one image to the next: nothing.
pub(crate) enum Decoder {}

pub(crate) struct Jpeg<'a> {
    file: &'a [u8],
    header: Header,
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(file: &'a [u8], _: &mut Option<Decoder>) -> Result<Jpeg<'a>> {
        Ok(Jpeg { file, header: header::read(file)? })
    }

    pub(crate) fn size(&self) -> ImageSize {
        self.header.size
    }

    #[cfg_attr(feature = "turbojpeg", expect(dead_code, reason = "compiled for tests that compare pixels alone"))]
    pub(crate) fn orientation(&self) -> Orientation {
        exif::from_jpeg(self.file)
    }

    /// Decodes the whole image, whichever part of it is wanted.
    pub(crate) fn decode<'b>(
        self,
        _: Rect,
        _: usize,
        channels: usize,
        limits: &Limits,
        buffers: &'b mut Buffers,
    ) -> Result<Pixels<'b>> {
        let Jpeg { file, header } = self;
        let mut guarded = guarded(file, &header)?;
        let Stored { space, channels: mut stored, is_luma_first } = plan(&header, channels, &mut guarded);
        let ImageSize { height, width } = header.size;
        let bytes = width * height * stored;
        buffers.reserve(bytes)?;
        let mut decode = |is_strict| -> Result<(), DecodeErrors> {
            let options = DecoderOptions::default()
                .set_max_width(usize::MAX)
                .set_max_height(usize::MAX)
                .jpeg_set_max_scans(usize::MAX)
                .jpeg_set_out_colorspace(space);
            let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&guarded), options.set_strict_mode(false));
            // Odd bytes between the markers of a header harm no pixel.
            decoder.decode_headers()?;
            decoder.set_options(options.set_strict_mode(is_strict));
            decoder.decode_into(&mut buffers.raw[..bytes])
        };
        if let Err(why) = decode(true) {
            if !limits.keep_damaged {
                return Err(super::damaged(&words(&why)));
            }
            decode(false).map_err(|why| refuse(&words(&why)))?;
        }
        if is_luma_first {
            (0..width * height).for_each(|pixel| buffers.raw[pixel] = buffers.raw[3 * pixel]);
            stored = 1;
        }
        Ok(whole(header.size, stored, channels, buffers))
    }
}

/// What zune-jpeg says, which quotes some of it.
fn words(why: &DecodeErrors) -> String {
    why.to_string().trim().trim_matches('"').to_owned()
}

/// Pixels as zune-jpeg gives them.
struct Stored {
    space: ColorSpace,
    channels: usize,
    /// Whether only the first of three channels is wanted.
    is_luma_first: bool,
}

/// What to ask of the decoder.
///
/// zune-jpeg does not know all that Adobe's segment can say: the copy of the file says it otherwise.
fn plan(header: &Header, channels: usize, copy: &mut [u8]) -> Stored {
    let transform = header.transform.map(|place| copy[place]);
    if let Some(place) = header.transform {
        match (header.components, transform) {
            // CMYK.
            (4, Some(0)) => {}
            // YCCK, or unknown, which libjpeg takes for it.
            (4, _) => copy[place] = 2,
            // A segment without Adobe's name says nothing.
            _ => copy[place - ADOBE] = 0,
        }
    }
    let stored = |space, channels| Stored { space, channels, is_luma_first: false };
    match (header.components, header.is_named_rgb, transform, channels) {
        (1, ..) => stored(ColorSpace::Luma, 1),
        // Red, green and blue, in the guise of luma and colours, which are not converted.
        (3, false, Some(0), _) => stored(ColorSpace::YCbCr, 3),
        // Of such an image zune-jpeg would read twice the rows that it has, if it were asked for the luma.
        (3, false, _, 1) if header.is_vertical => Stored { is_luma_first: true, ..stored(ColorSpace::YCbCr, 3) },
        (3, false, _, 1) => stored(ColorSpace::Luma, 1),
        _ => stored(ColorSpace::RGB, 3),
    }
}

/// A 255 of a scan's data, 8 times. No Huffman code has 16 ones, so that a decoder that reads on where data are missing
/// meets a code that cannot be.
const GUARD: [u8; 16] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0];

/// A copy of the file with guards after the data of its scans.
///
/// zune-jpeg passes over a guard when it looks for the marker at the end of a restart interval, of a baseline image, or of
/// a progressive scan; not so after the first progressive scan and between the scans of a baseline image, which have none.
fn guarded(file: &[u8], header: &Header) -> Result<Vec<u8>> {
    // The marker cannot be among the data; where there is none at all, the file was cut.
    if !file[header.scan..].windows(2).rev().any(|pair| pair == END) {
        return Err(refuse("the file is cut short: its data end before its last row; copy or download it again"));
    }
    let mut copy = Vec::with_capacity(file.len() + file.len() / 8 + 64);
    let mut copied = 0;
    let mut at = header.scan;
    let mut scans = 1;
    // Between two scans are other segments, of which only the first one ends data.
    let mut is_data = true;
    // None where damage looks like a segment that reaches beyond the end.
    while let Some((marker, place)) = next_marker(file, at) {
        copy.extend_from_slice(&file[copied..place - 1]);
        copied = place - 1;
        at = place + 1;
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
                if scans > MOST_SCANS {
                    return Err(refuse(&format!("it has more than {MOST_SCANS} scans, as no honest file does")));
                }
                let length = file.get(at..at + 2).map_or(0, |bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
                at += length.max(2);
            }
        }
    }
    copy.extend_from_slice(&file[copied..]);
    Ok(copy)
}

/// An image as JPEG, with colour at half the resolution. The quality has been checked.
pub(crate) fn encode(image: &Image, quality: u8) -> Result<Vec<u8>> {
    let refuse = |why: String| Error::usage(format!("cannot encode {image:?} as JPEG: {why}"));
    let side = |pixels| u16::try_from(pixels).map_err(|_| refuse("a side has more than 65535 pixels".to_owned()));
    let color = match image.channels() {
        1 => ColorType::Luma,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    };
    let (width, height) = (side(image.width())?, side(image.height())?);
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    encoder.encode(image.pixels(), width, height, color).map_err(|why| refuse(why.to_string()))?;
    Ok(bytes)
}
