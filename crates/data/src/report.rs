//! What a loader notices of its own running.
//!
//! Not here: bad samples' treatment (`on_error`).

use crate::on_error::BadList;

/// Counters that all threads of a loader share.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) bad: BadList,
}
