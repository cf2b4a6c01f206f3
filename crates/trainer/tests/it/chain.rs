//! Rules around an optimizer, `optim::chain`: against PyTorch, on several devices, frozen, resumed.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{
    AdamW, Chain, ClipNorm, ClipValue, FirstValue, GradientTransformation, Optimizer, ParamGroups,
    Sgd, Step, Updates, chain,
};
use fulmen_nn::{Embedding, Linear, Module, scan_layers};
use fulmen_tensor::{DType, Tensor, TensorType};
use fulmen_trainer::callbacks::{BackboneFinetuning, ModelCheckpoint, SpikeGuard};
use fulmen_trainer::{
    Batch, Optimizers, Plan, Precision, StepContext, Strategy, TrainDuration, TrainerBuilder,
    TrainingModule,
};
use serde_json::Value;

use crate::common::{Record, logged, trainer};

const STEPS: usize = 12;
const BATCH: usize = 8;

/// Gradient centralization: the gradient of each output has the mean 0.
#[derive(Debug)]
struct Centralize;

impl GradientTransformation for Centralize {
    fn name(&self) -> &'static str {
        "centralize"
    }

    fn update(&self, _: &Step, updates: &mut Updates) {
        for parameter in &mut updates.parameters {
            let rank = parameter.update.shape().rank() as isize;
            if rank > 1 {
                let axes: Vec<isize> = (1..rank).collect();
                parameter.update = &parameter.update - parameter.update.mean_keepdim(axes);
            }
        }
    }
}

/// Lookahead: every `every` steps, the parameters go back to a point between those of the latest
/// return and the current ones.
#[derive(Debug)]
struct Lookahead {
    every: i32,
    alpha: f64,
}

impl GradientTransformation for Lookahead {
    fn name(&self) -> &'static str {
        "lookahead"
    }

    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![("returns", Tensor::zeros(DType::I32, []))]
    }

    fn init_parameter(&self, _: &str, _: &TensorType) -> Vec<(&'static str, FirstValue)> {
        vec![("slow", FirstValue::Parameter)]
    }

    fn update(&self, step: &Step, updates: &mut Updates) {
        let returns = (step.finished() + 1.0).remainder(f64::from(self.every)).eq(0.0);
        for parameter in &mut updates.parameters {
            let slow = &parameter.state[0];
            let before = parameter.parameter.to_dtype(slow.dtype());
            let fast = &before + &parameter.update;
            let next = slow + (fast - slow) * self.alpha;
            parameter.update = returns.select(&(&next - before), &parameter.update);
            parameter.state[0] = returns.select(&next, slow);
        }
        let count = returns.select(&(&updates.state[0] + 1.0), &updates.state[0]);
        updates.log("returns", &count.to_dtype(DType::F32));
        updates.state[0] = count;
    }
}

fn lookahead() -> Lookahead {
    Lookahead { every: 3, alpha: 0.5 }
}

/// Makes an optimizer each time the module is asked for one.
type MakeOptimizer = fn() -> Box<dyn Optimizer>;

#[derive(Module)]
struct Two {
    first: Linear,
    head: Linear,
    #[module(skip)]
    optimizer: MakeOptimizer,
}

/// Numbers from -1 to 1, as in `reference/chain.py`.
fn numbers(start: u64, count: usize) -> Vec<f32> {
    let number = |k: u64| (k * 2_654_435_761 % (1 << 32) / 256) as f32 / (1 << 23) as f32 - 1.0;
    (start..start + count as u64).map(number).collect()
}

fn two(optimizer: MakeOptimizer) -> Two {
    let two = Two { first: Linear::new(6, 8), head: Linear::new(8, 2), optimizer };
    for (i, (_, parameter)) in two.parameters().into_iter().enumerate() {
        let shape = parameter.ty().shape;
        let values: Vec<f32> =
            numbers(i as u64 * 1_000_003, shape.num_elements()).iter().map(|x| x / 2.0).collect();
        parameter.set(Tensor::from_slice(&values, shape.dims()));
    }
    two
}

