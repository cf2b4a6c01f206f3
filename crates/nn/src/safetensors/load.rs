//! Loading a model's weights by name.

use std::collections::BTreeSet;
use std::path::Path;

use fulmen_tensor::{Tensor, TensorType, Variable};

use super::read;
use super::report::{Conflict, Conversion, LoadReport, Misfit, Strictness};
use crate::module::{each_buffer, each_parameter};
use crate::{Error, Module, Result};

/// Gives a model's parameters and buffers the values that a safetensors file has under their names.
///
/// Values of another floating-point type are converted, which the report says. Tied weights are found under any of
/// their names; if the file has them under several, as PyTorch writes them, the values must be equal.
///
/// # Errors
/// The file cannot be read or is damaged. With [`Strictness::Strict`] also if a name is missing, unexpected or has
/// another shape, or if tied weights differ: the error lists them all, and the model keeps what it had.
///
/// ```
/// use fulmen_nn::safetensors::{Strictness, load_weights, save_weights};
/// use fulmen_nn::{Linear, Module};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("layer.safetensors");
/// let layer = Linear::new(3, 2);
/// layer.initialize(0);
/// save_weights(&layer, &path)?;
///
/// let report = load_weights(&Linear::new(3, 2), &path, Strictness::Strict)?;
/// assert_eq!(report.loaded, ["weight", "bias"]);
///
/// let error = load_weights(&Linear::new(4, 2), &path, Strictness::Strict).unwrap_err();
/// assert!(error.to_string().contains("weight: the model has f32[2, 4], the file f32[2, 3]"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn load_weights<M: Module + ?Sized>(
    module: &M,
    path: impl AsRef<Path>,
    strictness: Strictness,
) -> Result<LoadReport> {
    let path = path.as_ref();
    let (values, _) = read(path)?;
    let mut report = LoadReport::default();
    let mut new: Vec<(Variable, Tensor)> = vec![];
    let mut known = BTreeSet::new();
    for (names, variable) in cells(module) {
        known.extend(names.iter().cloned());
        let name = &names[0];
        let mut there = names.iter().filter_map(|name| Some((name, values.get(name)?)));
        let Some((first, value)) = there.next() else {
            report.missing.push(name.clone());
            continue;
        };
        if let Some((other, _)) = there.find(|(_, v)| v.ty() != value.ty() || v.bytes() != value.bytes()) {
            report.conflicting.push(Conflict { name: first.clone(), other: other.clone() });
        }
        let (expected, found) = (&variable.ty(), value.ty());
        if !fits(expected, found) {
            report.misshapen.push(Misfit { name: name.clone(), expected: expected.clone(), found: found.clone() });
            continue;
        }
        if expected != found {
            report.converted.push(Conversion { name: name.clone(), from: found.dtype, to: expected.dtype });
        }
        report.loaded.push(name.clone());
        new.push((variable.clone(), value.to_tensor().to_dtype(expected.dtype)));
    }
    report.unexpected = values.into_keys().filter(|name| !known.contains(name)).collect();
    if strictness == Strictness::Strict && !report.is_complete() {
        report.loaded.clear();
        report.converted.clear();
        return Err(Error::mismatch(path, report));
    }
    for (variable, value) in new {
        variable.set(value);
    }
    Ok(report)
}

fn fits(expected: &TensorType, found: &TensorType) -> bool {
    let convertible = expected.dtype.is_float() && found.dtype.is_float();
    expected.shape == found.shape && (expected.dtype == found.dtype || convertible)
}

/// Each parameter's and buffer's cell once, with all its names.
fn cells<M: Module + ?Sized>(module: &M) -> Vec<(Vec<String>, Variable)> {
    let mut cells: Vec<(Vec<String>, Variable)> = vec![];
    let mut note = |name: &str, variable: &Variable| match cells.iter_mut().find(|(_, seen)| seen.is(variable)) {
        Some((names, _)) => names.push(name.into()),
        None => cells.push((vec![name.into()], variable.clone())),
    };
    each_parameter(module, |name, parameter| note(name, &parameter.variable()));
    each_buffer(module, |name, buffer| note(name, buffer.variable()));
    cells
}
