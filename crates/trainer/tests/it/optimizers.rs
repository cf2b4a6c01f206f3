//! Several optimizers in one program, on a GAN: compared with PyTorch and with two separate
//! programs. Also their intervals, and their clipping, groups of batches, averages, precision and
//! checkpoints.

use std::path::Path;

use fulmen_data::{DataLoader, IdxFile, TensorDataset};
use fulmen_nn::activation::leaky_relu;
use fulmen_nn::loss::{Reduction, binary_cross_entropy_with_logits};
use fulmen_nn::optim::{Adam, Optimizer, ParamGroups, Sgd, Step};
use fulmen_nn::schedule::Exponential;
use fulmen_nn::{BatchNorm1d, Linear, Module};
use fulmen_tensor::{
    Argument, DType, DeviceArray, Function, Literal, Sharding, Tensor, TensorType, grad,
};
use fulmen_trainer::{
    Batch, FitSummary, Optimizers, Plan, Precision, StepContext, Strategy, TrainerBuilder,
    TrainingModule, WeightAveraging,
};
use serde_json::Value;

use crate::common::{DROP_LAST, PAD_LAST, Record, isolated, logged, trainer};

const STEPS: usize = 50;
const BATCH: usize = 64;
const NOISE: usize = 16;
const HIDDEN: usize = 64;
const PIXELS: usize = 784;

#[derive(Module)]
struct Generator {
    hidden: Linear,
    out: Linear,
}

#[derive(Module)]
struct Discriminator {
    hidden: Linear,
    out: Linear,
}

impl Generator {
    fn forward(&self, noise: &Tensor) -> Tensor {
        self.out.forward(leaky_relu(&self.hidden.forward(noise), 0.2)).tanh()
    }
}

impl Discriminator {
    /// The loss of images that should look real, or fake.
    fn loss(&self, images: &Tensor, real: bool) -> Tensor {
        let logits = self.out.forward(leaky_relu(&self.hidden.forward(images), 0.2));
        let target = if real { logits.ones_like() } else { logits.zeros_like() };
        binary_cross_entropy_with_logits(&logits, &target, Reduction::None)
            .reshape([images.size(0)])
    }
}

#[derive(Module)]
pub(crate) struct Gan {
    generator: Generator,
    discriminator: Discriminator,
    #[module(skip)]
    configure: fn() -> Box<dyn Optimizer>,
}

impl Gan {
    /// Makes a GAN with the weights of `reference/gan.py`.
    pub(crate) fn new(configure: fn() -> Box<dyn Optimizer>) -> Gan {
        let gan = Gan {
            generator: Generator {
                hidden: Linear::new(NOISE, HIDDEN),
                out: Linear::new(HIDDEN, PIXELS),
            },
            discriminator: Discriminator {
                hidden: Linear::new(PIXELS, HIDDEN),
                out: Linear::new(HIDDEN, 1),
            },
            configure,
        };
        for (i, (_, parameter)) in gan.parameters().into_iter().enumerate() {
            let shape = parameter.ty().shape;
            let values: Vec<f32> = numbers(i as u64 * 1_000_003, shape.num_elements())
                .iter()
                .map(|x| x / 8.0)
                .collect();
            parameter.set(Tensor::from_slice(&values, shape.dims()));
        }
        gan
    }

    fn losses(&self, image: &Tensor, noise: &Tensor) -> [Tensor; 2] {
        let real = image.to_dtype(DType::F32) / 127.5 - 1.0;
        let fake = self.generator.forward(noise);
        let discriminator_loss =
            self.discriminator.loss(&real, true) + self.discriminator.loss(&fake.detach(), false);
        [discriminator_loss, self.discriminator.loss(&fake, true)]
    }

    fn weights(&self) -> Vec<f64> {
        self.parameters().iter().flat_map(|(_, p)| p.get().eval().unwrap().to_f64()).collect()
    }
}

impl TrainingModule for Gan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let image = batch.get("image");
        let noise = batch.get("noise");
        let loss = cx.minimize("discriminator", |_| batch.mean(&self.losses(&image, &noise)[0]));
        cx.minimize("generator", |cx| {
            let losses = &self.losses(&image, &noise)[1];
            cx.log("fooled", losses.lt(std::f64::consts::LN_2).to_dtype(DType::F32));
            batch.mean(losses)
        });
        loss
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.configure)()
    }
}

