//! The same training on 1, 2, 4 and 8 devices, data parallel and fully sharded, and on one selected
//! device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use fulmen_checkpoint::{Checkpoint, LocalStore};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::activation::gelu;
use fulmen_nn::attention::Attention;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, Sgd};
use fulmen_nn::{BatchNorm2d, Conv2d, LayerNorm, Linear, Module, MultiheadAttention, scan_layers};
use fulmen_tensor::{Accelerator, Devices, Mesh, Sharding, Tensor, checkpoint};
use fulmen_trainer::{Batch, Plan, StepContext, Strategy, Trainer, TrainingModule, Weights};

use crate::common::{Losses, short_fit, state_values};

const STEPS: usize = 20;
const BATCH: usize = 32;

#[derive(Module)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl TrainingModule for Mlp {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.fc1.forward(&batch.get("x").flatten(1, -1)).relu();
        let logits = self.fc3.forward(&self.fc2.forward(&x).relu());
        cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1).momentum(0.9))
    }
}

#[derive(Module)]
struct ConvNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    fc: Linear,
}

impl TrainingModule for ConvNet {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(&batch.get("x"))).relu();
        let x = self.bn2.forward(&self.conv2.forward(&x)).relu();
        cross_entropy(&self.fc.forward(&x.mean([2, 3])), &batch.get("y"), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(1e-3))
    }
}

/// A transformer block on the rows of the images; each row is a token.
#[derive(Module)]
struct Transformer {
    embed: Linear,
    norm1: LayerNorm,
    attention: MultiheadAttention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    head: Linear,
}

impl TrainingModule for Transformer {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.embed.forward(&batch.get("x").transpose(1, 2).flatten(2, 3));
        let h = self.norm1.forward(&x);
        let x = x + self.attention.forward(&h, &h, &h, &Attention::new().causal(true));
        let h = gelu(&self.fc1.forward(&self.norm2.forward(&x)));
        let x = x + self.fc2.forward(&h);
        cross_entropy(&self.head.forward(&x.mean(1)), &batch.get("y"), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.05).momentum(0.9))
    }
}

fn transformer() -> Transformer {
    Transformer {
        embed: Linear::new(16, 32),
        norm1: LayerNorm::new([32]),
        attention: MultiheadAttention::new(32, 4),
        norm2: LayerNorm::new([32]),
        fc1: Linear::new(32, 64),
        fc2: Linear::new(64, 32),
        head: Linear::new(32, 8),
    }
}

fn mlp() -> Mlp {
    Mlp { fc1: Linear::new(128, 64), fc2: Linear::new(64, 32), fc3: Linear::new(32, 8) }
}

fn conv_net() -> ConvNet {
    ConvNet {
        // No biases: before batch norm their gradient is only rounding error, which AdamW would
        // turn into steps.
        conv1: Conv2d::new(2, 8, 3).padding(1).bias(false),
        bn1: BatchNorm2d::new(8),
        conv2: Conv2d::new(8, 16, 3).padding(1).stride(2).bias(false),
        bn2: BatchNorm2d::new(16),
        fc: Linear::new(16, 8),
    }
}

fn loader() -> DataLoader {
    let count = STEPS * BATCH;
    let pixels =
        (0..count * 128).map(|i| ((i * 7919 % 1013) as f32 / 506.5) - 1.0).collect::<Vec<_>>();
    let labels = (0..count).map(|i| (i * 31 % 8) as i32).collect::<Vec<_>>();
    let data = TensorDataset::builder()
        .array("x", [count, 2, 8, 8], pixels)
        .array("y", [count], labels)
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(BATCH).shuffle(true).drop_last(true).build().unwrap()
}

fn trainer(
    devices: impl Into<Devices>,
    strategy: Strategy,
) -> (Trainer, Losses, tempfile::TempDir) {
    let losses = Losses::default();
    let folder = tempfile::tempdir().unwrap();
    let trainer = short_fit(devices, strategy, &losses, folder.path()).build().unwrap();
    (trainer, losses, folder)
}

/// The losses of all steps, and the final parameters and statistics.
fn train<M: TrainingModule>(
    module: &M,
    devices: usize,
    strategy: Strategy,
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let (mut trainer, losses, _folder) = trainer(devices, strategy);
    trainer.fit(module, &loader(), None).unwrap();
    (losses.take(), state_values(module, &trainer))
}

fn agrees_on_all_devices<M: TrainingModule>(make: impl Fn() -> M) {
    let strategies = [Strategy::Ddp, Strategy::Fsdp];
    let on = [2, 4, 8]
        .into_iter()
        .flat_map(|devices| strategies.map(|strategy| (make(), devices, strategy)));
    train_alike(&make(), on);
}

