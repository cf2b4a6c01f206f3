//! A bound on memory: what reads bytes may take so much for each of them and no more, whatever they
//! claim.
//!
//! Out of scope: the bytes.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Buffers, whose size does not depend on the bytes.
const BUFFERS: usize = 4 << 20;

/// Calls `read` with so much memory left as the bytes may need. More ends the process, which is how
/// a fault is told.
pub fn bounded(bytes: &[u8], read: impl FnOnce(&[u8])) {
    // What is compressed may become so much larger, and be copied while a buffer for it grows.
    let factor = if bytes.starts_with(&[0x1f, 0x8b]) { 4 * 1032 } else { 32 };
    // Room to say what was wrong remains.
    let _ = MEMORY.set_limit(MEMORY.allocated() + BUFFERS + factor * bytes.len());
    read(bytes);
    let _ = MEMORY.set_limit(usize::MAX);
}
