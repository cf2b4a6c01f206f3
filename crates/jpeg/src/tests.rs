//! Parts of images compared with whole images, for all samplings, scales and kinds of files.
//!
//! Out of scope: whether pixels are correct; `fulmen-images` compares them with Pillow's.

use crate::ffi::{File, Window};
use crate::{ColorSpace, Jpeg, Region};
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
fn decode(file: &[u8], space: ColorSpace, eighths: usize, region: Option<Region>) -> Vec<Vec<u8>> {
    let mut jpeg = Jpeg::open(file).unwrap();
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
    let mut state = 7u64;
    let mut below = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for eighths in [8, 4, 2, 1, 7, 3] {
        let whole = decode(file, space, eighths, None);
        let width = whole[0].len() / space.channels();
        let height = whole.len();
        for _ in 0..25 {
            let x = below(width);
            let y = below(height);
            let region =
                Region { x, y, width: 1 + below(width - x), height: 1 + below(height - y) };
            let part = decode(file, space, eighths, Some(region));
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
    let error = Jpeg::open(&file).err().unwrap();
    assert!(error.to_string().contains("lossless"), "{error}");
}

/// Red, green and blue have the same tables, so that the data can be read with other sampling factors.
#[test]
fn parts_are_those_of_the_whole_for_unusual_sampling_factors() {
    let mut file = encode(PixelFormat::RGB, 3, |compressor| {
        compressor.set_subsamp(Subsamp::None).unwrap();
        compressor.set_colorspace(Colorspace::RGB).unwrap();
    });
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let first = frame + 11;
    // As 4:4:4 in blocks of 16 or 24 columns, then what TurboJPEG knows no name for.
    for factors in [[0x21; 3], [0x31; 3], [0x31, 0x11, 0x11], [0x42, 0x11, 0x11]] {
        for (component, factor) in factors.into_iter().enumerate() {
            assert!(file[first + 3 * component] >= 0x11);
            file[first + 3 * component] = factor;
        }
        check_parts(&format!("{factors:x?}"), &file, ColorSpace::Rgb);
    }
}

/// A file, and the start of the data of its first scan.
fn small_file(progressive: bool) -> (Vec<u8>, usize) {
    let file = encode(PixelFormat::RGB, 3, |compressor| {
        compressor.set_subsamp(Subsamp::Sub2x2).unwrap();
        compressor.set_progressive(progressive).unwrap();
    });
    let scan = file.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let length = u16::from_be_bytes([file[scan + 2], file[scan + 3]]);
    (file, scan + 2 + usize::from(length))
}

/// All rows, or all but the last few, and the damage.
fn damage(file: &[u8], without_end: bool) -> (Vec<u8>, Option<String>) {
    let (width, height) = SIZE;
    let region = Region { x: 0, y: 0, width, height: height - 30 * usize::from(without_end) };
    let mut pixels = Vec::new();
    let mut jpeg = Jpeg::open(file).unwrap();
    jpeg.decode(ColorSpace::Rgb, 8, region, &mut pixels).unwrap();
    (pixels, jpeg.damage().map(str::to_owned))
}

#[test]
fn harmless_warnings_are_not_damage() {
    let (file, data) = small_file(false);
    let (whole, none) = damage(&file, false);
    assert_eq!(none, None);
    let end = file.len() - 2;
    let surplus = [&file[..end], &[0; 40], &file[end..]].concat();
    let mut later_jfif = file.clone();
    assert_eq!(later_jfif[6..12], *b"JFIF\0\x01");
    later_jfif[11] = 2;
    let mut other_scan = file.clone();
    assert_eq!(other_scan[data - 3..data], [0, 63, 0]);
    other_scan[data - 2] = 0;
    // A marker of no meaning, which libjpeg-turbo reads after the last row.
    let unknown_marker = [&file[..end], &[0xff, 0x02], &file[end..]].concat();
    for (file, message) in [
        (surplus, Some("extraneous bytes before marker 0xd9")),
        (later_jfif, Some("JFIF revision number 2.01")),
        (other_scan, Some("Invalid SOS parameters")),
        (unknown_marker, None),
    ] {
        // TurboJPEG reports them all.
        let window = Window { left: 0, width: SIZE.0, top: 0, rows: SIZE.1 };
        let (mut opened, _) = File::open(&file).unwrap();
        let outcome = opened.decode(ColorSpace::Rgb, 8, window, &mut Vec::new());
        match message {
            Some(message) => assert!(outcome.unwrap().unwrap().contains(message)),
            None => assert!(outcome.unwrap_err().message.contains("marker type 0x02")),
        }
        assert_eq!(damage(&file, false), (whole.clone(), None), "{message:?}");
    }
}

#[test]
fn damage_is_the_first_warning_and_pixels_are_kept() {
    let (file, data) = small_file(false);
    let middle = data + (file.len() - data) / 2;
    let mut cut = file.clone();
    // After the last row, libjpeg-turbo goes on at this marker, and fails.
    cut[middle..middle + 2].copy_from_slice(&[0xff, 0x02]);
    let (all, all_damage) = damage(&cut, false);
    let (part, part_damage) = damage(&cut, true);
    assert!(all_damage.unwrap().contains("marker type 0x02"));
    assert!(part_damage.unwrap().contains("premature end of data segment"));
    assert!(all.starts_with(&part));
    let (whole, _) = damage(&file, false);
    assert_eq!(all[..SIZE.0 * 3 * 40], whole[..SIZE.0 * 3 * 40]);
    assert_ne!(all, whole);
}

#[test]
fn surplus_data_between_scans_are_damage() {
    let (file, data) = small_file(true);
    let second = data + file[data..].windows(2).position(|pair| pair == [0xff, 0xc4]).unwrap();
    let surplus = [&file[..second], &[0; 40], &file[second..]].concat();
    let (_, message) = damage(&surplus, false);
    assert!(message.unwrap().contains("extraneous bytes before marker 0xc4"));
}

#[test]
fn a_truncated_file_is_an_error_for_every_region() {
    for progressive in [false, true] {
        let (file, data) = small_file(progressive);
        // A thumbnail in the header has an end marker of its own.
        let thumbnail = [0xff, 0xe1, 0, 8, 1, 2, 0xff, 0xd9, 3, 4];
        let file = [&file[..2], &thumbnail, &file[2..]].concat();
        let data = data + thumbnail.len();
        assert_eq!(damage(&file, false).1, None);
        for length in [data, data + (file.len() - data) / 2, file.len() - 2] {
            for height in [1, 50, SIZE.1] {
                let region = Region { x: 3, y: 0, width: 5, height };
                let mut jpeg = Jpeg::open(&file[..length]).unwrap();
                let error = jpeg.decode(ColorSpace::Rgb, 8, region, &mut Vec::new()).unwrap_err();
                assert!(error.is_cut_short() && error.to_string().contains("truncated"), "{error}");
            }
        }
        for length in [0, 1, 2, 20, data - 1] {
            let error = Jpeg::open(&file[..length]).err().unwrap();
            assert!(error.is_cut_short(), "{length}: {error}");
        }
    }
}

#[test]
fn other_bytes_are_refused_by_what_they_begin_with() {
    let error = Jpeg::open(b"\x89PNG\r\n").err().unwrap();
    assert_eq!(error.to_string(), "Not a JPEG file: starts with 0x89 0x50");
}
