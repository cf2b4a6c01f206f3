//! [`RefusedOperation`]: an operation that a shape rule refused on this thread. The test
//! `tests/it/shape_rules` checks whether the compiler refuses it, too.

use std::cell::RefCell;
use std::sync::Arc;

use crate::operation::Operation;
use crate::{Tensor, TensorType};

/// An operation that its shape rule refused.
#[derive(Clone)]
pub struct RefusedOperation {
    operation: Arc<dyn Operation>,
    inputs: Vec<TensorType>,
    message: String,
}

thread_local! {
    static REFUSED: RefCell<Option<Vec<RefusedOperation>>> = const { RefCell::new(None) };
}

/// Records a refusal of a shape rule.
pub(crate) fn record(operation: impl Operation, inputs: &[&Tensor], message: &str) {
    REFUSED.with_borrow_mut(|refused| {
        if let Some(all) = refused {
            let inputs = inputs.iter().map(|t| t.ty().clone()).collect();
            all.push(RefusedOperation {
                operation: Arc::new(operation),
                inputs,
                message: message.to_owned(),
            });
        }
    });
}

/// Runs `record`. Returns its result and what shape rules refused in it.
pub fn watch<T>(record: impl FnOnce() -> T) -> (T, Vec<RefusedOperation>) {
    REFUSED.set(Some(Vec::new()));
    let result = record();
    (result, REFUSED.take().unwrap_or_default())
}

impl RefusedOperation {
    /// The operation with its attributes.
    pub fn operation(&self) -> String {
        format!("{:?}", self.operation)
    }

    /// The types of the inputs.
    pub fn inputs(&self) -> &[TensorType] {
        &self.inputs
    }

    /// The shape rule's message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Records the operation without its shape rule, on these inputs and with these result types.
    /// Returns the first result.
    #[track_caller]
    pub fn record_unchecked(&self, inputs: &[Tensor], outputs: &[TensorType]) -> Tensor {
        let _scope = crate::Scope::open();
        Tensor::unchecked(self.operation.clone(), inputs.to_vec(), outputs.to_vec())
    }
}
