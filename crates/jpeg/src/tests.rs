//! Parts of images compared with whole images, for all samplings, scales and kinds of files.
//!
//! Out of scope: whether pixels are correct; `fulmen-images` compares them with Pillow's.

use crate::{ColorSpace, Decoder, Region};
use turbojpeg::{Colorspace, Compressor, Image, PixelFormat, Subsamp};

const SIZE: (usize, usize) = (157, 118);

/// Waves and noise. The values within a pixel are unrelated.
fn pixels(channels: usize) -> Vec<u8> {
    let (width, height) = SIZE;
    let position = |i: usize| (i % width, i / width);
    let value = |i: usize, channel: usize| {
        let (x, y) = position(i);
        let wave = (x as f64 / (4.0 + channel as f64)).sin()
            * (y as f64 / (9.0 - 2.0 * channel as f64)).cos();
        (128.0 + 100.0 * wave) as u8 ^ (((i * 2_654_435_761) >> 9) as u8 % 16)
    };
    (0..width * height).flat_map(|i| (0..channels).map(move |channel| value(i, channel))).collect()
}

fn encode(format: PixelFormat, channels: usize, set: impl FnOnce(&mut Compressor)) -> Vec<u8> {
    let (width, height) = SIZE;
    let mut compressor = Compressor::new().unwrap();
    compressor.set_quality(85).unwrap();
    set(&mut compressor);
    let pixels = pixels(channels);
    compressor
        .compress_to_vec(Image {
            pixels: &pixels[..],
            width,
            pitch: width * channels,
            height,
            format,
        })
        .unwrap()
}

/// The pixel rows of a region, without its surroundings.
fn decode(
    decoder: &mut Decoder,
    file: &[u8],
    space: ColorSpace,
    eighths: usize,
    region: Option<Region>,
) -> Vec<Vec<u8>> {
    let mut jpeg = decoder.open(file).unwrap();
    let (width, height) = jpeg.scaled(eighths);
    let region = region.unwrap_or(Region { x: 0, y: 0, width, height });
    let mut pixels = Vec::new();
    let part = jpeg.decode(space, eighths, region, &mut pixels).unwrap();
    let from = (region.x - part.x) * space.channels();
    let length = region.width * space.channels();
    let rows = pixels.chunks_exact(part.stride).skip(region.y - part.y).take(region.height);
    rows.map(|row| row[from..from + length].to_vec()).collect()
}

/// Compares some regions of a file at some scales with the whole image.
#[track_caller]
fn check_parts(name: &str, file: &[u8], space: ColorSpace) {
    let mut decoder = Decoder::new().unwrap();
    let mut state = 7u64;
    let mut below = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for eighths in [8, 4, 2, 1, 7, 3] {
        let whole = decode(&mut decoder, file, space, eighths, None);
        let width = whole[0].len() / space.channels();
        let height = whole.len();
        for _ in 0..25 {
            let x = below(width);
            let y = below(height);
            let region =
                Region { x, y, width: 1 + below(width - x), height: 1 + below(height - y) };
            let part = decode(&mut decoder, file, space, eighths, Some(region));
            let columns = x * space.channels()..(x + region.width) * space.channels();
            let cut = whole[y..y + region.height].iter().map(|row| &row[columns.clone()]);
            assert!(part.iter().map(Vec::as_slice).eq(cut), "{name} at {eighths} / 8: {region:?}");
        }
    }
}

#[test]
fn parts_are_those_of_the_whole_for_all_samplings_and_scales() {
    for sampling in [
        Subsamp::None,
        Subsamp::Sub2x1,
        Subsamp::Sub2x2,
        Subsamp::Sub1x2,
        Subsamp::Sub4x1,
        Subsamp::Sub1x4,
    ] {
        for progressive in [false, true] {
            let file = encode(PixelFormat::RGB, 3, |compressor| {
                compressor.set_subsamp(sampling).unwrap();
                compressor.set_progressive(progressive).unwrap();
            });
            check_parts(
                &format!("{sampling:?}, progressive {progressive}"),
                &file,
                ColorSpace::Rgb,
            );
        }
    }
    let gray =
        encode(PixelFormat::GRAY, 1, |compressor| compressor.set_subsamp(Subsamp::Gray).unwrap());
    check_parts("gray", &gray, ColorSpace::Gray);
    for (name, colors) in [("CMYK", Colorspace::CMYK), ("YCCK", Colorspace::YCCK)] {
        let file = encode(PixelFormat::CMYK, 4, |compressor| {
            compressor.set_subsamp(Subsamp::Sub2x2).unwrap();
            compressor.set_colorspace(colors).unwrap();
        });
        check_parts(name, &file, ColorSpace::Cmyk);
    }
}

/// If scans are missing, libjpeg smooths blocks with their neighbors.
#[test]
fn parts_are_those_of_the_whole_in_a_progressive_file_without_all_its_scans() {
    for sampling in [Subsamp::None, Subsamp::Sub2x2, Subsamp::Sub4x1] {
        let file = encode(PixelFormat::RGB, 3, |compressor| {
            compressor.set_subsamp(sampling).unwrap();
            compressor.set_progressive(true).unwrap();
        });
        let scans: Vec<usize> =
            (0..file.len() - 1).filter(|&index| file[index..index + 2] == [0xff, 0xda]).collect();
        assert_eq!(scans.len(), 10);
        for scan_count in [1, 2, 5, 9] {
            // The tables before a scan belong to it.
            let mut cut = file[..scans[scan_count]].to_vec();
            let tables = cut.windows(2).rposition(|pair| pair == [0xff, 0xc4]);
            cut.truncate(
                tables.filter(|&index| index > scans[scan_count - 1]).unwrap_or(cut.len()),
            );
            cut.extend([0xff, 0xd9]);
            check_parts(&format!("{sampling:?}, {scan_count} of 10 scans"), &cut, ColorSpace::Rgb);
        }
    }
}

#[test]
fn a_lossless_jpeg_is_refused() {
    let file = encode(PixelFormat::RGB, 3, |compressor| compressor.set_lossless(true).unwrap());
    let error = Decoder::new().unwrap().open(&file).err().unwrap();
    assert!(error.to_string().contains("lossless"), "{error}");
}
