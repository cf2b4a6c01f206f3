//! Mixed and full 16-bit precision: the dtypes of values, that the model learns, and the meaning of
//! a bare 16.

use std::sync::{Arc, Mutex};

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, Sgd};
use fulmen_nn::{BatchNorm2d, Conv2d, Init, Linear, Module, Parameter};
use fulmen_tensor::{Accelerator, DType, Tensor};
use fulmen_trainer::{
    Batch, LearningRateScaling, Plan, Precision, StepContext, Strategy, Trainer, TrainerBuilder,
    TrainingModule, WeightAveraging,
};

#[derive(Module)]
struct Net {
    conv: Conv2d,
    bn: BatchNorm2d,
    fc: Linear,
    #[module(skip)]
    dtypes: Arc<Mutex<Vec<DType>>>,
    #[module(skip)]
    loss_factor: f64,
}

fn net() -> Net {
    Net {
        conv: Conv2d::new(1, 8, 3).padding(1).bias(false),
        bn: BatchNorm2d::new(8),
        fc: Linear::new(8, 2),
        dtypes: Arc::default(),
        loss_factor: 1.0,
    }
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        let conv = self.conv.forward(&x);
        let bn = self.bn.forward(&conv);
        let logits = self.fc.forward(&bn.relu().mean([2, 3]));
        let loss = cross_entropy(&logits, &batch.get("y"), Reduction::Mean);
        *self.dtypes.lock().unwrap() = [&x, &conv, &bn, &logits, &loss].map(Tensor::dtype).to_vec();
        loss * self.loss_factor
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.3).momentum(0.9))
    }
}

/// Images whose left or right half is bright.
fn loader() -> DataLoader {
    let count = 256;
    let bright = |i: usize| (i * 7 % 13) % 2;
    let pixels = (0..count * 64)
        .map(|i| {
            let image = i / 64;
            let column = i % 8;
            let noise = (i * 7919 % 101) as f32 / 100.0 - 0.5;
            noise + if (column >= 4) == (bright(image) == 1) { (column % 4) as f32 } else { 0.0 }
        })
        .collect::<Vec<_>>();
    let labels = (0..count).map(|i| bright(i) as i32).collect::<Vec<_>>();
    let data = TensorDataset::builder()
        .array("x", [count, 1, 8, 8], pixels)
        .array("y", [count], labels)
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(32).shuffle(true).drop_last(true).build().unwrap()
}

fn trainer(precision: impl Into<Precision>, epochs: u64) -> (Trainer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .precision(precision)
        .max_epochs(epochs)
        .enable_progress_bar(false)
        .default_root_dir(folder.path().join("runs"))
        .build()
        .unwrap();
    (trainer, folder)
}

/// The first value logged under a name.
fn logged(trainer: &Trainer, name: &str) -> f64 {
    let csv = std::fs::read_to_string(trainer.run_dir().unwrap().join("metrics.csv")).unwrap();
    let column = csv.lines().next().unwrap().split(',').position(|column| column == name).unwrap();
    csv.lines().nth(1).unwrap().split(',').nth(column).unwrap().parse().unwrap()
}

#[test]
fn each_precision_has_its_dtypes_and_learns() {
    use DType::{Bf16, F16, F32};
    let mut f32_loss = None;
    for (precision, dtypes, kept) in [
        (Precision::F32, [F32, F32, F32, F32, F32], F32),
        (Precision::Bf16Mixed, [F32, Bf16, Bf16, Bf16, F32], F32),
        (Precision::from(16), [F32, Bf16, Bf16, Bf16, F32], F32),
        (Precision::F16Mixed, [F32, F16, F16, F16, F32], F32),
        (Precision::Bf16, [Bf16, Bf16, Bf16, Bf16, F32], Bf16),
    ] {
        let (mut trainer, _folder) = trainer(precision, 6);
        let module = net();
        let summary = trainer.fit(&module, &loader(), None).unwrap();
        assert_eq!(*module.dtypes.lock().unwrap(), dtypes, "{precision}");
        assert!(
            module.state().iter().all(|(_, v)| !v.ty().dtype.is_float() || v.ty().dtype == kept),
            "{precision}"
        );
        let loss = summary.train_loss.unwrap();
        let expected = *f32_loss.get_or_insert(loss);
        assert!(loss < 0.35, "{precision} does not learn: {loss}");
        assert!((loss - expected).abs() < 0.05, "{precision}: {loss}, in f32 {expected}");
    }
}

