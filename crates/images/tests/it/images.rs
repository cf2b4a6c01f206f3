//! Images from files, compared with Pillow and torchvision; parts of images, compared with whole
//! images; and invalid files. reference/images.py makes the files and the expected results.

use std::fs;
use std::path::{Path, PathBuf};

use fulmen_data::{DataLoader, Dataset, Fingerprint, HostBatch, SampleRng, Source};
use fulmen_images::{
    ColorJitter, Image, ImageFolder, ImagePipeline, Interpolation, RandAugment, RandomAffine,
    RandomErasing,
};

use crate::notes;

const JPEGS: [&str; 11] = [
    "s420",
    "s422",
    "s444",
    "s411",
    "s440",
    "progressive",
    "restarts",
    "gray",
    "gray_factors",
    "cmyk",
    "ycck",
];

/// The allowed difference from Pillow, which decodes with libjpeg-turbo: 0 if libjpeg-turbo decodes
/// here too. zune-jpeg's inverse cosine transform rounds differently, and its chroma upsampling
/// rounds once in each direction.
const JPEG: u8 = if cfg!(feature = "turbojpeg") { 0 } else { 3 };

/// The same for noise, whose values lie farther apart.
const NOISE: u8 = if cfg!(feature = "turbojpeg") { 0 } else { 5 };

/// The same for the last column and row of noise.
const EDGE: u8 = if cfg!(feature = "turbojpeg") { 0 } else { 8 };

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/images").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap()
}

fn unused_random() -> SampleRng {
    SampleRng::new(0, 0, 0)
}

fn decode(pipeline: &ImagePipeline, name: &str) -> Image {
    pipeline.decode(&bytes(name), &mut unused_random()).unwrap()
}

fn expected(name: &str) -> Image {
    decode(&ImagePipeline::rgb(), &format!("{name}.expected.png"))
}

/// The maximum and the mean difference of values.
fn difference(a: &Image, b: &Image) -> (u8, f64) {
    assert_eq!((a.width(), a.height(), a.channels()), (b.width(), b.height(), b.channels()));
    let differences = a.pixels().iter().zip(b.pixels()).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = differences.clone().map(f64::from).sum();
    (differences.max().unwrap_or(0), sum / a.pixels().len() as f64)
}

#[track_caller]
fn check_near(name: &str, actual: &Image, expected: &Image, tolerance: u8) {
    let (difference, mean) = difference(actual, expected);
    assert!(
        difference <= tolerance,
        "{name}: values differ by up to {difference}, {mean:.3} in the mean"
    );
}

#[test]
fn jpegs_decode_as_pillow_decodes_them() {
    for name in JPEGS {
        check_near(
            name,
            &decode(&ImagePipeline::rgb(), &format!("{name}.jpg")),
            &expected(name),
            JPEG,
        );
    }
}

/// Files of noise whose color has half the resolution, with the pixels of Pillow.
#[test]
fn jpegs_decode_as_pillow_decodes_them_at_all_edges() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/jpeg_edges.bin");
    let all = fs::read(file).unwrap();
    let mut rest = &all[..];
    let mut take = |length: usize| {
        let (taken, after) = rest.split_at(length);
        rest = after;
        taken
    };
    let mut worst = (0, 0);
    for _ in 0..17 * 3 * 2 {
        let [width, height, length] =
            [(); 3].map(|()| u32::from_le_bytes(take(4).try_into().unwrap()) as usize);
        let file = take(length);
        let expected = take(3 * width * height);
        let actual = ImagePipeline::rgb().decode(file, &mut unused_random()).unwrap();
        for (index, (a, b)) in actual.pixels().iter().zip(expected).enumerate() {
            let x = index / 3 % width;
            let y = index / 3 / width;
            let is_edge = x + 1 == width || y + 1 == height || width <= 4;
            let difference = a.abs_diff(*b);
            let tolerance = if is_edge { EDGE } else { NOISE };
            assert!(difference <= tolerance, "{width} x {height}: {a} for {b} at ({x}, {y})");
            worst = if is_edge {
                (worst.0.max(difference), worst.1)
            } else {
                (worst.0, worst.1.max(difference))
            };
        }
    }
    println!("edges differ by up to {}, other pixels by up to {}", worst.0, worst.1);
}

#[test]
fn pngs_and_webps_decode_as_pillow_decodes_them() {
    for name in ["rgba", "palette", "la", "bits", "deep"] {
        check_near(
            name,
            &decode(&ImagePipeline::rgb(), &format!("{name}.png")),
            &expected(name),
            0,
        );
    }
    check_near(
        "lossless",
        &decode(&ImagePipeline::rgb(), "lossless.webp"),
        &expected("lossless"),
        0,
    );
    check_near("lossy", &decode(&ImagePipeline::rgb(), "lossy.webp"), &expected("lossy"), 1);
}

