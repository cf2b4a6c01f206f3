//! Recurrent layers against PyTorch: outputs, last states, and the gradients of inputs, states and
//! parameters.

use crate::common::reference::{Expected, cases, count, expect, fill, inputs, word};
use crate::common::{fault, values};
use fulmen_nn::loss::{CrossEntropyLoss, Reduction, ctc_loss};
use fulmen_nn::{Gru, Lstm, Module, Rnn, RnnNonlinearity};
use fulmen_tensor::{DType, Function, Tensor, TensorType, autocast, grad, random};
use serde_json::Value;

/// All outputs of a layer in one row.
fn row(all: &[&Tensor]) -> Tensor {
    let flat: Vec<Tensor> = all.iter().map(|t| t.flatten(0, -1)).collect();
    Tensor::concatenate(&flat, 0)
}

macro_rules! built {
    ($layer:expr, $attrs:expr) => {{
        let setting = |name: &str, otherwise: bool| $attrs[name].as_bool().unwrap_or(otherwise);
        let layers = if $attrs["num_layers"].is_null() { 1 } else { count(&$attrs["num_layers"]) };
        let layer = $layer
            .num_layers(layers)
            .bias(setting("bias", true))
            .batch_first(setting("batch_first", false));
        layer.bidirectional(setting("bidirectional", false))
    }};
}

fn run(attrs: &Value, case: &Value, inputs: &[Tensor]) -> (Tensor, Vec<(String, Tensor)>) {
    let x = &inputs[0];
    let sizes = [count(&attrs["input_size"]), count(&attrs["hidden_size"])];
    let lengths = attrs["lengths"].as_array().map(|all| {
        let all: Vec<i32> = all.iter().map(|length| count(length) as i32).collect();
        Tensor::from_slice(&all, [all.len()])
    });
    /// The layer on the sequences, or on those of these lengths.
    macro_rules! forward {
        ($layer:ident, $state:expr) => {
            match &lengths {
                Some(lengths) => $layer.forward_lengths(x, lengths, $state),
                None => $layer.forward(x, $state),
            }
        };
    }
    match word(&attrs["layer"], "layer") {
        "RNN" => {
            let relu = attrs["nonlinearity"].as_str() == Some("relu");
            let nonlinearity = if relu { RnnNonlinearity::Relu } else { RnnNonlinearity::Tanh };
            let layer = built!(Rnn::new(sizes[0], sizes[1]).nonlinearity(nonlinearity), attrs);
            let parameters = fill(&layer, case);
            let (y, h) = forward!(layer, inputs.get(1));
            (row(&[&y, &h]), parameters)
        }
        "GRU" => {
            let layer = built!(Gru::new(sizes[0], sizes[1]), attrs);
            let parameters = fill(&layer, case);
            let (y, h) = forward!(layer, inputs.get(1));
            (row(&[&y, &h]), parameters)
        }
        _ => {
            let projected =
                if attrs["proj_size"].is_null() { 0 } else { count(&attrs["proj_size"]) };
            let layer = built!(Lstm::new(sizes[0], sizes[1]).proj_size(projected), attrs);
            let parameters = fill(&layer, case);
            let (y, (h, c)) = forward!(layer, inputs.get(1).zip(inputs.get(2)));
            (row(&[&y, &h, &c]), parameters)
        }
    }
}

#[test]
fn recurrent_layers_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 1e-5);
    for case in cases("recurrent.json") {
        let inputs = inputs(&case);
        let (y, parameters) = run(&case["attrs"], &case, &inputs);
        expect(&mut expected, &case, &inputs, &parameters, &y);
    }
    expected.check();
}

