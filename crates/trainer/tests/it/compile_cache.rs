//! A second start of a program compiles nothing, and its results are the same, bit for bit.

use std::fs;

use fulmen_pjrt::compile_cache::CompileCache;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{NamedValue, Plugin};
use fulmen_tensor::{Devices, Runtime};
use fulmen_trainer::WeightAveraging;

use crate::common::{Net, PAD_LAST, Record, isolated, train_loader, trainer, val_loader};

#[test]
fn the_second_start_of_a_fit_compiles_nothing() {
    let (folder, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cache = CompileCache::new(programs.path(), 1 << 30);
    let start = || {
        let (runtime, record) = (isolated().with_compile_cache(cache.clone()), Record::default());
        let mut trainer = trainer(folder.path())
            .runtime(runtime)
            .max_epochs(2)
            .callback(record.clone())
            .build()
            .unwrap();
        let (train, val) = (train_loader(40, PAD_LAST), val_loader(12));
        let summary = trainer.fit(&Net::new(), &train, Some(&val)).unwrap();
        let metrics = trainer.runtime().metrics();
        (
            summary,
            record.bits("train_loss"),
            metrics.value("UncachedCompile"),
            metrics.value("PersistentCacheHit"),
        )
    };
    let (first, losses, compiled, hits) = start();
    // Initial values, training and validation.
    assert_eq!((compiled, hits), (3, 0));
    let (second, again, compiled, hits) = start();
    assert_eq!((compiled, hits), (0, 3));
    assert_eq!((first.global_step, losses), (second.global_step, again));
    let programs: Vec<_> =
        cache.entries().unwrap().into_iter().filter_map(|entry| entry.program).collect();
    assert_eq!(programs.len(), 3, "{programs:?}");
}

/// Opens a new client, which does not know the programs of other clients, like a new process.
fn devices(count: usize) -> Runtime {
    let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    let client =
        plugin.create_client(&[("cpu_device_count", NamedValue::Int(count as i64))]).unwrap();
    Runtime::new(client, &Devices::from(count)).unwrap()
}

#[test]
fn programs_saved_by_preflight_start_a_fit_without_a_compiler() {
    let (folder, train, val) =
        (tempfile::tempdir().unwrap(), train_loader(40, PAD_LAST), val_loader(16));
    let file = folder.path().join("step.fulmen");
    for count in [1, 8] {
        // Averages with a wider dtype than the weights have their own program.
        let options = || {
            let builder = trainer(folder.path()).max_epochs(2);
            if count > 1 {
                builder
            } else {
                builder.precision("bf16-true").weight_averaging(WeightAveraging::ema(0.9))
            }
        };
        let start = |aot: bool| {
            let (runtime, record) = (devices(count), Record::default());
            let builder = options().runtime(runtime).callback(record.clone());
            let mut trainer =
                if aot { builder.aot(&*file).build() } else { builder.build() }.unwrap();
            let summary = trainer.fit(&Net::new(), &train, Some(&val)).unwrap();
            let metrics = trainer.runtime().metrics();
            let counts = ["UncachedCompile", "PersistentCacheHit"].map(|name| metrics.value(name));
            (counts, summary.train_compilations, record.bits("train_loss"))
        };
        let builder = options().devices(count).callback(Record::default());
        builder.save_programs(&Net::new(), &train, Some(&val), None, &file).unwrap();
        let (counts, compilations, losses) = start(true);
        // Initial values, training, validation, and averages.
        assert_eq!(
            (counts, compilations),
            ([0, if count > 1 { 3 } else { 4 }], 0),
            "{count} devices"
        );
        // Only compare losses without the cache on one device: compiling for eight devices takes
        // long.
        assert!(count > 1 || losses == start(false).2);
    }
    let refused = |why: &str| {
        let error = trainer(folder.path()).runtime(devices(1)).aot(&*file).build().err().unwrap();
        let message = error.to_string();
        assert!(
            error.is_runtime() && message.starts_with("aot: ") && message.contains(why),
            "{message}"
        );
        assert!(message.contains("step.fulmen: ") && message.contains("again"), "{message}");
    };
    refused("compiled for another machine: the devices: cpu 0, cpu 1");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    refused("its checksum does not match");
}
