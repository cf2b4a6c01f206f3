//! The same work on several hosts at once.
//!
//! Out of scope: what the work is.

use std::thread;

use crate::{Error, Result};

/// Each distinct host, in order.
pub(crate) fn distinct_hosts<'a>(items: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for item in items {
        if !unique.contains(item) {
            unique.push(item.clone());
        }
    }
    unique
}

/// Calls a function for all items in parallel.
pub(crate) fn parallel_results<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> Vec<Result<R, String>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || work(item))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Calls a function for all items in parallel.
///
/// # Errors
/// One line for each failure, with the name of the item.
pub(crate) fn parallel_map<T: Sync, R: Send>(
    items: &[T],
    name: impl Fn(&T) -> String,
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>> {
    let mut values = Vec::new();
    let mut failures = Vec::new();
    for (item, result) in items.iter().zip(parallel_results(items, work)) {
        match result {
            Ok(value) => values.push(value),
            Err(reason) => failures.push(format!("{}: {reason}", name(item))),
        }
    }
    if failures.is_empty() { Ok(values) } else { Err(Error::new(failures.join("\n"))) }
}