/// Checks that modules on several devices get the same losses and values as one trained on one
/// device.
fn train_alike<M: TrainingModule>(one: &M, others: impl IntoIterator<Item = (M, usize, Strategy)>) {
    let (losses, values) = train(one, 1, Strategy::Ddp);
    assert_eq!(losses.len(), STEPS);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    for (other, devices, strategy) in others {
        let (other_losses, other_values) = train(&other, devices, strategy);
        for (step, (a, b)) in losses.iter().zip(&other_losses).enumerate() {
            assert!(
                (a - b).abs() <= 1e-5 * a.abs(),
                "{strategy} on {devices}, step {step}: {a} and {b}"
            );
        }
        for (i, (a, b)) in values.iter().zip(&other_values).enumerate() {
            // Compare relative to the largest element of the tensor, because elements near zero
            // have only its absolute accuracy.
            let scale = a.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                far <= 1e-5 * scale.max(1e-3),
                "{strategy} on {devices}, tensor {i}: off by {far} of {scale}"
            );
        }
    }
}

#[test]
fn an_mlp_trains_alike_on_any_number_of_devices() {
    agrees_on_all_devices(mlp);
}

#[test]
fn a_net_with_batch_norm_trains_alike_on_any_number_of_devices() {
    agrees_on_all_devices(conv_net);
}

#[test]
fn a_transformer_block_trains_alike_on_any_number_of_devices() {
    agrees_on_all_devices(transformer);
}

#[derive(Module)]
struct Deep {
    embed: Linear,
    layers: Vec<Linear>,
    head: Linear,
    scan: bool,
}

impl TrainingModule for Deep {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = self.embed.forward(&batch.get("x").flatten(1, -1));
        let layer = |layer: &Linear, x: &Tensor| {
            checkpoint(|x| vec![&x[0] + layer.forward(&x[0]).tanh()], &[x]).remove(0)
        };
        let x = if self.scan {
            scan_layers(&self.layers, &x, layer)
        } else {
            self.layers.iter().fold(x, |x, own| layer(own, &x))
        };
        cross_entropy(&self.head.forward(&x), &batch.get("y"), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.05).momentum(0.9))
    }
}

#[test]
fn a_scan_over_layers_trains_like_a_loop_on_one_device_and_split_over_eight() {
    let deep = |scan| Deep {
        embed: Linear::new(128, 16),
        layers: (0..3).map(|_| Linear::new(16, 16)).collect(),
        head: Linear::new(16, 8),
        scan,
    };
    train_alike(&deep(false), [(deep(true), 1, Strategy::Ddp), (deep(true), 8, Strategy::Fsdp)]);
}

#[test]
fn a_batch_that_the_devices_cannot_share_is_rejected_with_sizes_that_fit() {
    let (mut trainer, _, _folder) = trainer(6, Strategy::Ddp);
    let error = trainer.fit(&mlp(), &loader(), None).unwrap_err().to_string();
    assert!(error.contains("a batch size of 32") && error.contains("30 and 36"), "{error}");
}

/// The devices that hold a module's values, and the bytes of the shards on each.
fn placement<M: Module>(module: &M) -> (BTreeSet<i32>, BTreeMap<i32, usize>) {
    let mut ids = BTreeSet::new();
    let mut bytes = BTreeMap::new();
    for (name, variable) in module.state() {
        let value = variable.get();
        let array = value.array().unwrap_or_else(|| panic!("`{name}` is on no device"));
        for shard in array.shards() {
            ids.insert(shard.device().id());
            *bytes.entry(shard.device().id()).or_default() += shard.size_in_bytes();
        }
    }
    (ids, bytes)
}

#[test]
fn one_chosen_device_trains_and_no_other() {
    let (mut trainer, _, _folder) = trainer([5], Strategy::Ddp);
    let module = mlp();
    trainer.fit(&module, &loader(), None).unwrap();
    assert_eq!(placement(&module).0, BTreeSet::from([5]));
    let devices: Vec<i32> = trainer.runtime().devices().iter().map(|d| d.id()).collect();
    assert_eq!(devices, [5]);
}

#[test]
fn missing_devices_are_rejected_with_a_list_of_the_existing_ones() {
    let build = |devices: Devices| {
        let trainer = Trainer::builder().accelerator(Accelerator::Cpu).devices(devices).build();
        trainer.err().unwrap().to_string()
    };
    assert!(
        build(Devices::from(0)).contains("at least one device is needed"),
        "{}",
        build(Devices::from(0))
    );
    assert!(build(Devices::from([1, 1])).contains("the index 1 is given twice"));
    assert!(build(Devices::from([-1])).contains("no device with the index -1"));
    assert!(build(Devices::from(Vec::<i32>::new())).contains("the list is empty"));
    assert!(build(Devices::from("eight")).contains("devices: `eight` does not select devices"));
}

