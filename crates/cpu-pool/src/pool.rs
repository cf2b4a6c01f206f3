//! The used and the spare blocks of the pool. Out of scope: memory itself, which the callers map and
//! unmap.

use std::collections::HashMap;

/// A freed block is returned to the system when it has not been reused for this many requests.
const MAX_IDLE_REQUESTS: u64 = 1024;

/// If a block is needed again within this many requests, it should not have been returned to the
/// system.
const RECENT_REQUESTS: u64 = 256;

/// A mapped block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

/// A block that was freed and not reused.
struct SpareBlock {
    block: Block,
    freed: u64,
}

/// The used and the spare blocks. It only does the bookkeeping: its callers map and unmap.
#[derive(Default)]
pub(crate) struct Pool {
    /// The lengths of the used blocks, by address.
    pub(crate) used: HashMap<usize, usize>,
    spare: Vec<SpareBlock>,
    /// The lengths of blocks that were returned to the system, and when.
    dropped: Vec<(usize, u64)>,
    /// The number of requests so far.
    clock: u64,
}

/// The result of a request.
pub(crate) struct RequestedBlock {
    /// The spare block to use; `None` if one has to be mapped.
    pub(crate) block: Option<Block>,
    /// The blocks to return to the system first.
    pub(crate) dropped: Vec<Block>,
}

impl Pool {
    /// Finds a block of `length` bytes: the smallest spare block that is not much larger, or none.
    ///
    /// If a block has to be mapped, spare blocks of the same total size are dropped, the oldest
    /// first. The memory then does not grow when one program follows another. If programs
    /// alternate, each turn would map the blocks that the previous turn dropped. A length that was
    /// dropped recently therefore drops nothing.
    pub(crate) fn request(&mut self, length: usize) -> RequestedBlock {
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

    /// The numbers of used and of spare blocks of `length` bytes.
    pub(crate) fn count(&self, length: usize) -> (usize, usize) {
        let used = self.used.values().filter(|&&used| used == length).count();
        let spare = self.spare.iter().filter(|spare| spare.block.length == length).count();
        (used, spare)
    }

    /// Frees the block at `address`, if it belongs to the pool.
    pub(crate) fn free(&mut self, address: usize) -> bool {
        let Some(length) = self.used.remove(&address) else { return false };
        self.spare.push(SpareBlock { block: Block { address, length }, freed: self.clock });
        true
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
}
