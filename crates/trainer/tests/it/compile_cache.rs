//! A program that starts a second time: nothing is compiled, and it does the same bit for bit.

use fulmen_data::LastBatch;
use fulmen_pjrt::compile_cache::CompileCache;

use crate::common::{Net, Record, isolated, train_loader, trainer, val_loader};

#[test]
fn the_second_start_of_a_fit_compiles_nothing() {
    let (folder, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cache = CompileCache::new(programs.path(), 1 << 30);
    let start = || {
        let (runtime, record) = (isolated().with_compile_cache(cache.clone()), Record::default());
        let mut trainer =
            trainer(folder.path()).runtime(runtime).max_epochs(2).callback(record.clone()).build().unwrap();
        let (train, val) = (train_loader(40, LastBatch::Pad), val_loader(12));
        let summary = trainer.fit(&Net::new(), &train, Some(&val)).unwrap();
        let metrics = trainer.runtime().metrics();
        (summary, record.bits("train_loss"), metrics.value("UncachedCompile"), metrics.value("PersistentCacheHit"))
    };
    let (first, losses, compiled, hits) = start();
    // Initial values, training and validation.
    assert_eq!((compiled, hits), (3, 0));
    let (second, again, compiled, hits) = start();
    assert_eq!((compiled, hits), (0, 3));
    assert_eq!((first.global_step, losses), (second.global_step, again));
    let programs: Vec<_> = cache.entries().unwrap().into_iter().filter_map(|entry| entry.program).collect();
    assert_eq!(programs.len(), 3, "{programs:?}");
}
