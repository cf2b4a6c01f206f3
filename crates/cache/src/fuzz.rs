//! What opening a cache does with the bytes of its files, for the fuzzer.
//!
//! Not here: the bytes (`fuzz/fuzz_targets/cache.rs`).

use super::{arrow, manifest};

/// Looks for the columns of a part: those that are found lie in it, and have the sizes that the manifest says.
pub fn fuzz(manifest: &[u8], part: usize, bytes: &[u8]) {
    let Ok(plan) = manifest::parse(manifest) else { return };
    if part >= plan.num_parts() {
        return;
    }
    // Those of the finished parts are asked for again when a cache goes on.
    let Ok(frame) = plan.frame(part) else { return };
    let read = |at: u64, length: usize| Ok(bytes[at as usize..][..length].to_vec());
    let rows = plan.rows_of(part);
    let found = arrow::locate(&read, bytes.len() as u64, &plan.fields, rows, &plan.manifest.key, part);
    let Ok(Ok(columns)) = found else { return };
    assert_eq!(columns.len(), frame.columns.len());
    for (column, expected) in columns.into_iter().zip(&frame.columns) {
        let column = &bytes[column.start as usize..column.end as usize];
        assert_eq!(column.len() as u64, expected.end - expected.start);
    }
}