#[test]
fn channels_are_those_that_are_asked_for() {
    let rgba = decode(&ImagePipeline::rgba(), "rgba.png");
    assert_eq!((rgba.channels(), rgba.pixel(0, 0)[3]), (4, 1));
    assert_eq!(decode(&ImagePipeline::rgba(), "s444.jpg").pixel(3, 3)[3], 255);
    assert_eq!(decode(&ImagePipeline::rgb(), "rgba.png"), rgba.clone().with_channels(3).unwrap());
    assert_eq!(decode(&ImagePipeline::gray(), "rgba.png"), rgba.with_channels(1).unwrap());
    // The stored luma is compared with the luma of colors that were rounded and clipped.
    let luma = decode(&ImagePipeline::gray(), "s444.jpg");
    check_near(
        "luma",
        &luma,
        &decode(&ImagePipeline::rgb(), "s444.jpg").with_channels(1).unwrap(),
        8,
    );
}

#[test]
fn images_are_turned_only_on_request() {
    let stored = decode(&ImagePipeline::rgb(), "turned1.jpg");
    for value in 1..=8 {
        let name = format!("turned{value}");
        let file = format!("{name}.jpg");
        assert_eq!(decode(&ImagePipeline::rgb(), &file), stored);
        let turned = decode(&ImagePipeline::rgb().exif_orientation(true), &file);
        check_near(&name, &turned, &expected(&name), JPEG);
        // Steps get the oriented image, regardless of which part of the file is decoded.
        let steps = |pipeline: ImagePipeline| {
            pipeline
                .random_crop((17, 11), 0)
                .resize_exact((9, 13))
                .horizontal_flip(1.0)
                .center_crop((7, 6))
        };
        for seed in 0..8 {
            let random = || SampleRng::new(seed, 0, 0);
            let from_file = steps(ImagePipeline::rgb().exif_orientation(true))
                .decode(&bytes(&file), &mut random())
                .unwrap();
            let from_turned =
                steps(ImagePipeline::rgb()).apply(turned.clone(), &mut random()).unwrap();
            check_near(&name, &from_file, &from_turned, 1);
        }
    }
}

#[test]
fn images_are_resized_as_torchvision_resizes_them() {
    // Weights have 16 bits in this crate and 22 in Pillow, and a Lanczos kernel has many weights.
    let modes = [
        ("nearest", Interpolation::Nearest, 0),
        ("bilinear", Interpolation::Bilinear, 1),
        ("bicubic", Interpolation::Bicubic, 1),
        ("lanczos", Interpolation::Lanczos, 3),
    ];
    for (name, mode, tolerance) in modes {
        let small = decode(&ImagePipeline::rgb().resize(48).interpolation(mode), "large.png");
        check_near(name, &small, &expected(&format!("resize_{name}")), tolerance);
        let great = decode(
            &ImagePipeline::rgb().center_crop(40).resize_exact((64, 80)).interpolation(mode),
            "large.png",
        );
        check_near(name, &great, &expected(&format!("enlarge_{name}")), tolerance);
    }
    check_near(
        "crop",
        &decode(&ImagePipeline::rgb().resize(64).center_crop((48, 56)), "large.png"),
        &expected("crop"),
        1,
    );
    check_near(
        "beyond",
        &decode(&ImagePipeline::rgb().center_crop((131, 180)), "large.png"),
        &expected("beyond"),
        0,
    );
    check_near(
        "tensor",
        &decode(&ImagePipeline::rgb().resize_exact((48, 64)), "large.png"),
        &expected("tensor"),
        1,
    );
}

/// Every part that a decoder may decode has exactly the pixels of the whole image.
#[test]
fn a_part_of_a_jpeg_has_the_pixels_of_the_whole() {
    for name in JPEGS {
        let file = bytes(&format!("{name}.jpg"));
        for pipeline in [ImagePipeline::rgb(), ImagePipeline::gray()] {
            let whole = pipeline.decode(&file, &mut unused_random()).unwrap();
            for (size, seeds) in
                [((1, 1), 40), ((3, 40), 20), ((33, 2), 20), ((30, 31), 30), ((74, 100), 4)]
            {
                let crop = pipeline.clone().random_crop(size, 0).horizontal_flip(0.5);
                for seed in 0..seeds {
                    let random = || SampleRng::new(seed, 1, 2);
                    let part = crop.decode(&file, &mut random()).unwrap();
                    let cut = crop.apply(whole.clone(), &mut random()).unwrap();
                    assert_eq!(difference(&part, &cut), (0, 0.0), "{name}, {size:?}, seed {seed}");
                }
            }
        }
    }
}

