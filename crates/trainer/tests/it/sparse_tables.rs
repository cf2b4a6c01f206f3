//! Tables with sparse gradients: lazy optimizers against PyTorch's, on one device and on eight, and
//! what is rejected.

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::with_weight;
use fulmen_nn::optim::{Adagrad, Adam, AdamW, Optimizer, Sgd};
use fulmen_nn::{Embedding, Init, Module, Parameter};
use fulmen_tensor::{Accelerator, Tensor, checkpoint, cond};
use fulmen_trainer::{
    Batch, GradientClipAlgorithm, Plan, Precision, StepContext, Strategy, Trainer, TrainerBuilder,
    TrainingModule,
};
use serde_json::Value;

const ROWS: usize = 24;
const WIDTH: usize = 4;
const BATCH: usize = 8;
const LENGTH: usize = 3;
const SAMPLES: usize = 48;

/// Makes an optimizer.
type NewOptimizer = fn() -> Box<dyn Optimizer>;

/// How the step uses the table.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    LookUp,
    /// Half of the samples in a look-up of their own.
    TwoLookUps,
    /// The loss is a mean that brings its weight.
    WeightedMean,
    Product,
    Checkpoint,
    Branch,
}

#[derive(Module)]
struct Model {
    table: Embedding,
    weight: Parameter,
    #[module(skip)]
    uses: Use,
    #[module(skip)]
    optimizer: NewOptimizer,
}

