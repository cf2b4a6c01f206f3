//! Tests both decoders and both encoders of JPEG on images of all sizes and samplings.
//!
//! Out of scope: comparisons with Pillow (`tests/it/images.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use turbojpeg::{Colorspace, Compressor, PixelFormat, Subsamp};

use super::{pure, turbo};
use crate::Image;
use crate::decode::{Buffers, Limits};
use crate::geometry::Rect;
use fulmen_data::Result;

/// The allowed difference between values: zune-jpeg's inverse cosine transform rounds differently,
/// and its chroma upsampling rounds once in each direction.
const MAX_DIFFERENCE: u8 = 4;

/// The allowed difference in the last column and row, where chroma is computed from rounded values.
const MAX_EDGE_DIFFERENCE: u8 = 8;

/// Waves, which JPEG preserves well.
fn pixels(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let value = |x: usize, y: usize, channel: usize| {
        let wave = (x as f64 / (4.0 + channel as f64)).sin()
            * (y as f64 / (9.0 - 2.0 * channel as f64)).cos();
        (128.0 + 100.0 * wave) as u8
    };
    let points = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    points.flat_map(|(x, y)| (0..channels).map(move |channel| value(x, y, channel))).collect()
}

fn encode(
    (width, height): (usize, usize),
    format: PixelFormat,
    channels: usize,
    set: impl FnOnce(&mut Compressor) -> turbojpeg::Result<()>,
) -> Vec<u8> {
    let mut compressor = Compressor::new().unwrap();
    compressor.set_quality(90).unwrap();
    set(&mut compressor).unwrap();
    let pixels = pixels(width, height, channels);
    compressor
        .compress_to_vec(turbojpeg::Image {
            pixels: &pixels[..],
            width,
            pitch: width * channels,
            height,
            format,
        })
        .unwrap()
}

fn decode_pure(file: &[u8], channels: usize, limits: &Limits) -> Result<Vec<u8>> {
    let mut buffers = Buffers::default();
    let jpeg = pure::Jpeg::open(file)?;
    let all = Rect::all(jpeg.size());
    jpeg.decode(all, 8, channels, limits, &mut buffers).map(|pixels| pixels.bytes.to_vec())
}

fn decode_turbo(file: &[u8], channels: usize) -> Result<Vec<u8>> {
    let mut buffers = Buffers::default();
    let jpeg = turbo::Jpeg::open(file)?;
    let all = Rect::all(jpeg.size());
    let pixels = jpeg.decode(all, 8, channels, &Limits::default(), &mut buffers)?;
    let rows = pixels.bytes.chunks_exact(pixels.stride).take(pixels.rect.height);
    Ok(rows.flat_map(|row| row[..pixels.rect.width * channels].to_vec()).collect())
}