#[test]
fn resizing_a_part_gives_the_pixels_of_resizing_the_whole() {
    for interpolation in [
        Interpolation::Nearest,
        Interpolation::Bilinear,
        Interpolation::Bicubic,
        Interpolation::Lanczos,
    ] {
        let pipeline = ImagePipeline::rgb().interpolation(interpolation);
        for name in ["s420.jpg", "s444.jpg", "large.png"] {
            let whole = decode(&pipeline, name);
            for seed in 0..25 {
                let random = || SampleRng::new(seed, 0, 7);
                let crop = pipeline.clone().random_resized_crop(32).vertical_flip(0.5);
                let fast = crop.decode(&bytes(name), &mut random()).unwrap();
                let plain = crop.apply(whole.clone(), &mut random()).unwrap();
                assert_eq!(
                    difference(&fast, &plain),
                    (0, 0.0),
                    "{name}, {interpolation}, seed {seed}"
                );
                // Only the middle of the resized image is sampled; the positions of its kernels are
                // rounded differently.
                let middle = pipeline.clone().resize(64).center_crop((20, 33));
                let all = pipeline.clone().resize(64).decode(&bytes(name), &mut random()).unwrap();
                let all =
                    ImagePipeline::rgb().center_crop((20, 33)).apply(all, &mut random()).unwrap();
                check_near(name, &middle.decode(&bytes(name), &mut random()).unwrap(), &all, 1);
            }
        }
    }
}

/// A photo of 8 times the target size: the decoder may shrink it by 4 and leave a factor of 2 to
/// the resize.
#[cfg(feature = "turbojpeg")]
#[test]
fn a_decoder_that_shrinks_leaves_the_image_nearly_the_same() {
    let name = "s420.jpg";
    let full = decode(&ImagePipeline::rgb().resize_exact((9, 12)).reducing_gap(None), name);
    for (gap, tolerance, mean) in [(1.0, 40, 6.0), (2.0, 12, 2.0), (3.0, 12, 2.0), (1000.0, 0, 0.0)]
    {
        let shrunk =
            decode(&ImagePipeline::rgb().resize_exact((9, 12)).reducing_gap(Some(gap)), name);
        let (greatest, average) = difference(&shrunk, &full);
        assert!(
            greatest <= tolerance && average <= mean,
            "gap {gap}: up to {greatest}, {average:.2} in the mean"
        );
    }
    let crop = ImagePipeline::rgb().random_resized_crop(8);
    for seed in 0..30 {
        let random = || SampleRng::new(seed, 0, 0);
        let shrunk = crop.decode(&bytes(name), &mut random()).unwrap();
        let full = crop.clone().reducing_gap(None).decode(&bytes(name), &mut random()).unwrap();
        let (greatest, average) = difference(&shrunk, &full);
        assert!(
            greatest <= 25 && average <= 3.0,
            "seed {seed}: up to {greatest}, {average:.2} in the mean"
        );
    }
}

/// Without libjpeg-turbo, no decoder shrinks.
#[cfg(not(feature = "turbojpeg"))]
#[test]
fn a_decoder_that_cannot_shrink_gives_the_same_image_for_any_gap() {
    let steps = ImagePipeline::rgb().resize_exact((9, 12));
    let full = decode(&steps.clone().reducing_gap(None), "s420.jpg");
    assert_eq!(decode(&steps.reducing_gap(Some(1.0)), "s420.jpg"), full);
}

#[track_caller]
fn refused(file: &[u8], pipeline: &ImagePipeline, words: &[&str]) {
    let error = pipeline.decode(file, &mut unused_random()).unwrap_err();
    assert!(error.is_file(), "{error}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{message}` does not say `{word}`");
    }
}

#[test]
fn files_that_are_cut_short_are_refused_wherever_the_crop_lies() {
    let crops = [
        ImagePipeline::rgb(),
        ImagePipeline::rgb().center_crop(4),
        ImagePipeline::rgb().random_crop(2, 0),
    ];
    let others = ["rgba.png", "palette.png", "lossless.webp", "lossy.webp"].map(String::from);
    for name in JPEGS.map(|name| format!("{name}.jpg")).iter().chain(&others) {
        let file = bytes(name);
        for pipeline in &crops {
            for share in [0.3, 0.6, 0.9] {
                let cut = &file[..(file.len() as f64 * share) as usize];
                refused(cut, pipeline, &[]);
            }
        }
    }
    let jpeg = bytes("s420.jpg");
    refused(&jpeg[..jpeg.len() / 2], &crops[1], &["truncated", "download it again"]);
    // The file does not even contain the first rows.
    refused(&jpeg[..700], &crops[0], &["truncated"]);
}

