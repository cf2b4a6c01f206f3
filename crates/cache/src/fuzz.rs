//! Opening a cache from arbitrary bytes, for the fuzzer.
//!
//! Out of scope: the fuzz target (`fuzz/fuzz_targets/cache.rs`).

use super::{arrow, manifest};

/// Parses a part. The columns that this finds must be within the part and have the sizes that the
/// manifest specifies.
pub fn fuzz(manifest: &[u8], part: usize, bytes: &[u8]) {
    let Ok(plan) = manifest::parse(manifest) else { return };
    if part >= plan.num_parts() {
        return;
    }
    // When making a cache continues, the finished parts are checked again.
    let Ok(frame) = plan.frame(part) else { return };
    let read = |offset: u64, length: usize| Ok(bytes[offset as usize..][..length].to_vec());
    let rows = plan.rows_of(part);
    let columns =
        arrow::locate(&read, bytes.len() as u64, &plan.fields, rows, &plan.manifest.key, part);
    let Ok(Ok(columns)) = columns else { return };
    assert_eq!(columns.len(), frame.columns.len());
    for (column, expected) in columns.into_iter().zip(&frame.columns) {
        let column = &bytes[column.start as usize..column.end as usize];
        assert_eq!(column.len() as u64, expected.end - expected.start);
    }
}
