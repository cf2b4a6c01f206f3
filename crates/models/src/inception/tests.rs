//! Comparison with the results of torchvision and torch-fidelity for the same weights, which are
//! computed from a formula because there are 27 million.

use fulmen_nn::weights::save_weights;

use super::*;
use crate::reference::{ExpectedValues, folder};

/// The formula of `reference/inception.py`: numbers from -1 to 1, the SplitMix64 of each index.
fn numbers(start: usize, count: usize) -> impl Iterator<Item = f64> {
    (start..start + count).map(|i| {
        let mut z = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
}

fn tensor(start: usize, shape: &[usize], f: impl Fn(f64) -> f64) -> Tensor {
    let count = shape.iter().product();
    let values: Vec<f32> = numbers(start, count).map(|x| f(x) as f32).collect();
    Tensor::from_slice(&values, shape)
}

/// Sets all values as the script does: in the order of names, each from its own numbers.
fn fill(model: &InceptionV3) {
    let mut state: Vec<_> = model.state();
    state.retain(|(name, _)| !name.ends_with("num_batches_tracked"));
    state.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut start = 0;
    for (name, variable) in state {
        let shape = variable.ty().shape.to_vec();
        let inputs: usize = shape[1..].iter().product();
        let is_scale = name.ends_with("bn.weight") || name.ends_with("running_var");
        let value = match shape.len() {
            1 if is_scale => tensor(start, &shape, |x| 1.0 + 0.2 * x),
            1 => tensor(start, &shape, |x| 0.2 * x),
            _ => tensor(start, &shape, |x| x * (6.0 / inputs as f64).sqrt()),
        };
        variable.set(value);
        start += shape.iter().product::<usize>();
    }
}

/// The names and shapes of the model's state, a line each.
fn listing(model: &InceptionV3) -> String {
    let mut lines: Vec<String> = model
        .state()
        .iter()
        .map(|(name, variable)| format!("{name} {:?}\n", variable.ty().shape.to_vec()))
        .collect();
    lines.sort();
    lines.concat()
}

#[test]
fn names_and_shapes_are_torchvisions() {
    let expected = std::fs::read_to_string(folder("inception").join("names.txt")).unwrap();
    let model = InceptionV3::new(Config::default());
    assert_eq!(listing(&model), expected);
    assert_eq!(model.num_parameters(), 27_161_264, "torchvision's `num_params`");
    let without_head: Vec<&str> =
        expected.lines().filter(|line| !line.starts_with("AuxLogits")).collect();
    let fid = listing(&InceptionV3::fid()).replace("[1008", "[1000");
    assert_eq!(fid.lines().collect::<Vec<_>>(), without_head);
}

#[test]
fn the_logits_and_statistics_are_torchvisions() {
    let expected = ExpectedValues::read("inception");
    let model =
        InceptionV3::new(Config { dropout: 0.0, transform_input: true, ..Config::default() });
    fill(&model);
    let images = tensor(0, &[2, 3, 299, 299], |x| x);
    model.eval();
    let evaluated = model.forward_with_aux(&images);
    assert!(evaluated.aux_logits.is_none());
    model.train();
    // It would normalize two values.
    model.aux_logits.as_ref().unwrap().eval();
    let trained = model.forward_with_aux(&images);
    let buffers = model.mixed_7c.buffers();
    let statistics = buffers.iter().find(|(name, _)| name == "branch_pool.bn.running_mean");
    expected.check(&[
        ("logits", &evaluated.logits),
        ("train_logits", &trained.logits),
        ("train_aux_logits", &trained.aux_logits.unwrap()),
        ("running_mean", &statistics.unwrap().1.get()),
    ]);
}

#[test]
fn the_features_and_logits_for_fid_are_torch_fidelitys() {
    let expected = ExpectedValues::read("inception");
    let model = InceptionV3::fid();
    fill(&model);
    model.eval();
    let pixels = tensor(0, &[1, 3, 40, 330], |x| ((x + 1.0) * 128.0).floor());
    let input = fid_input(pixels.to_dtype(DType::U8));
    let features = model.features(&input);
    expected.check(&[
        ("fid_rows", &input.narrow(2, 100, 1)),
        ("fid_features", &features),
        ("fid_logits", &model.fc.forward(&features)),
        ("fid_unbiased_logits", &model.unbiased_logits(&features)),
    ]);
}

#[test]
fn weights_tell_which_inception_they_are_of() {
    let saved = tempfile::tempdir().unwrap();
    let path = saved.path().join("weights.safetensors");
    let torchvisions =
        Config { num_classes: 3, aux_logits: false, transform_input: true, ..Config::default() };
    for config in [torchvisions, Config::fid()] {
        let model = InceptionV3::new(config.clone());
        model.initialize(0);
        save_weights(&model, &path).unwrap();
        assert_eq!(InceptionV3::from_weights(&path).unwrap().config(), &config);
    }
    let linear = Linear::new(1, 1);
    linear.initialize(0);
    save_weights(&linear, &path).unwrap();
    let text = InceptionV3::from_weights(&path).unwrap_err().to_string();
    assert!(text.contains("weights.safetensors: not the weights of an Inception-v3"), "{text}");
}

#[test]
#[ignore = "reads torchvision's file: python reference/inception.py FILE.pth, then INCEPTION=FILE.pth cargo test -p \
            fulmen-models --lib inception -- --ignored"]
fn a_state_dict_of_torchvision_gives_its_logits() {
    let path = std::env::var_os("INCEPTION").expect("INCEPTION is the file that Python wrote");
    let model = InceptionV3::from_weights(path).unwrap();
    assert!(model.config().aux_logits && model.config().transform_input);
    let images = tensor(0, &[2, 3, 299, 299], |x| x);
    ExpectedValues::read("inception").check(&[("logits", &model.forward(images))]);
}
