//! Tests that need private items of the crate: a disk with less space than the real one.

use crate::CacheExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::atomic_file::Disk;
use crate::CachedDataset;
use fulmen_data::{DType, Dataset, Field, Fingerprint, HostBatch, Result, Sample};

/// A dataset with 1000 bytes per sample that counts its reads.
#[derive(Clone, Default)]
struct CountingDataset(Arc<AtomicUsize>);

impl Dataset for CountingDataset {
    fn len(&self) -> usize {
        60
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [1000])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        sample.write(0, &[index as u8; 1000])
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("counted", "1000");
        Ok(())
    }
}

#[test]
fn a_disk_that_fills_up_keeps_what_was_finished_and_the_next_run_goes_on() {
    for workers in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let data = CountingDataset::default();
        let builder = || {
            CachedDataset::builder(data.clone(), folder.path()).part_bytes(10_000).workers(workers)
        };
        let mut full = builder();
        full.disk = Disk::with_free_space(45_000);
        let error = full.open().unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("not enough disk space for this file of 1")
                && text.contains("continues after"),
            "{text}"
        );

        let left = crate::cache_info(folder.path()).unwrap().remove(0).estimate;
        let finished = left.parts - left.missing_parts;
        assert!((1..=4).contains(&finished), "{left}");
        let cache = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let names = std::fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!names.into_iter().any(|name| name.to_str().unwrap().starts_with('.')));

        data.0.store(0, Ordering::Relaxed);
        let cached = builder().open().unwrap();
        assert_eq!(data.0.load(Ordering::Relaxed), 60 - 10 * finished);
        let all: Vec<usize> = (0..60).collect();
        let batch = HostBatch::collate(&cached, &all).unwrap();
        assert!(
            batch
                .values::<u8>(0)
                .unwrap()
                .chunks(1000)
                .enumerate()
                .all(|(i, row)| row == [i as u8; 1000])
        );
    }
}

#[test]
fn a_disk_without_room_is_refused_before_anything_is_written() {
    /// A dataset with a terabyte per sample.
    struct Huge;
    impl Dataset for Huge {
        fn len(&self) -> usize {
            5000
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field::new("x", DType::F64, [1 << 30]), Field::new("y", DType::F64, [1 << 30])]
        }
        fn read(&self, _: usize, _: &mut Sample<'_>) -> Result<()> {
            panic!("nothing is read")
        }
        fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
            fingerprint.add("huge", "");
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Huge.cache(folder.path()).open().unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("5000 samples × 1 variant × 17.2 GB = 85.9 TB")
            && text.contains("more are needed"),
        "{text}"
    );
    assert!(crate::cache_info(folder.path()).unwrap_err().is_not_found());
}