#[test]
fn an_overflow_in_f16_changes_no_parameter_and_lowers_the_scale() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .precision(Precision::F16Mixed)
        .max_epochs(1);
    let builder = builder.enable_progress_bar(false).default_root_dir(folder.path());
    let builder =
        builder.log_grad_norm(true).log_every_n_steps(8).weight_averaging(WeightAveraging::swa(0));
    let mut trainer = builder.build().unwrap();
    let module = Net { loss_factor: 1e6, ..net() };
    module.initialize(0);
    let before = trainer.runtime().eval(&module.fc.weight.get()).unwrap().to_vec::<f32>().unwrap();
    trainer.fit(&module, &loader(), None).unwrap();
    let after = trainer.runtime().eval(&module.fc.weight.get()).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(
        before, after,
        "eight steps down from 65536 do not reach a scale that fits a loss of a million"
    );
    let file = trainer.last_checkpoint().unwrap();
    let tensors = crate::common::tensors(file);
    assert_eq!(tensors["trainer/loss_scale"].to_f64(), [65536.0 / 256.0]);
    assert_eq!(tensors["trainer/updates"].to_f64(), [0.0]);
    assert_eq!(tensors["trainer/averaged"].to_f64(), [1.0], "the epoch still ended");
    let norm = logged(&trainer, "grad_norm");
    assert!(!norm.is_finite(), "an overflow shows: {norm}");
}

#[test]
fn an_invalid_number_of_bits_is_rejected() {
    let error = Trainer::builder().precision(8).build().err().unwrap().to_string();
    assert_eq!(error, "precision: 8 is not possible, the number of bits must be 16 or 32");
    for wide in ["64", "64-true"] {
        let error = Trainer::builder().precision(wide).options().unwrap_err().to_string();
        assert_eq!(error, "precision: 64 is not possible, a TPU has no 64-bit floats; use 32-true");
    }
}

#[test]
fn the_learning_rate_grows_with_the_devices_only_on_request() {
    let rate = |scaling, devices: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut trainer = Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .devices(devices)
            .learning_rate_scaling(scaling)
            .max_epochs(1)
            .log_every_n_steps(1)
            .enable_progress_bar(false)
            .default_root_dir(folder.path())
            .build()
            .unwrap();
        trainer.fit(&net(), &loader(), None).unwrap();
        logged(&trainer, "lr")
    };
    for (scaling, devices, expected) in [
        (LearningRateScaling::None, 4, 0.3),
        (LearningRateScaling::Linear, 4, 1.2),
        (LearningRateScaling::Sqrt, 4, 0.6),
        (LearningRateScaling::Linear, 1, 0.3),
    ] {
        let rate = rate(scaling, devices);
        assert!((rate - expected).abs() < 1e-6, "{scaling} on {devices}: {rate}");
    }
}

#[test]
fn a_run_is_resumed_in_another_precision() {
    let folder = tempfile::tempdir().unwrap();
    let fit = |precision: Precision, epochs: u64, from: Option<&std::path::Path>| {
        let mut builder = Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .precision(precision)
            .max_epochs(epochs)
            .enable_progress_bar(false)
            .default_root_dir(folder.path());
        if let Some(from) = from {
            builder = builder.ckpt_path(from);
        }
        let mut trainer = builder.build().unwrap();
        let summary = trainer.fit(&net(), &loader(), None).unwrap();
        assert_eq!(summary.epochs, epochs, "{precision}");
        trainer.last_checkpoint().unwrap().to_owned()
    };
    let first = fit(Precision::F32, 1, None);
    let second = fit(Precision::F16Mixed, 2, Some(&first));
    let scaled = crate::common::tensors(&second);
    assert_eq!(scaled["trainer/loss_scale"].to_f64(), [65536.0]);
    let trained =
        scaled["fc.weight"].to_f64() != crate::common::tensors(&first)["fc.weight"].to_f64();
    assert!(trained, "no step was skipped");
    let third = fit(Precision::Bf16, 3, Some(&second));
    let last = fit(Precision::F32, 4, Some(&third));
    let tensors = crate::common::tensors(&last);
    assert!(
        !tensors.contains_key("trainer/loss_scale")
            && tensors["fc.weight"].ty().dtype == DType::F32
    );
}

