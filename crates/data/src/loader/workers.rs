//! Threads that fill batches ahead of the consumer, one whole batch each, delivered in order or as
//! they are finished.
//!
//! Out of scope: the content of a batch. The batch sampler decides it before any thread sees it, so
//! the number of threads cannot change it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{batch::HostBatch, batch_sampler::BatchSampler, inner::Inner};
use crate::{Error, Result};

/// The threads and their finished batches. Dropping it stops and joins them.
pub(crate) struct Workers {
    shared: Arc<SharedState>,
    threads: Vec<JoinHandle<()>>,
}

struct SharedState {
    inner: Arc<Inner>,
    stop: Arc<AtomicBool>,
    /// If both are locked, this one is locked before `queue`.
    sampler: Mutex<BatchSampler>,
    queue: Mutex<Queue>,
    /// Signaled when the consumer has taken a batch, and when the threads are stopped.
    space: Condvar,
    /// Signaled when the batch that the consumer waits for is finished, or when `end` is known.
    ready: Condvar,
}

/// The finished batches. Batches are numbered across epochs, in the order of the sampler.
struct Queue {
    /// The number of the next batch that the consumer takes.
    next: u64,
    finished: BTreeMap<u64, Result<HostBatch>>,
    /// The number of batches, once it is known.
    end: Option<u64>,
    /// The number of the first batch of the next epoch. Even unordered batches are delivered within
    /// their epoch.
    epoch_end: u64,
    /// The number of batches of an epoch.
    epoch_batches: u64,
    ordered: bool,
}

impl Queue {
    /// The number of the finished batch to deliver next, if there is one.
    fn deliverable(&self) -> Option<u64> {
        if self.ordered {
            return self.finished.contains_key(&self.next).then_some(self.next);
        }
        self.finished
            .first_key_value()
            .map(|(&number, _)| number)
            .filter(|&number| number < self.epoch_end)
    }

    /// Takes the batch to deliver next, if it is finished.
    fn take(&mut self) -> Option<Result<HostBatch>> {
        let batch = self.finished.remove(&self.deliverable()?)?;
        self.next += 1;
        if self.next == self.epoch_end {
            self.epoch_end = self.epoch_end.saturating_add(self.epoch_batches);
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
        let epoch_batches = inner.batches() as u64;
        let queue = Queue {
            next: 0,
            finished: BTreeMap::new(),
            end: None,
            epoch_end: epoch_batches,
            epoch_batches,
            ordered: inner.setup.config.ordered,
        };
        let shared = Arc::new(SharedState {
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
            let thread =
                Builder::new().name(format!("fulmen-data-{i}")).spawn(move || shared.work());
            workers.threads.push(thread.map_err(|source| {
                Error::usage(format!(
                    "cannot start worker thread {i} of {count}: {source}; use fewer workers"
                ))
            })?);
        }
        Ok(workers)
    }

    /// Waits for the next batch.
    pub(crate) fn next(&mut self) -> Option<Result<HostBatch>> {
        let inner = &self.shared.inner;
        let mut queue = self.shared.queue.lock();
        inner.setup.stats.report().host_queue.record(queue.finished.len());
        loop {
            if let Some(batch) = queue.take() {
                drop(queue);
                self.shared.space.notify_all();
                return Some(batch);
            }
            if queue.end == Some(queue.next) {
                return None;
            }
            self.shared.ready.wait(&mut queue);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The lock is held so that no thread is between checking `stop` and waiting.
        let queue = self.shared.queue.lock();
        self.shared.space.notify_all();
        drop(queue);
        for thread in self.threads.drain(..) {
            // The result can be ignored, because panics of user code are caught where it is called.
            let _ = thread.join();
        }
    }
}

impl SharedState {
    /// The loop of a worker thread.
    fn work(&self) {
        let stats = &self.inner.setup.stats;
        loop {
            let start = Instant::now();
            let fetched = stats.report().in_order;
            let mut sampler = self.sampler.lock();
            let fetched = stats.report().in_order.saturating_sub(fetched);
            stats.waited_for_sampler(start.elapsed(), fetched);
            let number = sampler.issued;
            let task = if self.wait_for_space(number) { sampler.next() } else { None };
            let Some(task) = task else {
                // This is also set after a stop, so that a consumer on another thread does not wait
                // for a batch that will not come.
                self.queue.lock().end = Some(number);
                self.ready.notify_all();
                return;
            };
            drop(sampler);
            let batch = task.and_then(|(id, task)| self.inner.fill(id, task, &self.stop));
            let mut queue = self.queue.lock();
            queue.finished.insert(number, batch);
            let is_ready = queue.deliverable().is_some();
            drop(queue);
            if is_ready {
                self.ready.notify_all();
            }
        }
    }

    /// Waits until batch `number` is within the prefetch window. Returns false after a stop.
    fn wait_for_space(&self, number: u64) -> bool {
        let start = Instant::now();
        let mut queue = self.queue.lock();
        while !self.stop.load(Ordering::Relaxed) {
            if number - queue.next < self.inner.setup.config.prefetch as u64 {
                self.inner.setup.stats.report().waited_for_space += start.elapsed();
                return true;
            }
            self.space.wait(&mut queue);
        }
        false
    }
}
