//! Optimizer state in bf16, rounded at random: learning, memory, checkpoints, devices.

use std::path::Path;

use fulmen_data::DataLoader;
use fulmen_nn::Linear;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, ParamGroups};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::{
    Batch, FitSummary, Plan, StepContext, Strategy, TrainerBuilder, TrainingModule,
};

use crate::common::{Losses, samples, tensors, trainer};

/// A classifier whose optimizer has its running means in a dtype.
#[derive(fulmen_nn::Module)]
struct Classifier {
    first: Linear,
    second: Linear,
    #[module(skip)]
    state: DType,
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.second.forward(self.first.forward(batch.get("x")).tanh());
        cross_entropy(&logits, batch.get("y"), Reduction::Mean)
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let narrow = AdamW::new(1e-2).state_dtype(self.state);
        // Biases keep f32.
        Box::new(ParamGroups::new(narrow).group("*.bias", AdamW::new(1e-2)))
    }
}

/// What a fit leaves: its losses, and the tensors of its last checkpoint.
struct Run {
    losses: Vec<f64>,
    summary: FitSummary,
}

impl Run {
    /// The values of a checkpoint as bytes.
    fn saved(&self) -> Vec<(String, Vec<u8>)> {
        let values = tensors(self.summary.last_checkpoint.as_ref().unwrap());
        values.into_iter().map(|(name, value)| (name, value.bytes().to_vec())).collect()
    }
}

/// Fits 20 steps in each epoch.
fn fit(
    state: DType,
    folder: &Path,
    configure: impl FnOnce(TrainerBuilder) -> TrainerBuilder,
) -> Run {
    let data = DataLoader::builder(samples(160)).batch_size(8).build().unwrap();
    let [first, second] = [Linear::new(6, 32), Linear::new(32, 3)];
    let losses = Losses::default();
    let builder = trainer(folder).callback(losses.clone()).log_every_n_steps(1);
    let mut trainer = configure(builder).build().unwrap();
    let summary = trainer.fit(&Classifier { first, second, state }, &data, None).unwrap();
    Run { losses: losses.take(), summary }
}

#[test]
fn means_in_bf16_learn_like_those_in_f32() {
    let folder = tempfile::tempdir().unwrap();
    let [wide, narrow] = [DType::F32, DType::Bf16]
        .map(|state| fit(state, folder.path(), |builder| builder.max_epochs(10)));
    assert_eq!([wide.losses.len(), narrow.losses.len()], [200, 200]);
    let largest = wide.losses.iter().zip(&narrow.losses).map(|(a, b)| (a - b).abs());
    let largest = largest.fold(0.0f64, f64::max);
    let end = |losses: &[f64]| losses[180..].iter().sum::<f64>() / 20.0;
    let [a, b] = [end(&wide.losses), end(&narrow.losses)];
    println!("from {} to {a} and {b}; at most {largest} apart", wide.losses[0]);
    assert!(a < 0.5 * wide.losses[0], "it learns: {a} after {}", wide.losses[0]);
    assert!(largest > 0.0 && largest < 0.05 && (a - b).abs() < 0.01, "{a}, {b}, {largest}");

    let dtype = |run: &Run, name: &str| {
        tensors(run.summary.last_checkpoint.as_ref().unwrap())[name].ty().dtype
    };
    for state in ["exp_avg", "exp_avg_sq"] {
        let weight = format!("optimizer/{state}/first.weight");
        assert_eq!([dtype(&wide, &weight), dtype(&narrow, &weight)], [DType::F32, DType::Bf16]);
        assert_eq!(dtype(&narrow, &format!("optimizer/{state}/first.bias")), DType::F32);
    }
    assert_eq!(dtype(&narrow, "first.weight"), DType::F32);
}

#[test]
fn means_in_bf16_are_the_same_again_after_a_resume_and_on_eight_devices() {
    let folder = tempfile::tempdir().unwrap();
    let run = |configure: &dyn Fn(TrainerBuilder) -> TrainerBuilder| {
        fit(DType::Bf16, folder.path(), configure)
    };
    let whole = run(&|builder| builder.max_epochs(2));
    assert_eq!(run(&|builder| builder.max_epochs(2)).saved(), whole.saved());
    assert_ne!(run(&|builder| builder.max_epochs(2).seed(1)).losses, whole.losses);
    let half = run(&|builder| builder.max_epochs(1));
    let checkpoint = half.summary.last_checkpoint.clone().unwrap();
    let resumed = run(&|builder| builder.max_epochs(2).ckpt_path(&checkpoint));
    assert_eq!(resumed.saved(), whole.saved());
    // Sums over devices have other rounding errors, so a few numbers are rounded to the other side.
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let eight = run(&|builder| builder.max_epochs(2).devices(8).strategy(strategy));
        crate::common::assert_close(&eight.losses, &whole.losses, 1e-3);
    }
}