fn adam() -> Adam {
    Adam::new(2e-4).betas(0.5, 0.999)
}

pub(crate) fn two_to_one() -> Box<dyn Optimizer> {
    let optimizers = Optimizers::new().add("discriminator", ["discriminator.*"], adam());
    Box::new(optimizers.add("generator", ["generator.*"], adam()).every("generator", 2))
}

/// Numbers from -1 to 1, exact in f32.
pub(crate) fn numbers(start: u64, count: usize) -> Vec<f32> {
    let number = |k: u64| {
        ((k.wrapping_mul(2_654_435_761) % (1 << 32) / 256) as f64 / 8_388_608.0 - 1.0) as f32
    };
    (start..start + count as u64).map(number).collect()
}

/// The first digits, with noise for each.
fn data(samples: usize) -> TensorDataset {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/mnist/data/train-images-idx3-ubyte.gz");
    let images = IdxFile::open(file).unwrap().bytes()[..samples * PIXELS].to_vec();
    let data = TensorDataset::builder().array("image", [samples, PIXELS], images);
    data.array("noise", [samples, NOISE], numbers(9_000_000_000, samples * NOISE)).build().unwrap()
}

pub(crate) fn loader(batches: usize, batch: usize) -> DataLoader {
    DataLoader::builder(data(batches * batch)).batch_size(batch).drop_last(true).build().unwrap()
}

/// Trains for an epoch and logs each step.
fn fit(
    folder: &Path,
    gan: &Gan,
    loader: &DataLoader,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> (FitSummary, Record) {
    let record = Record::default();
    let builder = trainer(folder).max_epochs(1).log_every_n_steps(1).callback(record.clone());
    (set(builder).build().unwrap().fit(gan, loader, None).unwrap(), record)
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= tolerance * e.abs().max(1e-3), "{i}: {a} is not {e}");
    }
}

/// The losses of PyTorch's loop.
fn reference() -> [Vec<f64>; 2] {
    let json: Value = serde_json::from_str(include_str!("../reference/gan.json")).unwrap();
    let losses = |name: &str| {
        json[name].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    [losses("discriminator"), losses("generator")]
}

#[test]
fn the_losses_of_a_gan_match_pytorch_and_two_separate_programs() {
    let folder = tempfile::tempdir().unwrap();
    let [discriminator, generator] = reference();
    let data = loader(STEPS, BATCH);
    let (summary, record) =
        fit(folder.path(), &Gan::new(two_to_one), &data, |b| b.runtime(isolated()));
    assert_eq!((summary.global_step, summary.train_compilations), (STEPS as u64, 1));
    assert_close(&logged(&record, "loss-discriminator"), &discriminator, 1e-4);
    assert_close(&logged(&record, "loss-generator"), &generator, 1e-4);
    // The step returns the loss of the discriminator, so it is logged only under the optimizer's
    // name.
    assert!(
        logged(&record, "train_loss").is_empty() && summary.train_loss.unwrap() < discriminator[0]
    );
    let steps: Vec<u64> = {
        let logs = record.logs.lock().unwrap();
        logs.iter()
            .filter(|point| point.get("loss-generator").is_some())
            .map(|point| point.global_step)
            .collect()
    };
    assert_eq!(steps, (1..=STEPS as u64).step_by(2).collect::<Vec<_>>());
    let [own_discriminator, own_generator] = two_programs(&data, 1, Strategy::Ddp);
    assert_close(&logged(&record, "loss-discriminator"), &own_discriminator, 1e-6);
    assert_close(&logged(&record, "loss-generator"), &own_generator, 1e-6);
}

#[test]
fn eight_devices_train_a_gan_like_pytorch_and_two_separate_programs() {
    let folder = tempfile::tempdir().unwrap();
    let [discriminator, generator] = reference();
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let data = loader(STEPS, BATCH);
        let set = |b: TrainerBuilder| b.devices(8).strategy(strategy);
        let (_, record) = fit(folder.path(), &Gan::new(two_to_one), &data, set);
        assert_close(&logged(&record, "loss-discriminator"), &discriminator, 1e-4);
        assert_close(&logged(&record, "loss-generator"), &generator, 1e-4);
        let [own_discriminator, own_generator] = two_programs(&data, 8, strategy);
        assert_close(&logged(&record, "loss-discriminator"), &own_discriminator, 1e-6);
        assert_close(&logged(&record, "loss-generator"), &own_generator, 1e-6);
    }
}

