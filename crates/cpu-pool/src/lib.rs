//! Large blocks of memory for XLA's CPU plugin, reused from step to step and separate from malloc's
//! heap. It is off unless `FULMEN_CPU_POOL=1` asks for it.
//!
//! The plugin allocates the temporaries of each step as one block, and each result as another, with
//! `posix_memalign`. It frees them after the step. glibc has two ways to do this, and both are
//! expensive. A block with its own mapping is faulted in page by page in every step. A block from
//! the heap leaves a hole when it is freed. A small allocation then takes the hole, the block of the
//! next step no longer fits, and the heap grows.
//!
//! [`Trial::begin`] redirects the plugin's own calls of `posix_memalign`, `free` and `realloc` here,
//! through its table of imported functions (the GOT, which the dynamic loader fills in). Blocks of
//! 1 MiB and more then get their own mappings. A freed block is kept for the next request of the
//! same size. Smaller requests go to malloc. The rest of the process, including the user's code,
//! keeps its allocator.
//!
//! This relies on what no plugin promises: that it frees what it allocates, through the same table.
//! So the plugin is first on trial: its large blocks still come from malloc, and only if one was
//! allocated and freed through this crate does the pool serve it. Otherwise the table is restored.
//!
//! Out of scope: plugins for other devices, which manage device memory themselves, and systems
//! other than Linux with glibc on x86-64 and 64-bit ARM.
#![allow(unsafe_code, reason = "this crate serves memory to C code")]
#![cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod imports;
mod pool;
mod served;
#[cfg(test)]
mod tests;

use std::ffi::c_void;

use parking_lot::{Mutex, MutexGuard};

use imports::Replaced;

/// The smallest block that the pool serves, in bytes.
pub const SMALLEST_BYTES: usize = served::LARGE;

/// The addresses of the plugins that the pool serves, or has tried to serve.
static TRIED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A plugin whose calls are redirected, and whose large blocks still come from malloc.
pub struct Trial {
    replaced: Replaced,
    /// Held, so that there is one trial at a time.
    _tried: MutexGuard<'static, Vec<usize>>,
}

impl Trial {
    /// Redirects the calls of the shared object that contains `address`. `None` if that was done
    /// before. It waits for the end of another thread's trial.
    ///
    /// # Safety
    /// `address` must be inside a shared object that stays loaded.
    pub unsafe fn begin(address: *const c_void) -> Option<Trial> {
        let mut tried = TRIED.lock();
        if tried.contains(&(address as usize)) {
            return None;
        }
        tried.push(address as usize);
        let replacements = [
            ("posix_memalign", served::posix_memalign as *const c_void),
            ("free", served::free as *const c_void),
            ("realloc", served::realloc as *const c_void),
        ];
        served::begin_trial();
        // SAFETY: the replacements behave like the functions with these names, and recognize each
        // other's blocks. A block that the plugin has allocated with malloc before is recognized by
        // its address.
        let replaced = unsafe { imports::replace(address, &replacements) };
        Some(Trial { replaced, _tried: tried })
    }

    /// Whether the plugin has allocated and freed a block of [`SMALLEST_BYTES`] or more in the
    /// trial.
    pub fn has_passed(&self) -> bool {
        !self.replaced.is_empty() && served::has_seen_a_block()
    }

    /// Ends the trial. If it has passed, the pool serves the plugin. Otherwise the plugin's calls
    /// are as before. Returns whether it has passed.
    pub fn end(self) -> bool {
        let has_passed = self.has_passed();
        if !has_passed {
            // No block of the pool is in use: in the trial, it gave out none.
            self.replaced.undo();
        }
        served::end_trial();
        has_passed
    }
}

/// The numbers of used and of spare blocks of this size, for tests.
#[doc(hidden)]
pub fn count(bytes: usize) -> (usize, usize) {
    served::count(bytes)
}
