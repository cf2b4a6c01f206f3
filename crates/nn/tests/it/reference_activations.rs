//! Activations against PyTorch: values and gradients, also far from 0, at corners, and for
//! infinities and NaN.

use crate::common::reference::{Expected, cases, count, expect, fill, inputs, number, word};
use fulmen_nn::activation::GeluKind;
use fulmen_nn::{
    Celu, Elu, Forward, Gelu, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu,
    LogSigmoid, LogSoftmax, Mish, Module, Prelu, Relu, Relu6, Rrelu, Selu, Sigmoid, Silu, Softmax,
    Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold, activation,
};
use fulmen_tensor::{DType, Tensor};
use serde_json::Value;

fn layer(op: &str, attrs: &Value) -> Box<dyn Forward> {
    let setting = |name: &str| number(&attrs[name]);
    let axis = attrs["axis"].as_i64().unwrap_or(-1) as isize;
    match op {
        "relu" => Box::new(Relu),
        "relu6" => Box::new(Relu6),
        "gelu" => Box::new(Gelu::default()),
        "gelu_tanh" => Box::new(Gelu::new().approximate(GeluKind::Tanh)),
        "tanh" => Box::new(Tanh),
        "sigmoid" => Box::new(Sigmoid),
        "log_sigmoid" => Box::new(LogSigmoid),
        "silu" => Box::new(Silu),
        "mish" => Box::new(Mish),
        "leaky_relu" => Box::new(LeakyRelu::new(setting("slope"))),
        "elu" => Box::new(Elu::new().alpha(setting("alpha"))),
        "celu" => Box::new(Celu::new().alpha(setting("alpha"))),
        "selu" => Box::new(Selu),
        "softplus" => {
            Box::new(Softplus::new().beta(setting("beta")).threshold(setting("threshold")))
        }
        "hardtanh" => Box::new(Hardtanh::new().min_val(setting("low")).max_val(setting("high"))),
        "hardsigmoid" => Box::new(Hardsigmoid),
        "hardswish" => Box::new(Hardswish),
        "hardshrink" => Box::new(Hardshrink::new().lambda(setting("lambda"))),
        "softshrink" => Box::new(Softshrink::new().lambda(setting("lambda"))),
        "tanhshrink" => Box::new(Tanhshrink),
        "softsign" => Box::new(Softsign),
        "threshold" => Box::new(Threshold::new(setting("threshold"), setting("value"))),
        "rrelu" => {
            let layer = Rrelu::default();
            layer.eval();
            Box::new(layer)
        }
        "prelu" => Box::new(Prelu::new().num_parameters(count(&attrs["channels"]))),
        "softmax" => Box::new(Softmax::new(axis)),
        "log_softmax" => Box::new(LogSoftmax::new(axis)),
        "softmin" => Box::new(Softmin::new(axis)),
        "glu" => Box::new(Glu::new().axis(axis)),
        other => panic!("no activation {other}"),
    }
}

#[test]
fn activations_are_pytorchs_also_far_out_and_at_their_corners() {
    let mut expected = Expected::within(2e-5, 2e-6);
    for mut case in cases("activations.json") {
        let inputs = inputs(&case);
        let layer = layer(word(&case["op"], "op"), &case["attrs"]);
        let parameters = fill(&layer, &case);
        let y = layer.forward(&inputs[0]);
        // Where PyTorch's formula gives NaN at an infinity, ours gives the limit.
        let limit: Option<(usize, Value)> = match word(&case["name"], "name") {
            "gelu_special" => Some((0, "inf".into())),
            "hardswish_special" => Some((1, 0.0.into())),
            _ => None,
        };
        if let Some((element, limit)) = limit {
            let value = &mut case["outputs"][0]["data"][element];
            assert_eq!(*value, "nan");
            *value = limit;
        }
        expect(&mut expected, &case, &inputs, &parameters, &y);
    }
    expected.check();
}

/// The defaults are those of PyTorch's layers.
#[test]
fn settings_default_to_pytorchs() {
    let settings = [
        (format!("{:?}", Elu::new()), "Elu { alpha: 1.0 }"),
        (format!("{:?}", Celu::new()), "Celu { alpha: 1.0 }"),
        (format!("{:?}", Hardshrink::new()), "Hardshrink { lambda: 0.5 }"),
        (format!("{:?}", Softshrink::new()), "Softshrink { lambda: 0.5 }"),
        (format!("{:?}", Softplus::new()), "Softplus { beta: 1.0, threshold: 20.0 }"),
        (format!("{:?}", Hardtanh::new()), "Hardtanh { min_val: -1.0, max_val: 1.0 }"),
        (format!("{:?}", Gelu::new()), "Gelu { approximate: Exact }"),
        (format!("{:?}", Glu::new()), "Glu { axis: -1 }"),
    ];
    settings.iter().for_each(|(actual, expected)| assert_eq!(actual, expected));
}

#[test]
fn activations_keep_the_dtype_and_pass_poison_on() {
    let x = Tensor::zeros(DType::Bf16, [2, 4]);
    let poison = x.reshape([3]);
    let functions: [fn(&Tensor) -> Tensor; 12] = [
        activation::relu6,
        activation::selu,
        activation::mish,
        activation::log_sigmoid,
        activation::hardsigmoid,
        activation::hardswish,
        activation::tanhshrink,
        activation::softsign,
        |x| activation::celu(x, 1.0),
        |x| activation::hardtanh(x, -1.0, 1.0),
        |x| activation::glu(x, -1),
        |x| activation::swiglu(x, x),
    ];
    for f in functions {
        assert_eq!(f(&x).dtype(), DType::Bf16);
        assert_eq!(
            f(&poison).fault().map(|f| f.to_string()),
            poison.fault().map(|f| f.to_string())
        );
    }
    assert!(
        crate::common::fault(&activation::glu(&Tensor::zeros(DType::F32, [2, 3]), 1))
            .contains("size 3")
    );
    assert!(
        crate::common::fault(&activation::glu(&Tensor::zeros(DType::F32, [2, 4]), 2))
            .contains("axis")
    );
    let x = Tensor::zeros(DType::F32, [2, 4]);
    assert!(crate::common::fault(&activation::hardtanh(&x, 1.0, -1.0)).contains("above the upper"));
    assert!(crate::common::fault(&activation::celu(&x, 0.0)).contains("cannot be 0"));
    let prelu = Prelu::new().num_parameters(3);
    prelu.initialize(0);
    assert!(
        crate::common::fault(&prelu.forward(&Tensor::zeros(DType::F32, [2, 4])))
            .contains("has 4 channels, expected 3")
    );
}