/// The losses of a loop over two programs, one for each network. Batches are split over the
/// devices. With FSDP, the weights and the optimizer's state are split too, along their largest
/// axis that the number of devices divides.
fn two_programs(data: &DataLoader, devices: usize, strategy: Strategy) -> [Vec<f64>; 2] {
    let trainer = trainer(Path::new("")).devices(devices).build().unwrap();
    let runtime = trainer.runtime();
    let gan = Gan::new(two_to_one);
    let parameters = gan.parameters();
    let split = Sharding::new([Some("data")]);
    let sharding = |ty: &TensorType| {
        let dims = ty.shape.dims();
        let splits =
            |axis: &usize| strategy == Strategy::Fsdp && dims[*axis].is_multiple_of(devices);
        let largest = (0..dims.len()).rev().filter(splits).max_by_key(|&axis| dims[axis]);
        largest.map_or(Sharding::replicated(), |axis| {
            Sharding::new((0..=axis).map(|i| (i == axis).then_some("data")))
        })
    };
    let to_device = |tensor: &Tensor| {
        runtime.to_devices(&tensor.eval().unwrap(), &sharding(tensor.ty())).unwrap()
    };
    let mut weights: Vec<DeviceArray> =
        parameters.iter().map(|(_, p)| to_device(&p.get())).collect();
    let slots = |i: usize| {
        adam().state(&parameters[i].0, &parameters[i].1.ty()).into_iter().map(|(_, first)| first)
    };
    let mut states: Vec<Vec<DeviceArray>> =
        (0..parameters.len()).map(|i| slots(i).map(|first| to_device(&first)).collect()).collect();

    // The parameters of the generator come first.
    let owned = [4..8, 0..4];
    let programs = [0, 1].map(|which: usize| {
        let own = owned[which].clone();
        let input = |ty: &TensorType| Tensor::placeholder("input", ty.clone());
        let inputs: Vec<Tensor> = parameters.iter().map(|(_, p)| input(&p.ty())).collect();
        let whole: Vec<Tensor> =
            inputs.iter().map(|input| input.with_sharding(&Sharding::replicated())).collect();
        parameters.iter().zip(&whole).for_each(|((_, p), whole)| p.set(whole.clone()));
        let slots: Vec<Vec<Tensor>> =
            own.clone().map(|i| slots(i).map(|first| input(first.ty())).collect()).collect();
        let updates = input(&TensorType::scalar(DType::I32));
        let image = input(&TensorType::new(DType::U8, [BATCH, PIXELS]));
        let noise = input(&TensorType::new(DType::F32, [BATCH, NOISE]));
        let loss = gan.losses(&image, &noise)[which].mean_all();
        let wrt: Vec<&Tensor> = whole[own.clone()].iter().collect();
        let mut results = vec![loss.clone()];
        for ((i, gradient), slots) in own.zip(grad(&loss, &wrt)).zip(&slots) {
            let step = Step::new(&updates);
            let gradient = gradient.with_sharding(&sharding(gradient.ty()));
            let (weight, slots) =
                adam().update(&step, &parameters[i].0, &inputs[i], &gradient, slots);
            results.extend([weight].into_iter().chain(slots));
        }
        let state: Vec<Tensor> = inputs.into_iter().chain(slots.into_iter().flatten()).collect();
        let input_shardings = state.iter().map(|input| sharding(input.ty())).chain([
            Sharding::replicated(),
            split.clone(),
            split.clone(),
        ]);
        let input_shardings: Vec<Sharding> = input_shardings.collect();
        let result_shardings: Vec<Sharding> =
            results.iter().map(|result| sharding(result.ty())).collect();
        let inputs = state.into_iter().chain([updates, image, noise]).collect();
        let function = input_shardings
            .into_iter()
            .enumerate()
            .fold(Function::new("half", inputs, results), |function, (i, sharding)| {
                function.shard_parameter(i, sharding)
            });
        let function = result_shardings
            .into_iter()
            .enumerate()
            .fold(function, |function, (i, sharding)| function.shard_result(i, sharding));
        runtime.compile(&function).unwrap()
    });

    let mut losses = [Vec::new(), Vec::new()];
    let mut updates = [0i32; 2];
    for (step, batch) in data.epoch(0).enumerate() {
        let batch = batch.unwrap();
        let image = Literal::from_slice(batch.values::<u8>(0).unwrap(), [BATCH, PIXELS]).unwrap();
        let noise = Literal::from_slice(batch.values::<f32>(1).unwrap(), [BATCH, NOISE]).unwrap();
        for which in [0, 1].into_iter().filter(|which| *which == 0 || step % 2 == 0) {
            let count = Literal::from_slice(&[updates[which]], []).unwrap();
            let others = [(&count, &Sharding::replicated()), (&image, &split), (&noise, &split)];
            let others =
                others.map(|(literal, sharding)| runtime.to_devices(literal, sharding).unwrap());
            let own = owned[which].clone();
            let arguments =
                weights.iter().chain(states[own.clone()].iter().flatten()).chain(&others);
            let mut results = programs[which]
                .call(arguments.map(Argument::Borrow).collect())
                .unwrap()
                .arrays
                .into_iter();
            let loss = results.next().unwrap();
            losses[which].push(runtime.read(&[&loss]).unwrap().wait().unwrap()[0].to_f64()[0]);
            updates[which] += 1;
            for i in own {
                weights[i] = results.next().unwrap();
                states[i].iter_mut().for_each(|slot| *slot = results.next().unwrap());
            }
        }
    }
    losses
}

