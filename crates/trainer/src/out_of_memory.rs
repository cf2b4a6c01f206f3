//! Adds the largest tensors of a step to the error of a step that does not fit into memory.

use std::fmt::Write as _;

use fulmen_durable::messages::memory;
use fulmen_preflight::{Step, largest_tensors};
use fulmen_tensor::{Compiled, Function, Mesh};

use crate::Error;
use crate::program::is_internal;
use crate::state::names;

/// How many tensors are listed.
const MAX_TENSORS: usize = 5;

/// The error of compiling `program`. If it did not fit, the error lists the largest tensors that were
/// recorded.
pub(crate) fn when_compiling(
    program: &str,
    function: &Function,
    mesh: &Mesh,
    error: fulmen_tensor::Error,
) -> Error {
    if !error.is_out_of_memory() {
        return error;
    }
    let Ok(step) = Step::new(function, mesh) else { return error };
    let step = Step { is_internal, parameter_of: names::parameter_of, ..step };
    let mut list = format!("; the largest tensors of the {program}, by their size on one device:");
    for tensor in largest_tensors(&step, MAX_TENSORS) {
        let _ = write!(list, "\n  {tensor}");
    }
    error.note(&list)
}

/// The error of running a step. If there was no memory, the error lists the largest arrays of the
/// compiled program.
pub(crate) fn when_running(compiled: &Compiled, error: fulmen_tensor::Error) -> Error {
    if !error.is_out_of_memory() {
        return error;
    }
    let Ok(module) = compiled.executable().hlo() else { return error };
    let mut list = String::from("; the largest arrays of the step on one device:");
    for array in module.largest_arrays(MAX_TENSORS) {
        let _ = write!(list, "\n  {:>10}  {}", memory(array.bytes), array.ty);
        if let Some(source) = array.source.filter(|source| !is_internal(&source.file)) {
            let _ = write!(list, "  at {source}");
        }
    }
    error.note(&list)
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{DType, Runtime, TensorType, scan};

    use super::*;

    fn out_of_memory() -> fulmen_tensor::Error {
        let source = fulmen_pjrt::HostBuffer::zeroed(1 << 60).unwrap_err();
        fulmen_tensor::Error::runtime("compiling", source)
    }

    /// Layers whose products are kept for the caller, and the line of the products.
    fn layers() -> (Function, u32) {
        let types =
            [TensorType::new(DType::F32, [64, 32]), TensorType::new(DType::F32, [7, 32, 32])];
        let mut line = 0;
        let function = Function::trace("step", types, |[x, w]| {
            let (_, kept) = scan(&x, &w, |h, weight| {
                let at = line!() + 1;
                let y = h.matmul(&weight);
                line = at;
                (y.clone(), y)
            });
            kept
        });
        (function, line)
    }

    #[test]
    fn a_step_that_does_not_fit_names_its_largest_tensors() {
        let mesh = Mesh::new([("data", 1)]).unwrap();
        let (function, line) = layers();
        let error = when_compiling("training step", &function, &mesh, out_of_memory());
        assert!(error.is_out_of_memory() && error.is_runtime(), "{error}");
        let text = error.to_string();
        assert!(text.contains("; the largest tensors of the training step"), "{text}");
        let product = format!("7 × f32[64, 32] matmul  at {}:{line}:", file!());
        assert!(text.contains(&product), "{text}");

        let runtime = Runtime::global().unwrap();
        let compiled = runtime.compile(&function).unwrap();
        let text = when_running(&compiled, out_of_memory()).to_string();
        assert!(text.contains("the largest arrays of the step on one device:"), "{text}");
        assert!(text.contains("f32[7,64,32]") && text.contains(file!()), "{text}");
    }

    #[test]
    fn another_error_has_no_list() {
        let (function, _) = layers();
        let mistake = || layers().0.donate(0, 9).err().unwrap();
        let error =
            when_compiling("step", &function, &Mesh::new([("data", 1)]).unwrap(), mistake());
        assert_eq!(error.to_string(), mistake().to_string());
    }
}