#[test]
fn parameters_are_named_in_pytorchs_order() {
    let names = |layer: &dyn Module| {
        layer.parameters().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let expected = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    assert_eq!(names(&Gru::new(2, 3)), expected);
    let layer = Lstm::new(2, 3).proj_size(1).bias(false).bidirectional(true);
    let ways = ["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"];
    assert_eq!(names(&layer), [ways, ways.map(|name| &*format!("{name}_reverse").leak())].concat());
}

#[test]
fn a_sequence_in_two_parts_is_the_sequence() {
    let x = random::normal(&random::key(1), DType::F32, [6, 2, 3]);
    let layer = Gru::new(3, 4).num_layers(2);
    layer.initialize(0);
    let (whole, last) = layer.forward(&x, None);
    let (first, h) = layer.forward(&x.narrow(0, 0, 2), None);
    let (second, end) = layer.forward(&x.narrow(0, 2, 4), Some(&h));
    let joined = Tensor::concatenate(&[&first, &second], 0);
    crate::common::assert_close(
        &values(&row(&[&joined, &end])),
        &values(&row(&[&whole, &last])),
        1e-6,
        1e-6,
        "two parts",
    );
    let (empty, h) = layer.forward(&x.narrow(0, 0, 0), None);
    assert_eq!((empty.ty().to_string(), values(&h)), ("f32[0, 2, 4]".into(), vec![0.0; 16]));
}

#[test]
fn padding_has_no_effect() {
    let x = random::normal(&random::key(1), DType::F32, [4, 2, 3]);
    let lengths = Tensor::from_slice(&[0u8, 3], [2]);
    let step = Tensor::iota(DType::I32, [4, 2, 1], 0);
    let poor = step.lt(lengths.unsqueeze(-1).to_dtype(DType::I32)).select(&x, f64::NAN);
    let layer = Lstm::new(3, 4).num_layers(2).bidirectional(true);
    layer.initialize(0);
    let weight = layer.parameters()[0].1.get();
    let run = |x: &Tensor| {
        let (y, (h, c)) = layer.forward_lengths(x, &lengths, None);
        let gradients = grad(row(&[&y, &h, &c]).square().sum_all(), &[x, &weight]);
        values(&row(&[&y, &h, &c, &gradients[0], &gradients[1]]))
    };
    let clean = run(&x);
    assert_eq!(run(&poor), clean);
    let (_, (h, _)) = layer.forward_lengths(&x, &lengths, None);
    assert_eq!(values(&h.narrow(1, 0, 1)), [0.0; 16], "a sequence of length 0");
    assert!(clean.iter().all(|v| v.is_finite()) && clean.iter().any(|v| *v != 0.0));
}

#[test]
fn dropout_acts_between_layers_while_training() {
    let x = random::normal(&random::key(1), DType::F32, [4, 2, 3]);
    let layer = Rnn::new(3, 8).num_layers(2).dropout(0.5);
    layer.initialize(0);
    let run = || values(&layer.forward(&x, None).0);
    layer.set_random_key(&random::key(0));
    let training = run();
    layer.eval();
    assert_ne!(run(), training);
    assert_eq!(run(), run());
}

#[test]
fn under_autocast_products_are_narrow_and_gradients_stay_wide() {
    let x = random::normal(&random::key(1), DType::F32, [5, 2, 3]);
    let layer = Lstm::new(3, 4).num_layers(2);
    layer.initialize(0);
    let (y, (_, c)) = autocast(Some(DType::Bf16), || layer.forward(&x, None));
    assert_eq!((y.dtype(), c.dtype()), (DType::Bf16, DType::Bf16));
    let weights: Vec<Tensor> = layer.parameters().into_iter().map(|(_, p)| p.get()).collect();
    let weights: Vec<&Tensor> = weights.iter().collect();
    let narrow = grad(&y.to_dtype(DType::F32).sum_all(), &weights);
    let wide = grad(&layer.forward(&x, None).0.sum_all(), &weights);
    for (narrow, wide) in narrow.iter().zip(&wide) {
        assert_eq!(narrow.dtype(), DType::F32);
        let narrow = values(narrow);
        let wide = values(wide);
        let size = wide.iter().map(|v| v.abs()).fold(0.0, f64::max);
        assert!(
            narrow.iter().zip(&wide).all(|(a, b)| (a - b).abs() < 0.05 * size),
            "{narrow:?} {wide:?}"
        );
    }
}

#[test]
fn what_does_not_fit_is_told_with_what_would() {
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
    let layer = Gru::new(3, 4).bidirectional(true).batch_first(true);
    let (y, h) = layer.forward(&zeros(&[2, 5, 7]), None);
    let expected = "GRU(3 -> 4): the input is f32[2, 5, 7]; it must be [batch, length, 3], or [length, 3] without a batch";
    assert!(fault(&y).starts_with(expected), "{}", fault(&y));
    assert!(fault(&h).contains("reference_recurrent.rs"));
    let (y, _) = layer.forward(&zeros(&[2, 5, 3]), Some(&zeros(&[1, 2, 4])));
    assert!(
        fault(&y).contains("h_0 is f32[1, 2, 4]; for the input f32[2, 5, 3] it must be [2, 2, 4]"),
        "{}",
        fault(&y)
    );
    let told = |lengths: &Tensor, x: &[usize], words: &str| {
        let (y, h) = layer.forward_lengths(zeros(x), lengths, None);
        assert!([y, h].iter().all(|t| fault(t).contains(words)), "{words}");
    };
    let words = "the lengths are i32[3]; for the input f32[2, 5, 3] they must be integers [2]";
    told(&Tensor::ones(DType::I32, [3]), &[2, 5, 3], words);
    told(&zeros(&[2]), &[2, 5, 3], "the lengths are f32[2]");
    let words = "lengths need a batch of sequences, but the input is f32[5, 3]";
    told(&Tensor::ones(DType::I32, [1]), &[5, 3], words);
    let long = Tensor::from_slice(&[5i32, 6], [2]);
    told(&long, &[2, 5, 3], "a length is 6, but it must be from 0 to 5");
    let layer = Lstm::new(3, 4).num_layers(0);
    let (y, (h, c)) = layer.forward(&zeros(&[5, 3]), None);
    assert!([y, h, c].iter().all(|t| fault(t).contains("there are 0 layers")));
    let (y, _) =
        Rnn::new(3, 4).num_layers(usize::MAX).bidirectional(true).forward(&zeros(&[5, 3]), None);
    assert!(fault(&y).contains("layers; the limit is 4096"), "{}", fault(&y));
}

#[test]
fn every_statement_carries_the_users_line() {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let lstm = Lstm::new(3, 4).proj_size(2).bidirectional(true);
    let gru = Gru::new(3, 4);
    let rnn = Rnn::new(3, 4).num_layers(2);
    let ctc = |log_p: &Tensor| {
        let [one, long] = [Tensor::ones(DType::I32, [2, 1]), Tensor::ones(DType::I64, [2]) * 2.0];
        ctc_loss(&log_p.log_softmax(-1), &one, &long, &one.reshape([2]), Reduction::Mean)
    };
    for layer in [&lstm as &dyn Module, &gru, &rnn] {
        crate::common::set_simple_values(layer);
    }
    let function = Function::trace("f", (ty(&[5, 2, 3]), ty(&[2])), |(x, _)| {
        let target = Tensor::from_slice(&[1i32, -100], [2]);
        let classes = CrossEntropyLoss::new()
            .ignore_index(-100)
            .forward(&x.narrow(0, 0, 1).squeeze(0), &target);
        let loss = lstm.forward(&x, None).0.sum_all()
            + gru.forward(&x, None).0.sum_all()
            + rnn.forward(&x, None).0.sum_all()
            + ctc(&x)
            + classes;
        (loss.clone(), grad(&loss, &[x]))
    });
    let text = function.stablehlo().unwrap();
    assert!(text.matches(" loc(#loc").count() > 100, "{text}");
    // A location has a file, or a name and a reference to the location that has the file.
    let lines: Vec<_> =
        text.lines().filter(|line| line.starts_with("#loc") && line.contains(".rs\":")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("nn/tests/")), "{lines:#?}");
}
