//! Layers over one, two and three spatial axes against PyTorch: values, and the gradients of inputs
//! and parameters.

use crate::common::reference::{
    Expected, cases, count, expect, fill, flag, inputs, number, numbers, sizes, word,
};
use fulmen_nn::{
    AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, CircularPad, ConstantPad, Conv, ConvTranspose,
    Forward, MaxPool, PixelShuffle, PixelUnshuffle, ReflectionPad, ReplicationPad, Sides, Sizes,
    Unflatten, Upsample, ZeroPad,
};
use fulmen_tensor::{DType, Interpolation, PadMode};
use serde_json::Value;

/// One number per axis.
fn per_axis<const N: usize>(value: &Value) -> Sizes<N> {
    let numbers = sizes(value);
    Sizes(numbers.try_into().unwrap_or_else(|numbers| panic!("{numbers:?} are not {N} sizes")))
}

fn mode(value: &Value) -> PadMode {
    match word(value, "padding_mode") {
        "zeros" => PadMode::Zeros,
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        other => panic!("no mode {other}"),
    }
}

fn conv<const N: usize>(a: &Value) -> Box<dyn Forward> {
    let layer =
        Conv::<N>::new(count(&a["in_channels"]), count(&a["out_channels"]), per_axis(&a["kernel"]))
            .stride(per_axis(&a["stride"]))
            .dilation(per_axis(&a["dilation"]))
            .groups(count(&a["groups"]))
            .bias(flag(&a["bias"]))
            .padding_mode(mode(&a["padding_mode"]));
    Box::new(match a["padding"].as_str() {
        Some("same") => layer.padding_same(),
        Some("valid") => layer,
        _ => layer.padding(per_axis(&a["padding"])),
    })
}

fn conv_transpose<const N: usize>(a: &Value) -> Box<dyn Forward> {
    let layer = ConvTranspose::<N>::new(
        count(&a["in_channels"]),
        count(&a["out_channels"]),
        per_axis(&a["kernel"]),
    );
    Box::new(
        layer
            .stride(per_axis(&a["stride"]))
            .padding(per_axis(&a["padding"]))
            .output_padding(per_axis(&a["output_padding"]))
            .dilation(per_axis(&a["dilation"]))
            .groups(count(&a["groups"]))
            .bias(flag(&a["bias"])),
    )
}

fn max_pool<const N: usize>(a: &Value) -> MaxPool<N> {
    MaxPool::new(per_axis(&a["window"]))
        .stride(per_axis(&a["stride"]))
        .padding(per_axis(&a["padding"]))
        .dilation(per_axis(&a["dilation"]))
        .ceil_mode(flag(&a["ceil_mode"]))
}

fn avg_pool<const N: usize>(a: &Value) -> Box<dyn Forward> {
    let layer = AvgPool::<N>::new(per_axis(&a["window"]))
        .stride(per_axis(&a["stride"]))
        .padding(per_axis(&a["padding"]))
        .ceil_mode(flag(&a["ceil_mode"]))
        .count_include_pad(flag(&a["count_include_pad"]));
    Box::new(if a["divisor"].is_null() {
        layer
    } else {
        layer.divisor_override(count(&a["divisor"]))
    })
}

fn pad<const N: usize>(kind: &str, a: &Value) -> Box<dyn Forward> {
    let side = |pair: &Value| (count(&pair[0]) as i64, count(&pair[1]) as i64);
    let sides: Vec<(i64, i64)> = a["sides"].as_array().into_iter().flatten().map(side).collect();
    let sides =
        Sides::<N>(sides.try_into().unwrap_or_else(|sides| panic!("{sides:?} are not {N} pairs")));
    match kind {
        "zero_pad" => Box::new(ZeroPad::new(sides)),
        "constant_pad" => Box::new(ConstantPad::new(sides, number(&a["value"]))),
        "reflection_pad" => Box::new(ReflectionPad::new(sides)),
        "replication_pad" => Box::new(ReplicationPad::new(sides)),
        "circular_pad" => Box::new(CircularPad::new(sides)),
        other => panic!("no padding {other}"),
    }
}