fn sgd(rate: f64) -> Box<dyn Optimizer> {
    let optimizers = Optimizers::new().add("discriminator", ["discriminator.*"], Sgd::new(rate));
    Box::new(optimizers.add("generator", ["generator.*"], Sgd::new(rate)).every("generator", 2))
}

#[test]
fn the_gradients_of_each_optimizer_are_clipped_by_their_own_norm() {
    let folder = tempfile::tempdir().unwrap();
    let configure = || sgd(1.0);
    let moved = |set: &dyn Fn(TrainerBuilder) -> TrainerBuilder| {
        let gan = Gan::new(configure);
        let before = Gan::new(configure).parameters();
        let (_, record) = fit(folder.path(), &gan, &loader(1, 32), |b| set(b.log_grad_norm(true)));
        let norms = ["generator", "discriminator"].map(|name| {
            let parameters = gan
                .parameters()
                .into_iter()
                .zip(&before)
                .filter(|((parameter, _), _)| parameter.starts_with(name));
            let squares = parameters.map(|((_, after), (_, before))| {
                let moved = after.get() - before.get();
                (&moved * &moved).sum_all().eval().unwrap().to_f64()[0]
            });
            squares.sum::<f64>().sqrt()
        });
        let logged =
            ["grad_norm-generator", "grad_norm-discriminator"].map(|name| logged(&record, name)[0]);
        (norms, logged)
    };
    let (plain, norms) = moved(&|b| b);
    assert_close(&norms, &plain, 1e-4);
    assert!(plain[0] > plain[1], "{plain:?}");
    let limit = (plain[0] + plain[1]) / 2.0;
    let (clipped, norms) = moved(&|b| b.gradient_clip_val(limit));
    assert_close(&norms, &plain, 1e-4);
    assert_close(&clipped, &[limit, plain[1]], 1e-4);
}

#[test]
fn a_run_resumes_bit_for_bit_between_the_steps_of_an_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let data = loader(6, 16);
    let whole = Gan::new(two_to_one);
    let resumed = Gan::new(two_to_one);
    let set = |b: TrainerBuilder| {
        b.weight_averaging(WeightAveraging::ema(0.9)).precision(Precision::Bf16Mixed)
    };
    let (_, record) = fit(folder.path(), &whole, &data, set);
    let (first, _) = fit(folder.path(), &resumed, &data, |b| set(b).max_steps(3));
    let checkpoint = first.last_checkpoint.unwrap();
    let (_, rest) =
        fit(folder.path(), &Gan::new(two_to_one), &data, |b| set(b).ckpt_path(&checkpoint));
    for name in ["loss-discriminator", "lr-discriminator"] {
        assert_eq!(rest.bits(name), record.bits(name)[3..], "{name}");
    }
    for name in ["loss-generator", "lr-generator"] {
        assert_eq!(logged(&rest, name), logged(&record, name)[2..], "{name}");
    }
    let tensors = crate::common::tensors(checkpoint);
    for (name, count) in [
        ("trainer/updates", 3.0),
        ("trainer/updates/discriminator", 3.0),
        ("trainer/updates/generator", 2.0),
    ] {
        assert_eq!(tensors[name].to_f64(), [count], "{name}");
    }
    assert!(
        tensors.contains_key("optimizer/exp_avg/generator.hidden.weight"),
        "{:?}",
        tensors.keys()
    );
}