impl TrainingModule for Two {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let hidden = self.first.forward(&batch.get("x")).tanh();
        (self.head.forward(hidden) - batch.get("y")).pow(2.0).mean_all()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

fn values(module: &dyn Module, prefix: &str) -> Vec<f64> {
    let own = module.parameters().into_iter().filter(|(name, _)| name.starts_with(prefix));
    own.flat_map(|(_, parameter)| parameter.get().eval().unwrap().to_f64()).collect()
}

fn data(batch: usize) -> DataLoader {
    let count = STEPS * BATCH;
    let data = TensorDataset::builder()
        .array("x", [count, 6], numbers(9_000_000, count * 6))
        .array("y", [count, 2], numbers(10_000_000, count * 2))
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(batch).build().unwrap()
}

/// Trains for some epochs, and returns what was logged at each step.
fn fit(folder: &Path, module: &Two, set: impl FnOnce(TrainerBuilder) -> TrainerBuilder) -> Record {
    let record = Record::default();
    let builder = trainer(folder).max_epochs(1).log_every_n_steps(1).callback(record.clone());
    set(builder).build().unwrap().fit(module, &data(BATCH), None).unwrap();
    record
}

/// The error of a fit with this optimizer.
fn error_of(optimizer: MakeOptimizer) -> String {
    let folder = tempfile::tempdir().unwrap();
    let error = trainer(folder.path())
        .max_epochs(1)
        .build()
        .unwrap()
        .fit(&two(optimizer), &data(BATCH), None)
        .unwrap_err();
    assert!(error.is_usage(), "{error}");
    error.to_string()
}

fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (actual - expected).abs();
        assert!(
            difference <= tolerance * expected.abs().max(1e-2),
            "{i}: {actual} is not {expected}"
        );
    }
}

fn with_adamw() -> Box<dyn Optimizer> {
    let adamw = AdamW::new(0.05).weight_decay(0.1);
    Box::new(chain((ClipNorm::new(0.5), Centralize, adamw)).then(lookahead()))
}

fn with_sgd() -> Box<dyn Optimizer> {
    let sgd = Sgd::new(0.2).momentum(0.9);
    Box::new(chain((ClipNorm::new(0.5), Centralize, sgd)).then(lookahead()))
}

#[test]
fn rules_train_as_in_pytorch_on_one_device_and_on_eight() {
    let json: Value = serde_json::from_str(include_str!("../reference/chain.json")).unwrap();
    for (name, optimizer) in [("adamw", with_adamw as MakeOptimizer), ("sgd", with_sgd)] {
        let column = |column: &str| -> Vec<f64> {
            let values = json["cases"][name][column].as_array().unwrap();
            values.iter().map(|value| value.as_f64().unwrap()).collect()
        };
        for (devices, strategy) in [(1, Strategy::Ddp), (8, Strategy::Ddp), (8, Strategy::Fsdp)] {
            let folder = tempfile::tempdir().unwrap();
            let record = fit(folder.path(), &two(optimizer), |builder| {
                builder.devices(devices).strategy(strategy).log_grad_norm(true)
            });
            assert_close(&logged(&record, "train_loss"), &column("losses"), 2e-4);
            assert_close(&logged(&record, "grad_norm"), &column("norms"), 2e-4);
            let returns = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4].map(f64::from);
            assert_eq!(logged(&record, "returns"), returns);
        }
    }
}

#[test]
fn the_rules_for_clipping_do_what_the_options_do() {
    let weights = |optimizer: MakeOptimizer, set: fn(TrainerBuilder) -> TrainerBuilder| {
        let folder = tempfile::tempdir().unwrap();
        let module = two(optimizer);
        fit(folder.path(), &module, set);
        values(&module, "")
    };
    let plain: MakeOptimizer = || Box::new(Sgd::new(0.2));
    let by_norm = weights(|| Box::new(chain((ClipNorm::new(0.3), Sgd::new(0.2)))), |b| b);
    let by_value = weights(|| Box::new(chain((ClipValue::new(0.05), Sgd::new(0.2)))), |b| b);
    assert_close(&by_norm, &weights(plain, |b| b.gradient_clip_val(0.3)), 1e-6);
    let option = |b: TrainerBuilder| {
        b.gradient_clip_val(0.05)
            .gradient_clip_algorithm(fulmen_trainer::GradientClipAlgorithm::Value)
    };
    assert_close(&by_value, &weights(plain, option), 1e-6);
    assert_ne!(by_norm, weights(plain, |b| b));
    assert_ne!(by_value, by_norm);
}

