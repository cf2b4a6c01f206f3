//! The cache of compiled programs across starts. A new client does not know the programs of an
//! earlier client, like a new process.

use std::fs;

use fulmen_pjrt::Plugin;
use fulmen_pjrt::compile_cache::{CompileCache, SavedPrograms};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_tensor::{
    Argument, DType, Devices, Function, Literal, Runtime, Sharding, Tensor, TensorType, grad,
};

fn start(devices: usize, cache: impl Into<Option<CompileCache>>) -> Runtime {
    let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    let client = plugin.create_client(&[("cpu_device_count", (devices as i64).into())]).unwrap();
    Runtime::new(client, &Devices::from(devices)).unwrap().with_compile_cache(cache)
}

fn counts(runtime: &Runtime) -> [u64; 3] {
    ["UncachedCompile", "PersistentCacheHit", "CachedCompile"]
        .map(|name| runtime.metrics().value(name))
}

/// A training step whose batch is sharded over the devices. It returns the loss and the new
/// weights, which replace the old ones.
fn step(rows: usize) -> Function {
    let batch = Tensor::placeholder("batch.x", TensorType::new(DType::F32, [rows, 4]));
    let weights = Tensor::placeholder("weights", TensorType::new(DType::F32, [4, 3]));
    let loss = batch.matmul(&weights).tanh().square().mean_all();
    let updated = &weights - grad(&loss, &[&weights]).remove(0) * 0.1;
    let function = Function::new("step", vec![batch, weights], vec![loss, updated]);
    function.donate(1, 1).unwrap().shard_parameter(0, Sharding::new([Some("data")]))
}

/// The bits of the results of a step.
fn bits(runtime: &Runtime) -> Vec<u32> {
    let step = runtime.compile(&step(8)).unwrap();
    let floats = |count: usize| (0..count).map(|i| (i as f32).sin()).collect::<Vec<_>>();
    let batch = Literal::from_slice(&floats(32), [8, 4]).unwrap();
    let batch = runtime.to_devices(&batch, &Sharding::new([Some("data")])).unwrap();
    let weights = runtime.to_device(&Literal::from_slice(&floats(12), [4, 3]).unwrap()).unwrap();
    let outputs = step.call(vec![Argument::Borrow(&batch), Argument::Donate(weights)]).unwrap();
    let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    values.iter().flat_map(|value| value.to_vec::<f32>().unwrap()).map(f32::to_bits).collect()
}

#[test]
fn the_second_start_compiles_nothing_and_gives_the_same_bits() {
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompileCache::new(folder.path(), 1 << 30);
        let exp = |runtime: &Runtime| {
            runtime.eval(Tensor::from_slice(&[2.0f32], [1]).exp()).unwrap().to_vec::<f32>()
        };
        let work = |runtime: &Runtime| (bits(runtime), exp(runtime).unwrap());
        let without = start(devices, None);
        let expected = work(&without);
        assert_eq!(counts(&without), [2, 0, 0]);
        let first = start(devices, cache.clone());
        assert_eq!(work(&first), expected);
        assert_eq!(counts(&first), [2, 0, 0]);
        let second = start(devices, cache.clone());
        assert_eq!(work(&second), expected);
        assert_eq!(work(&second), expected);
        assert_eq!(counts(&second), [0, 2, 2], "{devices} devices");
        let again = second.compile(&step(8)).unwrap();
        assert!(again.was_cached() && again.compile_time().is_none());
        assert_eq!(cache.entries().unwrap().len(), 2);
    }
}

#[test]
fn a_preloaded_program_needs_neither_the_disk_nor_the_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(folder.path(), 1 << 30);
    bits(&start(1, cache.clone()));
    let second = start(1, cache.clone());
    let step = step(8);
    let preloaded = second.preload(&step).unwrap();
    let of_one_device = second.preload(&step).unwrap();
    assert_eq!(counts(&second), [0, 0, 0]);
    fs::remove_dir_all(folder.path()).unwrap();
    second.compile_announced(preloaded, |_| panic!("the program was preloaded")).unwrap();
    assert_eq!(counts(&second), [0, 1, 0]);
    second
        .compile_announced(second.preload(&step).unwrap(), |_| {
            panic!("the program was loaded before")
        })
        .unwrap();
    assert_eq!(counts(&second), [0, 1, 1]);
    // A program for one device does not run on two.
    let two = start(2, None);
    two.compile_announced(of_one_device, |_| ()).unwrap();
    assert_eq!(counts(&two), [1, 0, 0]);
}