#[test]
fn a_jpeg_whose_data_make_no_sense_is_refused_or_kept_on_request() {
    let mut file = bytes("s444.jpg");
    let middle = file.len() / 2;
    // An end marker in the middle of the data; without an error, the rest would be gray.
    file[middle..middle + 2].copy_from_slice(&[0xff, 0xd9]);
    refused(&file, &ImagePipeline::rgb(), &["damaged", "keep_damaged"]);
    let image = ImagePipeline::rgb().keep_damaged().decode(&file, &mut unused_random()).unwrap();
    assert_eq!((image.width(), image.height()), (101, 75));
    // The part before the damage is intact.
    let whole = decode(&ImagePipeline::rgb(), "s444.jpg");
    let top = |image: Image| image.pixels()[..101 * 3 * 16].to_vec();
    assert_eq!(top(image), top(whole));
    // A file that is truncated is not treated as damaged, even if only its end marker is missing.
    let file = bytes("s444.jpg");
    refused(&file[..middle], &ImagePipeline::rgb().keep_damaged(), &["truncated"]);
    refused(&file[..file.len() - 2], &ImagePipeline::rgb().keep_damaged(), &["truncated"]);
    // This restart interval ends too early.
    let mut file = bytes("restarts.jpg");
    let restart = file.windows(2).position(|pair| pair == [0xff, 0xd0]).unwrap();
    file.drain(restart - 40..restart);
    refused(&file, &ImagePipeline::rgb(), &["damaged", "keep_damaged"]);
    assert!(ImagePipeline::rgb().keep_damaged().decode(&file, &mut unused_random()).is_ok());
}

/// A file of a few kilobytes with thousands of scans would keep a thread busy for minutes.
#[test]
fn a_jpeg_of_too_many_scans_is_refused() {
    let file = bytes("progressive.jpg");
    let find = |marker: [u8; 2], from: usize| {
        from + file[from..].windows(2).position(|pair| pair == marker).unwrap()
    };
    // The second scan, up to the tables of the third one.
    let second = find([0xff, 0xda], find([0xff, 0xda], 0) + 2);
    let third = find([0xff, 0xc4], second);
    let many = |scans: usize| {
        [&file[..third], &file[second..third].repeat(scans), &file[third..]].concat()
    };
    let pipeline = ImagePipeline::rgb().keep_damaged();
    assert!(pipeline.decode(&many(50), &mut unused_random()).is_ok());
    refused(&many(600), &pipeline, &["more than 500 scans"]);
}

/// Adobe's segment declares the three channels as RGB instead of YCbCr.
#[test]
fn a_jpeg_of_red_green_and_blue_is_not_converted() {
    let file = bytes("s444.jpg");
    let adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00";
    // This removes JFIF's segment, which declares YCbCr.
    let after = 4 + usize::from(u16::from_be_bytes([file[4], file[5]]));
    let rgb = [&file[..2], adobe, &file[after..]].concat();
    let actual = ImagePipeline::rgb().decode(&rgb, &mut unused_random()).unwrap();
    let luma = decode(&ImagePipeline::gray(), "s444.jpg");
    let red: Vec<u8> = actual.pixels().iter().copied().step_by(3).collect();
    assert!(red.iter().zip(luma.pixels()).all(|(a, b)| a.abs_diff(*b) <= 1));
    let gray = ImagePipeline::gray().decode(&rgb, &mut unused_random()).unwrap();
    check_near("gray", &gray, &actual.with_channels(1).unwrap(), 1);
}

#[test]
fn jpegs_that_no_decoder_here_reads_say_so() {
    let file = bytes("s420.jpg");
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let changed = |offset: usize, byte: u8| {
        let mut file = file.clone();
        file[frame + offset] = byte;
        file
    };
    refused(&changed(1, 0xc3), &ImagePipeline::rgb(), &["cannot decode this JPEG"]);
    refused(&changed(4, 12), &ImagePipeline::rgb(), &["12"]);
    #[cfg(not(feature = "turbojpeg"))]
    refused(&changed(1, 0xc9), &ImagePipeline::rgb(), &["arithmetic-coded", "feature `turbojpeg`"]);
}

#[test]
fn files_that_are_no_images_are_named() {
    let pipeline = ImagePipeline::rgb();
    refused(b"", &pipeline, &["empty", "0 bytes"]);
    refused(b"GIF89a........", &pipeline, &["GIF", "convert"]);
    refused(b"<html><body>404</body></html>", &pipeline, &["web page"]);
    refused(b"\xff\xd8", &pipeline, &["JPEG", "ends"]);
    refused(b"hello, world", &pipeline, &["68, 65, 6c"]);
    refused(&bytes("s420.jpg")[..24], &pipeline, &["before its pixels begin"]);
}

