//! The functions that replace `posix_memalign`, `free` and `realloc` in a plugin.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::pool::{Pool, RequestedBlock};

/// The smallest size of a block of the pool, in bytes.
pub(crate) const LARGE: usize = 1 << 20;

/// The alignment of each block in bytes, and the unit of its length. Blocks of malloc seldom have
/// this alignment. It is a multiple of every system's page size.
const PAGE: usize = 64 << 10;

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

/// While a plugin is on trial, large blocks come from malloc, so that each `free` may have them.
static IS_TRIAL: AtomicBool = AtomicBool::new(false);
/// The large block that was allocated last in a trial.
static TRIAL_BLOCK: AtomicUsize = AtomicUsize::new(0);
/// Whether that block came back.
static TRIAL_BLOCK_IS_FREED: AtomicBool = AtomicBool::new(false);

pub(crate) fn begin_trial() {
    TRIAL_BLOCK.store(0, Ordering::SeqCst);
    TRIAL_BLOCK_IS_FREED.store(false, Ordering::SeqCst);
    IS_TRIAL.store(true, Ordering::SeqCst);
}

/// Whether a large block was allocated and freed in the trial.
pub(crate) fn has_seen_a_block() -> bool {
    TRIAL_BLOCK_IS_FREED.load(Ordering::SeqCst)
}

pub(crate) fn end_trial() {
    IS_TRIAL.store(false, Ordering::SeqCst);
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock()
}

/// The numbers of used and of spare blocks of `length` bytes.
pub(crate) fn count(length: usize) -> (usize, usize) {
    pool().count(length.next_multiple_of(PAGE))
}

/// A block of `size` bytes, or `None` if the system has no memory.
fn take(size: usize) -> Option<*mut c_void> {
    let length = size.checked_next_multiple_of(PAGE)?;
    let RequestedBlock { block, dropped } = pool().request(length);
    for block in dropped {
        // SAFETY: `map` mapped the block with this length. It was freed, and the pool no longer has
        // it.
        unsafe { libc::munmap(block.address as *mut c_void, block.length) };
    }
    let address = match block {
        Some(block) => block.address,
        None => {
            let address = map(length)?;
            pool().used.insert(address, length);
            address
        }
    };
    Some(address as *mut c_void)
}

/// Maps `length` bytes, a multiple of `PAGE`, at a multiple of `PAGE`.
fn map(length: usize) -> Option<usize> {
    let mapped = length.checked_add(PAGE)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice replaces no other.
    let start = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start as usize;
    let aligned = start.next_multiple_of(PAGE);
    for (from, to) in [(start, aligned), (aligned + length, start + mapped)] {
        if from < to {
            // SAFETY: this part of the new mapping is not in use.
            unsafe { libc::munmap(from as *mut c_void, to - from) };
        }
    }
    Some(aligned)
}

/// Whether a block of the pool could start here. malloc's mapped blocks never do, and its other
/// blocks seldom do.
fn may_be_large(block: *mut c_void) -> bool {
    !block.is_null() && (block as usize).is_multiple_of(PAGE)
}

/// # Safety
/// As in C.
pub(crate) unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let is_large = size >= LARGE && alignment <= PAGE && alignment.is_power_of_two();
    let is_trial = IS_TRIAL.load(Ordering::SeqCst);
    if is_large
        && !is_trial
        && let Some(address) = take(size)
    {
        // SAFETY: the caller passes a place for the address.
        unsafe { *block = address };
        return 0;
    }
    // SAFETY: the caller's promise.
    let status = unsafe { libc::posix_memalign(block, alignment, size) };
    if is_large && is_trial && status == 0 {
        // SAFETY: the function has written the address.
        TRIAL_BLOCK.store(unsafe { *block } as usize, Ordering::SeqCst);
    }
    status
}

/// # Safety
/// As in C.
pub(crate) unsafe extern "C" fn free(block: *mut c_void) {
    if IS_TRIAL.load(Ordering::SeqCst)
        && !block.is_null()
        && block as usize == TRIAL_BLOCK.load(Ordering::SeqCst)
    {
        TRIAL_BLOCK_IS_FREED.store(true, Ordering::SeqCst);
    }
    if !(may_be_large(block) && pool().free(block as usize)) {
        // SAFETY: the caller's promise, because the block does not belong to the pool.
        unsafe { libc::free(block) }
    }
}

/// # Safety
/// As in C.
pub(crate) unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let used_length =
        may_be_large(block).then(|| pool().used.get(&(block as usize)).copied()).flatten();
    let Some(length) = used_length else {
        // SAFETY: the caller's promise, because the block does not belong to the pool.
        return unsafe { libc::realloc(block, size) };
    };
    // SAFETY: `malloc` accepts any size. Both blocks hold the copied bytes, and the old one belongs
    // to the pool.
    unsafe {
        let other = libc::malloc(size);
        if !other.is_null() {
            ptr::copy_nonoverlapping(block.cast::<u8>(), other.cast::<u8>(), length.min(size));
            free(block);
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn a_mapped_block_is_aligned_writable_and_grows_into_mallocs_memory() {
        // SAFETY: all accesses are within the blocks, and each block is freed once.
        unsafe {
            let mut block = ptr::null_mut();
            assert_eq!(posix_memalign(&raw mut block, 64, 3 * MB + 5), 0);
            assert!((block as usize).is_multiple_of(PAGE));
            ptr::write_bytes(block.cast::<u8>(), 7, 3 * MB + 5);
            let larger = realloc(block, 5 * MB);
            assert_eq!(*larger.cast::<u8>().add(3 * MB + 4), 7);
            free(larger);
            assert_eq!(posix_memalign(&raw mut block, 64, 100), 0);
            free(block);
            free(ptr::null_mut());
            assert_ne!(posix_memalign(&raw mut block, 3, 2 * MB), 0, "no power of two");
            assert_ne!(posix_memalign(&raw mut block, 64, usize::MAX - 100), 0);
        }
    }
}