#[test]
fn averages_count_the_steps_of_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let configure = || sgd(0.1);
    let after = |steps: u64, set: &dyn Fn(TrainerBuilder) -> TrainerBuilder| {
        let gan = Gan::new(configure);
        fit(folder.path(), &gan, &loader(4, 16), |b| set(b.max_steps(steps)));
        gan.weights()
    };
    let mut expected = after(1, &|b| b);
    for steps in 2..=4 {
        for (average, weight) in expected.iter_mut().zip(after(steps, &|b| b)) {
            *average += 0.5 * (weight - *average);
        }
    }
    assert_close(&after(4, &|b| b.weight_averaging(WeightAveraging::ema(0.5))), &expected, 1e-4);
}

#[test]
fn an_average_of_one_network_counts_the_updates_of_its_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |steps: u64, averaging: Option<WeightAveraging>| {
        let gan = Gan::new(|| sgd(0.1));
        let (summary, _) = fit(folder.path(), &gan, &loader(4, 16), |b| {
            let b = b.max_steps(steps);
            match &averaging {
                Some(averaging) => b.weight_averaging(averaging.clone()),
                None => b,
            }
        });
        let generator = (NOISE + 1) * HIDDEN + (HIDDEN + 1) * PIXELS;
        let mut weights = gan.weights();
        let discriminator = weights.split_off(generator);
        ([weights, discriminator], summary.last_checkpoint.unwrap())
    };
    // The generator is updated in the steps 1 and 3.
    let [([first, _], _), ([second, discriminator], _)] = [1, 4].map(|steps| trained(steps, None));
    let mean: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + 0.5 * (b - a)).collect();
    assert!(mean.iter().zip(&second).any(|(a, b)| (a - b).abs() > 1e-3), "the weights moved");
    let ema = || WeightAveraging::ema(0.5).only("generator.*");
    for (averaging, expected) in [
        (ema(), &mean),
        // It begins with the second update, the last.
        (ema().start_step(1), &second),
        (ema().every_n_steps(2), &second),
        // No step is averaged.
        (ema().start_step(2), &second),
    ] {
        let (averaged, checkpoint) = trained(4, Some(averaging));
        assert_close(&averaged[0], expected, 1e-5);
        assert_eq!(averaged[1], discriminator, "the other network is not averaged");
        let names = crate::common::tensors(checkpoint);
        let current = |name: &&String| name.starts_with("trainer/current/");
        let current: Vec<&String> = names.keys().filter(current).collect();
        assert!(current.iter().all(|name| name.starts_with("trainer/current/generator.")));
        assert_eq!(current.len(), 4, "{current:?}");
    }

    let refused = |averaging: WeightAveraging| {
        let builder = trainer(folder.path()).max_epochs(1).weight_averaging(averaging);
        let gan = Gan::new(|| sgd(0.1));
        let error = builder.build().unwrap().fit(&gan, &loader(1, 16), None).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("optimizers.rs:"), "{error}");
        error.to_string()
    };
    let error = refused(WeightAveraging::ema(0.5).only("generator.*").only("generatr.out.*"));
    let expected = "WeightAveraging: only: the pattern `generatr.out.*` matches no parameter; the nearest are `generator.out.";
    assert!(error.starts_with(expected), "{error}");
    let error = refused(WeightAveraging::ema(0.5).only("*.out.weight"));
    let expected = "WeightAveraging: only: the parameters that match `*.out.weight` belong to the optimizers `discriminator`, \
                    `generator`; an average counts";
    assert!(error.starts_with(expected), "{error}");
}

/// Two layers, with a test's own training step.
#[derive(Module)]
struct Two {
    a: Linear,
    b: Linear,
    norm: BatchNorm1d,
    #[module(skip)]
    step: fn(&Two, &Batch, &mut StepContext) -> Tensor,
    #[module(skip)]
    configure: fn() -> Box<dyn Optimizer>,
}

impl Two {
    fn new(
        configure: fn() -> Box<dyn Optimizer>,
        step: fn(&Two, &Batch, &mut StepContext) -> Tensor,
    ) -> Two {
        Two {
            a: Linear::new(NOISE, 4),
            b: Linear::new(4, 4),
            norm: BatchNorm1d::new(4),
            step,
            configure,
        }
    }