#[track_caller]
fn check_same(name: &str, (width, height): (usize, usize), file: &[u8]) {
    for channels in [1, 3, 4] {
        let expected = decode_turbo(file, channels).unwrap();
        let actual = decode_pure(file, channels, &Limits::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(actual.len(), expected.len(), "{name}, {channels} channels");
        for (index, (a, b)) in actual.iter().zip(&expected).enumerate() {
            let x = index / channels % width;
            let y = index / channels / width;
            let is_edge = x + 1 == width || y + 1 == height || width <= 4;
            let tolerance = if is_edge { MAX_EDGE_DIFFERENCE } else { MAX_DIFFERENCE };
            assert!(
                a.abs_diff(*b) <= tolerance,
                "{name}, {channels} channels: {a} for {b} at ({x}, {y})"
            );
        }
    }
}

#[test]
fn both_decoders_agree_on_all_sizes_and_samplings() {
    let sizes = [
        (1, 1),
        (2, 3),
        (7, 9),
        (8, 8),
        (15, 17),
        (16, 16),
        (31, 5),
        (33, 64),
        (100, 47),
        (129, 130),
    ];
    for size in sizes {
        for sampling in [
            Subsamp::None,
            Subsamp::Sub2x1,
            Subsamp::Sub2x2,
            Subsamp::Sub1x2,
            Subsamp::Sub4x1,
            Subsamp::Sub1x4,
        ] {
            for progressive in [false, true] {
                let file = encode(size, PixelFormat::RGB, 3, |compressor| {
                    compressor.set_subsamp(sampling)?;
                    compressor.set_progressive(progressive)
                });
                check_same(
                    &format!("{size:?} {sampling:?} progressive {progressive}"),
                    size,
                    &file,
                );
            }
        }
        let gray =
            encode(size, PixelFormat::GRAY, 1, |compressor| compressor.set_subsamp(Subsamp::Gray));
        check_same(&format!("{size:?} gray"), size, &gray);
        let rgb = encode(size, PixelFormat::RGB, 3, |compressor| {
            compressor.set_subsamp(Subsamp::None)?;
            compressor.set_colorspace(Colorspace::RGB)
        });
        check_same(&format!("{size:?} RGB as it is"), size, &rgb);
        for colors in [Colorspace::CMYK, Colorspace::YCCK] {
            let file = encode(size, PixelFormat::CMYK, 4, |compressor| {
                compressor.set_subsamp(Subsamp::None)?;
                compressor.set_colorspace(colors)
            });
            check_same(&format!("{size:?} {colors:?}"), size, &file);
        }
    }
}

#[test]
fn both_encoders_make_nearly_the_same_files() {
    for (width, height, channels) in [(1, 1, 3), (37, 21, 1), (200, 130, 3), (129, 64, 4)] {
        let image = Image::new(width, height, channels, pixels(width, height, channels)).unwrap();
        for quality in [50, 90, 95] {
            let case = format!("{image:?}, quality {quality}");
            let pure = pure::encode(&image, quality).unwrap();
            let turbo = turbo::encode(&image, quality).unwrap();
            assert!(
                pure.len().abs_diff(turbo.len()) <= turbo.len() / 20 + 100,
                "{case}: {} for {}",
                pure.len(),
                turbo.len()
            );
            let pure = decode_turbo(&pure, 3).unwrap();
            let turbo = decode_turbo(&turbo, 3).unwrap();
            let differences = pure.iter().zip(&turbo).map(|(a, b)| f64::from(a.abs_diff(*b)));
            let mean = differences.sum::<f64>() / pure.len() as f64;
            assert!(mean < 1.0, "{case}: values differ by {mean} in the mean");
        }
    }
}

/// The result of decoding a file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Decoded,
    Damaged,
    Refused,
}

fn outcome(result: Result<Vec<u8>>) -> Outcome {
    match result {
        Ok(_) => Outcome::Decoded,
        Err(error) if error.to_string().contains("keep_damaged") => Outcome::Damaged,
        Err(_) => Outcome::Refused,
    }
}

/// Some bytes of the data are changed, and every fifth file is truncated. Both decoders should
/// reject the same files, with two exceptions: libjpeg-turbo skips some surplus data, and after
/// some errors it relies on the rest of the image.
#[test]
fn damage_that_libjpeg_turbo_finds_is_found_in_rust() {
    let mut state = 7u64;
    let mut random_below = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for name in
        ["s420", "s444", "s411", "s440", "gray_factors", "cmyk", "ycck", "restarts", "progressive"]
    {
        let path = format!("{}/tests/reference/images/{name}.jpg", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read(path).unwrap();
        let scan = super::header::read(&file).unwrap().scan;
        let mut bad = 0;
        let mut missed = 0;
        let mut false_alarms = 0;
        for round in 0..120 {
            let mut file = file.clone();
            for _ in 0..1 + random_below(4) {
                let index = scan + random_below(file.len() - scan);
                file[index] = random_below(256) as u8;
            }
            if round % 5 == 0 {
                file.truncate(scan + random_below(file.len() - scan));
            }
            let turbo = outcome(decode_turbo(&file, 3));
            let pure = outcome(decode_pure(&file, 3, &Limits::default()));
            bad += usize::from(turbo != Outcome::Decoded);
            missed += usize::from(turbo != Outcome::Decoded && pure == Outcome::Decoded);
            false_alarms += usize::from(turbo == Outcome::Decoded && pure != Outcome::Decoded);
            // Accepted images have all their pixels.
            let decoded =
                decode_pure(&file, 1, &Limits { keep_damaged: true, ..Limits::default() });
            assert!(
                decoded.is_err() || decoded.is_ok_and(|decoded| decoded.len() == 101 * 75),
                "{name}, round {round}"
            );
        }
        // In a progressive file, refinement bits cannot be wrong, only missing.
        let max_missed = if name == "progressive" { bad / 10 } else { bad / 30 };
        assert!(
            bad > 20 && missed <= max_missed && false_alarms <= 5,
            "{name}: {bad} bad, {missed} missed, {false_alarms} more"
        );
    }
}
