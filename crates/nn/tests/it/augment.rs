//! What is done to batches on the device: that the values are right, that the key alone decides
//! them, that gradients flow.

use fulmen_nn::augment::{
    CutMix, IMAGENET_MEAN, IMAGENET_STD, MixUp, MixUpOrCutMix, Mixed, RandomErasing, normalize,
    random_horizontal_flip, random_vertical_flip,
};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, grad, random,
};

const N: usize = 8;
const CLASSES: usize = 3;
const LABELS: [i32; N] = [0, 2, 1, 1, 2, 0, 2, 1];

/// A value for each channel of each pixel of each image, different from its neighbors.
fn levels(shape: [usize; 4]) -> Vec<u8> {
    (0..shape.iter().product::<usize>()).map(|i| ((i * 2_654_435_761) >> 9) as u8).collect()
}

fn floats(shape: [usize; 4]) -> Tensor {
    Tensor::from_slice(
        &levels(shape).iter().map(|&level| f32::from(level) / 64.0).collect::<Vec<_>>(),
        shape,
    )
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.eval().unwrap().to_f64()
}

/// Compiles a function of a key once, and runs it for many keys.
fn for_keys(count: u32, f: impl Fn(&Tensor) -> Vec<Tensor>) -> Vec<Vec<Vec<f64>>> {
    let runtime = Runtime::global().unwrap();
    let function = Function::trace("of_a_key", TensorType::new(DType::U32, [2]), |x| f(&x));
    let compiled = runtime.compile(&function).unwrap();
    let run = |seed: u32| {
        let key = runtime.to_device(&Literal::from_slice(&[0, seed], [2]).unwrap()).unwrap();
        let outputs = compiled.call(vec![Argument::Borrow(&key)]).unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().map(Literal::to_f64).collect()
    };
    (0..count).map(run).collect()
}

fn three(mixed: Mixed) -> Vec<Tensor> {
    vec![mixed.images, mixed.targets, mixed.lambda]
}

fn labels() -> Tensor {
    Tensor::from_slice(&LABELS, [N])
}

fn one_hot(row: usize) -> [f64; CLASSES] {
    std::array::from_fn(|class| f64::from(u8::from(LABELS[row] as usize == class)))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-6 * (1.0 + b.abs())
}

/// Checks that the targets of each row and of its partner are mixed by `lambda`.
fn check_targets(targets: &[f64], lambda: f64, partner: impl Fn(usize) -> usize, rows: usize) {
    for row in 0..rows {
        let own = one_hot(row);
        let other = one_hot(partner(row));
        for class in 0..CLASSES {
            let expected = lambda * own[class] + (1.0 - lambda) * other[class];
            assert!(
                close(targets[row * CLASSES + class], expected),
                "row {row}: {targets:?}, lambda {lambda}"
            );
        }
    }
}

#[test]
fn normalized_levels_are_torchvisions() {
    // All levels, in three channels.
    let all: Vec<u8> = (0..3).flat_map(|_| 0..=255).collect();
    let images = Tensor::from_slice(&all, [3, 16, 16]);
    let actual = values(&normalize(&images, &IMAGENET_MEAN, &IMAGENET_STD));
    for channel in 0..3 {
        for level in 0..256 {
            let expected = (level as f64 / 255.0 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel];
            assert!(
                (actual[256 * channel + level] - expected).abs() < 1e-6,
                "level {level} of channel {channel}"
            );
        }
    }
    let faults = [
        (
            normalize(&floats([1, 3, 2, 2]), &[0.5], &[0.5]),
            "normalize: images to normalize must be u8",
        ),
        (
            normalize(&images, &[0.5, 0.5], &[0.5]),
            "normalize: 2 numbers of the mean do not fit the 3 channels",
        ),
        (
            normalize(&images, &[0.5], &[0.0]),
            "normalize: the std of a channel is 0; it must be a finite number above 0",
        ),
        (normalize(&images, &[f64::NAN], &[1.0]), "normalize: the mean of a channel is NaN"),
    ];
    for (tensor, message) in faults {
        assert!(tensor.eval().unwrap_err().to_string().starts_with(message), "{tensor:?}");
    }
}

