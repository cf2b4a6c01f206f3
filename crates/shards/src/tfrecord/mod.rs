//! TensorFlow's record files, and the `tf.train.Example` messages that mostly are in them.
//!
//! Not here: where the files lie (`store`).

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
