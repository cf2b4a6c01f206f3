//! Threads that fill batches ahead of the consumer, one whole batch each, delivered in order or as they are finished.
//!
//! Not here: the content of a batch. The batch sampler decides it before any thread sees it, so the number of threads
//! cannot change it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::{batch::HostBatch, batch_sampler::BatchSampler, inner::Inner};
use crate::{Error, Result};

/// The threads and their finished batches. Dropping it stops and joins them.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    inner: Arc<Inner>,
    stop: Arc<AtomicBool>,
    /// If both are locked, this one is locked before `queue`.
    sampler: Mutex<BatchSampler>,
    queue: Mutex<Queue>,
    /// Signalled when the consumer has taken a batch, and on stop.
    space: Condvar,
    /// Signalled when the batch that the consumer waits for may be ready, or the end is known.
    ready: Condvar,
}

/// Batches are numbered across epochs, in the order of the sampler.
struct Queue {
    /// The number of the next batch that the consumer takes.
    next: u64,
    finished: BTreeMap<u64, Result<HostBatch>>,
    /// The number of batches, once it is known.
    end: Option<u64>,
    /// The first batch of the next epoch: even unordered batches do not cross the end of their epoch.
    epoch_end: u64,
}

impl Queue {
    /// Takes the next batch, if it is finished.
    fn take(&mut self, ordered: bool, batches: u64) -> Option<Result<HostBatch>> {
        let batch = if ordered {
            self.finished.remove(&self.next)?
        } else {
            let first = self.finished.first_entry()?;
            if *first.key() >= self.epoch_end {
                return None;
            }
            first.remove()
        };
        self.next += 1;
        if self.next == self.epoch_end {
            self.epoch_end = self.epoch_end.saturating_add(batches);
        }
        Some(batch)
    }
}

impl Workers {
    pub(crate) fn start(
        inner: Arc<Inner>,
        sampler: BatchSampler,
        count: usize,
        stop: Arc<AtomicBool>,
    ) -> Result<Workers> {
        let queue = Queue { next: 0, finished: BTreeMap::new(), end: None, epoch_end: inner.batches() as u64 };
        let shared = Arc::new(Shared {
            inner,
            stop,
            sampler: Mutex::new(sampler),
            queue: Mutex::new(queue),
            space: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut workers = Workers { shared, threads: Vec::with_capacity(count) };
        for i in 0..count {
            let shared = Arc::clone(&workers.shared);
            // If this fails, dropping `workers` ends the threads that did start.
            let thread = Builder::new().name(format!("fulmen-data-{i}")).spawn(move || shared.work());
            workers.threads.push(thread.map_err(|source| {
                Error::usage(format!("cannot start worker thread {i} of {count}: {source}; use fewer workers"))
            })?);
        }
        Ok(workers)
    }

    /// Waits for the next batch.
    pub(crate) fn next(&mut self) -> Option<Result<HostBatch>> {
        let inner = &self.shared.inner;
        let mut queue = self.shared.queue();
        inner.setup.stats.report().host_queue.record(queue.finished.len());
        loop {
            if let Some(batch) = queue.take(inner.setup.config.ordered, inner.batches() as u64) {
                drop(queue);
                self.shared.space.notify_all();
                return Some(batch);
            }
            if queue.end == Some(queue.next) {
                return None;
            }
            queue = self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The lock is held so that no thread is between checking `stop` and waiting.
        let queue = self.shared.queue();
        self.shared.space.notify_all();
        drop(queue);
        for thread in self.threads.drain(..) {
            // The result can be ignored: panics of user code are caught where it is called.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread.
    fn work(&self) {
        let stats = &self.inner.setup.stats;
        loop {
            let (start, fetched) = (Instant::now(), stats.report().in_order);
            let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
            let fetched = stats.report().in_order.saturating_sub(fetched);
            stats.waited_for_sampler(start.elapsed(), fetched);
            let number = sampler.issued;
            let task = if self.wait_for_space(number) { sampler.next() } else { None };
            let Some(task) = task else {
                // Also after a stop, so that a consumer on another thread does not wait for a batch that will not come.
                self.queue().end = Some(number);
                self.ready.notify_all();
                return;
            };
            drop(sampler);
            let batch = task.and_then(|(id, task)| self.inner.fill(id, task, &self.stop));
            self.queue().finished.insert(number, batch);
            self.ready.notify_all();
        }
    }

    /// Waits until batch `number` is within the prefetch window. False after a stop.
    fn wait_for_space(&self, number: u64) -> bool {
        let start = Instant::now();
        let mut queue = self.queue();
        while !self.stop.load(Ordering::Relaxed) {
            if number - queue.next < self.inner.setup.config.prefetch as u64 {
                self.inner.setup.stats.report().waited_for_space += start.elapsed();
                return true;
            }
            queue = self.space.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }
}
