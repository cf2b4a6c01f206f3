//! Large blocks of memory for CPU plugins, reused from step to step and separate from malloc's
//! heap.
//!
//! An XLA CPU plugin allocates the temporaries of each step as one block, and each result as
//! another, with `posix_memalign`. It frees them after the step. glibc has two ways to do this, and
//! both are expensive. A block with its own mapping is faulted in page by page in every step (17 %
//! of a step of a small GPT). A block from the heap leaves a hole when it is freed. A small
//! allocation then takes the hole, the block of the next step no longer fits, and the heap grows
//! (ResNet-18 on eight devices used 6.4 GB instead of 2.3).
//!
//! The plugin's own calls of `posix_memalign`, `free` and `realloc` are therefore redirected here
//! through its table of imported functions (the GOT, which the dynamic loader fills in). Blocks of
//! 1 MiB and more get their own mappings. A freed block is kept for the next request of the same
//! size. Smaller requests go to malloc. The rest of the process, including the user's code, keeps
//! its allocator.
//!
//! Out of scope: plugins for other devices, which manage device memory themselves, and systems
//! other than Linux with glibc. Nothing changes for them.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::imports;

/// The smallest size of a block of the pool, in bytes.
const LARGE: usize = 1 << 20;

/// The alignment of each block in bytes, and the unit of its length. Blocks of malloc seldom have
/// this alignment. It is a multiple of every system's page size.
const PAGE: usize = 64 << 10;

/// A freed block is returned to the system when it has not been reused for this many requests.
const MAX_IDLE_REQUESTS: u64 = 1024;

/// If a block is needed again within this many requests, it should not have been returned to the
/// system.
const RECENT_REQUESTS: u64 = 256;

/// Before a block of this many bytes is mapped, a program that has just ended gets a moment to free
/// its own. A plugin reports the end of a program before it frees the program's temporaries.
const WAIT_THRESHOLD: usize = 64 << 20;
const WAIT: Duration = Duration::from_millis(2);

/// Redirects the allocations of the plugin that contains `address` to this module. Further calls
/// for the same plugin have no effect.
///
/// # Safety
/// `address` must be inside a shared object that stays loaded.
pub(crate) unsafe fn serve(address: *const c_void) {
    let replacements = [
        ("posix_memalign", posix_memalign as *const c_void),
        ("free", free as *const c_void),
        ("realloc", realloc as *const c_void),
    ];
    // SAFETY: the replacements behave like the functions with these names, and recognize each
    // other's blocks. A block that the plugin has allocated with malloc before is recognized by its
    // address.
    unsafe { imports::replace(address, &replacements) }
}

/// A mapped block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    address: usize,
    length: usize,
}

/// A block that was freed and not reused.
struct SpareBlock {
    block: Block,
    freed: u64,
}

/// The used and the spare blocks. It only does the bookkeeping: its callers map and unmap.
#[derive(Default)]
struct Pool {
    /// The lengths of the used blocks, by address.
    used: HashMap<usize, usize>,
    spare: Vec<SpareBlock>,
    /// The lengths of blocks that were returned to the system, and when.
    dropped: Vec<(usize, u64)>,
    /// The number of requests so far.
    clock: u64,
}

/// The result of a request.
struct RequestedBlock {
    /// The spare block to use; `None` if one has to be mapped.
    block: Option<Block>,
    /// The blocks to return to the system first.
    dropped: Vec<Block>,
}

impl Pool {
    /// Finds a block of `length` bytes: the smallest spare block that is not much larger, or none.
    ///
    /// If a block has to be mapped, spare blocks of the same total size are dropped, the oldest
    /// first. The memory then does not grow when one program follows another. If programs
    /// alternate, each turn would map the blocks that the previous turn dropped. A length that was
    /// dropped recently therefore drops nothing.
    fn request(&mut self, length: usize) -> RequestedBlock {
        self.clock += 1;
        let clock = self.clock;
        let fits =
            |spare: &SpareBlock| (length..=length + length / 8).contains(&spare.block.length);
        let best = (0..self.spare.len())
            .filter(|&i| fits(&self.spare[i]))
            .min_by_key(|&i| self.spare[i].block.length);
        let block = best.map(|i| self.spare.remove(i).block);
        self.dropped.retain(|(_, dropped)| clock - dropped < RECENT_REQUESTS);
        let mut surplus = match block {
            Some(block) => {
                self.used.insert(block.address, block.length);
                0
            }
            None if self.dropped.iter().any(|&(dropped, _)| dropped == length) => 0,
            None => length,
        };
        let mut dropped = Vec::new();
        // The oldest come first.
        self.spare.retain(|spare| {
            let drop = surplus > 0 || clock - spare.freed > MAX_IDLE_REQUESTS;
            if drop {
                surplus = surplus.saturating_sub(spare.block.length);
                dropped.push(spare.block);
            }
            !drop
        });
        self.dropped.extend(dropped.iter().map(|block| (block.length, clock)));
        RequestedBlock { block, dropped }
    }

    /// Whether a block of `length` bytes is in use and none is spare.
    fn is_about_to_be_freed(&self, length: usize) -> bool {
        self.used.values().any(|&taken| taken == length)
            && !self.spare.iter().any(|spare| spare.block.length == length)
    }

    /// Frees the block at `address`, if it belongs to the pool.
    fn free(&mut self, address: usize) -> bool {
        let Some(length) = self.used.remove(&address) else { return false };
        self.spare.push(SpareBlock { block: Block { address, length }, freed: self.clock });
        if length >= WAIT_THRESHOLD {
            FREED.notify_one();
        }
        true
    }
}

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

