//! Masks and boxes move with their image, as torchvision's `transforms.v2` moves `tv_tensors`.
//! reference/pairs.py makes the expected results.

use std::fs;
use std::path::Path;

use fulmen_data::{DType, Dataset, Field, Fingerprint, HostBatch, Result, Sample, SampleRng};
use fulmen_images::functional::PaddingMode;
use fulmen_images::{
    BoundingBox, ColorJitter, Encoding, Image, ImagePipeline, ImageTransform, Interpolation, Pad,
    Pair, PairPipeline, RandAugment, RandomAffine, RandomApply, RandomChoice, RandomErasing,
    RandomOrder, RandomPerspective, RandomRotation, encode_image,
};
use serde_json::Value;

fn reference() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pairs.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    value.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
}

fn boxes(value: &Value) -> Vec<BoundingBox> {
    let edge = |edge: &Value| edge.as_f64().unwrap() as f32;
    let each = value.as_array().into_iter().flatten();
    each.map(|b| BoundingBox::new(edge(&b[0]), edge(&b[1]), edge(&b[2]), edge(&b[3]))).collect()
}

/// Height and width.
fn size(value: &Value) -> [usize; 2] {
    [0, 1].map(|axis| value[axis].as_u64().unwrap() as usize)
}

fn given(all: &Value) -> Pair {
    let given = &all["given"];
    let [height, width] = size(&given["size"]);
    Pair::new(Image::new(width, height, 3, bytes(&given["image"])).unwrap())
        .mask(Image::new(width, height, 1, bytes(&given["mask"])).unwrap())
        .boxes(boxes(&given["boxes"]))
}

/// The pipelines of the script.
fn cases() -> Vec<(&'static str, ImagePipeline)> {
    let rgb = ImagePipeline::rgb;
    vec![
        ("resize", rgb().resize(9)),
        ("resize_exact", rgb().resize_exact((40, 17))),
        ("enlarge", rgb().resize_exact((63, 102))),
        ("center_crop", rgb().center_crop((11, 16))),
        ("center_crop_larger", rgb().center_crop((27, 44))),
        ("horizontal_flip", rgb().horizontal_flip(1.0)),
        ("vertical_flip", rgb().vertical_flip(1.0)),
        ("pad", rgb().then(Pad::new([1, 2, 3, 4]).padding_mode(PaddingMode::Constant(90.into())))),
        ("pad_reflect", rgb().then(Pad::new([4, 3, 2, 1]).padding_mode(PaddingMode::Reflect))),
        ("rotate", rgb().then(RandomRotation::new((30.0, 30.0)))),
        ("rotate_center", rgb().then(RandomRotation::new((-25.0, -25.0)).center(5.0, 4.0))),
        ("rotate_quarter", rgb().then(RandomRotation::new((90.0, 90.0)).expand(true))),
        ("rotate_expand", rgb().then(RandomRotation::new((37.0, 37.0)).expand(true))),
        ("affine", rgb().then(RandomAffine::new((20.0, 20.0)).scale(1.3, 1.3).shear((10.0, 10.0)))),
        ("brightness", rgb().then(ColorJitter::new().brightness((1.5, 1.5)))),
        ("erase", rgb().then(RandomErasing::new().p(1.0))),
        (
            "all",
            rgb()
                .center_crop((18, 24))
                .horizontal_flip(1.0)
                .resize_exact((30, 20))
                .center_crop(22)
                .vertical_flip(1.0)
                .then(RandomRotation::new((15.0, 15.0)))
                .then(Pad::new(2)),
        ),
    ]
}

