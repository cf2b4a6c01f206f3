//! Weights from files: each device holds only its shard before the first step, each process reads
//! only what its devices hold, and the values are those that were read whole before.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use fulmen_checkpoint::{Dtype, header};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::weights::{StateDict, Strictness, load_weights};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, DeviceArray, Devices, Literal, Sharding, Tensor};
use fulmen_trainer::{Batch, Plan, Result, StepContext, Strategy, Trainer, TrainingModule};

use crate::common::trainer;

/// Layers whose weights are split by rows and by columns in turns.
#[derive(Module)]
pub(crate) struct Tower {
    layers: Vec<Linear>,
    width: usize,
}

impl Tower {
    pub(crate) fn new(width: usize, layers: usize) -> Tower {
        let size = |i: usize| width * (1 + i % 2);
        let layer = |i: usize| Linear::new(size(i), size(i + 1));
        Tower { layers: (0..layers).map(layer).collect(), width }
    }

    /// The bytes of the parameters, if each element has this size.
    pub(crate) fn bytes(&self, element: usize) -> u64 {
        (self.num_parameters() * element) as u64
    }

    pub(crate) fn loader(&self) -> DataLoader {
        let zeros = vec![0.0f32; 8 * self.width];
        let data = TensorDataset::builder().array("x", [8, self.width], zeros).build().unwrap();
        DataLoader::builder(data).batch_size(8).build().unwrap()
    }
}

impl TrainingModule for Tower {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.layers.iter().fold(batch.get("x"), |x, layer| layer.forward(x)).square().mean_all()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

/// Writes a file with values for a module, as Python does: without Fulmen's checksums.
pub(crate) fn write_file(path: &Path, module: &impl Module, dtype: DType) {
    let format = match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        _ => Dtype::BF16,
    };
    let shape = |shape: &[usize]| shape.iter().map(|&size| size as u64).collect();
    let parameters = module.parameters();
    let entries: Vec<_> =
        parameters.iter().map(|(name, p)| (name.clone(), format, shape(&p.ty().shape))).collect();
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&header(&entries, &BTreeMap::new()).unwrap()).unwrap();
    let mut next = 0u32;
    for (_, parameter) in parameters {
        let mut left = parameter.ty().shape.num_elements();
        while left > 0 {
            let count = left.min(1 << 16);
            let value = |i: u32| (i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32) - 0.5;
            let values: Vec<f32> = (next..next + count as u32).map(value).collect();
            let literal = Literal::from_slice(&values, [count]).unwrap().to_dtype(dtype).unwrap();
            file.write_all(literal.bytes()).unwrap();
            next += count as u32;
            left -= count;
        }
    }
    file.flush().unwrap();
}

/// The value that a parameter had when files were read whole: converted by a program.
fn expected(values: &StateDict, name: &str, dtype: DType) -> Literal {
    values.get(name).unwrap().unwrap().to_tensor().to_dtype(dtype).eval().unwrap()
}

/// Checks the elements on each device of this process, to the bit.
fn check_shards(array: &DeviceArray, expected: &Literal, name: &str) {
    for (shard, block) in array.shards().iter().zip(array.blocks()) {
        let elements = shard.read().unwrap().wait().unwrap();
        let expected = block.elements_of(expected.ty(), expected.bytes()).unwrap();
        assert!(elements[..expected.len()] == *expected, "{name} {block:?}");
    }
}

/// Moves the weights to the devices, and checks what each device of this process holds. Returns the
/// bytes on each.
pub(crate) fn check_devices(
    module: &Tower,
    path: &Path,
    trainer: &mut Trainer,
) -> Result<Vec<usize>> {
    drop(trainer.train_step(module, &module.loader())?);
    let values = StateDict::read(path).unwrap();
    let mut bytes = Vec::new();
    for (name, parameter) in module.parameters() {
        let value = parameter.get();
        let array = value.array().expect("the value is on the devices");
        bytes.resize(array.shards().len(), 0);
        for (sum, shard) in bytes.iter_mut().zip(array.shards()) {
            *sum += shard.size_in_bytes();
        }
        check_shards(array, &expected(&values, &name, parameter.ty().dtype), &name);
    }
    Ok(bytes)
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("model.safetensors")
}

#[test]
fn each_device_holds_its_shard_of_the_values_in_the_file() {
    let runs = [(1, Strategy::Ddp, 1), (8, Strategy::Ddp, 1), (8, Strategy::Fsdp, 8)];
    for stored in [DType::Bf16, DType::F32, DType::F16] {
        for of_module in [DType::F32, DType::Bf16] {
            for (devices, strategy, parts) in runs {
                let folder = tempfile::tempdir().unwrap();
                let module = Tower::new(256, 4);
                let path = file_in(folder.path());
                write_file(&path, &module, stored);
                load_weights(&module, folder.path(), Strictness::Strict).unwrap();
                module.to_dtype(of_module).unwrap();
                let builder = trainer(folder.path()).devices(devices).strategy(strategy);
                let bytes = check_devices(&module, &path, &mut builder.build().unwrap());
                let whole = module.bytes(of_module.size_in_bytes()) as f64;
                for bytes in bytes.unwrap() {
                    assert!(bytes as f64 <= 1.1 * whole / f64::from(parts), "{bytes} of {whole}");
                }
            }
        }
    }
}