#[test]
fn a_compilation_is_announced_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(folder.path(), 1 << 30);
    let announced = |rows| {
        let mut difference = None;
        start(1, cache.clone())
            .compile_announced(&step(rows), |differs| difference = Some(differs))
            .unwrap();
        difference
    };
    assert_eq!(announced(8), Some(None));
    assert_eq!(announced(8), None);
    assert_eq!(announced(16).unwrap().unwrap(), "`batch.x`: f32[8, 4] then, f32[16, 4] now");
}

/// Line numbers are not part of a program: an edit above the call does not change it.
#[test]
fn the_line_of_an_expression_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(folder.path(), 1 << 30);
    start(1, cache.clone()).eval(Tensor::from_slice(&[2.0f32], [1]).sin()).unwrap();
    let second = start(1, cache);
    second.eval(Tensor::from_slice(&[3.0f32], [1]).sin()).unwrap();
    assert_eq!(counts(&second), [0, 1, 0]);
}

#[test]
fn damaged_programs_and_folders_cost_a_compilation_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let cache = CompileCache::new(folder.path(), 1 << 30);
    let expected = bits(&start(1, cache.clone()));
    let path = cache.entries().unwrap()[0].path.clone();
    let whole = fs::read(&path).unwrap();
    for i in (0..whole.len()).step_by(whole.len() / 12) {
        let mut damaged = whole.clone();
        damaged[i] ^= 1 << (i % 8);
        fs::write(&path, damaged).unwrap();
        let runtime = start(1, cache.clone());
        assert_eq!(bits(&runtime), expected);
        assert_eq!(counts(&runtime), [1, 0, 0]);
        // The runtime stored it again.
        assert!(cache.verify().unwrap().is_empty());
        assert_eq!(counts_after_start(&cache), [0, 1, 0]);
    }
    // The cache folder is a file.
    let runtime = start(1, CompileCache::new(&path, 1 << 30));
    assert_eq!(bits(&runtime), expected);
    assert_eq!(counts(&runtime), [1, 0, 0]);
}

fn counts_after_start(cache: &CompileCache) -> [u64; 3] {
    let runtime = start(1, cache.clone());
    bits(&runtime);
    counts(&runtime)
}

/// A process loads the programs that another process compiled ahead of time and saved to a file. It
/// gets the same bits without compiling.
#[test]
fn programs_that_were_compiled_ahead_of_time_are_taken_from_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.fulmen");
    for devices in [1, 8] {
        let first = start(devices, None);
        let expected = bits(&first);
        let mut saved = SavedPrograms::default();
        step(8).compile_for(&first.client().topology().unwrap(), first.mesh(), &mut saved).unwrap();
        saved.write(&path).unwrap();
        let second = start(devices, None).with_saved_programs(&path).unwrap();
        assert_eq!(bits(&second), expected);
        assert_eq!(counts(&second), [0, 1, 0], "{devices} devices");
        // A program that is not in the file is compiled, and the difference is announced.
        let mut difference = None;
        second.compile_announced(&step(16), |differs| difference = differs).unwrap();
        assert_eq!(
            difference.unwrap().split("; ").next().unwrap(),
            "`batch.x`: f32[8, 4] then, f32[16, 4] now"
        );
        assert_eq!(counts(&second), [1, 1, 0]);
    }
    // The programs in the file are for eight devices.
    let error = start(1, None).with_saved_programs(&path).err().unwrap().to_string();
    assert!(
        error.contains("compiled for another machine: the devices: ")
            && error.contains("save them again"),
        "{error}"
    );
    let whole = fs::read(&path).unwrap();
    let foreign = [&whole[..whole.len() / 2], b"a file of something else", b""];
    for bytes in foreign {
        fs::write(&path, bytes).unwrap();
        let error = start(8, None).with_saved_programs(&path).err().unwrap().to_string();
        assert!(error.contains("step.fulmen: ") && error.contains("save"), "{error}");
    }
    let error =
        start(8, None).with_saved_programs(&folder.path().join("none")).err().unwrap().to_string();
    assert!(error.contains("none"), "{error}");
}
