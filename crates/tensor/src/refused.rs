//! Records what shape rules refuse on this thread, for a test that checks whether the compiler
//! refuses it too.
//!
//! Not part of the public interface: only `tests/it/shape_rules` uses it.

use std::cell::RefCell;
use std::sync::Arc;

use crate::operation::Operation;
use crate::{Tensor, TensorType};

/// An operation that its shape rule refused.
#[derive(Clone)]
pub struct Refused {
    operation: Arc<dyn Operation>,
    inputs: Vec<TensorType>,
    message: String,
}

thread_local! {
    static WATCHED: RefCell<Option<Vec<Refused>>> = const { RefCell::new(None) };
}

/// Records a refusal of a shape rule.
pub(crate) fn note(operation: impl Operation, inputs: &[&Tensor], message: &str) {
    WATCHED.with_borrow_mut(|watched| {
        if let Some(all) = watched {
            let inputs = inputs.iter().map(|t| t.ty().clone()).collect();
            all.push(Refused {
                operation: Arc::new(operation),
                inputs,
                message: message.to_owned(),
            });
        }
    });
}

/// Runs `record`. Returns its result and what shape rules refused in it.
pub fn watch<T>(record: impl FnOnce() -> T) -> (T, Vec<Refused>) {
    WATCHED.set(Some(Vec::new()));
    let result = record();
    (result, WATCHED.take().unwrap_or_default())
}

impl Refused {
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
    pub fn forced(&self, inputs: &[Tensor], outputs: &[TensorType]) -> Tensor {
        let _scope = crate::Scope::open();
        Tensor::unchecked(self.operation.clone(), inputs.to_vec(), outputs.to_vec())
    }
}
