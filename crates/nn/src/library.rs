//! How operations recorded in this crate get the user's line: every public function that records
//! opens a scope of [`NN`], as the module `scope` of `fulmen_tensor` explains. Functions below it
//! need no `#[track_caller]`, and return errors with `?`.

use fulmen_tensor::internal::Library;
use fulmen_tensor::{Fault, Tensor};

/// This crate. In messages, the caller's line replaces a line of this crate.
pub(crate) const NN: Library = Library::new(file!());

/// The fault of the first poisoned tensor, for `?` within [`Library::record`].
pub(crate) fn live(tensors: &[&Tensor]) -> Result<(), Fault> {
    tensors.iter().try_for_each(|tensor| tensor.live().map(drop))
}