#[test]
fn a_header_alone_takes_no_memory() {
    // A JPEG that says it has 20,000 x 20,000 pixels.
    let mut bomb = bytes("s420.jpg");
    let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0x4e, 0x20, 0x4e, 0x20]);
    refused(&bomb, &ImagePipeline::rgb(), &["20000 x 20000", "89478485", "max_pixels"]);
    // With a higher limit, the file still has too few bytes.
    refused(&bomb, &ImagePipeline::rgb().max_pixels(1 << 40), &["truncated", "20000 x 20000"]);
    // A PNG.
    let mut bomb = bytes("rgba.png");
    bomb[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    let checksum = crc(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.to_be_bytes());
    refused(&bomb, &ImagePipeline::rgb(), &["20000 x 20000", "max_pixels"]);
    refused(
        &bytes("s420.jpg"),
        &ImagePipeline::rgb().max_pixels(100),
        &["101 x 75", "limit of 100"],
    );
    // A WebP file of each kind declares sides of 14 bits.
    let mut bomb = bytes("lossless.webp");
    bomb[21..25].copy_from_slice(&[0xfe, 0xbf, 0xff, 0x0f]);
    refused(&bomb, &ImagePipeline::rgb(), &["16383 x 16383", "max_pixels"]);
    let mut bomb = bytes("lossy.webp");
    bomb[26..30].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    refused(&bomb, &ImagePipeline::rgb(), &["16383 x 16383", "max_pixels"]);
}

/// Enlarging the shorter side of a narrow strip enlarges the longer side by the same factor.
#[test]
fn a_strip_that_becomes_too_great_is_refused() {
    let mut strip = bytes("rgba.png");
    strip[16..24].copy_from_slice(&[0, 0, 0, 1, 4, 0xc4, 0xb4, 0]);
    let checksum = crc(&strip[12..29]);
    strip[29..33].copy_from_slice(&checksum.to_be_bytes());
    let great = ImagePipeline::rgb().resize(256);
    for steps in [great.clone(), great.clone().then(RandAugment::new()).center_crop(224)] {
        refused(
            &strip,
            &steps,
            &["256 x 20480000000 pixels of 1 x 80000000", "resize_exact", "max_pixels"],
        );
    }
    let strip = Image::black(1, 600_000, 1).unwrap();
    let error = great.apply(strip.clone(), &mut unused_random()).unwrap_err();
    assert!(error.is_file() && error.to_string().contains("256 x 153600000"), "{error}");
    // Only the visible part counts.
    let middle = ImagePipeline::gray()
        .resize(256)
        .center_crop(224)
        .apply(strip, &mut unused_random())
        .unwrap();
    assert_eq!((middle.width(), middle.height()), (224, 224));
    // A large input image may keep its size.
    let flipped = ImagePipeline::gray().max_pixels(10).horizontal_flip(1.0);
    assert!(flipped.apply(Image::black(8, 8, 1).unwrap(), &mut unused_random()).is_ok());
}

/// PNG's checksum.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 }
        })
    })
}

/// Some files in class folders: one with the wrong extension, one in capitals, one whose name is
/// not UTF-8.
fn folder() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |class: &str, name: &std::ffi::OsStr, from: &str| {
        let class = root.path().join(class);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(name), bytes(from)).unwrap();
    };
    put("dog", "b.JPG".as_ref(), "s420.jpg");
    put("dog", "a.png".as_ref(), "s444.jpg");
    put("dog", "notes.txt".as_ref(), "s444.jpg");
    put("cat", "0.jpeg".as_ref(), "large.png");
    put("cat", "1.webp".as_ref(), "lossless.webp");
    put("cat", ".hidden.jpg".as_ref(), "s420.jpg");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        put("cat", std::ffi::OsStr::from_bytes(b"caf\xe9.jpg"), "s422.jpg");
    }
    root
}