#[test]
fn mixup_blends_each_image_with_the_one_before_it() {
    let shape = [N, 2, 3, 4];
    let size = 24;
    let images = values(&floats(shape));
    let mixed = for_keys(40, |key| {
        let mut results =
            three(MixUp::new(CLASSES).alpha(0.4).apply(key, &floats(shape), &labels()));
        let soft = labels().one_hot(CLASSES).to_dtype(DType::F32);
        results.extend(three(MixUp::new(CLASSES).alpha(0.4).apply(key, &floats(shape), &soft)));
        results
    });
    let mut lambdas = Vec::new();
    for results in &mixed {
        let lambda = results[2][0];
        for (index, &actual) in results[0].iter().enumerate() {
            let other = images[(index + images.len() - size) % images.len()];
            assert!(
                close(actual, lambda * images[index] + (1.0 - lambda) * other),
                "place {index}"
            );
        }
        check_targets(&results[1], lambda, |row| (row + N - 1) % N, N);
        // Labels as probabilities give the same results.
        assert_eq!(results[..3], results[3..]);
        lambdas.push(lambda);
    }
    assert!(lambdas.iter().all(|lambda| (0.0..=1.0).contains(lambda)));
    assert!(
        lambdas.iter().any(|&lambda| lambda < 0.2) && lambdas.iter().any(|&lambda| lambda > 0.8),
        "{lambdas:?}"
    );
}

#[test]
fn cutmix_puts_one_rectangle_into_all_images() {
    let shape = [N, 2, 6, 9];
    let height = 6;
    let width = 9;
    let levels: Vec<f64> = levels(shape).into_iter().map(f64::from).collect();
    let images =
        || Tensor::from_slice(&levels.iter().map(|&level| level as u8).collect::<Vec<_>>(), shape);
    let plane = height * width;
    let mut areas = std::collections::BTreeSet::new();
    for results in for_keys(60, |key| three(CutMix::new(CLASSES).apply(key, &images(), &labels())))
    {
        let partner = |index: usize| (index + levels.len() - 2 * plane) % levels.len();
        let replaced: Vec<bool> = (0..plane)
            .map(|pixel| {
                let indices = (0..2 * N).map(|channel| channel * plane + pixel);
                let (own, other): (Vec<bool>, Vec<bool>) = indices
                    .map(|p| (results[0][p] == levels[p], results[0][p] == levels[partner(p)]))
                    .unzip();
                assert!(
                    own.iter().all(|own| *own) || other.iter().all(|other| *other),
                    "pixel {pixel}"
                );
                !own.iter().all(|own| *own)
            })
            .collect();
        let area = replaced.iter().filter(|replaced| **replaced).count();
        if let (Some(first), Some(last)) =
            (replaced.iter().position(|r| *r), replaced.iter().rposition(|r| *r))
        {
            let size = ((last / width - first / width + 1), (last % width - first % width + 1));
            assert_eq!(area, size.0 * size.1, "a rectangle");
        }
        assert!(
            close(results[2][0], 1.0 - area as f64 / plane as f64),
            "{area} pixels, lambda {}",
            results[2][0]
        );
        check_targets(&results[1], results[2][0], |row| (row + N - 1) % N, N);
        areas.insert(area);
    }
    assert!(areas.len() > 8 && areas.contains(&0), "{areas:?}");
}

#[test]
fn one_of_the_two_is_as_likely_as_the_other() {
    let shape = [N, 1, 4, 4];
    let images = values(&floats(shape));
    let mut cuts = 0;
    let batches = for_keys(60, |key| {
        three(MixUpOrCutMix::new(CLASSES).apply(key, &floats(shape), &labels()))
    });
    for results in &batches {
        let lambda = results[2][0];
        let other = |index: usize| images[(index + images.len() - 16) % images.len()];
        let blended = (0..images.len())
            .all(|p| close(results[0][p], lambda * images[p] + (1.0 - lambda) * other(p)));
        let cut = (0..images.len())
            .all(|p| close(results[0][p], images[p]) || close(results[0][p], other(p)));
        assert!(blended || cut);
        cuts += usize::from(cut && !blended);
        check_targets(&results[1], lambda, |row| (row + N - 1) % N, N);
    }
    // Some rectangles are empty, so those batches do not count as cut.
    assert!((12..=42).contains(&cuts), "{cuts} of 60");

    // With probability 0, none of them mixes anything.
    for results in for_keys(3, |key| {
        let images = floats(shape);
        let labels = labels();
        [
            three(MixUp::new(CLASSES).p(0.0).apply(key, &images, &labels)),
            three(CutMix::new(CLASSES).p(0.0).apply(key, &images, &labels)),
            three(MixUpOrCutMix::new(CLASSES).p(0.0).apply(key, &images, &labels)),
        ]
        .concat()
    }) {
        for kind in results.chunks(3) {
            assert_eq!((&kind[0], kind[2][0]), (&images, 1.0));
            check_targets(&kind[1], 1.0, |row| row, N);
        }
    }
}