/// A weight whose gradient is one everywhere.
#[derive(Module)]
struct Falling {
    weight: Parameter,
    #[module(skip)]
    state: DType,
}

impl TrainingModule for Falling {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        (self.weight.get() * batch.get("x").mean_all()).sum_all()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(1e-3).state_dtype(self.state))
    }
}

/// The weights after 100 steps of AdamW from ones.
fn fallen(configure: impl Fn(TrainerBuilder) -> TrainerBuilder) -> Vec<f64> {
    fallen_with(DType::F32, configure)
}

/// [`fallen`] with running means in this dtype.
fn fallen_with(state: DType, configure: impl Fn(TrainerBuilder) -> TrainerBuilder) -> Vec<f64> {
    let module = Falling { weight: Parameter::new([64, 32], Init::ones()), state };
    let data = TensorDataset::builder().array("x", [800], vec![1.0f32; 800]).build().unwrap();
    let loader = DataLoader::builder(data).batch_size(8).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = Trainer::builder().accelerator(Accelerator::Cpu).max_epochs(1).barebones(true);
    let builder = builder.default_root_dir(folder.path()).enable_model_summary(false);
    configure(builder).build().unwrap().fit(&module, &loader, None).unwrap();
    module.weight.get().to_dtype(DType::F32).eval().unwrap().to_f64()
}

#[test]
fn small_updates_of_bf16_true_add_up_by_stochastic_rounding() {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let exact = mean(&fallen(|builder| builder));
    assert!((exact - 0.9).abs() < 2e-3, "{exact}");
    let bf16 = |builder: TrainerBuilder| builder.precision(Precision::Bf16);
    let nearest = fallen(|builder| bf16(builder).stochastic_rounding(false));
    assert!(nearest.iter().all(|weight| *weight == 1.0), "{:?}", &nearest[..4]);

    let rounded = fallen(bf16);
    // Each of the 100 roundings of a weight has at most half of 2⁻⁸ as its standard deviation, and
    // there are 2048 weights: four deviations of their mean are 0.0017.
    let actual = mean(&rounded);
    assert!((actual - exact).abs() < 1.8e-3, "{actual}, in f32 {exact}");

    // The numbers depend on the seed, but not on devices.
    assert_eq!(fallen(bf16), rounded);
    assert_ne!(fallen(|builder| bf16(builder).seed(1)), rounded);
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let eight = fallen(|builder| bf16(builder).devices(8).strategy(strategy));
        assert_eq!(eight, rounded, "{strategy}");
    }
    // A group of two batches makes one step, so half as many.
    let half = mean(&fallen(|builder| bf16(builder).accumulate_grad_batches(2)));
    assert!((half - (1.0 + exact) / 2.0).abs() < 1.8e-3, "{half}");
}

#[test]
fn running_means_in_bf16_are_rounded_alike_on_all_devices() {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let exact = mean(&fallen(|builder| builder));
    let narrow = |builder: TrainerBuilder| builder;
    let rounded = fallen_with(DType::Bf16, narrow);
    // Each weight is the sum of 100 steps, each of which is a few times 2⁻⁹ off.
    let actual = mean(&rounded);
    assert!((actual - exact).abs() < 2e-4, "{actual}, in f32 {exact}");
    assert!(rounded.iter().any(|weight| *weight != rounded[0]), "weights have their own numbers");
    assert_eq!(fallen_with(DType::Bf16, narrow), rounded);
    assert_ne!(fallen_with(DType::Bf16, |builder| builder.seed(1)), rounded);
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let eight = fallen_with(DType::Bf16, |builder| builder.devices(8).strategy(strategy));
        assert_eq!(eight, rounded, "{strategy}");
    }
}