#[test]
fn a_group_of_batches_is_one_step_of_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let whole = two(with_adamw);
    let mut expected = trainer(folder.path()).max_epochs(2).build().unwrap();
    expected.fit(&whole, &data(2 * BATCH), None).unwrap();
    let accumulated = two(with_adamw);
    let record = fit(folder.path(), &accumulated, |b| b.max_epochs(2).accumulate_grad_batches(2));
    assert_close(&values(&accumulated, ""), &values(&whole, ""), 1e-4);
    let returns = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4].map(f64::from);
    assert_eq!(logged(&record, "returns"), returns);
}

#[test]
fn a_run_with_rules_and_frozen_parameters_resumes_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    for (case, devices) in [(0, 1), (1, 8)] {
        let folder = root.path().join(case.to_string());
        let run = |from: &Path| {
            let module = two(with_adamw);
            let record = fit(&folder, &module, |builder| {
                builder
                    .max_epochs(2)
                    .devices(devices)
                    .strategy(Strategy::Fsdp)
                    .ckpt_path(from)
                    .callback(BackboneFinetuning::new("first.*", TrainDuration::Steps(4)))
                    .callback(ModelCheckpoint::new().every_n_train_steps(1).keep_all(true))
            });
            (record.bits("train_loss"), values(&module, ""))
        };
        let whole = run(Path::new(""));
        assert_eq!(whole.0.len(), 2 * STEPS);
        for (step, epoch) in [(2, 0), (4, 0), (7, 0), (13, 1)] {
            let name = format!("version_0/checkpoints/epoch={epoch}-step={step}");
            let rest = run(&folder.join(name));
            assert_eq!(rest.0, whole.0[step..], "step {step}");
            assert_eq!(rest.1, whole.1, "step {step}");
        }
    }
}

#[test]
fn frozen_parameters_have_no_part_in_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let module = two(with_adamw);
    let before = values(&module, "first");
    // Lookahead would otherwise pull the parameters, whose state begins with their value.
    fit(folder.path(), &module, |builder| {
        builder.callback(BackboneFinetuning::new("first.*", TrainDuration::Epochs(9)))
    });
    assert_eq!(values(&module, "first"), before);
}

#[test]
fn a_checkpoint_of_other_rules_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let plain: MakeOptimizer = || Box::new(AdamW::new(0.05));
    let run = |optimizer: MakeOptimizer, from: &Path| {
        let mut trainer = trainer(folder.path()).max_epochs(2).ckpt_path(from).build().unwrap();
        trainer.fit(&two(optimizer), &data(BATCH), None)
    };
    let with = run(with_adamw, Path::new("")).unwrap().last_checkpoint.unwrap();
    let without = run(plain, Path::new("")).unwrap().last_checkpoint.unwrap();
    let error = run(with_adamw, &without).unwrap_err().to_string();
    for name in ["optimizer/lookahead.slow/first.weight", "optimizer/lookahead.returns"] {
        assert!(error.contains(&format!("`{name}`")) && error.contains("is missing"), "{error}");
    }
    let error = run(plain, &with).unwrap_err().to_string();
    assert!(error.contains("optimizer/lookahead."), "{error}");
}

#[test]
fn a_step_that_changes_nothing_changes_no_state_of_a_rule() {
    // The step of the batch with an infinite value is skipped.
    let count = 4 * BATCH;
    let loader = |spoiled: bool| {
        let mut x = numbers(9_000_000, count * 6);
        if spoiled {
            x[2 * BATCH * 6] = f32::INFINITY;
        }
        let data = TensorDataset::builder()
            .array("x", [count, 6], x)
            .array("y", [count, 2], numbers(10_000_000, count * 2))
            .build()
            .unwrap();
        DataLoader::builder(data).batch_size(BATCH).build().unwrap()
    };
    let without = |loader: &DataLoader, batches: u64| {
        let folder = tempfile::tempdir().unwrap();
        let module = two(with_adamw);
        let record = Record::default();
        let builder = trainer(folder.path()).max_epochs(1).log_every_n_steps(1);
        let builder = builder.limit_train_batches(batches).callback(record.clone());
        let guard = SpikeGuard::new().gradients(true).warmup(100).window(200);
        let mut trainer = builder.callback(guard).detect_nan(false).build().unwrap();
        trainer.fit(&module, loader, None).unwrap();
        (values(&module, ""), logged(&record, "returns"))
    };
    let (spoiled, returns) = without(&loader(true), 3);
    let (shorter, _) = without(&loader(false), 2);
    assert_eq!(spoiled, shorter);
    // The value of a step that is skipped is logged, but not kept.
    assert_eq!(returns.len(), 3);
    let (later, returns) = without(&loader(true), 4);
    assert_ne!(later, shorter);
    assert_eq!(returns[3], 1.0, "the fourth step is the third that counts");
}