#[test]
fn no_real_image_is_mixed_with_padding() {
    let shape = [N, 1, 2, 2];
    let real = 5;
    // The values of padding are far from all real levels, so that any mixing with padding shows.
    let mut levels: Vec<f32> = levels(shape).into_iter().map(f32::from).collect();
    levels[4 * real..].fill(1e6);
    let images = || Tensor::from_slice(&levels, shape);
    let mask = || Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [N]);
    let partner = |row: usize| (row + real - 1) % real;
    for results in for_keys(10, |key| {
        let mixup = MixUp::new(CLASSES).apply_masked(key, &images(), &labels(), &mask());
        let cutmix = CutMix::new(CLASSES).apply_masked(key, &images(), &labels(), &mask());
        let bytes = CutMix::new(CLASSES).apply_masked(
            key,
            &images().minimum(255.0).to_dtype(DType::U8),
            &labels(),
            &mask(),
        );
        [three(mixup), three(cutmix), three(bytes)].concat()
    }) {
        for (kind, number) in results.chunks(3).zip(0..) {
            let lambda = kind[2][0];
            check_targets(&kind[1], lambda, partner, real);
            for index in 0..4 * real {
                let own = f64::from(levels[index]);
                let other = f64::from(levels[4 * partner(index / 4) + index % 4]);
                let actual = kind[0][index];
                let right = match number {
                    0 => (actual - (lambda * own + (1.0 - lambda) * other)).abs() < 1e-3,
                    _ => actual == own || actual == other,
                };
                assert!(right, "kind {number}, place {index}: {actual} of {own} and {other}");
            }
        }
    }
}

#[test]
fn flips_and_erasing_are_done_to_each_image_by_itself() {
    let shape = [64, 2, 5, 8];
    let images = values(&floats(shape));
    let plane = |images: &[f64], image: usize, channel: usize| {
        images[(image * 2 + channel) * 40..][..40].to_vec()
    };
    let results = for_keys(3, |key| {
        vec![
            random_horizontal_flip(key, &floats(shape), 0.5),
            random_vertical_flip(key, &floats(shape), 1.0),
            RandomErasing::new().p(0.75).value(-7.0).apply(key, &floats(shape)),
            RandomErasing::new()
                .p(1.0)
                .scale(0.3, 0.3)
                .ratio(1.0, 1.0)
                .random()
                .apply(key, &floats(shape)),
        ]
    });
    let mut flipped = 0;
    let mut erased = 0;
    for result in &results {
        for image in 0..64 {
            let all: Vec<bool> = (0..2)
                .map(|channel| {
                    let before = plane(&images, image, channel);
                    let after = plane(&result[0], image, channel);
                    let mirrored: Vec<f64> = before
                        .chunks(8)
                        .flat_map(|row| row.iter().rev().copied().collect::<Vec<_>>())
                        .collect();
                    assert!(after == before || after == mirrored);
                    let upside_down: Vec<f64> = before.chunks(8).rev().flatten().copied().collect();
                    assert_eq!(plane(&result[1], image, channel), upside_down);
                    after == mirrored
                })
                .collect();
            assert_eq!(all[0], all[1]);
            flipped += usize::from(all[0]);

            // A rectangle of -7 in both channels; the other pixels are unchanged.
            let erased_pixels: Vec<usize> =
                (0..40).filter(|&index| plane(&result[2], image, 0)[index] == -7.0).collect();
            for channel in 0..2 {
                let before = plane(&images, image, channel);
                let after = plane(&result[2], image, channel);
                assert!((0..40).all(|index| after[index]
                    == if erased_pixels.contains(&index) { -7.0 } else { before[index] }));
            }
            if let (Some(first), Some(last)) = (erased_pixels.first(), erased_pixels.last()) {
                assert_eq!(
                    erased_pixels.len(),
                    (last / 8 - first / 8 + 1) * (last % 8 - first % 8 + 1),
                    "a rectangle"
                );
                erased += 1;
            }
            // 0.3 of 40 pixels is 12, a square with sides of 3.46, rounded to 3.
            let before = plane(&images, image, 1);
            let after = plane(&result[3], image, 1);
            assert_eq!((0..40).filter(|&index| before[index] != after[index]).count(), 9);
        }
    }
    assert!((70..=122).contains(&flipped), "{flipped} of 192");
    // Areas from 0.02 of 40 pixels on: some round to no pixel.
    assert!((110..=160).contains(&erased), "{erased} of 192");
}

