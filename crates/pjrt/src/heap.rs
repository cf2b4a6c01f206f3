//! Returns the memory of a finished compilation to the system.
//!
//! A compiler allocates hundreds of megabytes in small pieces and frees them when it ends. glibc
//! keeps free pages inside its heaps, and training would then need its own memory on top: a third
//! more for ResNet-18 on the CPU.

use std::time::{Duration, Instant};

/// A compilation that took this long has left enough free memory to be worth a pass over the heap.
const LONG: Duration = Duration::from_millis(500);

/// Runs a compilation. If it took long, returns free pages of malloc's heaps to the system.
pub(crate) fn run_and_trim<T>(compile: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = compile();
    if start.elapsed() >= LONG {
        trim();
    }
    result
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // With the feature `jemalloc` of `fulmen`, this is the function of that name in `fulmen`.
    // SAFETY: `malloc_trim` may be called at any time, from any thread. It releases only pages that
    // are free.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators return free memory on their own, or have no such function.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