    fn losses(&self, batch: &Batch) -> Tensor {
        let y = self.b.forward(self.a.forward(batch.get("noise")));
        (&y * &y).mean(1)
    }
}

impl TrainingModule for Two {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        (self.step)(self, batch, cx)
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        if batch.size() == 3 {
            cx.minimize("a", |_| self.losses(batch).mean_all());
        }
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.configure)()
    }
}

fn a_and_b() -> Optimizers {
    Optimizers::new().add("a", ["a.*", "norm.*"], Sgd::new(0.1)).add("b", ["b.*"], Sgd::new(0.1))
}

fn noise(samples: usize, batch: usize, drop_last: bool) -> DataLoader {
    let data = TensorDataset::builder()
        .array("noise", [samples, NOISE], numbers(5, samples * NOISE))
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(batch).drop_last(drop_last).build().unwrap()
}

#[test]
fn each_optimizer_has_groups_of_batches_a_cadence_and_a_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let configure = || -> Box<dyn Optimizer> {
        let falling = |rate| Sgd::new(Exponential::new(rate, 0.5));
        let optimizers = Optimizers::new().add("a", ["a.*", "norm.*"], falling(0.1));
        Box::new(optimizers.add("b", ["b.*"], falling(0.2)).every("b", 2))
    };
    // Neither loss depends on the parameters of the other optimizer. Within a group, those have not
    // changed yet.
    let step = |m: &Two, batch: &Batch, cx: &mut StepContext| {
        let noise = batch.get("noise");
        let loss = cx.minimize("a", |_| batch.mean((m.a.forward(&noise) - 1.0).abs()));
        cx.minimize("b", |cx| {
            let y = m.b.forward(noise.narrow(1, 0, 4));
            cx.log("b_mean", y.mean(1));
            batch.mean(&y * &y)
        });
        loss
    };
    let run = |samples: usize, batch: usize, set: &dyn Fn(TrainerBuilder) -> TrainerBuilder| {
        let two = Two::new(configure, step);
        let record = Record::default();
        let builder =
            trainer(folder.path()).max_epochs(1).log_every_n_steps(1).callback(record.clone());
        let data = noise(samples, batch, PAD_LAST);
        let summary = set(builder).build().unwrap().fit(&two, &data, None).unwrap();
        assert_eq!(summary.global_step, 4);
        assert_close(&logged(&record, "lr-a"), &[0.1, 0.05, 0.025, 0.0125], 1e-6);
        // A skipped step logs nothing.
        assert_close(&logged(&record, "lr-b"), &[0.2, 0.1], 1e-6);
        assert_eq!(logged(&record, "b_mean").len(), 2);
        let weights = two
            .parameters()
            .iter()
            .flat_map(|(_, p)| p.get().eval().unwrap().to_f64())
            .collect::<Vec<_>>();
        (weights, logged(&record, "loss-b"))
    };
    let whole = run(120, 32, &|b| b);
    for devices in [1, 8] {
        let groups = |b: TrainerBuilder| {
            b.accumulate_grad_batches(2).devices(devices).strategy(Strategy::Fsdp)
        };
        let (weights, losses) = run(120, 16, &groups);
        assert_close(&weights, &whole.0, 1e-5);
        assert_close(&losses, &whole.1, 1e-5);
    }
}

#[test]
fn statistics_move_only_where_their_branch_runs() {
    let folder = tempfile::tempdir().unwrap();
    let configure = || -> Box<dyn Optimizer> { Box::new(a_and_b().every("a", 3)) };
    let after = |steps: u64| {
        let two = Two::new(configure, |m, batch, cx| {
            cx.minimize("b", |_| m.losses(batch).mean_all());
            cx.minimize("a", |_| {
                let y = m.norm.forward(m.a.forward(batch.get("noise")));
                (&y * &y * &y).mean_all()
            })
        });
        let mut trainer =
            trainer(folder.path()).max_steps(steps).enable_checkpointing(false).build().unwrap();
        trainer.fit(&two, &noise(32, 8, DROP_LAST), None).unwrap();
        let values = |names: &[&str]| {
            let parameters = two.parameters().into_iter().map(|(name, p)| (name, p.get()));
            let all = parameters.chain(two.buffers().into_iter().map(|(name, b)| (name, b.get())));
            let selected =
                all.filter(|(name, _)| names.iter().any(|start| name.starts_with(start)));
            selected.flat_map(|(_, value)| value.eval().unwrap().to_f64()).collect::<Vec<f64>>()
        };
        (values(&["a.", "norm."]), values(&["b."]))
    };
    let [one, three, four] = [after(1), after(3), after(4)];
    assert_eq!(one.0, three.0);
    assert_ne!(one.1, three.1);
    assert_ne!(three.0, four.0);
}

