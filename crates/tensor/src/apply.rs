//! Recording: a function in its scope ([`Tensor::record`]), an operation by its shape rule.
//!
//! Not here: whose line it carries, and what a refusal is; see `scope.rs`.

use std::fmt;
use std::sync::Arc;

use crate::operation::Operation;
use crate::scope::{FromFault, Refusal, Scope, finish};
use crate::tensor::{Kind, all_live};
use crate::{Tensor, TensorType, refused};

impl Tensor {
    /// Runs `body`, the whole of a public function, in a scope of the caller's line, and makes a poisoned result of what it
    /// refuses.
    ///
    /// `name` is what a fault calls the function; it is asked for only then. For code that records on behalf of its
    /// callers, as the operations of this crate and layers do.
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
    pub fn record<T: FromFault>(name: impl fmt::Display, body: impl FnOnce() -> Result<T, Refusal>) -> T {
        let _scope = Scope::open();
        finish(name, body())
    }

    /// As [`Tensor::record`], for a function that gives `count` tensors: all are poisoned by what it refuses.
    #[track_caller]
    pub(crate) fn record_many(
        name: &str,
        count: usize,
        body: impl FnOnce() -> Result<Vec<Tensor>, Refusal>,
    ) -> Vec<Tensor> {
        let _scope = Scope::open();
        body().unwrap_or_else(|refusal| vec![Tensor::refused(name, refusal); count])
    }

    /// The poisoned result of `name`, in whose scope this is called.
    pub(crate) fn refused(name: &str, refusal: Refusal) -> Tensor {
        finish(name, Err(refusal))
    }

    /// Records an operation. Operations are made only here.
    #[track_caller]
    pub(crate) fn apply(operation: impl Operation, inputs: &[&Tensor]) -> Tensor {
        let name = operation.name();
        Tensor::record(name, || Tensor::try_apply(operation, inputs))
    }

    /// As [`Tensor::apply`], but what the shape rule refuses is a mistake of the function that is being recorded, and
    /// carries its name.
    pub(crate) fn try_apply(operation: impl Operation, inputs: &[&Tensor]) -> Result<Tensor, Refusal> {
        all_live(inputs.iter().copied())?;
        let types: Vec<_> = inputs.iter().map(|t| t.ty()).collect();
        let outputs = match operation.infer(&types) {
            Ok(outputs) => outputs,
            Err(message) => {
                refused::note(operation, inputs, &message);
                return Err(message.into());
            }
        };
        if let Some(ty) = outputs.iter().find(|ty| !ty.is_addressable()) {
            return Err(ty.too_large().into());
        }
        let inputs = inputs.iter().map(|&t| t.clone()).collect();
        Ok(Tensor::from_parts(Kind::Operation(Arc::new(operation)), inputs, outputs))
    }

    /// An operation whose results are of these types, whatever its rule says; for [`refused`].
    pub(crate) fn unchecked(operation: Arc<dyn Operation>, inputs: Vec<Tensor>, outputs: Vec<TensorType>) -> Tensor {
        Tensor::from_parts(Kind::Operation(operation), inputs, outputs)
    }

    /// As [`Tensor::apply`] for an operation with `N` results.
    #[track_caller]
    pub(crate) fn apply_many<const N: usize>(operation: impl Operation, inputs: &[&Tensor]) -> [Tensor; N] {
        let node = Tensor::apply(operation, inputs).node;
        // A poisoned one has one result, which is used for all.
        let last = node.outputs.len() - 1;
        std::array::from_fn(|output| Tensor { node: node.clone(), output: output.min(last) })
    }

    /// As [`Tensor::apply`] for an operation with any number of results but none; one poisoned tensor if it cannot be.
    #[track_caller]
    pub(crate) fn apply_all(operation: impl Operation, inputs: &[&Tensor]) -> Vec<Tensor> {
        let node = Tensor::apply(operation, inputs).node;
        (0..node.outputs.len()).map(|output| Tensor { node: node.clone(), output }).collect()
    }
}
