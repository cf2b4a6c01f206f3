//! Reference values from PyTorch, and a list of tensors to compare with them. The tensors are
//! evaluated as one program, because hundreds of small programs would take minutes to compile.

use std::path::{Path, PathBuf};

use fulmen_nn::Module;
use fulmen_nn::schedule::{Anneal, OneCycle};
use fulmen_tensor::{Runtime, Tensor, grad};
use serde_json::Value;

use super::assert_close;

/// A file of the reference folder.
pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(file)
}

/// The cases of a file.
#[track_caller]
pub(crate) fn cases(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
    let cases = document["cases"].as_array().cloned().unwrap_or_default();
    assert!(!cases.is_empty(), "{file} has no cases");
    cases
}

/// A number, or the name of one that JSON cannot represent.
#[track_caller]
pub(crate) fn number(value: &Value) -> f64 {
    match (value.as_f64(), value.as_str()) {
        (Some(number), _) => number,
        (_, Some("nan")) => f64::NAN,
        (_, Some("inf")) => f64::INFINITY,
        (_, Some("-inf")) => f64::NEG_INFINITY,
        _ => panic!("{value} is not a number"),
    }
}

/// A whole number.
#[track_caller]
pub(crate) fn count(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a whole number")) as usize
}

/// A pair of whole numbers.
#[track_caller]
pub(crate) fn pair(value: &Value) -> (usize, usize) {
    (count(&value[0]), count(&value[1]))
}

/// Whole numbers in a list.
#[track_caller]
pub(crate) fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().into_iter().flatten().map(count).collect()
}

/// The numbers of a list, or of a tensor's data.
#[track_caller]
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().or_else(|| value["data"].as_array());
    list.unwrap_or_else(|| panic!("{value} is not a list")).iter().map(number).collect()
}

/// A tensor of the file as a constant.
#[track_caller]
pub(crate) fn tensor(value: &Value) -> Tensor {
    let data = numbers(value);
    let shape = sizes(&value["shape"]);
    match value["dtype"].as_str() {
        Some("f32") => {
            Tensor::from_slice(&data.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape)
        }
        Some("f64") => Tensor::from_slice(&data, shape),
        Some("i32") => {
            Tensor::from_slice(&data.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape)
        }
        Some("bool") => {
            Tensor::from_slice(&data.iter().map(|&v| v != 0.0).collect::<Vec<_>>(), shape)
        }
        other => panic!("the reference files have no dtype {other:?}"),
    }
}

/// Tensors with their expected values, and the tolerances.
pub(crate) struct Expected {
    relative: f64,
    absolute: f64,
    list: Vec<(String, Tensor, Vec<f64>)>,
}

impl Expected {
    pub(crate) fn within(relative: f64, absolute: f64) -> Expected {
        Expected { relative, absolute, list: Vec::new() }
    }

    /// Expects the shape and the numbers of the file's `expected`.
    #[track_caller]
    pub(crate) fn tensor(&mut self, name: impl Into<String>, actual: &Tensor, expected: &Value) {
        let name = name.into();
        let shape = &expected["shape"];
        if let Some(fault) = actual.fault() {
            panic!("{name}: {fault}");
        }
        assert_eq!(&serde_json::json!(actual.shape().dims()), shape, "{name}: shape");
        self.list.push((name, actual.clone(), numbers(expected)));
    }

    /// Expects these numbers.
    pub(crate) fn numbers(&mut self, name: impl Into<String>, actual: &Tensor, expected: Vec<f64>) {
        self.list.push((name.into(), actual.clone(), expected));
    }

    /// Computes all tensors and compares them.
    #[track_caller]
    pub(crate) fn check(self) {
        let tensors: Vec<&Tensor> = self.list.iter().map(|(_, actual, _)| actual).collect();
        let values = Runtime::global()
            .and_then(|runtime| runtime.eval_many(&tensors))
            .unwrap_or_else(|e| panic!("{e}"));
        for ((name, _, expected), actual) in self.list.iter().zip(values) {
            assert_close(&actual.to_f64(), expected, self.relative, self.absolute, name);
        }
    }
}

/// A string.
#[track_caller]
pub(crate) fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value.as_str().unwrap_or_else(|| panic!("{name} is not a string"))
}

/// A boolean.
#[track_caller]
pub(crate) fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| panic!("{value} is not a boolean"))
}

/// Expects the output of a case, and, for its cotangent, the gradients of the inputs and of the
/// `parameters`.
pub(crate) fn expect(
    to: &mut Expected,
    case: &Value,
    inputs: &[Tensor],
    parameters: &[(String, Tensor)],
    output: &Tensor,
) {
    let name = word(&case["name"], "the name");
    to.tensor(name, output, &case["outputs"][0]);
    if case["cotangent"].is_null() {
        return;
    }
    let loss = (output * tensor(&case["cotangent"])).sum_all();
    for (i, input) in inputs.iter().enumerate().filter(|(i, _)| !case["gradients"][*i].is_null()) {
        to.tensor(
            format!("{name}: gradient {i}"),
            &grad(&loss, &[input])[0],
            &case["gradients"][i],
        );
    }
    let expected = case["parameter_gradients"].as_object().map_or(0, |all| all.len());
    assert_eq!(parameters.len(), expected, "{name}: number of parameters");
    for (parameter, value) in parameters {
        let expected = &case["parameter_gradients"][parameter];
        to.tensor(format!("{name}: gradient of {parameter}"), &grad(&loss, &[value])[0], expected);
    }
}

/// Gives a layer the parameters of a case, and returns them by name.
pub(crate) fn fill(layer: &dyn Module, case: &Value) -> Vec<(String, Tensor)> {
    let mut values = Vec::new();
    for (name, parameter) in layer.parameters() {
        let value = tensor(&case["parameters"][&name]);
        parameter.set(value.clone());
        assert!(parameter.get().fault().is_none(), "{name}: {:?}", parameter.get());
        values.push((name, value));
    }
    values
}

/// The inputs of a case.
pub(crate) fn inputs(case: &Value) -> Vec<Tensor> {
    case["inputs"].as_array().into_iter().flatten().map(tensor).collect()
}

/// The one-cycle schedule of a case.
pub(crate) fn cycle(attrs: &Value) -> OneCycle {
    let mut cycle = OneCycle::new(number(&attrs["max_lr"]), count(&attrs["total_steps"]) as u64);
    if let Some(share) = attrs["pct_start"].as_f64() {
        cycle = cycle.pct_start(share);
    }
    if let Some(factor) = attrs["div_factor"].as_f64() {
        cycle = cycle.div_factor(factor);
    }
    if let Some(factor) = attrs["final_div_factor"].as_f64() {
        cycle = cycle.final_div_factor(factor);
    }
    if attrs["anneal"] == "linear" {
        cycle = cycle.anneal(Anneal::Linear);
    }
    cycle.three_phase(attrs["three_phase"] == true)
}
