//! Activations against PyTorch: values and gradients, also far out, at corners, and of what is not finite.

mod common;

use common::reference::{Expected, cases, count, expect, fill, inputs, number, word};
use fulmen_nn::activation::GeluKind;
use fulmen_nn::{
    Celu, Elu, Forward, Gelu, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax,
    Mish, Module, Prelu, Relu, Relu6, Rrelu, Selu, Sigmoid, Silu, Softmax, Softmin, Softplus, Softshrink, Softsign,
    Tanh, Tanhshrink, Threshold, activation,
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
        "gelu_tanh" => Box::new(Gelu(GeluKind::Tanh)),
        "tanh" => Box::new(Tanh),
        "sigmoid" => Box::new(Sigmoid),
        "log_sigmoid" => Box::new(LogSigmoid),
        "silu" => Box::new(Silu),
        "mish" => Box::new(Mish),
        "leaky_relu" => Box::new(LeakyRelu(setting("slope"))),
        "elu" => Box::new(Elu(setting("alpha"))),
        "celu" => Box::new(Celu(setting("alpha"))),
        "selu" => Box::new(Selu),
        "softplus" => Box::new(Softplus { beta: setting("beta"), threshold: setting("threshold") }),
        "hardtanh" => Box::new(Hardtanh { low: setting("low"), high: setting("high") }),
        "hardsigmoid" => Box::new(Hardsigmoid),
        "hardswish" => Box::new(Hardswish),
        "hardshrink" => Box::new(Hardshrink(setting("lambda"))),
        "softshrink" => Box::new(Softshrink(setting("lambda"))),
        "tanhshrink" => Box::new(Tanhshrink),
        "softsign" => Box::new(Softsign),
        "threshold" => Box::new(Threshold { threshold: setting("threshold"), value: setting("value") }),
        "rrelu" => {
            let layer = Rrelu::default();
            layer.eval();
            Box::new(layer)
        }
        "prelu" => Box::new(Prelu::channels(count(&attrs["channels"]))),
        "softmax" => Box::new(Softmax(axis)),
        "log_softmax" => Box::new(LogSoftmax(axis)),
        "softmin" => Box::new(Softmin(axis)),
        "glu" => Box::new(Glu(axis)),
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
        // Where PyTorch's way gives NaN at an infinity, ours gives the limit.
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

/// The defaults are those that PyTorch's layers have without arguments.
#[test]
fn settings_default_to_pytorchs() {
    assert_eq!((LeakyRelu::default().0, Elu::default().0, Celu::default().0), (0.01, 1.0, 1.0));
    assert_eq!((Hardshrink::default().0, Softshrink::default().0), (0.5, 0.5));
    let (bend, clip) = (Softplus::default(), Hardtanh::default());
    assert_eq!((bend.beta, bend.threshold, clip.low, clip.high), (1.0, 20.0, -1.0, 1.0));
    assert_eq!(Gelu::default().0, GeluKind::Exact);
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
        assert_eq!(f(&poison).fault().map(|f| f.to_string()), poison.fault().map(|f| f.to_string()));
    }
    assert!(common::fault(&activation::glu(&Tensor::zeros(DType::F32, [2, 3]), 1)).contains("size 3"));
    assert!(common::fault(&activation::glu(&Tensor::zeros(DType::F32, [2, 4]), 2)).contains("axis"));
    let x = Tensor::zeros(DType::F32, [2, 4]);
    assert!(common::fault(&activation::hardtanh(&x, 1.0, -1.0)).contains("above the upper"));
    assert!(common::fault(&activation::celu(&x, 0.0)).contains("cannot be 0"));
    let prelu = Prelu::channels(3);
    prelu.initialize(0);
    assert!(common::fault(&prelu.forward(&Tensor::zeros(DType::F32, [2, 4]))).contains("not 3 channels"));
}
