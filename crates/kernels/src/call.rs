//! [`Kernel::call`]: a kernel in an expression.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmen_durable::messages::quantity;
use fulmen_error::{Error, Result};
use fulmen_tensor::internal::{OpaqueCall, OpaqueParts, kernel_call};
use fulmen_tensor::{AsTensor, FromFault, Refusal, Tensor};

use crate::program::{Kernel, Role};
use crate::{KERNELS, mosaic, tensors};

/// The name by which libtpu knows a kernel.
const TARGET: &str = "tpu_custom_call";

/// The results of a kernel, all poisoned by a mistake.
struct Results(Vec<Tensor>);

impl FromFault for Results {
    fn from_fault(fault: fulmen_error::Fault) -> Results {
        Results(vec![Tensor::from_fault(fault)])
    }
}

/// What libtpu needs to know of a kernel.
fn config(module: &str) -> String {
    format!(
        "{{\"custom_call_config\": {{\"body\": \"{}\", \"serialization_format\": 1, \"needs_layout_passes\": true}}}}",
        STANDARD.encode(module)
    )
}

impl Kernel {
    /// Records a call with one tensor for each input. Returns a tensor for each output.
    ///
    /// A program for TPUs contains the kernel. A program for another platform, and one that only
    /// evaluates a tensor, contains a loop over the grid that computes the same. Kernels for dtypes
    /// that no TPU has are such a loop on TPUs, too.
    ///
    /// The results have no derivative; give them one with
    /// [`custom_gradient`](fulmen_tensor::custom_gradient()).
    ///
    /// The first result is poisoned, and the only one, if the number of inputs or their types differ
    /// from the kernel's.
    #[track_caller]
    pub fn call(&self, inputs: &[impl AsTensor]) -> Vec<Tensor> {
        KERNELS.record(&self.name, || self.record_call(inputs).map(Results)).0
    }

    fn record_call(&self, inputs: &[impl AsTensor]) -> Result<Vec<Tensor>, Refusal> {
        let expected: Vec<_> = self.with_role(Role::Input).map(|(_, array)| &array.ty).collect();
        if inputs.len() != expected.len() {
            let count = quantity(expected.len(), "input");
            return Err(format!("the kernel has {count}, and got {}", inputs.len()).into());
        }
        for (number, (input, ty)) in inputs.iter().zip(expected).enumerate() {
            let input = input.as_tensor().live()?;
            if input.ty() != ty {
                return Err(format!("input {number} is {}; it must be {ty}", input.ty()).into());
            }
        }
        let tables = self.tables.iter().map(|table| Tensor::from_slice(table, [table.len()]));
        let mut all: Vec<Tensor> = tables.collect();
        all.extend(inputs.iter().map(|input| input.as_tensor().clone()));
        let compute = |all: &[Tensor]| {
            let (tables, inputs) = all.split_at(self.tables.len());
            tensors::compute(self, tables, inputs)
        };
        let Ok(module) = mosaic::module(self) else { return Ok(compute(&all)) };
        let opaque =
            OpaqueCall { target: TARGET.into(), config: config(&module), parts: self.parts() };
        Ok(kernel_call(&self.name, &all, compute, opaque))
    }

    /// How devices share the steps along the first axis of the grid: each array is split like the
    /// grid, or the same in all steps along that axis. `None` if they cannot.
    fn parts(&self) -> Option<OpaqueParts> {
        let mut is_split = vec![false; self.tables.len()];
        for array in &self.arrays {
            let is_like_grid = array.map.first().is_some_and(|index| index.is_program(0));
            let others = &array.map[usize::from(is_like_grid)..];
            if others.iter().any(|index| index.uses_program(0)) {
                return None;
            }
            match array.role {
                Role::Input => is_split.push(is_like_grid),
                Role::Output if !is_like_grid => return None,
                Role::Output | Role::Scratch => {}
            }
        }
        if self.parallel == 0 || self.step_indices().iter().any(|index| index.uses_program(0)) {
            return None;
        }
        let kernel = self.clone();
        let of_part = move |parts: usize| {
            let mut part = kernel.clone();
            part.grid[0] /= parts;
            mosaic::module(&part).map_or_else(|message| message, |module| config(&module))
        };
        Some(OpaqueParts { most: self.grid[0], is_split, config: Arc::new(of_part) })
    }

    /// The kernel as a module of Mosaic, in MLIR's text format.
    ///
    /// # Errors
    /// A dtype that no tile on a TPU has, such as f64.
    pub fn mosaic(&self) -> Result<String> {
        mosaic::module(self)
            .map_err(|message| Error::usage(format!("kernel `{}`: {message}", self.name)))
    }
}
