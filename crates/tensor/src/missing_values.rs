//! The error that `eval` returns for a tensor that has no value: a placeholder, or a tensor of a
//! function that is being recorded.

use std::cell::Cell;
use std::panic::Location;

use crate::graph::visit;
use crate::tensor::Kind;
use crate::{Fault, Result, Tensor};

/// The function that is being recorded.
#[derive(Clone, Copy)]
struct RecordedFunction {
    name: &'static str,
    /// How to get the function's values.
    advice: &'static str,
}

thread_local! {
    static RECORDED_FUNCTION: Cell<Option<RecordedFunction>> = const { Cell::new(None) };
}

/// Runs `record`, which records the function `name`. If `record` calls `eval` on a tensor that
/// depends on the function's inputs, the error says that the tensor has no value yet, and shows
/// `advice`.
///
/// ```
/// use fulmen_tensor::{DType, Tensor, TensorType, internal::with_eval_advice};
///
/// let x = Tensor::placeholder("x", TensorType::scalar(DType::F32));
/// let error =
///     with_eval_advice("the step", "print it after the step", || x.exp().eval().unwrap_err());
/// assert!(error.to_string().contains("print it after the step"));
/// ```
pub fn with_eval_advice<T>(
    name: &'static str,
    advice: &'static str,
    record: impl FnOnce() -> T,
) -> T {
    struct Restore(Option<RecordedFunction>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDED_FUNCTION.set(self.0);
        }
    }
    let _restore = Restore(RECORDED_FUNCTION.replace(Some(RecordedFunction { name, advice })));
    record()
}

/// The name of a placeholder that these tensors depend on.
pub(crate) fn placeholder_of(tensors: &[Tensor]) -> Option<String> {
    let mut placeholder = None;
    visit(tensors, |node| {
        if let (None, Kind::Placeholder { name }) = (&placeholder, &node.kind) {
            placeholder = Some(name.to_string());
        }
    });
    placeholder
}

/// Checks that these tensors do not depend on a placeholder, so that `eval`, called at `location`,
/// can compute them.
pub(crate) fn check_no_placeholder(
    tensors: &[Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let Some(name) = placeholder_of(tensors) else { return Ok(()) };
    let message = match RECORDED_FUNCTION.get() {
        Some(RecordedFunction { name: function, advice }) => format!(
            "the tensor has no value yet: it depends on `{name}`, an input of {function}, which is being recorded and \
             runs later; {advice}"
        ),
        None => format!(
            "the tensor has no value: it depends on the placeholder `{name}`, an input of a function; make the tensor a \
             result of the function, and call the compiled function with a value for `{name}`"
        ),
    };
    Err(Fault::new("eval", message, location).into())
}
