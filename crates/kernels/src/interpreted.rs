//! The Mosaic text of the kernels against their other form: `tests/reference/interpret.py` interprets
//! the text.

use std::path::Path;
use std::process::Command;

use fulmen_tensor::{DType, Literal, Runtime, Tensor, TensorType};
use serde_json::{Value, json};

use crate::BuiltIn;
use crate::program::{Kernel, Role};

/// Numbers that repeat only after many elements.
fn input(ty: &TensorType, seed: usize) -> Tensor {
    let count = ty.shape.num_elements();
    let spread = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    if ty.dtype == DType::I32 {
        let ids: Vec<i32> = (0..count).map(|i| (i / 11 % 3 * 17) as i32).collect();
        return Tensor::from_slice(&ids, ty.shape.dims());
    }
    let numbers: Vec<f32> = (0..count).map(spread).collect();
    Tensor::from_slice(&numbers, ty.shape.dims()).to_dtype(ty.dtype)
}

fn described(literal: &Literal) -> Value {
    let ty = literal.ty();
    json!({ "dtype": ty.dtype.name(), "shape": ty.shape.dims(), "values": literal.to_f64() })
}

fn write(kernel: &Kernel, path: &Path) {
    let arrays: Vec<TensorType> =
        kernel.with_role(Role::Input).map(|(_, array)| array.ty.clone()).collect();
    let inputs: Vec<Tensor> = arrays.iter().enumerate().map(|(seed, ty)| input(ty, seed)).collect();
    let tables = kernel.tables.iter().map(|table| Tensor::from_slice(table, [table.len()]));
    let runtime = Runtime::global().unwrap();
    let outputs = runtime.eval_many(&kernel.call(&inputs)).unwrap();
    let inputs = runtime.eval_many(&tables.chain(inputs).collect::<Vec<_>>()).unwrap();
    let case = json!({
        "module": kernel.mosaic().unwrap(),
        "inputs": inputs.iter().map(described).collect::<Vec<_>>(),
        "outputs": outputs.iter().map(described).collect::<Vec<_>>(),
    });
    std::fs::write(path, case.to_string()).unwrap();
}

#[test]
#[ignore = "needs Python with jax: PYTHON=python3 cargo test -p fulmen-kernels --lib interpreted -- --ignored --nocapture"]
fn the_mosaic_text_computes_what_the_other_form_computes() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = BuiltIn::ALL.into_iter().flat_map(|kernel| kernel.examples().unwrap());
    for (number, kernel) in kernels.enumerate() {
        write(&kernel, &folder.path().join(format!("{number}_{}.json", kernel.name)));
    }
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/interpret.py");
    let status = Command::new(python).arg(script).arg(folder.path()).status().unwrap();
    assert!(status.success());
}
