//! How what this crate records finds the user's line: every public function that records opens a scope of [`NN`], as the
//! module `scope` of `fulmen_tensor` says. The functions under it need no `#[track_caller]`, and refuse with `?`.

use fulmen_tensor::{Fault, Library, Tensor};

/// This crate, whose lines stand for its users'.
pub(crate) const NN: Library = Library::new(file!());

/// The fault of the first that is poisoned; for `?` within [`Library::record`].
pub(crate) fn live(tensors: &[&Tensor]) -> Result<(), Fault> {
    tensors.iter().try_for_each(|tensor| tensor.live().map(drop))
}