impl TrainingModule for Model {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let indices = batch.get("indices");
        let rows = match self.uses {
            Use::TwoLookUps => {
                let halves = [0, BATCH / 2]
                    .map(|start| self.table.forward(indices.narrow(0, start, BATCH / 2)));
                Tensor::concatenate(&[&halves[0], &halves[1]], 0)
            }
            Use::Checkpoint => checkpoint(|indices| self.table.forward(&indices), &indices),
            Use::Branch => {
                let look_up = |indices: Tensor| self.table.forward(&indices);
                cond(indices.ge(0.0).all([0, 1]), &indices, look_up, look_up)
            }
            _ => self.table.forward(&indices),
        };
        let error = rows * self.weight.get() - batch.get("targets");
        let loss = (&error * &error).mean_all();
        match self.uses {
            Use::WeightedMean => with_weight(loss, Tensor::scalar(BATCH as f32)),
            Use::Product => loss + self.table.weight.get().sum_all(),
            _ => loss,
        }
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

fn reference() -> Value {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/sparse_tables.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn model(sparse: bool, uses: Use, optimizer: NewOptimizer) -> Model {
    let weight = Parameter::new([WIDTH], Init::ones());
    Model { table: Embedding::new(ROWS, WIDTH).sparse(sparse), weight, uses, optimizer }
}

/// The table and the weight after six steps, or the error.
fn train(
    model: &Model,
    configure: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> Result<[Vec<f64>; 2], String> {
    let reference = reference();
    let first = &reference["first"];
    model.table.weight.set(Tensor::from_slice(&numbers(&first["table"]), [ROWS, WIDTH]));
    model.weight.set(Tensor::from_slice(&numbers(&first["weight"]), [WIDTH]));
    let inputs = &reference["inputs"];
    let indices: Vec<i32> = numbers(&inputs["indices"]).iter().map(|v| *v as i32).collect();
    let data = TensorDataset::builder()
        .array("indices", [SAMPLES, LENGTH], indices)
        .array("targets", [SAMPLES, LENGTH, WIDTH], numbers(&inputs["targets"]))
        .build()
        .unwrap();
    let loader = DataLoader::builder(data).batch_size(BATCH).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = Trainer::builder().accelerator(Accelerator::Cpu).max_epochs(1).barebones(true);
    let builder = builder.default_root_dir(folder.path()).enable_model_summary(false);
    let mut trainer = configure(builder).build().unwrap();
    trainer.fit(model, &loader, None).map_err(|error| error.to_string())?;
    Ok([&model.table.weight, &model.weight].map(|p| p.get().eval().unwrap().to_f64()))
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64, title: &str) {
    assert_eq!(actual.len(), expected.len(), "{title}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (a - e).abs() <= tolerance * e.abs().max(1.0),
            "{title}, element {i}: {a}, not {e}"
        );
    }
}

fn sgd() -> Box<dyn Optimizer> {
    Box::new(Sgd::new(0.5))
}

fn adagrad() -> Box<dyn Optimizer> {
    Box::new(Adagrad::new(0.1).lr_decay(0.05).initial_accumulator_value(0.1))
}

#[test]
fn sparse_tables_train_as_in_pytorch_on_one_device_and_on_eight() {
    let reference = reference();
    let optimizers: [(&str, NewOptimizer); 4] = [
        ("sgd", sgd),
        ("adagrad", adagrad),
        ("adam", || Box::new(Adam::new(0.05))),
        ("adam_eps", || Box::new(AdamW::new(0.05).eps(1e-2).weight_decay(0.0))),
    ];
    for (name, optimizer) in optimizers {
        let expected = &reference["cases"][name];
        let expected = ["table", "weight"]
            .map(|key| numbers(&expected[key]).into_iter().map(f64::from).collect::<Vec<_>>());
        for (devices, strategy, uses) in [
            (1, Strategy::Ddp, Use::LookUp),
            (1, Strategy::Ddp, Use::TwoLookUps),
            (1, Strategy::Ddp, Use::WeightedMean),
            (1, Strategy::Ddp, Use::Checkpoint),
            (8, Strategy::Ddp, Use::LookUp),
            (8, Strategy::Fsdp, Use::LookUp),
        ] {
            let model = model(true, uses, optimizer);
            let trained = train(&model, |b| b.devices(devices).strategy(strategy)).unwrap();
            for (actual, expected) in trained.iter().zip(&expected) {
                let title = format!("{name}, {strategy} on {devices}");
                assert_close(actual, expected, 2e-5, &title);
            }
        }
    }
}

#[test]
fn sparse_gradients_are_clipped_scaled_and_rounded_like_those_of_the_whole_table() {
    // Without weight decay and momentum, rows without a gradient stay, so both are the same.
    let configure: [fn(TrainerBuilder) -> TrainerBuilder; 4] = [
        |b| b.gradient_clip_val(0.05),
        |b| b.gradient_clip_val(0.01).gradient_clip_algorithm(GradientClipAlgorithm::Value),
        |b| b.precision(Precision::F16Mixed),
        |b| b.gradient_clip_val(0.05).devices(8).strategy(Strategy::Fsdp),
    ];
    for (i, configure) in configure.into_iter().enumerate() {
        for optimizer in [sgd, adagrad] {
            let [sparse, dense] = [true, false]
                .map(|sparse| train(&model(sparse, Use::LookUp, optimizer), configure).unwrap());
            assert_close(&sparse[0], &dense[0], 1e-5, &format!("table {i}"));
            assert_close(&sparse[1], &dense[1], 1e-5, &format!("weight {i}"));
        }
    }
}

#[test]
fn what_sparse_tables_cannot_do_is_rejected_with_the_reason() {
    let error = |uses, optimizer, configure: fn(TrainerBuilder) -> TrainerBuilder| {
        let error = train(&model(true, uses, optimizer), configure).unwrap_err();
        assert!(error.contains("`table.weight` cannot have sparse gradients"), "{error}");
        assert!(error.contains("sparse_tables.rs"), "{error}");
        error
    };
    let same: fn(TrainerBuilder) -> TrainerBuilder = |b| b;
    let cases = [
        (
            error(Use::LookUp, sgd, |b| b.accumulate_grad_batches(2)),
            "set accumulate_grad_batches to 1",
        ),
        (error(Use::LookUp, || Box::new(Sgd::new(0.1).momentum(0.9)), same), "Sgd: its momentum"),
        (error(Use::LookUp, || Box::new(AdamW::new(0.1)), same), "AdamW: its weight decay"),
        (
            error(Use::LookUp, || Box::new(Adam::new(0.1).amsgrad(true)), same),
            "Adam: PyTorch's SparseAdam",
        ),
        (
            error(Use::LookUp, || Box::new(fulmen_nn::optim::Lion::new(0.1)), same),
            "Lion: it has no lazy form",
        ),
        (error(Use::Product, sgd, same), "its gradient also comes from"),
        (error(Use::Branch, sgd, same), "outside of scan"),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}");
    }
    // A weight that was replaced after sparse(true).
    let mut model = model(true, Use::LookUp, sgd);
    model.table.weight = Parameter::new([ROWS, WIDTH], Init::ones());
    let error = train(&model, same).unwrap_err();
    assert!(error.contains("the weight was replaced or tied after sparse(true)"), "{error}");
}
