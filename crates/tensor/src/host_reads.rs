//! Counts how often each source line reads values from a device with `eval`.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// The number of reads by file and line.
static READS: Mutex<BTreeMap<(&'static str, u32), u64>> = Mutex::new(BTreeMap::new());

/// Counts a read for a line.
pub(crate) fn count(line: &'static Location<'static>) {
    *READS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry((line.file(), line.line()))
        .or_default() += 1;
}

/// How often each source line has read values from a device with `eval` or `eval_many`, by file and
/// line. Each read waits until the device has computed the value.
///
/// ```
/// use fulmen_tensor::{Tensor, internal::host_reads};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2]);
/// for _ in 0..3 {
///     x.sum_all().eval()?;
/// }
/// assert!(host_reads().values().any(|&reads| reads == 3));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub fn host_reads() -> BTreeMap<(&'static str, u32), u64> {
    READS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