#[test]
fn masks_and_boxes_are_those_of_torchvision() {
    let all = reference();
    let names: Vec<&str> = cases().iter().map(|case| case.0).collect();
    assert_eq!(all["results"].as_object().unwrap().len(), names.len());
    for (name, pipeline) in cases() {
        let expected = &all["results"][name];
        let mut pair = given(&all);
        if expected["boxes"].is_null() {
            let refused = PairPipeline::new(pipeline.clone())
                .apply(pair.clone(), &mut SampleRng::new(0, 0, 0))
                .unwrap_err();
            assert!(refused.to_string().contains("leave the boxes out"), "{refused}");
            pair.boxes.clear();
        }
        let seen = PairPipeline::new(pipeline.clone())
            .apply(pair.clone(), &mut SampleRng::new(0, 0, 0))
            .unwrap();
        let mask = seen.mask.unwrap();
        assert_eq!([mask.height(), mask.width()], size(&expected["size"]), "{name}");
        let wrong: Vec<usize> = (0..mask.pixels().len())
            .filter(|&index| mask.pixels()[index] != bytes(&expected["mask"])[index])
            .collect();
        assert!(wrong.is_empty(), "{name}: {} numbers differ: {wrong:?}", wrong.len());
        let expected_boxes = boxes(&expected["boxes"]);
        assert_eq!(seen.boxes.len(), expected_boxes.len(), "{name}");
        for (a, b) in seen.boxes.iter().zip(&expected_boxes) {
            let edges = |b: &BoundingBox| [b.x_min, b.y_min, b.x_max, b.y_max];
            let near = edges(a).iter().zip(edges(b)).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(near, "{name}: {a:?} for {b:?}");
        }
        // The image is the same as without a mask.
        let alone = pipeline.apply(pair.image, &mut SampleRng::new(0, 0, 0)).unwrap();
        assert_eq!(seen.image, alone, "{name}");
    }
}

/// Colors that a mask also has stay together whatever the random numbers are.
#[test]
fn an_image_and_its_mask_move_by_the_same_random_numbers() {
    let [height, width] = [48, 60];
    let classes: Vec<u8> =
        (0..height * width).map(|i| (i % width / 4 + 15 * (i / width / 4)) as u8).collect();
    let image = Image::new(width, height, 1, classes.clone()).unwrap();
    let pair = Pair::new(image.clone()).mask(image);
    let jitter = || ColorJitter::new().brightness((1.0, 1.0));
    let pipeline = ImagePipeline::gray()
        .interpolation(Interpolation::Nearest)
        .random_crop((40, 44), 6)
        .then(jitter())
        .horizontal_flip(0.5)
        .then(RandomApply::new(0.5).then(jitter()).then(RandomRotation::new(40.0)))
        .then(RandomOrder::new().and(RandomAffine::new(10.0).translate(0.2, 0.2)).and(jitter()))
        .then(
            RandomChoice::new()
                .or(RandomPerspective::new().interpolation(Interpolation::Nearest))
                .or(Pad::new(3)),
        )
        .vertical_flip(0.5)
        .random_crop((30, 31), 0);
    let pairs = PairPipeline::new(pipeline);
    let mut different = 0;
    for index in 0..100 {
        let seen = pairs.apply(pair.clone(), &mut SampleRng::new(1, 2, index)).unwrap();
        assert_eq!(seen.image, seen.mask.clone().unwrap(), "sample {index}");
        different += usize::from(seen.mask != pair.mask);
    }
    assert!(different > 90);
}

#[test]
fn files_are_decoded_with_the_same_crop() {
    let all = reference();
    let pair = given(&all);
    let image = encode_image(&pair.image, Encoding::Png).unwrap();
    let mask = encode_image(pair.mask.as_ref().unwrap(), Encoding::Png).unwrap();
    let pipeline = ImagePipeline::rgb()
        .random_resized_crop((16, 18))
        .horizontal_flip(0.5)
        .then(ColorJitter::new().hue(0.1))
        .random_crop(12, 2);
    let pairs = PairPipeline::new(pipeline);
    for index in 0..20 {
        let mut random = SampleRng::new(0, 0, index);
        let decoded = pairs.decode(&image, Some(&mask), pair.boxes.clone(), &mut random).unwrap();
        let applied = pairs.apply(pair.clone(), &mut SampleRng::new(0, 0, index)).unwrap();
        assert_eq!(decoded, applied, "sample {index}");
        assert_eq!(decoded.boxes.len(), 4);
    }
}

/// Images and masks in memory.
struct Segmentation {
    pair: Pair,
    pairs: PairPipeline,
}

impl Dataset for Segmentation {
    fn len(&self) -> usize {
        3
    }
    fn fields(&self) -> Vec<Field> {
        vec![self.pairs.image_field("image").unwrap(), self.pairs.mask_field("mask").unwrap()]
    }
    fn read(&self, _: usize, sample: &mut Sample<'_>) -> Result<()> {
        let pair = self.pairs.apply(self.pair.clone(), sample.random())?;
        self.pairs.write(&pair, sample, 0, 1)
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("pairs", self.pairs.to_string());
        Ok(())
    }
}