#[test]
fn wrong_calls_are_poisoned_with_the_reason() {
    let key = random::key(0);
    let images = floats([N, 1, 2, 2]);
    let bytes = Tensor::zeros(DType::U8, [N, 1, 2, 2]);
    let faults = [
        (
            MixUp::new(3).alpha(0.0).apply(&key, &images, &labels()).images,
            "MixUp: alpha is 0; it must be above 0",
        ),
        (
            MixUp::new(3).p(2.0).apply(&key, &images, &labels()).targets,
            "MixUp: the probability p is 2",
        ),
        (
            MixUp::new(3).apply(&key, &bytes, &labels()).lambda,
            "MixUp: blended images must be floats, but these are u8",
        ),
        (
            CutMix::new(4).apply(&key, &images, &images).images,
            "CutMix: the labels must be integers [8] or probabilities [8, 4]",
        ),
        (
            CutMix::new(4).apply(&key, &labels(), &labels()).images,
            "CutMix: images must be [batch, channels, height, width]",
        ),
        (
            MixUpOrCutMix::new(3)
                .apply_masked(&key, &images, &labels(), &Tensor::zeros(DType::F32, [3]))
                .images,
            "MixUpOrCutMix: the mask must be [8], but it is f32[3]",
        ),
        (
            random_horizontal_flip(&key, &images, -0.1),
            "random_horizontal_flip: the probability p is -0.1",
        ),
        (
            RandomErasing::new().apply(&key, &bytes),
            "RandomErasing: erased images must be floats, but these are u8",
        ),
        (
            RandomErasing::new().scale(0.5, 0.1).apply(&key, &images),
            "RandomErasing: the scale goes from 0.5 to 0.1",
        ),
        (
            RandomErasing::new().ratio(0.0, 0.1).apply(&key, &images),
            "RandomErasing: the ratio goes from 0 to 0.1",
        ),
    ];
    for (tensor, message) in faults {
        let error = tensor.eval().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        assert!(error.contains("augment.rs"), "the line of the call: {error}");
    }
}

const IMAGES: [usize; 4] = [N, 3, 4, 4];
const PIXELS: usize = 48;

/// A step of a linear model on normalized, mixed images: the loss, the gradient of the weights,
/// the images, and lambda.
fn step(x: &[Tensor]) -> Vec<Tensor> {
    let [key, images, labels, mask, weights] = x else { panic!("five inputs") };
    let images = normalize(images, &IMAGENET_MEAN, &IMAGENET_STD);
    let mixed = MixUp::new(CLASSES).apply_masked(key, &images, labels, mask);
    let logits = mixed.images.reshape([N, PIXELS]).matmul(weights);
    let losses = -(&mixed.targets * logits.log_softmax(-1)).sum(1);
    let loss = (losses * mask).sum_all() / mask.sum_all();
    let mut results = grad(&loss, &[weights, &images]);
    results.extend([loss, mixed.lambda]);
    results
}

fn weight(pixel: usize, class: usize) -> f32 {
    ((pixel * 7 + class * 13) as f32).sin() / 8.0
}

