//! Maps a list with several threads.
//!
//! Out of scope: the workers of a loader (`workers`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fulmen_error::{Error, Result, panicked};

/// Applies `work` to each item and returns the results in order. After an error or a panic, which
/// becomes an error, no new work starts; the error with the lowest index is returned.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    most_threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut results = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return results };
            let result = catch_unwind(AssertUnwindSafe(|| work(item)))
                .unwrap_or_else(|payload| Err(panicked("a thread panicked", payload)));
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            results.push((number, result));
        }
    };
    let mut results = thread::scope(|scope| {
        let worker =
            |_| thread::Builder::new().name("fulmen-parallel".to_owned()).spawn_scoped(scope, run);
        // If no further thread can be started, the existing ones do the work.
        let workers: Vec<_> =
            (1..most_threads.min(items.len())).map_while(|number| worker(number).ok()).collect();
        let mut results = run();
        for worker in workers {
            results
                .extend(worker.join().map_err(|payload| panicked("a thread panicked", payload))?);
        }
        Ok::<_, Error>(results)
    })?;
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The number of cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, |threads| threads.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_parallel_keeps_order_and_ends_at_an_error() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, 7, |&item| Ok(item * 2)).unwrap()[99], 198);
        let error = in_parallel(&items, 3, |&item| match item {
            40 => Err(Error::new("forty")),
            _ => Ok(item),
        });
        assert_eq!(error.unwrap_err().to_string(), "forty");
    }

    #[test]
    fn panics_end_the_work_as_errors_do() {
        let items: Vec<u32> = (0..100).collect();
        let started = AtomicUsize::new(0);
        let error = in_parallel(&items, 7, |&item| {
            started.fetch_add(1, Ordering::Relaxed);
            assert!(item < 10, "too many");
            Ok(item)
        });
        assert!(error.unwrap_err().is_panic());
        assert!(started.into_inner() <= 17);
    }
}
