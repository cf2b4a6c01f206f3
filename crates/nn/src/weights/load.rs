//! Loading a model's weights by name.

use std::collections::BTreeSet;
use std::path::Path;

use fulmen_tensor::{Literal, TensorType, Variable};

use super::StateDict;
use super::report::{Conflict, Conversion, LoadReport, Mismatch, Strictness};
use crate::module::{each_buffer, each_parameter};
use crate::{Module, Result, error};

/// Loads weight files into a model's parameters and buffers of the same names: a safetensors file,
/// several with an index, a folder that has them, or a PyTorch file ([`StateDict::read`]).
///
/// Large values stay in the file until a device needs them; see [`StateDict`]. Values of other
/// floating-point types are converted, which the report lists. Tied weights are found under any of
/// their names; if there are several, as in files that PyTorch writes, the values must be equal. If
/// the names differ, read a [`StateDict`] and rename.
///
/// # Errors
/// Those of [`StateDict::read`] and [`StateDict::load_into`].
///
/// ```
/// use fulmen_nn::weights::{Strictness, load_weights, save_weights};
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
    StateDict::read(path)?.load_into(module, strictness)
}

/// [`StateDict::load_into`].
pub(super) fn load<M: Module + ?Sized>(
    values: &StateDict,
    module: &M,
    strictness: Strictness,
) -> Result<LoadReport> {
    let mut report = LoadReport::default();
    let mut fitting: Vec<(Variable, String)> = Vec::new();
    let mut known_names = BTreeSet::new();
    for (names, variable) in cells(module) {
        known_names.extend(names.iter().cloned());
        let name = &names[0];
        let mut candidates = names.iter().filter_map(|name| Some((name, values.ty(name)?)));
        let Some((first, found)) = candidates.next() else {
            report.missing.push(name.clone());
            continue;
        };
        for (other, ty) in candidates {
            let same = ty == found && same_bytes(values, first, other)?;
            if !same {
                report.conflicting.push(Conflict { name: first.clone(), other: other.clone() });
            }
        }
        let expected = variable.ty();
        if !fits(&expected, &found) {
            report.mismatched.push(Mismatch { name: name.clone(), expected, found });
            continue;
        }
        if expected != found {
            report.converted.push(Conversion {
                name: name.clone(),
                from: found.dtype,
                to: expected.dtype,
            });
        }
        report.loaded.push(name.clone());
        fitting.push((variable, first.clone()));
    }
    report.unexpected = values
        .iter()
        .map(|(name, _)| name.to_owned())
        .filter(|name| !known_names.contains(name))
        .collect();
    if strictness == Strictness::Strict && !report.is_complete() {
        report.loaded.clear();
        report.converted.clear();
        return Err(error::mismatch(values.path(), report));
    }
    // All values are verified before the first is set, so a damaged file changes nothing.
    let mut new = Vec::with_capacity(fitting.len());
    for (variable, name) in fitting {
        if let Some(value) = values.tensor(&name, variable.ty().dtype)? {
            new.push((value, variable));
        }
    }
    for (value, variable) in new {
        variable.set(value);
    }
    Ok(report)
}

fn same_bytes(values: &StateDict, first: &str, second: &str) -> Result<bool> {
    let first = values.get(first)?;
    let second = values.get(second)?;
    Ok(first.as_deref().map(Literal::bytes) == second.as_deref().map(Literal::bytes))
}

fn fits(expected: &TensorType, actual: &TensorType) -> bool {
    let convertible = expected.dtype.is_float() && actual.dtype.is_float();
    expected.shape == actual.shape && (expected.dtype == actual.dtype || convertible)
}

/// The cell of each parameter and buffer, once, with all its names.
fn cells<M: Module + ?Sized>(module: &M) -> Vec<(Vec<String>, Variable)> {
    let mut cells: Vec<(Vec<String>, Variable)> = Vec::new();
    let mut note = |name: &str, variable: &Variable| match cells
        .iter_mut()
        .find(|(_, known)| known.is(variable))
    {
        Some((names, _)) => names.push(name.into()),
        None => cells.push((vec![name.into()], variable.clone())),
    };
    each_parameter(module, |name, parameter| note(name, &parameter.variable()));
    each_buffer(module, |name, buffer| note(name, buffer.variable()));
    cells
}