#[test]
fn fsdp_keeps_an_eighth_of_the_state_on_each_device() {
    let bytes = |strategy| {
        let (mut trainer, _, _folder) = trainer(8, strategy);
        let module = mlp();
        let summary = trainer.fit(&module, &loader(), None).unwrap();
        let (ids, parameters) = placement(&module);
        assert_eq!((ids.len(), summary.state_bytes.len()), (8, 8));
        (parameters, summary.state_bytes)
    };
    let (whole, whole_state) = bytes(Strategy::Ddp);
    let (split, split_state) = bytes(Strategy::Fsdp);
    for device in 0..8 {
        let share = |split: usize, whole: usize| 8.0 * split as f64 / whole as f64;
        let parameters = share(split[&(device as i32)], whole[&(device as i32)]);
        assert!((parameters - 1.0).abs() <= 0.05, "parameters on device {device}: {parameters}");
        let state = share(split_state[device], whole_state[device]);
        assert!(
            (state - 1.0).abs() <= 0.05,
            "parameters and optimizer on device {device}: {state}"
        );
    }
}

#[test]
fn a_layer_split_by_the_user_computes_the_same() {
    let (losses, values) = train(&mlp(), 1, Strategy::Ddp);
    let folder = tempfile::tempdir().unwrap();
    let actual = Losses::default();
    let mut trainer = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(8)
        .mesh(Mesh::new([("data", 4), ("model", 2)]).unwrap())
        .max_epochs(1)
        .log_every_n_steps(1)
        .enable_checkpointing(false)
        .enable_progress_bar(false)
        .default_root_dir(folder.path())
        .callback(actual.clone())
        .build()
        .unwrap();
    let module = mlp();
    // As in Megatron: the outputs of one layer are split, then the inputs of the next.
    module.fc1.weight.with_sharding(Sharding::new([Some("model"), None]));
    module.fc2.weight.with_sharding(Sharding::new([None, Some("model")]));
    trainer.fit(&module, &loader(), None).unwrap();
    let weight = module.fc1.weight.get();
    assert!(weight.array().unwrap().shards().iter().all(|shard| shard.dims() == [32, 128]));
    for (a, b) in losses.iter().zip(&actual.take()) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{a} and {b}");
    }
    let weight = trainer.runtime().eval(&weight).unwrap().to_f64();
    assert!(weight.iter().zip(&values[0]).all(|(a, b)| (a - b).abs() <= 1e-5));
}

/// An autoencoder that ties its decoder to its encoder in the hook.
#[derive(Module)]
struct Tied {
    encoder: Linear,
    decoder: Linear,
    #[module(skip)]
    tie: bool,
}

impl TrainingModule for Tied {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x").flatten(1, -1);
        let error = self.decoder.forward(&self.encoder.forward(&x).tanh()) - &x;
        (&error * &error).mean_all()
    }
    fn on_after_setup(&self) -> fulmen_trainer::Result<()> {
        if self.tie {
            self.decoder.weight.tie(&self.encoder.weight)?;
        }
        Ok(())
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(1e-2))
    }
}

#[test]
fn tied_weights_are_one_on_every_device_in_the_optimizer_and_in_the_checkpoint() {
    for tie in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut trainer = Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .devices(4)
            .strategy(Strategy::Fsdp)
            .max_epochs(1)
            .enable_progress_bar(false)
            .default_root_dir(folder.path())
            .build()
            .unwrap();
        let module = Tied { encoder: Linear::new(128, 128), decoder: Linear::new(128, 128), tie };
        trainer.fit(&module, &loader(), None).unwrap();
        assert_eq!(module.encoder.weight.is(&module.decoder.weight), tie);
        let tensors = crate::common::tensors(trainer.last_checkpoint().unwrap());
        assert!(
            tensors.contains_key("encoder.weight")
                && tensors.contains_key("optimizer/exp_avg/encoder.weight")
        );
        assert_eq!(tensors.contains_key("decoder.weight"), !tie);
        assert_eq!(tensors.contains_key("optimizer/exp_avg/decoder.weight"), !tie);
        assert_eq!(module.num_parameters(), 128 * 128 * if tie { 1 } else { 2 } + 256);
    }
}

