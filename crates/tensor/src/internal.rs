//! Items that other crates of Fulmen and the tests use. They are not a public API.

pub use crate::autocast::wide;
pub use crate::grad::gradients;
pub use crate::gradient_flow::gradient_end;
pub use crate::host_reads::host_reads;
pub use crate::index_checks::{IndexFacts, IndexRule, check_indices, check_masked_indices, place};
pub use crate::lower::portable_program;
pub use crate::missing_values::with_eval_advice;
pub use crate::notes::print_note;
pub use crate::ops::IndexChecks;
pub use crate::ops::batched_rows::{add_rows, take_rows};
pub use crate::ops::constant::{known_value, repeated_element};
pub use crate::ops::control_flow::kernel_call::{OpaqueCall, OpaqueParts, kernel_call};
pub use crate::ops::mean_weight::{MeanWeight, mean_weights, with_mean_weight};
pub use crate::ops::norm::global_norm;
pub use crate::ops::row_updates::{RowUpdates, row_updates};
pub use crate::random::part::bernoulli_part;
pub use crate::refused_operations::{RefusedOperation, watch};
pub use crate::scope::Library;