#[test]
fn pairs_become_fields_of_a_batch() {
    let pipeline = ImagePipeline::rgb().random_crop(8, 0).normalize([0.5; 3], [0.5; 3]);
    let data = Segmentation { pair: given(&reference()), pairs: PairPipeline::new(pipeline) };
    let fields: Vec<String> = data.fields().iter().map(Field::to_string).collect();
    assert_eq!(fields, ["image f32[3, 8, 8]", "mask u8[8, 8]"]);
    let batch = HostBatch::collate(&data, &[0, 1, 2]).unwrap();
    assert_eq!(batch.fields()[1].dtype, DType::U8);
    assert!(batch.values::<u8>(1).unwrap().iter().all(|class| (1..=9).contains(class)));
    let any_size = PairPipeline::new(ImagePipeline::rgb());
    assert!(any_size.mask_field("mask").unwrap_err().is_usage());
}

/// A transform that knows nothing of masks.
struct Unknown;

impl ImageTransform for Unknown {
    fn apply(&self, image: Image, _: &mut SampleRng) -> Result<Image> {
        Ok(image)
    }
    fn describe(&self) -> String {
        "Unknown()".to_owned()
    }
}

#[test]
fn steps_that_cannot_move_masks_or_boxes_are_named() {
    let pair = given(&reference());
    let refused = |pipeline: ImagePipeline, pair: &Pair| {
        let pairs = PairPipeline::new(pipeline);
        pairs.apply(pair.clone(), &mut SampleRng::new(0, 0, 0)).unwrap_err().to_string()
    };
    let rgb = ImagePipeline::rgb;
    assert!(refused(rgb().then(Unknown), &pair).starts_with("Unknown() does not say what it does"));
    assert!(refused(rgb().then(RandAugment::new()), &pair).contains("does not say what it does"));
    let perspective = rgb().then(RandomPerspective::new().p(1.0));
    assert!(refused(perspective, &pair).contains("does not move boxes"));
    let image = Pair::new(pair.image.clone());
    let unknown = PairPipeline::new(rgb().then(Unknown));
    assert_eq!(unknown.apply(image.clone(), &mut SampleRng::new(0, 0, 0)).unwrap(), image);
    let small = image.mask(Image::black(3, 2, 1).unwrap());
    assert_eq!(refused(rgb(), &small), "the mask has 3 x 2 pixels, but its image 34 x 21");
    let color = Pair::new(pair.image.clone()).mask(pair.image.clone());
    assert!(refused(rgb(), &color).contains("the mask has 3 channels, expected 1"));
}

#[test]
fn masks_are_the_numbers_in_the_file() {
    let pipeline = ImagePipeline::rgb();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/images");
    // A palette of 31 colors; the expected file shows the colors.
    let indices = pipeline.decode_mask(&fs::read(reference.join("palette.png")).unwrap()).unwrap();
    let colors = fs::read(reference.join("palette.expected.png")).unwrap();
    let colors = pipeline.decode(&colors, &mut SampleRng::new(0, 0, 0)).unwrap();
    let mut color_of = std::collections::HashMap::new();
    for (index, color) in indices.pixels().iter().zip(colors.pixels().chunks_exact(3)) {
        assert_eq!(*color_of.entry(*index).or_insert(color), color);
    }
    assert!(color_of.len() > 20 && color_of.keys().all(|&index| index < 31));
    let bits = pipeline.decode_mask(&fs::read(reference.join("bits.png")).unwrap()).unwrap();
    let black_and_white = fs::read(reference.join("bits.expected.png")).unwrap();
    let black_and_white =
        ImagePipeline::gray().decode(&black_and_white, &mut SampleRng::new(0, 0, 0)).unwrap();
    let ones: Vec<u8> = black_and_white.pixels().iter().map(|&value| value / 255).collect();
    assert_eq!(bits.pixels(), ones);
    for (name, part) in [
        ("rgba.png", "expected one number of up to 8 bits"),
        ("deep.png", "expected one number of up to 8 bits"),
        ("gray.jpg", "the mask is not a PNG file"),
    ] {
        let error = pipeline.decode_mask(&fs::read(reference.join(name)).unwrap()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
