//! Computes the items of a stream ahead of time in separate threads, and keeps their order.
//!
//! Out of scope: the loader's workers. They work on samples, which exist only after packing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use fulmen_data::internal::panicked;
use fulmen_data::{Deferred, Error, Items, Result, StreamItem};

/// The number of items in flight per thread.
const ITEMS_PER_THREAD: usize = 8;

/// A deferred item, and where to send its result.
type Task<T> = (Deferred<T>, SyncSender<Result<T>>);

/// An item in flight: its position in the stream, and its result.
type PendingItem<T> = Result<StreamItem<Receiver<Result<T>>>>;

/// The items of a stream in order. Dropping it ends the threads.
pub(super) struct Prefetch<T> {
    /// `None` at the end of the stream.
    items: Option<Items<Deferred<T>>>,
    threads: Vec<Sender<Task<T>>>,
    /// The next thread to use.
    next: usize,
    pending: VecDeque<PendingItem<T>>,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Computes items ahead of time in `threads` threads; without threads, when they are requested.
    pub(super) fn new(items: Items<Deferred<T>>, threads: usize) -> Result<Prefetch<T>> {
        let spawn = |number| {
            let (sender, receiver) = channel::<Task<T>>();
            let work = move || {
                for (item, result) in receiver {
                    // If the stream was dropped, nothing receives the result.
                    let _ = result.send(compute(item));
                }
            };
            let spawned = thread::Builder::new().name(format!("fulmen-text-{number}")).spawn(work);
            spawned
                .map(|_| sender)
                .map_err(|error| Error::runtime("starting a thread that makes documents", error))
        };
        let threads = (0..threads).map(spawn).collect::<Result<_>>()?;
        Ok(Prefetch { items: Some(items), threads, next: 0, pending: VecDeque::new() })
    }

    fn next_deferred(&mut self) -> Option<Result<StreamItem<Deferred<T>>>> {
        let item = self.items.as_mut()?.next();
        if item.is_none() {
            self.items = None;
        }
        item
    }

    /// Sends work to the threads.
    fn fill(&mut self) {
        while self.pending.len() < ITEMS_PER_THREAD * self.threads.len()
            && let Some(item) = self.next_deferred()
        {
            let pending = item.map(|StreamItem { index, origin, item }| {
                let (sender, receiver) = sync_channel(1);
                // A thread ends when its channel is dropped.
                let _ = self.threads[self.next].send((item, sender));
                self.next = (self.next + 1) % self.threads.len();
                StreamItem { index, origin, item: receiver }
            });
            self.pending.push_back(pending);
        }
    }
}

impl<T: Send + 'static> Iterator for Prefetch<T> {
    type Item = Result<StreamItem<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.threads.is_empty() {
            return Some(self.next_deferred()?.and_then(|StreamItem { index, origin, item }| {
                finish(index, origin, compute(item))
            }));
        }
        self.fill();
        Some(self.pending.pop_front()?.and_then(|StreamItem { index, origin, item }| {
            let result = item
                .recv()
                .unwrap_or_else(|_| Err(Error::panic("a thread that makes documents has ended")));
            finish(index, origin, result)
        }))
    }
}

fn compute<T>(item: Deferred<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| item.make()))
        .unwrap_or_else(|payload| Err(panicked("the stream panicked", payload)))
}

fn finish<T>(index: u64, origin: String, result: Result<T>) -> Result<StreamItem<T>> {
    match result {
        Ok(item) => Ok(StreamItem { index, origin, item }),
        Err(error) => Err(error.at_sample(index, Some(origin))),
    }
}