#[test]
fn a_folder_has_a_class_for_each_folder_in_it() {
    let root = folder();
    let folder = ImageFolder::open(root.path()).unwrap();
    assert_eq!(folder.classes(), ["cat", "dog"]);
    assert_eq!((0..folder.len()).map(|i| folder.label(i)).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    assert!(folder.origin(3).ends_with("a.png"));
    assert_eq!(folder.path(4), root.path().join("dog/b.JPG"));
    let data = folder.decode(ImagePipeline::rgb().resize_exact(16)).unwrap();
    assert_eq!(data.fields()[0].to_string(), "image u8[3, 16, 16]");
    let batch = HostBatch::collate(&data, &[0, 1, 2, 3, 4]).unwrap();
    assert_eq!(batch.values::<i32>(1).unwrap(), [0, 0, 0, 1, 1]);
    // The order is CHW: this is the red plane of the fourth image.
    let image = decode(&ImagePipeline::rgb().resize_exact(16), "s444.jpg");
    let red: Vec<u8> = image.pixels().iter().copied().step_by(3).collect();
    assert_eq!(batch.values::<u8>(0).unwrap()[3 * 768..][..256], red);
}

#[test]
fn a_folder_without_images_says_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let message = |root: &Path| ImageFolder::open(root).unwrap_err().to_string();
    assert!(message(&root.path().join("nowhere")).contains("listing the folder"));
    #[cfg(unix)]
    {
        let looped = tempfile::tempdir().unwrap();
        fs::create_dir(looped.path().join("cat")).unwrap();
        std::os::unix::fs::symlink("..", looped.path().join("cat/up")).unwrap();
        assert!(message(looped.path()).contains("a link leads back to this folder from within it"));
    }
    assert!(message(root.path()).contains("has no folders"));
    fs::write(root.path().join("a.jpg"), bytes("s420.jpg")).unwrap();
    assert!(message(root.path()).contains("it has 1 image outside of class folders"));
    fs::create_dir(root.path().join("bird")).unwrap();
    assert!(message(root.path()).contains("no file in its 1 folder ends in jpg"));
    fs::create_dir(root.path().join("dog")).unwrap();
    fs::write(root.path().join("dog/a.jpg"), bytes("s420.jpg")).unwrap();
    assert!(
        message(root.path()).contains("1 of 2 classes have no images, the first of them \"bird\"")
    );
    let dataset = ImageFolder::open_allowing_empty(root.path()).unwrap();
    assert_eq!((dataset.classes().len(), dataset.label(0)), (2, 1));
}

#[test]
fn what_a_folder_of_images_leaves_out_is_counted() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("cat/more")).unwrap();
    for name in [
        "cat/a.jpg",
        "cat/b.BMP",
        "cat/more/c.bmp",
        "cat/d.tif",
        "loose.png",
        "notes.txt",
        "cat/.hidden",
    ] {
        fs::write(root.path().join(name), bytes("s420.jpg")).unwrap();
    }
    notes::collect();
    let folder = ImageFolder::open(root.path()).unwrap();
    ImageFolder::open(root.path()).unwrap();
    let counts: Vec<(&str, usize)> =
        folder.left_out().iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    let expected = [(".bmp", 2), (".tif", 1), (".txt", 1), ("outside of class folders", 1)];
    assert_eq!((counts, folder.len()), (expected.to_vec(), 1));
    let notes = notes::about(&root.path().display().to_string());
    assert_eq!(notes.len(), 1, "{notes:?}");
    let expected = "left out 5 files (2 .bmp, 1 .tif, 1 .txt, 1 outside of class folders): images are jpg, jpeg, jpe, \
                    png, webp";
    assert!(notes[0].ends_with(expected), "{notes:?}");

    let flat = ImageFolder::open_flat(root.path()).unwrap();
    assert_eq!((flat.len(), flat.classes().len(), flat.label(1)), (2, 0, 0));
    assert!(!ImageFolder::is_flat(root.path()).unwrap());
    assert!(!ImageFolder::is_flat(root.path().join("cat/more")).unwrap());
    fs::write(root.path().join("cat/more/d.png"), b"").unwrap();
    assert!(ImageFolder::is_flat(root.path().join("cat/more")).unwrap());
}

