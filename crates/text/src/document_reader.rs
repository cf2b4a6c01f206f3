//! Reads a source once with several threads, and passes its items on in order.
//!
//! Out of scope: training. This module is for one-time passes, such as counting and writing token
//! files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;

use fulmen_data::internal::panicked;
use fulmen_data::{Error, Result, Source};

/// How many items a thread reads before it passes them on.
const CHUNK: usize = 32;

/// Calls `take` with the result of `map` for each item, in order; `map` runs on `threads` threads.
pub(super) fn in_order<S: Source, T: Send>(
    source: &S,
    threads: usize,
    map: impl Fn(S::Item) -> T + Sync,
    mut take: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let len = source.len();
    let read = |index: usize| {
        catch_unwind(AssertUnwindSafe(|| source.get(index).map(&map)))
            .unwrap_or_else(|payload| Err(panicked("the source panicked", payload)))
            .map_err(|error| error.at_sample(index as u64, Some(source.origin(index))))
    };
    if threads <= 1 {
        return (0..len).try_for_each(|index| take(index, read(index)?));
    }
    let chunks = len.div_ceil(CHUNK);
    let read = &read;
    std::thread::scope(|scope| {
        // Thread i reads the chunks i, i + threads, and so on. This keeps the order without a lock.
        // After an error, dropping the receivers ends the threads.
        let receivers: Vec<_> = (0..threads.min(chunks))
            .map(|thread| {
                let (sender, receiver) = sync_channel::<Vec<Result<T>>>(2);
                scope.spawn(move || {
                    for chunk in (thread..chunks).step_by(threads) {
                        let items =
                            (chunk * CHUNK..len.min((chunk + 1) * CHUNK)).map(read).collect();
                        if sender.send(items).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        let mut index = 0;
        for chunk in 0..chunks {
            let items = receivers[chunk % threads]
                .recv()
                .map_err(|_| Error::panic("a thread that reads the source ended early"))?;
            for item in items {
                take(index, item?)?;
                index += 1;
            }
        }
        Ok(())
    })
}
