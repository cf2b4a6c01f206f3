//! TensorFlow's record files, and `tf.train.Example` messages, which most records contain.
//!
//! Out of scope: access to the files (`fulmen-files`).

mod example;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod record;
mod source;
mod stream;
mod writer;

pub use example::{Example, Feature};
#[cfg(feature = "fuzzing")]
pub(crate) use fuzz::fuzz;
pub use source::TfRecordSource;
pub use stream::TfRecords;
pub use writer::TfRecordWriter;