/// Reading a pipe would wait for a writer, and a device never ends.
#[test]
fn a_pipe_or_a_device_between_the_images_is_a_bad_sample() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("cat");
    fs::create_dir(&class).unwrap();
    fs::write(class.join("a.jpg"), bytes("s420.jpg")).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(class.join("b.jpg")).status().unwrap().success()
    );
    std::os::unix::fs::symlink("/dev/zero", class.join("c.jpg")).unwrap();
    fs::File::create(class.join("d.jpg")).unwrap().set_len(1 << 40).unwrap();
    let folder = ImageFolder::open(root.path()).unwrap();
    assert!(folder.get(0).is_ok());
    for (index, part) in
        [(1, "not a regular file"), (2, "not a regular file"), (3, "expected at most")]
    {
        let error = folder.get(index).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_bad_file_and_a_deleted_one_are_named_with_the_sample() {
    let root = folder();
    let data = ImageFolder::open(root.path())
        .unwrap()
        .decode(ImagePipeline::rgb().resize_exact(8))
        .unwrap();
    fs::write(root.path().join("dog/a.png"), b"").unwrap();
    fs::remove_file(root.path().join("dog/b.JPG")).unwrap();
    let loader = DataLoader::builder(data).batch_size(1).build().unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert!(batches[..3].iter().all(Result::is_ok));
    let empty = batches[3].as_ref().unwrap_err();
    assert!(
        empty.to_string().contains("a.png") && empty.to_string().contains("the file is empty"),
        "{empty}"
    );
    let missing = batches[4].as_ref().unwrap_err();
    assert!(missing.is_not_found() && missing.to_string().contains("b.JPG"), "{missing}");
}

#[test]
fn pixels_are_the_same_on_any_number_of_workers() {
    let root = folder();
    let plain = ImagePipeline::rgb().random_resized_crop(24).horizontal_flip(0.5);
    let augmented = plain
        .clone()
        .then(RandAugment::new())
        .then(ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1))
        .then(RandomAffine::new(15.0).translate(0.1, 0.1).scale(0.8, 1.2).shear(5.0))
        .then(RandomErasing::new().p(0.8));
    // Reads the batches of two epochs, from the middle of the first one on: pixels and labels.
    let read =
        |pipeline: &ImagePipeline, workers: usize, start: usize| -> Vec<(Vec<u8>, Vec<i32>)> {
            let data = ImageFolder::open(root.path()).unwrap().decode(pipeline.clone()).unwrap();
            let loader = DataLoader::builder(data)
                .batch_size(2)
                .shuffle(true)
                .seed(5)
                .num_workers(workers)
                .build()
                .unwrap();
            let batches = loader.epochs(3..5, start).map(Result::unwrap);
            batches
                .map(|batch| (batch.values(0).unwrap().to_vec(), batch.values(1).unwrap().to_vec()))
                .collect()
        };
    for pipeline in [plain, augmented] {
        let alone = read(&pipeline, 0, 0);
        assert_eq!(alone.len(), 6);
        assert_ne!(alone[..3], alone[3..]);
        for workers in [0, 1, 2, 7] {
            assert_eq!(read(&pipeline, workers, 0), alone, "{workers} workers");
            // This is the order after resuming in the middle of an epoch.
            assert_eq!(read(&pipeline, workers, 2), alone[2..], "{workers} workers");
        }
    }
}

#[test]
fn fingerprints_tell_files_and_steps_apart() {
    let root = folder();
    let fingerprint = |pipeline: ImagePipeline| {
        let mut fingerprint = Fingerprint::new();
        let data = ImageFolder::open(root.path()).unwrap().decode(pipeline).unwrap();
        data.fingerprint(&mut fingerprint).unwrap();
        fingerprint.to_string()
    };
    let first = fingerprint(ImagePipeline::rgb().resize_exact(8));
    assert_eq!(fingerprint(ImagePipeline::rgb().resize_exact(8)), first);
    assert_ne!(
        fingerprint(ImagePipeline::rgb().resize_exact(8).interpolation(Interpolation::Lanczos)),
        first
    );
    // The limit determines which samples exist.
    assert_ne!(fingerprint(ImagePipeline::rgb().resize_exact(8).max_pixels(1 << 30)), first);
    fs::write(root.path().join("dog/a.png"), bytes("gray.jpg")).unwrap();
    assert_ne!(fingerprint(ImagePipeline::rgb().resize_exact(8)), first);
}

#[test]
fn a_fingerprint_names_the_decoder_of_jpegs() {
    let root = folder();
    let data = ImageFolder::open(root.path())
        .unwrap()
        .decode(ImagePipeline::rgb().resize_exact(8))
        .unwrap();
    let mut fingerprint = Fingerprint::recording_parts();
    data.fingerprint(&mut fingerprint).unwrap();
    let notes = fingerprint.into_parts().finish();
    let decoder = notes.iter().find(|note| note.name == "JPEG decoder").unwrap();
    let built = if cfg!(feature = "turbojpeg") { "`libjpeg-turbo`" } else { "`zune-jpeg`" };
    assert_eq!((decoder.first.as_str(), decoder.count), (built, 1));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let message = |pipeline: ImagePipeline| pipeline.field("image").unwrap_err().to_string();
    assert!(message(ImagePipeline::rgb()).contains("add random_resized_crop"));
    assert!(message(ImagePipeline::rgb().resize(8)).contains("add random_resized_crop"));
    assert!(message(ImagePipeline::rgb().resize_exact(0)).contains("between 1 and"));
    assert!(
        message(ImagePipeline::rgb().random_resized_crop_of(8, (0.5, 0.1), (1.0, 1.0)))
            .contains("scale")
    );
    assert!(
        message(ImagePipeline::rgb().random_crop(8, 0).horizontal_flip(1.5))
            .contains("probability")
    );
    assert!(
        message(ImagePipeline::rgb().resize_exact(8).reducing_gap(Some(0.5)))
            .contains("at least 1")
    );
    let field =
        ImagePipeline::gray().source_size((4, 6)).resize(2).channels_last().field("x").unwrap();
    assert_eq!(field.to_string(), "x u8[2, 3, 1]");
    refused(
        &bytes("s420.jpg"),
        &ImagePipeline::rgb().random_crop(200, 4),
        &["does not fit", "101 x 75"],
    );
}