#[test]
fn a_gradient_that_overflows_skips_the_step_of_its_own_optimizer_only() {
    let folder = tempfile::tempdir().unwrap();
    let configure = || -> Box<dyn Optimizer> { Box::new(a_and_b()) };
    let two = Two::new(configure, |m, batch, cx| {
        cx.minimize("a", |_| {
            (m.losses(batch) + m.norm.forward(m.a.forward(batch.get("noise"))).mean(1)).mean_all()
        });
        cx.minimize("b", |_| m.losses(batch).mean_all() * 1e34)
    });
    let mut trainer =
        trainer(folder.path()).max_epochs(1).precision(Precision::F16Mixed).build().unwrap();
    let summary = trainer.fit(&two, &noise(32, 8, DROP_LAST), None).unwrap();
    let tensors = crate::common::tensors(summary.last_checkpoint.unwrap());
    for (name, value) in [
        ("trainer/updates/a", 4.0),
        ("trainer/updates/b", 0.0),
        ("trainer/loss_scale/a", 65536.0),
        ("trainer/loss_scale/b", 4096.0),
    ] {
        assert_eq!(tensors[name].to_f64(), [value], "{name}");
    }
}

#[test]
fn a_single_named_optimizer_equals_one_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |two: Two| {
        let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
        let summary = trainer.fit(&two, &noise(20, 8, PAD_LAST), None).unwrap();
        let weights = two
            .parameters()
            .iter()
            .flat_map(|(_, p)| p.get().eval().unwrap().to_f64())
            .collect::<Vec<_>>();
        (weights, summary.train_loss)
    };
    let plain = weights(Two::new(
        || Box::new(Sgd::new(0.1).momentum(0.9)),
        |m, batch, _| batch.mean(m.losses(batch)),
    ));
    let named = || -> Box<dyn Optimizer> {
        Box::new(Optimizers::new().add("all", ["*"], Sgd::new(0.1).momentum(0.9)))
    };
    let step = |m: &Two, batch: &Batch, cx: &mut StepContext| {
        cx.minimize("all", |_| batch.mean(m.losses(batch)))
    };
    assert_eq!(weights(Two::new(named, step)), plain);
}

/// Checks the error of a rejected fit, which names a line of this file.
#[track_caller]
fn check(
    configure: fn() -> Box<dyn Optimizer>,
    step: fn(&Two, &Batch, &mut StepContext) -> Tensor,
    expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let two = Two::new(configure, step);
    let error =
        trainer.fit(&two, &noise(20, 8, PAD_LAST), Some(&noise(6, 3, PAD_LAST))).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with(expected) && error.is_usage(), "{message}");
    assert!(message.contains("optimizers.rs:"), "{message}");
}