#[test]
fn rules_get_bf16_parameters_and_f16_gradients() {
    for precision in [Precision::Bf16, Precision::F16Mixed, Precision::Bf16Mixed] {
        let folder = tempfile::tempdir().unwrap();
        let module = two(with_adamw);
        let before = values(&module, "");
        fit(folder.path(), &module, |builder| builder.precision(precision));
        let after = values(&module, "");
        assert!(after.iter().all(|value| value.is_finite()), "{precision}: {after:?}");
        assert_ne!(after, before, "{precision}");
    }
}

/// Notes the names and shapes that it gets.
#[derive(Clone, Debug, Default)]
struct Witness(Arc<Mutex<Vec<String>>>);

impl GradientTransformation for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn update(&self, _: &Step, updates: &mut Updates) {
        let seen = updates.parameters.iter().map(|it| format!("{} {}", it.name, it.update.ty()));
        *self.0.lock().unwrap() = seen.collect();
    }
}

#[derive(Module)]
struct Stack {
    layers: Vec<Linear>,
    #[module(skip)]
    witness: Witness,
}

impl TrainingModule for Stack {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = scan_layers(&self.layers, &batch.get("x"), |layer, x| layer.forward(x).tanh());
        x.square().mean_all()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(chain((self.witness.clone(), AdamW::new(0.1))))
    }
}

#[test]
fn rules_get_each_layer_of_a_scan() {
    let folder = tempfile::tempdir().unwrap();
    let stack =
        Stack { layers: (0..2).map(|_| Linear::new(6, 6)).collect(), witness: Witness::default() };
    trainer(folder.path()).max_epochs(1).build().unwrap().fit(&stack, &data(BATCH), None).unwrap();
    let seen = stack.witness.0.lock().unwrap().clone();
    let expected = ["0.weight f32[6, 6]", "0.bias f32[6]", "1.weight f32[6, 6]", "1.bias f32[6]"];
    assert_eq!(seen, expected.map(|name| format!("layers.{name}")));
}

#[derive(Module)]
struct Gan {
    generator: Linear,
    discriminator: Linear,
}

impl TrainingModule for Gan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let made = || self.generator.forward(&batch.get("x"));
        cx.minimize("discriminator", |_| {
            self.discriminator.forward(made().detach()).square().mean_all()
        });
        cx.minimize("generator", |_| self.discriminator.forward(made()).square().mean_all())
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let generator = chain((Centralize, AdamW::new(0.01))).then(lookahead());
        let discriminator = chain((AdamW::new(0.01),)).then(lookahead());
        let optimizers = Optimizers::new()
            .add("generator", ["generator.*"], generator)
            .add("discriminator", ["discriminator.*"], discriminator)
            .every("generator", 2);
        Box::new(optimizers)
    }
}

#[test]
fn each_of_several_optimizers_has_its_own_rules() {
    let folder = tempfile::tempdir().unwrap();
    let gan = Gan { generator: Linear::new(6, 4), discriminator: Linear::new(4, 1) };
    let record = Record::default();
    let builder = trainer(folder.path()).max_epochs(1).log_every_n_steps(1);
    let mut trainer = builder.callback(record.clone()).build().unwrap();
    trainer.fit(&gan, &data(BATCH), None).unwrap();
    // The generator makes half of the steps.
    let last = |name: &str| *logged(&record, name).last().unwrap();
    assert_eq!(last("returns-discriminator"), 4.0);
    assert_eq!(logged(&record, "returns-generator").into_iter().fold(0.0, f64::max), 2.0);
}

/// A rule that breaks a promise.
#[derive(Debug)]
enum Wrong {
    Shape,
    Dtype,
    State,
    Missing,
    Order,
    Log,
    Name,
}

