//! Batch memory that is reused once no consumer and no device holds it.
//!
//! Out of scope: the content. Reused memory still has the bytes of an earlier batch.

use std::sync::{Arc, Mutex, PoisonError};

use fulmen_pjrt::HostBuffer;

use crate::{Error, Result};

/// Allocations of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    size: usize,
    capacity: usize,
    buffers: Mutex<Vec<Arc<HostBuffer>>>,
}

impl Pool {
    /// A pool for allocations of `size` bytes that remembers at most `capacity` of them.
    pub(crate) fn new(size: usize, capacity: usize) -> Pool {
        Pool { size, capacity, buffers: Mutex::new(Vec::new()) }
    }

    /// An allocation that only the caller holds. The gaps between the fields are zero because
    /// nothing writes to them.
    pub(crate) fn take(&self) -> Result<Arc<HostBuffer>> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the pool holds an `Arc` whose count is one, so no other thread can clone it in the
        // meantime.
        if let Some(free) = buffers.iter().position(|buffer| Arc::strong_count(buffer) == 1) {
            return Ok(buffers.swap_remove(free));
        }
        drop(buffers);
        let fresh = HostBuffer::zeroed(self.size).map_err(|source| {
            Error::runtime(format!("allocating {} bytes for a batch", self.size), source)
        })?;
        Ok(Arc::new(fresh))
    }

    /// Remembers an allocation from [`take`](Pool::take) that is about to be handed out.
    pub(crate) fn remember(&self, buffer: &Arc<HostBuffer>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < self.capacity {
            buffers.push(Arc::clone(buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_reused_only_when_it_is_not_held() {
        let pool = Pool::new(128, 2);
        let first = pool.take().unwrap();
        pool.remember(&first);
        let second = pool.take().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        let address = first.as_ptr();
        drop(first);
        let mut reused = pool.take().unwrap();
        assert_eq!(reused.as_ptr(), address);
        assert!(Arc::get_mut(&mut reused).is_some());
    }
}
