//! A second start of a program compiles nothing, and its results are the same, bit for bit.

use std::fs;
use std::path::Path;

use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_pjrt::compile_cache::CompileCache;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{NamedValue, Plugin};
use fulmen_tensor::{Devices, Runtime, Tensor};
use fulmen_trainer::{Batch, Plan, StepContext, TrainingModule, WeightAveraging};

use crate::common::{
    FEATURES, Net, PAD_LAST, Record, isolated, itself, train_loader, trainer, val_loader,
};

#[test]
fn the_second_start_of_a_fit_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(programs.path(), 1 << 30);
    let start = || {
        let runtime = isolated().with_compile_cache(cache.clone());
        let record = Record::default();
        let mut trainer = trainer(folder.path())
            .runtime(runtime)
            .max_epochs(2)
            .callback(record.clone())
            .build()
            .unwrap();
        let train = train_loader(40, PAD_LAST);
        let val = val_loader(12);
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
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(40, PAD_LAST);
    let val = val_loader(16);
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
            let runtime = devices(count);
            let record = Record::default();
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

/// A model with the parameters of [`Other`], so that only its type tells them apart.
#[derive(Module)]
struct Plain(Linear);

/// Another model, with another loss.
#[derive(Module)]
struct Other(Linear);

macro_rules! losses {
    ($($model:ident: $loss:expr;)*) => {$(
        impl TrainingModule for $model {
            fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
                let loss: fn(Tensor) -> Tensor = $loss;
                batch.mean(loss(self.0.forward(batch.get("x"))))
            }
            fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
                Box::new(Sgd::new(0.1))
            }
        }
    )*};
}
losses! {
    Plain: |y| y.square().sum(-1);
    Other: |y| y.exp().square().sum(-1);
}

fn fit_in_child(module: &impl TrainingModule, folder: &Path) {
    let mut trainer = trainer(folder).max_epochs(1).build().unwrap();
    trainer.fit(module, &train_loader(8, PAD_LAST), None).unwrap();
}

/// The note is printed, so another process runs the fits.
#[test]
fn a_program_is_compared_only_with_earlier_ones_of_the_same_model() {
    const CHILD: &str = "FULMEN_TEST_COMPARED_PROGRAMS";
    if let Ok(which) = std::env::var(CHILD) {
        let folder = tempfile::tempdir().unwrap();
        return match &*which {
            "plain" => fit_in_child(&Plain(Linear::new(FEATURES, 3)), folder.path()),
            "wider" => fit_in_child(&Plain(Linear::new(FEATURES, 5)), folder.path()),
            _ => fit_in_child(&Other(Linear::new(FEATURES, 3)), folder.path()),
        };
    }
    let programs = tempfile::tempdir().unwrap();
    let run = |which: &str| {
        let test = "compile_cache::a_program_is_compared_only_with_earlier_ones_of_the_same_model";
        let output = itself()
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, which)
            .env("FULMEN_COMPILE_CACHE", programs.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        text
    };
    let note = "the compile cache has a different `training step`";
    assert!(!run("plain").contains(note), "the cache is empty");
    let other = run("other");
    assert!(!other.contains(note), "{other}");
    let wider = run("wider");
    assert!(wider.contains(note), "{wider}");
}