fn upsample(a: &Value) -> Box<dyn Forward> {
    let align_corners = a["align_corners"].as_bool() == Some(true);
    let mode = match a["mode"].as_str() {
        None | Some("nearest") => Interpolation::Nearest,
        Some("bicubic") => Interpolation::Cubic { align_corners },
        Some(_) => Interpolation::Linear { align_corners },
    };
    let layer = if a["size"].is_null() {
        Upsample::scale_factor(numbers(&a["scale_factor"]))
    } else {
        Upsample::size(sizes(&a["size"]))
    };
    Box::new(layer.mode(mode))
}

/// Calls a generic function for the given number of axes.
macro_rules! over {
    ($axes:expr, $make:ident($($argument:expr),*)) => {
        match $axes {
            1 => $make::<1>($($argument),*),
            2 => $make::<2>($($argument),*),
            3 => $make::<3>($($argument),*),
            n => panic!("no layer over {n} axes"),
        }
    };
}

fn boxed_max_pool<const N: usize>(a: &Value) -> Box<dyn Forward> {
    Box::new(max_pool::<N>(a))
}
fn adaptive_avg_pool<const N: usize>(a: &Value) -> Box<dyn Forward> {
    Box::new(AdaptiveAvgPool::<N>::new(per_axis(&a["size"])))
}
fn adaptive_max_pool<const N: usize>(a: &Value) -> Box<dyn Forward> {
    Box::new(AdaptiveMaxPool::<N>::new(per_axis(&a["size"])))
}

#[test]
fn layers_over_spatial_axes_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 2e-5);
    for case in cases("spatial.json").iter().filter(|case| case["op"] != "where_max_pool") {
        let a = &case["attrs"];
        let op = word(&case["op"], "op");
        let (kind, axes) =
            match op.strip_suffix('d').and_then(|op| op.split_at_checked(op.len() - 1)) {
                Some((kind, axes)) if axes.parse::<usize>().is_ok() => {
                    (kind, axes.parse().unwrap_or(0))
                }
                _ => (op, 0),
            };
        let layer: Box<dyn Forward> = match kind {
            "conv" => over!(axes, conv(a)),
            "conv_transpose" => over!(axes, conv_transpose(a)),
            "max_pool" => over!(axes, boxed_max_pool(a)),
            "avg_pool" => over!(axes, avg_pool(a)),
            "adaptive_avg_pool" => over!(axes, adaptive_avg_pool(a)),
            "adaptive_max_pool" => over!(axes, adaptive_max_pool(a)),
            "upsample" => upsample(a),
            "pixel_shuffle" => Box::new(PixelShuffle::new(count(&a["factor"]))),
            "pixel_unshuffle" => Box::new(PixelUnshuffle::new(count(&a["factor"]))),
            "unflatten" => Box::new(Unflatten::new(1, [2, -1])),
            pads => over!(a["sides"].as_array().map_or(0, Vec::len), pad(pads, a)),
        };
        let parameters = fill(&layer, case);
        let inputs = inputs(case);
        expect(&mut expected, case, &inputs, &parameters, &layer.forward(&inputs[0]));
    }
    expected.check();
}

#[test]
fn the_places_of_maxima_are_pytorchs() {
    let mut expected = Expected::within(0.0, 0.0);
    for case in cases("spatial.json").iter().filter(|case| case["op"] == "where_max_pool") {
        let a = &case["attrs"];
        let x = inputs(case).remove(0);
        fn max_indices<const N: usize>(
            a: &Value,
            x: &fulmen_tensor::Tensor,
        ) -> [fulmen_tensor::Tensor; 2] {
            max_pool::<N>(a).forward_with_indices(x)
        }
        let [_, indices] = over!(sizes(&a["window"]).len(), max_indices(a, &x));
        assert_eq!(indices.dtype(), DType::I32);
        expected.tensor(word(&case["name"], "name"), &indices, &case["outputs"][0]);
    }
    expected.check();
}