#[test]
fn a_tied_model_is_tested_from_its_checkpoint_by_another_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let build = |strategy| {
        Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .devices(4)
            .strategy(strategy)
            .max_epochs(1)
            .enable_progress_bar(false)
            .default_root_dir(folder.path())
            .build()
            .unwrap()
    };
    let tied =
        || Tied { encoder: Linear::new(128, 128), decoder: Linear::new(128, 128), tie: true };
    let mut trainer = build(Strategy::Ddp);
    let trained = tied();
    trainer.fit(&trained, &loader(), None).unwrap();
    let file = trainer.last_checkpoint().unwrap().to_owned();
    let mut other = build(Strategy::Fsdp);
    let fresh = tied();
    // The test step logs nothing. That error is reported only after the weights are loaded.
    let error = other.test(&fresh, &loader(), Weights::File(file)).unwrap_err().to_string();
    assert!(error.contains("logs nothing"), "{error}");
    assert!(fresh.encoder.weight.is(&fresh.decoder.weight));
    let values = [&trained, &fresh]
        .map(|m| trainer.runtime().eval(&m.encoder.weight.get()).unwrap().to_f64());
    assert_eq!(values[0], values[1]);
}

#[test]
fn a_checkpoint_of_eight_devices_resumes_on_any_number_with_another_strategy() {
    let folder = tempfile::tempdir().unwrap();
    let fit = |devices: usize, strategy, from: &Path, epochs: u64| {
        let builder = || {
            let builder = Trainer::builder()
                .accelerator(Accelerator::Cpu)
                .devices(devices)
                .strategy(strategy);
            let builder =
                builder.max_epochs(epochs).log_every_n_steps(1).enable_progress_bar(false);
            builder.default_root_dir(folder.path()).ckpt_path(from)
        };
        let module = mlp();
        let train = loader();
        let losses = Losses::default();
        // The values at the start of a step, bit for bit.
        drop(builder().build().unwrap().train_step(&module, &train).unwrap());
        let mut trainer = builder().callback(losses.clone()).build().unwrap();
        let begun: BTreeMap<String, Vec<u8>> = module
            .state()
            .into_iter()
            .map(|(name, value)| {
                (name, trainer.runtime().eval(&value.get()).unwrap().bytes().to_vec())
            })
            .collect();
        let summary = trainer.fit(&module, &train, None).unwrap();
        (begun, losses.take(), summary.last_checkpoint.unwrap())
    };
    let check = |from: &Path, devices: usize, strategy, expected: &[f64]| {
        let (begun, losses, saved) = fit(devices, strategy, from, 2);
        let tensors = crate::common::tensors(from);
        assert!(
            begun.iter().all(|(name, bytes)| tensors[name].bytes() == bytes),
            "{devices} {strategy}"
        );
        assert_eq!(losses.len(), STEPS);
        for (step, (loss, expected)) in losses.iter().zip(expected).enumerate() {
            assert!(
                (loss - expected).abs() <= 1e-6,
                "{devices} {strategy}, step {step}: {loss} and {expected}"
            );
        }
        saved
    };
    let (_, _, first) = fit(8, Strategy::Fsdp, Path::new(""), 1);
    let (_, expected, _) = fit(8, Strategy::Fsdp, &first, 2);
    let parts = |path: &Path, name: &str| {
        let store = Arc::new(LocalStore::new(path.parent().unwrap()));
        let checkpoint =
            Checkpoint::open(store, path.file_name().unwrap().to_str().unwrap()).unwrap();
        let manifest = checkpoint.manifest();
        assert_eq!(
            (manifest.run.mesh[0].1, manifest.run.options["strategy"].as_str()),
            (8, Some("fsdp"))
        );
        manifest.tensors[name].parts.len()
    };
    assert_eq!(parts(&first, "fc1.weight"), 8);
    assert_eq!(parts(&first, "optimizer/momentum_buffer/fc1.weight"), 8);
    assert_eq!(parts(&first, "trainer/step"), 1, "what all devices have is saved once");
    for devices in [1, 2, 8] {
        check(&first, devices, Strategy::Ddp, &expected);
    }
    // The other direction.
    let (_, _, alone) = fit(1, Strategy::Ddp, Path::new(""), 1);
    let (_, expected, _) = fit(1, Strategy::Ddp, &alone, 2);
    check(&alone, 8, Strategy::Fsdp, &expected);
}

#[test]
fn a_sharding_that_does_not_fit_the_mesh_names_the_parameter_and_the_line() {
    let (mut trainer, _, folder) = trainer(4, Strategy::Ddp);
    let module = mlp();
    let line = line!() + 1;
    module.fc2.weight.with_sharding(Sharding::new([Some("model")]));
    let error = trainer.fit(&module, &loader(), None).unwrap_err().to_string();
    assert!(
        error.starts_with("the parameter `fc2.weight`: ") && error.contains("the mesh is data=4"),
        "{error}"
    );
    assert!(error.contains(&format!("devices.rs:{line}:")), "{error}");
    assert!(!folder.path().join("runs").exists(), "nothing was begun");
}
