//! Recording: [`Tensor::record`] runs a function in a scope; `Tensor::apply` records an operation
//! by its shape rule.
//!
//! Out of scope: source lines and refusals; see `scope.rs`.

use std::fmt;
use std::sync::Arc;

use crate::operation::Operation;
use crate::scope::{FromFault, Refusal, Scope, finish};
use crate::tensor::{Kind, all_live};
use crate::{Tensor, TensorType, refused_operations};

impl Tensor {
    /// Runs `body`, the whole of a public function, in a scope with the caller's line. If `body`
    /// returns a refusal, the result is poisoned.
    ///
    /// A fault shows `name`, the function's name, which is formatted only if there is a fault. Use
    /// this in code that records on behalf of its callers, as operations and layers do.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    ///
    /// /// The mean of the elements that are not masked.
    /// #[track_caller]
    /// fn masked_mean(x: &Tensor, mask: &Tensor) -> Tensor {
    ///     Tensor::record("masked_mean", || {
    ///         let (x, mask) = (x.live()?, mask.live()?);
    ///         if x.shape() != mask.shape() {
    ///             return Err(format!("the mask {} must have the shape of {}", mask.ty(), x.ty()).into());
    ///         }
    ///         let mask = mask.to_dtype(x.dtype());
    ///         Ok((x * &mask).sum_all() / mask.sum_all())
    ///     })
    /// }
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    /// let error = masked_mean(&x, &Tensor::scalar(true)).eval().unwrap_err().to_string();
    /// assert!(error.starts_with("masked_mean: the mask bool[] must have the shape of f32[2]\n  at "), "{error}");
    /// ```
    #[track_caller]
    pub fn record<T: FromFault>(
        name: impl fmt::Display,
        body: impl FnOnce() -> Result<T, Refusal>,
    ) -> T {
        let _scope = Scope::open();
        finish(name, body())
    }

    /// Like [`Tensor::record`], for a function that returns `count` tensors. A refusal poisons all
    /// of them.
    #[track_caller]
    pub(crate) fn record_many(
        name: &str,
        count: usize,
        body: impl FnOnce() -> Result<Vec<Tensor>, Refusal>,
    ) -> Vec<Tensor> {
        let _scope = Scope::open();
        body().unwrap_or_else(|refusal| vec![Tensor::refused(name, refusal); count])
    }

    /// The poisoned result of the function `name`. Call this within its scope.
    pub(crate) fn refused(name: &str, refusal: Refusal) -> Tensor {
        finish(name, Err(refusal))
    }

    /// Records an operation, at the caller's line.
    #[track_caller]
    pub(crate) fn apply(operation: impl Operation, inputs: &[&Tensor]) -> Tensor {
        let name = operation.name();
        Tensor::record(name, || Tensor::try_apply(operation, inputs))
    }

    /// Like [`Tensor::apply`], but an error of the shape rule is returned. The function that is
    /// being recorded turns it into a fault with its own name.
    pub(crate) fn try_apply(
        operation: impl Operation,
        inputs: &[&Tensor],
    ) -> Result<Tensor, Refusal> {
        all_live(inputs.iter().copied())?;
        let types: Vec<_> = inputs.iter().map(|t| t.ty()).collect();
        let outputs = match operation.infer(&types) {
            Ok(outputs) => outputs,
            Err(message) => {
                refused_operations::record(operation, inputs, &message);
                return Err(message.into());
            }
        };
        if let Some(ty) = outputs.iter().find(|ty| !ty.is_addressable()) {
            return Err(ty.too_large().into());
        }
        let inputs = inputs.iter().map(|&t| t.clone()).collect();
        Ok(Tensor::from_parts(Kind::Operation(Arc::new(operation)), inputs, outputs))
    }

    /// An operation with these result types, without its shape rule; for [`refused_operations`].
    pub(crate) fn unchecked(
        operation: Arc<dyn Operation>,
        inputs: Vec<Tensor>,
        outputs: Vec<TensorType>,
    ) -> Tensor {
        Tensor::from_parts(Kind::Operation(operation), inputs, outputs)
    }

    /// Like [`Tensor::apply`], for an operation with `N` results.
    #[track_caller]
    pub(crate) fn apply_many<const N: usize>(
        operation: impl Operation,
        inputs: &[&Tensor],
    ) -> [Tensor; N] {
        let node = Tensor::apply(operation, inputs).node;
        // A poisoned node has only one result.
        let last = node.outputs.len() - 1;
        std::array::from_fn(|output| Tensor { node: node.clone(), output: output.min(last) })
    }

    /// Like [`Tensor::apply`], for an operation with one or more results. If the shape rule refuses
    /// the inputs, the result is one poisoned tensor.
    #[track_caller]
    pub(crate) fn apply_all(operation: impl Operation, inputs: &[&Tensor]) -> Vec<Tensor> {
        let node = Tensor::apply(operation, inputs).node;
        (0..node.outputs.len()).map(|output| Tensor { node: node.clone(), output }).collect()
    }
}