#[test]
fn cifar_files_are_read_as_they_are_and_augmented() {
    let folder = tempfile::tempdir().unwrap();
    let record = |labels: &[u8], i: usize| {
        let mut record = labels.to_vec();
        record.extend((0..3072).map(|byte| ((byte * 7 + i * 31) % 256) as u8));
        record
    };
    let ten: Vec<u8> = (0..10_000).flat_map(|i| record(&[(i % 10) as u8], i)).collect();
    fs::write(folder.path().join("test_batch.bin"), &ten).unwrap();
    let plain = fulmen_images::Cifar::cifar10(folder.path(), fulmen_data::Split::Test).unwrap();
    let batch = HostBatch::collate(&plain, &[0, 9_999]).unwrap();
    assert_eq!(batch.values::<i32>(1).unwrap(), [0, 9]);
    assert_eq!(batch.values::<u8>(0).unwrap()[3072..], ten[9_999 * 3073 + 1..]);
    assert!(plain.origin(17).unwrap().ends_with("test_batch.bin, record 17"));
    // These steps leave an image unchanged.
    let same = plain.clone().augment(ImagePipeline::rgb().resize(32)).unwrap();
    assert_eq!(
        HostBatch::collate(&same, &[5]).unwrap().values::<u8>(0).unwrap(),
        HostBatch::collate(&plain, &[5]).unwrap().values::<u8>(0).unwrap()
    );
    let cropped =
        plain.augment(ImagePipeline::rgb().random_crop(32, 4).horizontal_flip(0.5)).unwrap();
    assert_eq!(cropped.fields()[0].shape, [3, 32, 32]);

    let message =
        |split| fulmen_images::Cifar::cifar10(folder.path(), split).unwrap_err().to_string();
    assert!(message(fulmen_data::Split::Train).contains("data_batch_1.bin"));
    fs::write(folder.path().join("test_batch.bin"), &ten[..ten.len() - 1]).unwrap();
    assert!(
        message(fulmen_data::Split::Test)
            .contains("30729999 bytes; 10000 records of 3073 bytes are 30730000")
    );
    let mut wrong = ten;
    wrong[3073 * 3] = 10;
    fs::write(folder.path().join("test_batch.bin"), &wrong).unwrap();
    assert!(message(fulmen_data::Split::Test).contains("record 3: the label is 10"));
    let hundred: Vec<u8> =
        (0..10_000).flat_map(|i| record(&[(i % 20) as u8, (i % 100) as u8], i)).collect();
    fs::write(folder.path().join("test.bin"), hundred).unwrap();
    let fine = fulmen_images::Cifar::cifar100(folder.path(), fulmen_data::Split::Test).unwrap();
    let coarse =
        fulmen_images::Cifar::cifar100_coarse(folder.path(), fulmen_data::Split::Test).unwrap();
    assert_eq!((fine.classes(), coarse.classes()), (100, 20));
    assert_eq!(HostBatch::collate(&fine, &[77]).unwrap().values::<i32>(1).unwrap(), [77]);
    assert_eq!(HostBatch::collate(&coarse, &[77]).unwrap().values::<i32>(1).unwrap(), [17]);
}

#[test]
fn normalized_images_are_those_of_bytes() {
    let root = folder();
    let mean = [0.485, 0.456, 0.406];
    let std = [0.229, 0.224, 0.225];
    let open = |pipeline| ImageFolder::open(root.path()).unwrap().decode(pipeline).unwrap();
    let bytes = HostBatch::collate(&open(ImagePipeline::rgb().resize_exact(6)), &[2]).unwrap();
    let data = open(ImagePipeline::rgb().resize_exact(6).normalize(mean, std));
    assert_eq!(data.fields()[0].to_string(), "image f32[3, 6, 6]");
    let normalized = HostBatch::collate(&data, &[2]).unwrap();
    let values = normalized.values::<f32>(0).unwrap();
    for (index, (value, byte)) in values.iter().zip(bytes.values::<u8>(0).unwrap()).enumerate() {
        let channel = index / 36;
        assert_eq!(*value, (f32::from(*byte) / 255.0 - mean[channel]) / std[channel]);
    }
}