/// Notified when a block of `WAIT_THRESHOLD` or more is freed.
static FREED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock()
}

/// A block of `size` bytes, or `None` if the system has no memory.
fn take(size: usize) -> Option<*mut c_void> {
    let length = size.checked_next_multiple_of(PAGE)?;
    let mut pool = pool();
    if length >= WAIT_THRESHOLD {
        let end = Instant::now() + WAIT;
        while pool.is_about_to_be_freed(length) && !FREED.wait_until(&mut pool, end).timed_out() {}
    }
    let RequestedBlock { block, dropped } = pool.request(length);
    drop(pool);
    for block in dropped {
        // SAFETY: `map` mapped the block with this length. It was freed, and the pool no longer has
        // it.
        unsafe { libc::munmap(block.address as *mut c_void, block.length) };
    }
    let address = match block {
        Some(block) => block.address,
        None => {
            let address = map(length)?;
            self::pool().used.insert(address, length);
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
unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let large = size >= LARGE && alignment <= PAGE && alignment.is_power_of_two();
    if let Some(address) = large.then(|| take(size)).flatten() {
        // SAFETY: the caller passes a place for the address.
        unsafe { *block = address };
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::posix_memalign(block, alignment, size) }
}

/// # Safety
/// As in C.
unsafe extern "C" fn free(block: *mut c_void) {
    if !(may_be_large(block) && pool().free(block as usize)) {
        // SAFETY: the caller's promise, because the block does not belong to the pool.
        unsafe { libc::free(block) }
    }
}

/// # Safety
/// As in C.
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
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

    /// Requests `length` bytes, and simulates a mapping if no block is spare. Returns the block and
    /// the dropped lengths.
    fn request(pool: &mut Pool, length: usize, fresh: usize) -> (usize, Vec<usize>) {
        let answer = pool.request(length);
        let address = answer.block.map_or(fresh, |block| block.address);
        pool.used.insert(address, length);
        (address, answer.dropped.iter().map(|block| block.length).collect())
    }

    #[test]
    fn a_freed_block_serves_the_next_request_of_its_size() {
        let mut pool = Pool::default();
        assert_eq!(request(&mut pool, 100 * MB, 1), (1, Vec::new()));
        assert!(pool.free(1) && !pool.free(1) && !pool.free(2));
        assert_eq!(request(&mut pool, 100 * MB, 2), (1, Vec::new()));
        assert_eq!(request(&mut pool, 100 * MB, 2), (2, Vec::new()), "the first is in use");
        assert!(pool.free(1) && pool.free(2));
        assert_eq!(request(&mut pool, 95 * MB, 3).0, 1, "a little smaller fits");
        assert_eq!(
            request(&mut pool, 50 * MB, 3),
            (3, vec![100 * MB]),
            "half as large wants its own"
        );
    }

    #[test]
    fn another_program_reuses_the_memory_and_alternating_programs_keep_theirs() {
        let mut pool = Pool::default();
        for round in 0..4 {
            let (address, dropped) = request(&mut pool, 300 * MB, 1);
            assert_eq!(dropped, [], "{round}");
            pool.free(address);
            let (address, dropped) = request(&mut pool, 200 * MB, 2);
            // Only until the pool recognizes that they alternate.
            assert_eq!(dropped, [300 * MB].repeat(usize::from(round == 0)), "{round}");
            pool.free(address);
        }
        assert_eq!(pool.spare.len(), 2);
    }

    #[test]
    fn unused_blocks_are_returned_to_the_system() {
        let mut pool = Pool::default();
        request(&mut pool, 300 * MB, 1);
        request(&mut pool, 2 * MB, 2);
        assert!(pool.free(1) && pool.free(2));
        let mut dropped = Vec::new();
        for _ in 0..=MAX_IDLE_REQUESTS {
            let (address, more) = request(&mut pool, 2 * MB, 2);
            pool.free(address);
            dropped.extend(more);
        }
        assert_eq!(dropped, [300 * MB]);
    }

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

    #[test]
    fn a_cpu_plugin_reuses_the_pools_blocks_for_results() {
        use crate::locate::{Platform, locate};
        use crate::{CompileOptions, Plugin};

        // A length that no other test uses.
        let length = (1_234_567 * 8_usize).next_multiple_of(PAGE);
        let taken = || pool().used.values().filter(|&&taken| taken == length).count();
        let spare = || pool().spare.iter().filter(|spare| spare.block.length == length).count();
        let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
        let client = plugin.create_client(&[("cpu_device_count", 1.into())]).unwrap();
        let program = "func.func @main(%x: tensor<f64>) -> tensor<1234567xf64> {
            %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f64>) -> tensor<1234567xf64>
            return %y : tensor<1234567xf64>
        }";
        let program = client.compile(program, &CompileOptions::new()).unwrap();
        for value in [1.5_f64, 2.5] {
            let bytes = value.to_ne_bytes();
            let x = client
                .buffer_from_host(&bytes, crate::ElementType::F64, &[], &client.devices()[0])
                .unwrap();
            let result = program
                .execute(vec![vec![crate::Argument::Borrow(&x)]])
                .unwrap()
                .outputs
                .remove(0)
                .remove(0);
            let read = result.read().unwrap().wait().unwrap();
            assert!(read.len() == 1_234_567 * 8 && read.ends_with(&bytes));
            assert_eq!((taken(), spare()), (1, 0));
            drop(result);
            // A thread of the plugin may hold the block for a moment longer.
            let start = std::time::Instant::now();
            while taken() > 0 && start.elapsed() < std::time::Duration::from_secs(10) {
                std::thread::yield_now();
            }
            assert_eq!((taken(), spare()), (0, 1));
        }
    }
}
