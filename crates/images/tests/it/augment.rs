//! Augmentation of images on the host: compared with torchvision, and its probabilities.

use fulmen_data::{Result, SampleRng};
use fulmen_images::functional::{self, Affine, Fill, Padding, PaddingMode, Rectangle};
use fulmen_images::{
    AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, FactorRange, GaussianBlur, Image,
    ImageTransform, Interpolation, Pad, RandAugment, RandomAdjustSharpness, RandomAffine,
    RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing, RandomGrayscale,
    RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize,
    TrivialAugmentWide,
};
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("../reference/augment.json")).unwrap()
}

fn image(value: &Value) -> Image {
    let size = |name: &str| value[name].as_u64().unwrap() as usize;
    let digits = value["pixels"].as_str().unwrap();
    let pixels = (0..digits.len())
        .step_by(2)
        .map(|start| u8::from_str_radix(&digits[start..start + 2], 16).unwrap())
        .collect();
    Image::new(size("width"), size("height"), size("channels"), pixels).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn pair(value: &Value) -> Option<(f64, f64)> {
    value.as_array().map(|pair| (number(&pair[0]), number(&pair[1])))
}

fn whole_pair(value: &Value) -> (usize, usize) {
    (value[0].as_u64().unwrap() as usize, value[1].as_u64().unwrap() as usize)
}

fn fill(value: &Value) -> Fill {
    let level = |channel: usize| value[channel].as_u64().unwrap() as u8;
    if value[1].is_null() {
        Fill::from(level(0))
    } else {
        Fill::from([level(0), level(1), level(2)])
    }
}

fn mode(value: &Value) -> Interpolation {
    if value == "nearest" { Interpolation::Nearest } else { Interpolation::Bilinear }
}

fn corners(value: &Value) -> functional::Corners {
    [0, 1, 2, 3].map(|corner| pair(&value[corner]).unwrap())
}

/// Runs the operation of a case of the reference file.
fn run(op: &str, image: Image, p: &Value) -> Result<Image> {
    match op {
        "adjust_brightness" => functional::adjust_brightness(image, number(&p["factor"])),
        "adjust_contrast" => functional::adjust_contrast(image, number(&p["factor"])),
        "adjust_saturation" => functional::adjust_saturation(image, number(&p["factor"])),
        "adjust_sharpness" => functional::adjust_sharpness(image, number(&p["factor"])),
        "adjust_hue" => functional::adjust_hue(image, number(&p["factor"])),
        "adjust_gamma" => functional::adjust_gamma(image, number(&p["gamma"]), number(&p["gain"])),
        "invert" => Ok(functional::invert(image)),
        "posterize" => functional::posterize(image, p["bits"].as_u64().unwrap() as u32),
        "solarize" => functional::solarize(image, number(&p["threshold"])),
        "rgb_to_grayscale" => {
            functional::rgb_to_grayscale(image, p["channels"].as_u64().unwrap() as usize)
        }
        "autocontrast" => Ok(functional::autocontrast(image)),
        "equalize" => Ok(functional::equalize(image)),
        "gaussian_blur" => functional::gaussian_blur(
            image,
            whole_pair(&p["kernel_size"]),
            pair(&p["sigma"]).unwrap(),
        ),
        "rotate" => {
            let angle = number(&p["angle"]);
            let expand = p["expand"] == true;
            let center = pair(&p["center"]);
            functional::rotate(&image, angle, mode(&p["mode"]), expand, center, &fill(&p["fill"]))
        }
        "affine" => {
            let map = Affine {
                angle: number(&p["angle"]),
                translate: pair(&p["translate"]).unwrap(),
                scale: number(&p["scale"]),
                shear: pair(&p["shear"]).unwrap(),
                center: pair(&p["center"]),
            };
            functional::affine(&image, &map, mode(&p["mode"]), &fill(&p["fill"]))
        }
        "perspective" => {
            let from = corners(&p["start"]);
            let to = corners(&p["end"]);
            functional::perspective(&image, from, to, mode(&p["mode"]), &fill(&p["fill"]))
        }
        "pad" => {
            let sides = [0, 1, 2, 3].map(|side| p["padding"][side].as_u64().unwrap() as usize);
            let mode = match p["mode"].as_str().unwrap() {
                "constant" => PaddingMode::Constant(fill(&p["fill"])),
                "edge" => PaddingMode::Edge,
                "reflect" => PaddingMode::Reflect,
                _ => PaddingMode::Symmetric,
            };
            functional::pad(&image, Padding::from(sides), &mode)
        }
        "erase" => {
            let (top, left) = whole_pair(&p["corner"]);
            let (height, width) = whole_pair(&p["size"]);
            let rectangle = Rectangle { top, left, height, width };
            functional::erase(image, rectangle, |_, _| [1, 2, 3, 0])
        }
        other => panic!("no operation {other}"),
    }
}

#[test]
fn functions_give_torchvisions_values() {
    let reference = reference();
    let mut report = std::collections::BTreeMap::<String, (usize, usize, usize, u8)>::new();
    for case in reference["cases"].as_array().unwrap() {
        let op = case["op"].as_str().unwrap();
        let parameters = &case["parameters"];
        let source = &reference["images"][case["source"].as_str().unwrap()];
        let actual = run(op, image(source), parameters).unwrap();
        let expected = image(&case["result"]);
        let size = |p: &Image| (p.width(), p.height(), p.channels());
        assert_eq!(size(&actual), size(&expected), "{op} {parameters}");
        let differences: Vec<u8> =
            actual.pixels().iter().zip(expected.pixels()).map(|(a, b)| a.abs_diff(*b)).collect();
        let off = differences.iter().filter(|&&d| d == 1).count();
        let far = differences.iter().filter(|&&d| d > 1).count();
        // In f32, a point in the middle between two pixels may be rounded to either of them.
        let allowed = if parameters["mode"] == "nearest" { differences.len() / 50 } else { 0 };
        assert!(
            far <= allowed,
            "{op} {parameters}: {far} of {} values differ by more than 1",
            differences.len()
        );
        let entry = report.entry(op.to_owned()).or_default();
        *entry = (
            entry.0 + differences.len(),
            entry.1 + off,
            entry.2 + far,
            entry.3.max(*differences.iter().max().unwrap()),
        );
    }
    for (op, (values, off, far, max)) in &report {
        println!("{op}: {values} values, {off} off by 1, {far} by more, at most {max}");
    }
    assert_eq!(report.len(), 18);
    // Results that are computed with integer tables are exact.
    for op in [
        "posterize",
        "solarize",
        "invert",
        "equalize",
        "autocontrast",
        "adjust_brightness",
        "pad",
        "erase",
    ] {
        assert_eq!((report[op].1, report[op].2), (0, 0), "{op}");
    }
}

/// An image without two equal neighbors, neither black nor white.
fn noise(width: usize, height: usize, channels: usize) -> Image {
    let pixels = (0..width * height * channels)
        .map(|i| 20 + ((i * 2_654_435_761) >> 7) as u8 % 216)
        .collect();
    Image::new(width, height, channels, pixels).unwrap()
}

fn random(index: u64) -> SampleRng {
    SampleRng::new(3, 1, index)
}

/// One transform of each kind. Each changes an image with high probability.
fn all() -> Vec<Box<dyn ImageTransform>> {
    vec![
        Box::new(ColorJitter::new().brightness(0.4).contrast(0.4).saturation((0.2, 1.9)).hue(0.1)),
        Box::new(RandomGrayscale::new().p(0.9)),
        Box::new(RandomInvert::new().p(0.9)),
        Box::new(RandomPosterize::new(3).p(0.9)),
        Box::new(RandomSolarize::new(99.5).p(0.9)),
        Box::new(RandomAutocontrast::new().p(0.9)),
        Box::new(RandomEqualize::new().p(0.9)),
        Box::new(RandomAdjustSharpness::new(2.0).p(0.9)),
        Box::new(RandomRotation::new(30.0).interpolation(Interpolation::Bilinear).fill(9)),
        Box::new(RandomRotation::new((10.0, 80.0)).expand(true).center(1.0, 2.0)),
        Box::new(
            RandomAffine::new(10.0)
                .translate(0.2, 0.3)
                .scale(0.7, 1.3)
                .shear(5.0)
                .shear_y((-3.0, 3.0)),
        ),
        Box::new(RandomPerspective::new().p(0.9).distortion_scale(0.8)),
        Box::new(RandomErasing::new().p(0.9).value(ErasingValue::Random)),
        Box::new(RandomErasing::new().p(0.9).value(ErasingValue::Mean)),
        Box::new(RandomErasing::new().p(0.9).value(200)),
        Box::new(GaussianBlur::new(5).sigma((0.5, 2.0))),
        Box::new(Pad::new(2).padding_mode(PaddingMode::Edge)),
        Box::new(RandAugment::new().num_ops(3).magnitude(20)),
        Box::new(TrivialAugmentWide::new()),
        Box::new(AutoAugment::new(AutoAugmentPolicy::ImageNet)),
        Box::new(AutoAugment::new(AutoAugmentPolicy::Cifar10)),
        Box::new(AutoAugment::new(AutoAugmentPolicy::Svhn)),
        Box::new(RandomApply::new(0.9).then(RandomInvert::new().p(1.0)).then(Pad::new(1))),
        Box::new(
            RandomChoice::new().or(RandomInvert::new()).or_weighted(3.0, RandomRotation::new(90.0)),
        ),
        Box::new(
            RandomOrder::new().and(RandomSolarize::new(50.0)).and(RandomEqualize::new().p(1.0)),
        ),
    ]
}

#[test]
fn the_random_numbers_decide_alone() {
    let mut lines = std::collections::BTreeSet::new();
    for transform in all() {
        assert!(transform.check().is_ok(), "{}", transform.describe());
        assert!(
            lines.insert(transform.describe()),
            "two describe themselves as {}",
            transform.describe()
        );
        for channels in [1, 3, 4] {
            let image = noise(20, 14, channels);
            let once: Vec<Image> = (0..30)
                .map(|index| transform.apply(image.clone(), &mut random(index)).unwrap())
                .collect();
            let backwards: Vec<Image> = (0..30)
                .rev()
                .map(|index| transform.apply(image.clone(), &mut random(index)).unwrap())
                .collect();
            assert!(once.iter().eq(backwards.iter().rev()), "{}", transform.describe());
            let changes = channels > 1 || !transform.describe().starts_with("RandomGrayscale");
            assert_eq!(
                once.iter().any(|changed| *changed != image),
                changes,
                "{}",
                transform.describe()
            );
            assert!(once.iter().all(|changed| changed.channels() == channels));
            if let Some((height, width)) = transform.output_size(Some((14, 20))) {
                assert!(
                    once.iter()
                        .all(|changed| (changed.height(), changed.width()) == (height, width))
                );
            }
        }
    }
}

#[test]
fn small_images_are_changed_or_refused_but_never_a_panic() {
    for transform in all() {
        for (width, height) in [(0, 0), (0, 3), (1, 1), (1, 5), (2, 2), (3, 1)] {
            for channels in [1, 3, 4] {
                for index in 0..20 {
                    let result =
                        transform.apply(noise(width, height, channels), &mut random(index));
                    if let Err(error) = result {
                        assert!(error.is_usage(), "{}: {error}", transform.describe());
                    }
                }
            }
        }
    }
}

#[test]
fn perspectives_of_small_images_are_drawn_until_there_is_one() {
    for side in 2..=8 {
        let image = noise(side, side, 3);
        let transform = RandomPerspective::new().p(1.0).distortion_scale(1.0);
        for index in 0..500 {
            let output = transform.apply(image.clone(), &mut random(index)).unwrap();
            assert_eq!((output.width(), output.height()), (side, side));
        }
    }
    // An error in the options occurs in every epoch.
    let colors = RandomPerspective::new().p(1.0).fill([1, 2]);
    assert!(colors.apply(noise(8, 8, 3), &mut random(0)).unwrap_err().is_usage());
}

#[test]
fn alpha_stays_where_colors_change() {
    let image = noise(30, 24, 4);
    let alpha =
        |image: &Image| image.pixels().iter().skip(3).step_by(4).copied().collect::<Vec<_>>();
    let changed = [
        functional::adjust_brightness(image.clone(), 0.4),
        functional::adjust_contrast(image.clone(), 0.4),
        functional::adjust_saturation(image.clone(), 0.4),
        functional::adjust_hue(image.clone(), 0.4),
        functional::adjust_sharpness(image.clone(), 0.4),
        functional::rgb_to_grayscale(image.clone(), 4),
        functional::posterize(image.clone(), 2),
        Ok(functional::invert(image.clone())),
        Ok(functional::equalize(image.clone())),
        Ok(functional::autocontrast(functional::adjust_brightness(image.clone(), 0.3).unwrap())),
    ];
    for result in changed {
        let result = result.unwrap();
        assert_eq!(alpha(&result), alpha(&image));
        assert_ne!(result, image);
    }
    // The colors are those of the image without alpha.
    let opaque = functional::adjust_hue(image.clone().with_channels(3).unwrap(), 0.3).unwrap();
    assert_eq!(functional::adjust_hue(image, 0.3).unwrap().with_channels(3).unwrap(), opaque);
}

#[test]
fn probabilities_are_kept() {
    let image = noise(6, 5, 3);
    for p in [0.0, 0.3, 1.0] {
        let transforms: [Box<dyn ImageTransform>; 4] = [
            Box::new(RandomInvert::new().p(p)),
            Box::new(RandomGrayscale::new().p(p)),
            Box::new(RandomApply::new(p).then(RandomInvert::new().p(1.0))),
            Box::new(RandomErasing::new().p(p).scale(0.1, 0.3).value([1, 2, 3])),
        ];
        for transform in transforms {
            let changed = (0..2000)
                .filter(|&i| transform.apply(image.clone(), &mut random(i)).unwrap() != image)
                .count();
            let share = changed as f64 / 2000.0;
            // The tolerance is four standard deviations.
            assert!(
                (share - p).abs() <= 4.0 * (p * (1.0 - p) / 2000.0).sqrt(),
                "{}: {share}",
                transform.describe()
            );
        }
    }
    let choice = RandomChoice::new()
        .or(RandomInvert::new().p(1.0))
        .or_weighted(3.0, RandomPosterize::new(0).p(1.0));
    let black = (0..2000)
        .filter(|&i| choice.apply(image.clone(), &mut random(i)).unwrap().pixels()[0] == 0)
        .count();
    assert!((1420..1580).contains(&black), "{black} of 2000 for three quarters");
    assert!(
        (0..200)
            .all(|i| RandomInvert::new().p(0.0).apply(image.clone(), &mut random(i)).unwrap()
                == image)
    );
}

#[test]
fn jitter_stays_in_its_ranges_and_in_all_orders() {
    // One value per pixel shows the factor of brightness.
    let gray = Image::new(1, 1, 1, vec![100]).unwrap();
    let factors = |jitter: &ColorJitter| -> Vec<u8> {
        (0..500).map(|i| jitter.apply(gray.clone(), &mut random(i)).unwrap().pixels()[0]).collect()
    };
    let symmetric = factors(&ColorJitter::new().brightness(0.5));
    assert!(symmetric.iter().all(|value| (50..=150).contains(value)));
    assert!(*symmetric.iter().min().unwrap() < 55 && *symmetric.iter().max().unwrap() > 145);
    let range = factors(&ColorJitter::new().brightness((1.2, 1.4)));
    assert!(range.iter().all(|value| (120..=140).contains(value)));
    // 1 - 3 is clipped to 0, not negative.
    assert!(factors(&ColorJitter::new().brightness(3.0)).iter().any(|&value| value < 20));

    // The two steps do not commute, and both orders occur.
    let image = Image::new(2, 1, 1, vec![200, 20]).unwrap();
    let jitter = ColorJitter::new().brightness((1.5, 1.5)).contrast((0.5, 0.5));
    let brightness = |p| functional::adjust_brightness(p, 1.5).unwrap();
    let contrast = |p| functional::adjust_contrast(p, 0.5).unwrap();
    let orders = [contrast(brightness(image.clone())), brightness(contrast(image.clone()))];
    assert_ne!(orders[0], orders[1]);
    let drawn: Vec<usize> = (0..200)
        .map(|i| {
            let result = jitter.apply(image.clone(), &mut random(i)).unwrap();
            orders.iter().position(|order| *order == result).unwrap()
        })
        .collect();
    let first = drawn.iter().filter(|&&order| order == 0).count();
    assert!((70..130).contains(&first), "{first} of 200");
}

#[test]
fn erased_rectangles_have_the_asked_area_and_ratio() {
    let image = Image::black(60, 40, 3).unwrap();
    let erasing = RandomErasing::new().p(1.0).scale(0.05, 0.2).ratio(0.5, 2.0).value(255);
    let mut corners = std::collections::BTreeSet::new();
    for index in 0..300 {
        let erased = erasing.apply(image.clone(), &mut random(index)).unwrap();
        let white: Vec<(usize, usize)> = (0..40)
            .flat_map(|y| (0..60).map(move |x| (y, x)))
            .filter(|&(y, x)| erased.pixel(x, y)[0] == 255)
            .collect();
        let (top, left) = white[0];
        let (bottom, right) = white[white.len() - 1];
        let height = bottom - top + 1;
        let width = right - left + 1;
        assert_eq!(white.len(), height * width, "a rectangle");
        let area = white.len() as f64 / 2400.0;
        let ratio = height as f64 / width as f64;
        assert!((0.04..0.22).contains(&area) && (0.42..2.4).contains(&ratio), "{area} {ratio}");
        corners.insert((top, left));
    }
    assert!(corners.len() > 200);
    // The mean color of the image, and colors that are not constant.
    let noise = noise(30, 30, 3);
    let mean = RandomErasing::new()
        .p(1.0)
        .value(ErasingValue::Mean)
        .apply(noise.clone(), &mut random(1))
        .unwrap();
    let sum: usize = noise.pixels().iter().step_by(3).map(|&value| usize::from(value)).sum();
    let red = (sum as f64 / 900.0).round() as u8;
    let changed: Vec<usize> = (0..900)
        .filter(|i| mean.pixels()[3 * i..3 * i + 3] != noise.pixels()[3 * i..3 * i + 3])
        .collect();
    assert!(!changed.is_empty() && changed.iter().all(|i| mean.pixels()[3 * i] == red));
}

#[test]
fn rotations_and_moves_stay_in_their_ranges() {
    let mut image = Image::black(21, 21, 1).unwrap();
    image.pixel_mut(18, 10)[0] = 255;
    let rotation = RandomRotation::new((80.0, 100.0));
    for index in 0..50 {
        let turned = rotation.apply(image.clone(), &mut random(index)).unwrap();
        // After a counterclockwise rotation, the right side is at the top.
        let position = turned.pixels().iter().position(|&value| value == 255).unwrap();
        assert!(position / 21 <= 3 && (8..=12).contains(&(position % 21)), "{position}");
    }
    let moves = RandomAffine::new(0.0).translate(0.2, 0.0);
    let columns: std::collections::BTreeSet<usize> = (0..300)
        .filter_map(|i| {
            moves
                .apply(image.clone(), &mut random(i))
                .unwrap()
                .pixels()
                .iter()
                .position(|&v| v == 255)
        })
        .collect();
    // 0.2 of 21 is 4.2, so the columns move by up to 4 pixels. Columns that would leave the image
    // on the right are cut off.
    assert_eq!(columns, (10 * 21 + 14..=10 * 21 + 20).collect());
}

#[test]
fn rand_augment_does_each_operation_at_its_magnitude() {
    let image = noise(30, 20, 3);
    let augment = RandAugment::new().num_ops(1);
    // Some of the 14 operations, at magnitude 9 of 31.
    let affine = |map: Affine| {
        functional::affine(&image, &map, Interpolation::Nearest, &Fill::from(0)).unwrap()
    };
    let lean = 0.09f64.atan().to_degrees();
    let corner = Some((0.0, 0.0));
    let mut expected = vec![
        image.clone(),
        functional::posterize(image.clone(), 7).unwrap(),
        functional::solarize(image.clone(), 255.0 * 0.7).unwrap(),
        functional::autocontrast(image.clone()),
        functional::equalize(image.clone()),
    ];
    for sign in [1.0, -1.0] {
        let map = Affine::default();
        expected.push(affine(Affine { shear: (sign * lean, 0.0), center: corner, ..map }));
        expected.push(affine(Affine { shear: (0.0, sign * lean), center: corner, ..map }));
        expected.push(affine(Affine { translate: (sign * 4.0, 0.0), ..map }));
        expected.push(affine(Affine { translate: (0.0, sign * 2.0), ..map }));
        let turned = functional::rotate(
            &image,
            sign * 9.0,
            Interpolation::Nearest,
            false,
            None,
            &Fill::from(0),
        );
        expected.push(turned.unwrap());
        let factor = 1.0 + sign * 0.27;
        expected.push(functional::adjust_brightness(image.clone(), factor).unwrap());
        expected.push(functional::adjust_saturation(image.clone(), factor).unwrap());
        expected.push(functional::adjust_contrast(image.clone(), factor).unwrap());
        expected.push(functional::adjust_sharpness(image.clone(), factor).unwrap());
    }
    let mut counts = vec![0; expected.len()];
    for index in 0..2000 {
        let result = augment.apply(image.clone(), &mut random(index)).unwrap();
        match expected.iter().position(|image| *image == result) {
            Some(index) => counts[index] += 1,
            None => panic!("sample {index} is not among them"),
        }
    }
    assert!(counts[..5].iter().all(|&count| count > 90), "{counts:?}");
    assert!(counts[5..].iter().all(|&count| count > 35), "{counts:?}");
}

#[test]
fn wrong_options_are_refused() {
    let refused: Vec<(Box<dyn ImageTransform>, &str)> = vec![
        (Box::new(ColorJitter::new().brightness(-0.1)), "ColorJitter: the brightness is -0.1"),
        (
            Box::new(ColorJitter::new().contrast((0.9, 0.2))),
            "ColorJitter: the contrast goes from 0.9 to 0.2",
        ),
        (
            Box::new(ColorJitter::new().saturation((-1.0, 0.2))),
            "ColorJitter: the saturation goes from -1 to 0.2",
        ),
        (Box::new(ColorJitter::new().saturation(f64::NAN)), "ColorJitter: the saturation is NaN"),
        (Box::new(ColorJitter::new().hue(0.6)), "ColorJitter: the hue goes from -0.5 to 0.6"),
        (
            Box::new(RandomGrayscale::new().p(1.5)),
            "RandomGrayscale: the probability p is 1.5; it must be from 0 to 1",
        ),
        (Box::new(RandomInvert::new().p(f64::NAN)), "RandomInvert: the probability p is NaN"),
        (Box::new(RandomPosterize::new(9)), "RandomPosterize: cannot keep 9 bits"),
        (Box::new(RandomSolarize::new(f64::INFINITY)), "RandomSolarize: the threshold is inf"),
        (
            Box::new(RandomAdjustSharpness::new(-1.0)),
            "RandomAdjustSharpness: the sharpness factor is -1",
        ),
        (Box::new(RandomRotation::new(-3.0)), "RandomRotation: the range of degrees is -3"),
        (
            Box::new(RandomRotation::new((3.0, f64::NAN))),
            "RandomRotation: the range of degrees goes from 3 to NaN",
        ),
        (
            Box::new(RandomRotation::new(3.0).interpolation(Interpolation::Lanczos)),
            "RandomRotation: cannot resample with lanczos",
        ),
        (
            Box::new(RandomAffine::new(0.0).translate(0.1, 1.1)),
            "RandomAffine: the translation by 0.1 and 1.1",
        ),
        (
            Box::new(RandomAffine::new(0.0).scale(0.0, 1.0)),
            "RandomAffine: the scale goes from 0 to 1",
        ),
        (
            Box::new(RandomAffine::new(0.0).shear((1.0, 0.0))),
            "RandomAffine: the shear along x goes from 1 to 0",
        ),
        (
            Box::new(RandomPerspective::new().distortion_scale(2.0)),
            "RandomPerspective: the distortion scale is 2",
        ),
        (
            Box::new(RandomErasing::new().scale(0.5, 0.2)),
            "RandomErasing: the scale goes from 0.5 to 0.2",
        ),
        (
            Box::new(RandomErasing::new().ratio(0.0, 2.0)),
            "RandomErasing: the ratio goes from 0 to 2",
        ),
        (Box::new(GaussianBlur::new(4)), "GaussianBlur: the kernel size 4x4 must be odd"),
        (Box::new(GaussianBlur::new(3).sigma(0.0)), "GaussianBlur: the standard deviations"),
        (Box::new(GaussianBlur::new(3).sigma((2.0, 1.0))), "GaussianBlur: sigma goes from 2 to 1"),
        (
            Box::new(RandAugment::new().magnitude(31)),
            "RandAugment: the magnitude is 31, but there are 31",
        ),
        (
            Box::new(TrivialAugmentWide::new().num_magnitude_bins(0)),
            "TrivialAugmentWide: there are 0 magnitudes",
        ),
        (Box::new(RandomApply::new(0.5)), "RandomApply has no transforms"),
        (Box::new(RandomChoice::new()), "RandomChoice has no transforms"),
        (
            Box::new(RandomChoice::new().or_weighted(-1.0, RandomInvert::new())),
            "RandomChoice: the weights [-1.0] must be",
        ),
        (
            Box::new(
                RandomOrder::new().and(RandomApply::new(0.1).then(RandomInvert::new().p(-1.0))),
            ),
            "RandomOrder: RandomApply: RandomInvert: the probability p is -1",
        ),
    ];
    for (transform, message) in refused {
        for error in [
            transform.check().unwrap_err(),
            transform.apply(noise(8, 8, 3), &mut random(0)).unwrap_err(),
        ] {
            assert!(error.is_usage());
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
    // Errors that depend on the image appear when it is processed.
    let small = || noise(3, 3, 3);
    let late: [(Result<Image>, &str); 6] = [
        (
            functional::gaussian_blur(small(), (7, 3), (1.0, 1.0)),
            "a blur with a kernel of 7x3 needs an image of at least 4x2",
        ),
        (
            functional::pad(&small(), Padding::from(3), &PaddingMode::Reflect),
            "3 pixels of padding cannot be taken from 3",
        ),
        (
            functional::pad(&small(), Padding::from(usize::MAX), &PaddingMode::default()),
            "3 pixels with",
        ),
        (
            functional::pad(&small(), Padding::from(1), &PaddingMode::Constant(Fill::from([1, 2]))),
            "a fill of 2 values",
        ),
        (
            functional::erase(
                small(),
                Rectangle { top: 2, left: 0, height: 2, width: 1 },
                |_, _| [0; 4],
            ),
            "a rectangle of 1x2 from column 0 and row 2",
        ),
        (
            functional::perspective(
                &small(),
                [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 2.0)],
                [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 2.0)],
                Interpolation::Nearest,
                &Fill::default(),
            ),
            "no perspective map takes",
        ),
    ];
    for (result, message) in late {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    assert_eq!(FactorRange::from((0.5, 1.5)).to_string(), "0.5..1.5");
}