impl GradientTransformation for Wrong {
    fn name(&self) -> &'static str {
        if matches!(self, Wrong::Name) { "a/b" } else { "wrong" }
    }

    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![("count", Tensor::zeros(DType::I32, []))]
    }

    fn update(&self, _: &Step, updates: &mut Updates) {
        let first = &mut updates.parameters[0];
        match self {
            Wrong::Shape => first.update = first.update.sum_all(),
            Wrong::Dtype => first.update = first.update.to_dtype(DType::F64),
            Wrong::State => updates.state[0] = updates.state[0].to_dtype(DType::F32),
            Wrong::Missing => updates.state.clear(),
            Wrong::Order => updates.parameters.reverse(),
            Wrong::Log => {
                let update = first.update.clone();
                updates.log("all", &update);
            }
            Wrong::Name => {}
        }
    }
}

#[test]
fn a_rule_that_breaks_a_promise_is_named() {
    let wrong: [(MakeOptimizer, &str); 7] = [
        (
            || Box::new(chain((Wrong::Shape, Sgd::new(0.1)))),
            "the rule `wrong`: it changed the type of the update of `first.weight` from f32[8, 6] to f32[]; it must stay the \
             same\n  at ",
        ),
        (
            || Box::new(chain((Sgd::new(0.1),)).then(Wrong::Dtype)),
            "the rule `wrong`: it changed the type of the update of `first.weight` from f32[8, 6] to f64[8, 6]",
        ),
        (
            || Box::new(chain((Wrong::State, Sgd::new(0.1)))),
            "the rule `wrong`: it changed the type of its state of its own from i32[] to f32[]",
        ),
        (
            || Box::new(chain((Wrong::Missing, Sgd::new(0.1)))),
            "the rule `wrong`: it has 1 tensors of state of its own, but its update() left 0",
        ),
        (
            || Box::new(chain((Wrong::Order, Sgd::new(0.1)))),
            "the rule `wrong`: it changed the list of parameters; change only their updates and states",
        ),
        (
            || Box::new(chain((Wrong::Log, Sgd::new(0.1)))),
            "the rule `wrong`: it logs `all`, f32[8, 6]; log a floating-point scalar\n  at ",
        ),
        (
            || Box::new(chain((Wrong::Name, Sgd::new(0.1)))),
            "chain: `a/b` is not a valid name for a rule: a name must not be empty or contain `/`\n  at ",
        ),
    ];
    for (optimizer, expected) in wrong {
        let error = error_of(optimizer);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_chain_in_the_wrong_place_is_an_error() {
    let rules = || chain((lookahead(), Sgd::new(0.1)));
    let twice: MakeOptimizer = || Box::new(chain((lookahead(), Sgd::new(0.1))).then(lookahead()));
    let error = error_of(twice);
    assert!(error.contains("chain: there are two rules with the name `lookahead`"), "{error}");
    let error = error_of(|| Box::new(ParamGroups::new(chain((Centralize, Sgd::new(0.1))))));
    assert!(error.contains("cannot be a part of another optimizer"), "{error}");
    let error = error_of(|| {
        let all = Optimizers::new().add("all", ["*"], Sgd::new(0.1));
        Box::new(chain((Centralize, all)))
    });
    assert!(error.contains("the rule `centralize` is around all optimizers"), "{error}");
    // A chain in a chain is one chain, whose inner rules are nearer to the optimizer.
    let nested: Chain = chain((Centralize, rules()));
    let (rules, _) = Chain::split(Box::new(nested));
    let names: Vec<_> = rules.iter().map(GradientTransformation::name).collect();
    assert_eq!(names, ["centralize", "lookahead"]);
}

#[derive(Module)]
struct Users {
    table: Embedding,
}

impl TrainingModule for Users {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.table.forward(batch.get("user")).square().mean_all()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(chain((Centralize, Sgd::new(0.1))))
    }
}

#[test]
fn rules_and_sparse_gradients_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let data = TensorDataset::builder().array("user", [16], vec![3i32; 16]).build().unwrap();
    let loader = DataLoader::builder(data).batch_size(8).build().unwrap();
    let users = Users { table: Embedding::new(10, 4).sparse(true) };
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let error = trainer.fit(&users, &loader, None).unwrap_err().to_string();
    assert!(error.contains("`table.weight` cannot have sparse gradients: the rules"), "{error}");
}