#[test]
fn a_swapped_weight_and_an_own_sharding_get_their_parts() {
    for sharding in [None, Some(Sharding::new([None, Some("data")])), Some(Sharding::replicated())]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = file_in(folder.path());
        write_file(&path, &Tower::new(256, 2), DType::Bf16);
        // The second weight of the file, transposed, is the first of the model, and vice versa.
        let exchanged = |name: &str| match name {
            "layers.0.weight" => Some("layers.1.weight".to_owned()),
            "layers.1.weight" => Some("layers.0.weight".to_owned()),
            _ => None,
        };
        let stored = StateDict::read(&path).unwrap().rename_with(exchanged).unwrap();
        let stored = stored.transpose(|_| true).unwrap();
        let module = Tower::new(256, 2);
        module.initialize(0);
        if let Some(sharding) = &sharding {
            module.layers[0].weight.with_sharding(sharding.clone());
        }
        assert_eq!(stored.load_into(&module, Strictness::Lenient).unwrap().loaded.len(), 2);
        let builder = trainer(folder.path()).devices(8).strategy(Strategy::Fsdp);
        drop(builder.build().unwrap().train_step(&module, &module.loader()).unwrap());
        for (name, parameter) in module.parameters() {
            let Some(stored) = stored.get(&name).unwrap() else { continue };
            let expected = stored.to_tensor().to_dtype(DType::F32).eval().unwrap();
            check_shards(parameter.get().array().unwrap(), &expected, &name);
        }
    }
}

#[test]
fn a_file_that_was_changed_or_removed_is_an_error_that_names_it() {
    type Change = (&'static str, fn(&Path));
    fn write(path: &Path, position: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt as _;
        File::options().write(true).open(path).unwrap().write_all_at(bytes, position).unwrap();
    }
    let changes: [Change; 4] = [
        ("No such file", |path| std::fs::remove_file(path).unwrap()),
        ("changed", |path| write(path, 300_000, &[1; 64])),
        ("model.safetensors", |path| {
            File::options().write(true).open(path).unwrap().set_len(100_000).unwrap()
        }),
        ("changed", |path| {
            let other = path.with_extension("new");
            write_file(&other, &Tower::new(256, 2), DType::F32);
            std::fs::rename(other, path).unwrap();
        }),
    ];
    for (expected, change) in changes {
        for strategy in [Strategy::Ddp, Strategy::Fsdp] {
            let folder = tempfile::tempdir().unwrap();
            let module = Tower::new(256, 2);
            let path = file_in(folder.path());
            write_file(&path, &module, DType::F32);
            load_weights(&module, &path, Strictness::Strict).unwrap();
            // File systems count the time of changes in steps.
            std::thread::sleep(std::time::Duration::from_millis(20));
            change(&path);
            let mut trainer = trainer(folder.path()).devices(8).strategy(strategy).build().unwrap();
            let error = trainer.train_step(&module, &module.loader()).err().unwrap().to_string();
            assert!(error.contains("model.safetensors") && error.contains(expected), "{error}");
            assert!(error.contains("layers.0.weight"), "{error}");
        }
    }
}

/// A line of a file that the kernel writes about this process, as a number.
pub(crate) fn of_this_process(file: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let number = text.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    number.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The peak of this process's memory while it loads the weights and moves them to its devices, in
/// multiples of what its devices hold. On CPUs, the memory of devices is memory of the host.
pub(crate) fn measure_peak(folder: &Path, devices: Devices, stored: DType) -> Result<f64> {
    // The first step loads the plugin and opens the devices, which has nothing to do with weights.
    let warm_up = Tower::new(16, 2);
    let mut trainer = trainer(folder).devices(devices).strategy(Strategy::Fsdp).build()?;
    drop(trainer.train_step(&warm_up, &warm_up.loader())?);
    let module = tower_of_2_gb(stored);
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = of_this_process("status", "VmRSS:");
    load_weights(&module, file_in(folder), Strictness::Strict)?;
    drop(trainer.train_step(&module, &module.loader())?);
    let peak = of_this_process("status", "VmHWM:") - before;
    let mut own = 0;
    for (_, parameter) in module.parameters() {
        let value = parameter.get();
        let array = value.array().expect("the value is on the devices");
        own += array.shards().iter().map(|shard| shard.size_in_bytes()).sum::<usize>();
    }
    Ok((peak * 1024) as f64 / own as f64)
}

/// A model whose file has 2 GB.
pub(crate) fn tower_of_2_gb(stored: DType) -> Tower {
    Tower::new(4096, 16 * 4 / stored.size_in_bytes())
}

#[test]
#[ignore = "writes 2 GB twice; run it alone, since it measures the process"]
fn loading_2_gb_takes_little_more_memory_than_the_devices_hold() {
    for stored in [DType::F32, DType::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        write_file(&file_in(folder.path()), &tower_of_2_gb(stored), stored);
        let peak = measure_peak(folder.path(), Devices::from(8), stored).unwrap();
        println!("{stored}: {peak:.2} × the part of the devices");
        assert!(peak <= 1.2, "{peak}");
    }
}