fn run_step(devices: usize) -> Vec<Vec<f64>> {
    let mesh = Mesh::new([("data", devices)]).unwrap();
    let runtime =
        Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap().with_mesh(&mesh).unwrap();
    let rows = Sharding::new([Some("data")]);
    let weights: Vec<f32> =
        (0..PIXELS * CLASSES).map(|i| weight(i / CLASSES, i % CLASSES)).collect();
    let inputs = [
        Literal::from_slice(&[0u32, 21], [2]).unwrap(),
        Literal::from_slice(&levels(IMAGES), IMAGES).unwrap(),
        Literal::from_slice(&LABELS, [N]).unwrap(),
        Literal::from_slice(&[1.0f32, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [N]).unwrap(),
        Literal::from_slice(&weights, [PIXELS, CLASSES]).unwrap(),
    ];
    let types: Vec<TensorType> = inputs.iter().map(|literal| literal.ty().clone()).collect();
    let mut function = Function::trace("step", &types, |x| step(&x));
    for batch in 1..4 {
        function = function.shard_parameter(batch, rows.clone());
    }
    let compiled = runtime.compile(&function).unwrap();
    let to_array = |(i, literal): (usize, &Literal)| {
        let sharding = if (1..4).contains(&i) { rows.clone() } else { Sharding::replicated() };
        runtime.to_devices(literal, &sharding).unwrap()
    };
    let arrays: Vec<_> = inputs.iter().enumerate().map(to_array).collect();
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    let literals =
        runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    literals.iter().map(Literal::to_f64).collect()
}

#[test]
fn a_step_of_normalized_and_mixed_bytes_has_the_values_of_plain_arithmetic() {
    let results = run_step(1);
    let lambda = results[3][0];
    let real = 6;
    assert!(lambda > 0.02 && lambda < 0.98, "the key was chosen to mix: {lambda}");
    let normalized: Vec<f64> = levels(IMAGES)
        .iter()
        .enumerate()
        .map(|(i, &level)| {
            let channel = i / 16 % 3;
            (f64::from(level) / 255.0 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
        })
        .collect();
    let partner = |row: usize| (row + real - 1) % real;
    let mut loss = 0.0;
    let mut of_weights = vec![0.0; PIXELS * CLASSES];
    let mut of_images = vec![0.0; N * PIXELS];
    for row in 0..real {
        let mixed: Vec<f64> = (0..PIXELS)
            .map(|p| {
                lambda * normalized[row * PIXELS + p]
                    + (1.0 - lambda) * normalized[partner(row) * PIXELS + p]
            })
            .collect();
        let logits: Vec<f64> = (0..CLASSES)
            .map(|c| (0..PIXELS).map(|p| mixed[p] * f64::from(weight(p, c))).sum())
            .collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        for class in 0..CLASSES {
            let target =
                lambda * one_hot(row)[class] + (1.0 - lambda) * one_hot(partner(row))[class];
            let probability = logits[class].exp() / total;
            loss -= target * probability.ln() / real as f64;
            let error = (probability - target) / real as f64;
            for pixel in 0..PIXELS {
                of_weights[pixel * CLASSES + class] += error * mixed[pixel];
                let slope = error * f64::from(weight(pixel, class));
                of_images[row * PIXELS + pixel] += lambda * slope;
                of_images[partner(row) * PIXELS + pixel] += (1.0 - lambda) * slope;
            }
        }
    }
    for (name, ours, expected) in [
        ("weights", &results[0], &of_weights),
        ("images", &results[1], &of_images),
        ("loss", &results[2], &vec![loss]),
    ] {
        assert_eq!(ours.len(), expected.len());
        for (a, b) in ours.iter().zip(expected) {
            assert!((a - b).abs() < 2e-5 * (1.0 + b.abs()), "{name}: {a} instead of {b}");
        }
    }
}

#[test]
fn eight_devices_do_what_one_does() {
    let one = run_step(1);
    let eight = run_step(8);
    assert_eq!(one[3], eight[3], "lambda");
    for (a, b) in one.iter().flatten().zip(eight.iter().flatten()) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{a} and {b}");
    }
}
