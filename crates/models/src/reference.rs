//! What the Python library gave for the models in `reference`: read by the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use fulmen_nn::weights::StateDict;
use fulmen_tensor::{Runtime, Tensor};

use crate::Pretrained;

/// `reference/NAME`, the folder of a model that a script of `reference` wrote.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference").join(name)
}

/// The inputs and outputs of a model: the folder's `expected.safetensors`.
pub(crate) struct Expected(StateDict);

impl Expected {
    #[track_caller]
    pub(crate) fn read(name: &str) -> Expected {
        Expected(StateDict::read(folder(name).join("expected.safetensors")).unwrap_or_else(|e| panic!("{e}")))
    }

    /// A value of the file.
    #[track_caller]
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let value = self.0.get(name).unwrap_or_else(|e| panic!("{e}"));
        value.unwrap_or_else(|| panic!("expected.safetensors has no `{name}`")).to_tensor()
    }

    /// Computes all as one program and compares each with the file's value of that name: at most `1e-4` off, measured
    /// by the largest expected number.
    #[track_caller]
    pub(crate) fn check(&self, found: &[(&str, &Tensor)]) {
        let tensors: Vec<&Tensor> = found.iter().map(|(_, tensor)| *tensor).collect();
        let values =
            Runtime::global().and_then(|runtime| runtime.eval_many(&tensors)).unwrap_or_else(|e| panic!("{e}"));
        for ((name, tensor), value) in found.iter().zip(values) {
            let expected = self.0.get(name).ok().flatten().unwrap_or_else(|| panic!("no `{name}` is expected"));
            assert_eq!(tensor.shape(), &expected.ty().shape, "{name}: shape");
            let (value, expected) = (value.to_f64(), expected.to_f64());
            let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let off = value.iter().zip(&expected).fold(0.0f64, |off, (x, y)| off.max((x - y).abs()));
            assert!(largest > 0.0 && off <= 1e-4 * largest, "{name} is {off:e} off; its largest number is {largest:e}");
        }
    }
}

/// Saves a model that was loaded from `reference/NAME`, and asks Python whether it gives there what is expected.
pub(crate) fn compare_in_python(model: &impl Pretrained, name: &str, script: &str) {
    let saved = tempfile::tempdir().unwrap();
    model.save_pretrained(saved.path()).unwrap();
    let expected = "expected.safetensors";
    std::fs::copy(folder(name).join(expected), saved.path().join(expected)).unwrap();
    let python = std::env::var("FULMEN_PYTHON").expect("FULMEN_PYTHON is the python to ask");
    let status = Command::new(python).arg(folder(script)).arg(saved.path()).status().unwrap();
    assert!(status.success(), "{name}: {script} {status}");
}
