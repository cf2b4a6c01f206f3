//! How values print: as NumPy 2 prints them.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{DType, Function, Literal, Tensor, TensorType};
use serde_json::Value;

/// `reference/printing.py` writes the file.
const NUMPY: &str = include_str!("../reference/printing.json");

fn literal(case: &Value) -> Literal {
    let dtype = DType::all().find(|dtype| dtype.name() == case["dtype"]).unwrap();
    let dims = case["shape"].as_array().unwrap().iter();
    let dims: Vec<usize> = dims.map(|length| length.as_u64().unwrap() as usize).collect();
    let hex = case["bytes"].as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
    Literal::from_bytes(TensorType::new(dtype, dims), &bytes).unwrap()
}

#[test]
fn values_print_as_numpy_prints_them() {
    let cases: Vec<Value> = serde_json::from_str(NUMPY).unwrap();
    assert!(cases.len() >= 50, "{}", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let literal = literal(case);
        let numpy = case["text"].as_str().unwrap();
        let expected = match literal.ty().shape.rank() {
            0 => numpy.to_owned(),
            _ => format!("{numpy}\n{}", literal.ty()),
        };
        let text = literal.to_string();
        if text != expected {
            failures.push(format!("{}\n{text}\nand NumPy:\n{expected}", literal.ty()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// NumPy has no bf16 of its own. Its digits are the fewest that tell a value from its neighbors.
#[test]
fn bf16_has_its_own_digits() {
    let values = [0.1, 1.0 / 3.0, 100.0, -2.5].map(half::bf16::from_f64);
    let text = Literal::from_slice(&values, [4]).unwrap().to_string();
    assert_eq!(text, "[  0.1     0.334 100.     -2.5  ]\nbf16[4]");
}

#[test]
fn a_tensor_prints_its_value_or_why_it_has_none() {
    let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    assert_eq!((&a + 0.5).to_string(), "[[1.5 2.5]\n [3.5 4.5]]\nf32[2, 2] on cpu");
    assert_eq!(a.mean_all().to_string(), "2.5");
    let wrong = a.matmul(&Tensor::ones(DType::F32, [3, 2])).to_string();
    assert!(wrong.contains("without a value: ") && wrong.contains("printing.rs"), "{wrong}");
    let mut text = String::new();
    let _ = Function::trace("doubled", TensorType::new(DType::F32, [2]), |x| {
        let doubled = &x * 2.0;
        text = doubled.to_string();
        doubled
    });
    assert!(text.starts_with("Tensor(f32[2], without a value: "), "{text}");
}