#[test]
fn invalid_optimizers_are_reported_before_training() {
    fn both(m: &Two, batch: &Batch, cx: &mut StepContext) -> Tensor {
        cx.minimize("a", |_| batch.mean(m.losses(batch)));
        cx.minimize("b", |_| batch.mean(m.losses(batch)))
    }
    for (configure, expected) in [
        (
            (|| Box::new(Optimizers::new())) as fn() -> Box<dyn Optimizer>,
            "Optimizers: there are no optimizers; add one with add()",
        ),
        (
            || Box::new(a_and_b().add("", ["c.*"], Sgd::new(0.1))),
            "Optimizers: `` is not a valid name",
        ),
        (
            || Box::new(a_and_b().add("a/b", ["b.*"], Sgd::new(0.1))),
            "Optimizers: `a/b` is not a valid name",
        ),
        (
            || Box::new(a_and_b().add("a", ["b.*"], Sgd::new(0.1))),
            "Optimizers: there are two with the name `a`",
        ),
        (
            || Box::new(a_and_b().add("c", ["d.*"], Sgd::new(0.1))),
            "Optimizers: `c`: the pattern `d.*` matches no parameter; the nearest are ",
        ),
        (
            || Box::new(a_and_b().add("c", ["b.bias"], Sgd::new(0.1))),
            "Optimizers: `b.bias` belongs to `b` and to `c`; it can have one optimizer",
        ),
        (
            || Box::new(Optimizers::new().add("a", ["a.*", "norm.*"], Sgd::new(0.1))),
            "Optimizers: the parameter `b.weight` belongs to none of `a`; add a pattern that matches it, or freeze it",
        ),
        (
            || Box::new(a_and_b().every("c", 2)),
            "Optimizers: every: there is no optimizer `c`; there are `a`, `b`",
        ),
        (
            || Box::new(a_and_b().every("a", 0)),
            "Optimizers: every: the interval of `a` must be at least 1 step, not 0",
        ),
        (
            || Box::new(Optimizers::new().add("a", ["*"], ParamGroups::new(Sgd::new(-1.0)))),
            "Sgd: the learning rate must be at least 0",
        ),
        (
            || Box::new(Sgd::new(0.1)),
            "minimize(\"a\"): configure_optimizers returns one optimizer without a name, which minimizes the loss",
        ),
        (
            || Box::new(Optimizers::new().add("b", ["*"], Sgd::new(0.1))),
            "minimize(\"a\"): there is no optimizer of this name; there are `b`",
        ),
        (
            || Box::new(a_and_b()),
            "minimize(\"a\"): only training_step can minimize", // the validation step does
        ),
    ] {
        check(configure, both, expected);
    }
    let two: fn() -> Box<dyn Optimizer> = || Box::new(a_and_b());
    let skips: fn() -> Box<dyn Optimizer> = || Box::new(a_and_b().every("b", 2));
    check(
        two,
        |m, batch, _| batch.mean(m.losses(batch)),
        "training_step: the optimizer `a` minimizes nothing; call",
    );
    for configure in [two, skips] {
        check(
            configure,
            |m, batch, cx| cx.minimize("b", |cx| cx.minimize("a", |_| batch.mean(m.losses(batch)))),
            "minimize(\"a\"): it is called within minimize(\"b\"); call it before or after",
        );
        check(
            configure,
            |m, batch, cx| {
                cx.minimize("b", |_| batch.mean(m.losses(batch)));
                cx.minimize("b", |_| batch.mean(m.losses(batch)))
            },
            "minimize(\"b\"): it was already called in this step; minimize the sum of the losses",
        );
        check(
            configure,
            |m, batch, cx| cx.minimize("b", |_| m.losses(batch)),
            "minimize(\"b\"): the loss must be a floating-point scalar, but it is f32[8]; take its mean",
        );
        check(
            configure,
            |m, batch, cx| cx.minimize("b", |_| m.losses(batch).mean_all()),
            "minimize(\"b\"): the last batch is padded, but the loss does not depend on the batch's mask",
        );
        check(
            configure,
            |m, batch, cx| cx.minimize("b", |_| batch.mean(m.a.forward(batch.get("noise")))),
            "minimize(\"b\"): the loss depends on none of its parameters",
        );
        check(
            configure,
            |m, batch, cx| cx.minimize("b", |_| m.b.forward(batch.get("noise")).mean_all()),
            "Linear",
        );
        check(
            configure,
            |m, batch, cx| {
                cx.minimize("b", |cx| {
                    cx.log("y", m.b.forward(m.a.forward(batch.get("noise"))));
                    batch.mean(m.losses(batch))
                });
                cx.minimize("a", |_| batch.mean(m.losses(batch)))
            },
            "log `y`: the value is f32[8, 4]; log a scalar or one value per sample, [8]",
        );
        check(
            configure,
            |m, batch, cx| {
                cx.log("loss-b", m.losses(batch));
                cx.minimize("b", |_| batch.mean(m.losses(batch)));
                cx.minimize("a", |_| batch.mean(m.losses(batch)))
            },
            "log `loss-b`: this name was logged before in the same step; choose another",
        );
        check(
            configure,
            |m, batch, cx| {
                cx.log("lr-b", m.losses(batch));
                cx.minimize("b", |_| batch.mean(m.losses(batch)));
                cx.minimize("a", |_| batch.mean(m.losses(batch)))
            },
            "log `lr-b`: this name belongs to a value that the Trainer logs itself; choose another",
        );
    }
}
