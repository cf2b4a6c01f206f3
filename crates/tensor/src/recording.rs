//! Asking for a value that is not there yet: within a step that is being recorded, or of a placeholder.

use std::cell::Cell;
use std::panic::Location;

use crate::graph::visit;
use crate::tensor::Kind;
use crate::{Fault, Result, Tensor};

thread_local! {
    /// What is being recorded, and what to do for a value of it.
    static RECORDING: Cell<Option<(&'static str, &'static str)>> = const { Cell::new(None) };
}

/// Runs `record`, which records the function `what`. Where `eval` is called in it for a value that depends on the
/// function's inputs, the error says that there is none yet, and gives `advice`.
///
/// ```
/// use fulmen_tensor::{DType, Tensor, TensorType, recording};
///
/// let x = Tensor::placeholder("x", TensorType::scalar(DType::F32));
/// let error = recording("the step", "print it after the step", || x.exp().eval().unwrap_err());
/// assert!(error.to_string().contains("print it after the step"));
/// ```
pub fn recording<T>(what: &'static str, advice: &'static str, record: impl FnOnce() -> T) -> T {
    struct Restore(Option<(&'static str, &'static str)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDING.set(self.0);
        }
    }
    let _restore = Restore(RECORDING.replace(Some((what, advice))));
    record()
}

/// Why `eval`, called at `location`, cannot give the values of these tensors, if they depend on a placeholder.
pub(crate) fn check_values(tensors: &[Tensor], location: &'static Location<'static>) -> Result<()> {
    let mut found = None;
    visit(tensors, |node| {
        if let (None, Kind::Placeholder { name }) = (&found, &node.kind) {
            found = Some(name.clone());
        }
    });
    let Some(name) = found else { return Ok(()) };
    let message = match RECORDING.get() {
        Some((what, advice)) => format!(
            "the tensor has no value yet: it depends on `{name}`, an input of {what}, which is being recorded and runs \
             later; {advice}"
        ),
        None => format!(
            "the tensor has no value: it depends on the placeholder `{name}`, an input of a function; make the tensor a \
             result of the function, and call the compiled function with a value for `{name}`"
        ),
    };
    Err(Fault::new("eval", message, location).into())
}
