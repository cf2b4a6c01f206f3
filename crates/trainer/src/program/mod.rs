//! Records a module's steps as programs: the user's training step (`forward.rs`) with gradients,
//! optimizers and logs (`train_step.rs`), steps that don't train (`eval_step.rs`), and all programs
//! of a fit (`trace_fit.rs`). Only `step_program.rs` knows the inputs and results of a program.

pub(crate) mod declared_programs;
mod eval_step;
pub(crate) mod evaluation_set;
mod forward;
mod step_cost;
mod step_program;
pub(crate) mod trace_fit;
mod train_step;

use fulmen_nn::Module;
use fulmen_tensor::{Scope, Tensor};

pub(crate) use declared_programs::{DeclaredProgram, record_declared_programs};
pub(crate) use eval_step::record_eval_step;
pub(crate) use step_cost::StepCost;
pub(crate) use step_program::{CompiledStep, StepProgram};
pub(crate) use train_step::{TrainProgram, record_train_step};

/// Gives the random streams of a module keys. Their derivation has this line, which is not the
/// user's.
pub(crate) fn set_random_key(module: &(impl Module + ?Sized), key: &Tensor) {
    let _scope = Scope::open();
    module.set_random_key(key);
}

/// The files and folders of this crate that record parts of a step.
const RECORDING: [&str; 5] = ["batch.rs", "logs/", "program/", "recorder/", "rules/"];

/// The crates all of whose lines are the project's own.
const LIBRARIES: [&str; 3] = ["models", "nn", "tensor"];

/// Whether a file of Fulmen records a step, so that its lines are not the user's.
pub(crate) fn is_internal(file: &str) -> bool {
    // The folder of this crate is `crates/trainer` in a checkout, and `fulmen-trainer-0.1.0` in
    // cargo's registry. The other crates are next to it.
    let Some(sources) = file!().strip_suffix("program/mod.rs") else { return false };
    let Some((before, after)) = sources.rsplit_once("trainer") else { return false };
    let within = |name: &str| file.strip_prefix(before)?.strip_prefix(name)?.strip_prefix(after);
    let records = |file: &str| RECORDING.iter().any(|folder| file.starts_with(folder));
    within("trainer").is_some_and(records) || LIBRARIES.iter().any(|name| within(name).is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use fulmen_data::{DataLoader, TensorDataset};
    use fulmen_nn::loss::{Reduction, cross_entropy};
    use fulmen_nn::metrics::{Accuracy, Auroc, ConfusionMatrix, Perplexity};
    use fulmen_nn::optim::{AdamW, Optimizer};
    use fulmen_nn::schedule::OneCycle;
    use fulmen_nn::{BatchNorm2d, Conv2d, Dropout, Linear, MaxPool2d};
    use fulmen_pjrt::CompileOptions;
    use fulmen_tensor::{Mesh, RecordedOp};

    use super::*;
    use crate::Strategy;
    use crate::stage::Stage;
    use crate::state::{StateLayout, of_module};
    use crate::step_config::optimizers::Optimizers;
    use crate::step_config::phases::Phases;
    use crate::step_config::{Choices, StepConfig};
    use crate::{Batch, Plan, Precision, StepContext, Trainer, TrainerBuilder, TrainingModule};

    #[derive(Module)]
    struct Net {
        conv: Conv2d,
        bn: BatchNorm2d,
        pool: MaxPool2d,
        dropout: Dropout,
        fc: Linear,
    }

    impl TrainingModule for Net {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            let x = self.pool.forward(&self.bn.forward(&self.conv.forward(&batch.get("x"))).relu());
            let logits = self.fc.forward(&self.dropout.forward(&x).flatten(1, -1));
            cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
        }
        fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
            let loss = self.training_step(batch, &mut StepContext::default());
            cx.log("val_loss", &loss);
            let x = batch.get("x");
            let y = batch.get("y");
            let scores = x.reshape([batch.size(), 784]).narrow(1, 0, 10).softmax(-1);
            cx.log_metric("val_top5", Accuracy::new(10).top_k(5).update(&scores, &y));
            cx.log_metric("val_confusion", ConfusionMatrix::new(10).update(&scores, &y));
            cx.log_metric("val_auroc", Auroc::new(10).update(&scores, &y));
            cx.log_metric("val_perplexity", Perplexity::new().update(&scores, &y));
        }
        fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
            Box::new(AdamW::new(OneCycle::new(1e-3, plan.total_steps)))
        }
    }

    /// The programs of a training step and of a validation step, with accumulation, which makes a
    /// branch for the optimizer.
    fn record(builder: TrainerBuilder) -> (TrainProgram, StepProgram, StepConfig) {
        let net = Net {
            conv: Conv2d::new(1, 16, 3).padding(1),
            bn: BatchNorm2d::new(16),
            pool: MaxPool2d::new(2),
            dropout: Dropout::new(0.3),
            fc: Linear::new(16 * 14 * 14, 10),
        };
        let data = TensorDataset::builder()
            .array("x", [64, 1, 28, 28], vec![0.0f32; 64 * 784])
            .array("y", [64], vec![0i32; 64])
            .build()
            .unwrap();
        let loader = DataLoader::builder(data).batch_size(32).build().unwrap();
        let plan = Plan { steps_per_epoch: 2, max_epochs: 1, total_steps: 2 };
        let optimizers = Arc::new(Optimizers::from_module(net.configure_optimizers(&plan)));
        let options = builder.accumulate_grad_batches(2).gradient_clip_val(1.0).options().unwrap();
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let replicas = Strategy::replicas(&mesh);
        let config = Choices::from(options).for_mesh(mesh, replicas);
        let phases = Phases::new(&net, &optimizers, &config, &plan, 2).unwrap();
        let layout = Arc::new(StateLayout::new(&net, &optimizers, &config, phases, &[]));
        let train = record_train_step(
            &net,
            &optimizers,
            &Batch::placeholders(&loader, None),
            2,
            &layout,
            &config,
            0,
        )
        .unwrap();
        let eval = record_eval_step(
            &net,
            Stage::Validation,
            "",
            &loader,
            &of_module(&net, &config),
            &config,
            0,
        )
        .unwrap();
        (train, eval, config)
    }

    /// The files of the lines of all operations, in bodies too.
    fn files(ops: &[RecordedOp], files: &mut BTreeSet<&'static str>) {
        for op in ops.iter().filter(|op| op.operation.is_some()) {
            files.insert(op.location.file());
            op.bodies.iter().for_each(|body| self::files(&body.ops, files));
        }
    }

    #[test]
    fn no_line_of_a_library_is_shown_as_the_users() {
        let mut all = BTreeSet::new();
        for precision in [Precision::F16Mixed, Precision::Bf16] {
            let (train, eval, _) =
                record(Trainer::builder().precision(precision).log_grad_norm(true));
            for function in train.largest().functions().iter().chain(eval.functions()) {
                files(&function.recorded().unwrap(), &mut all);
            }
        }
        let folder = file!().strip_suffix("program/mod.rs").unwrap();
        assert!(
            all.contains(file!()) && all.iter().all(|file| file.starts_with(folder)),
            "{all:?}"
        );
        let of_nn = file!().replace("trainer/src/program", "nn/src/layers");
        assert!(is_internal(&of_nn) && is_internal(file!()));
        for users in ["src/main.rs", "crates/trainer/tests/it/main.rs", "crates/nn/main.rs"] {
            assert!(!is_internal(users), "{users}");
        }
    }

    #[test]
    #[ignore = "slow: ci/slow"]
    fn training_and_validation_steps_compile_for_a_tpu() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let builder = Trainer::builder().strategy(Strategy::Fsdp).precision(Precision::Bf16Mixed);
        let (train, eval, config) = record(builder);
        let topology = plugin.topology("v5e:2x2").unwrap();
        for function in train.largest().functions().iter().chain(eval.functions()) {
            let text = function.stablehlo_for(&config.mesh).unwrap();
            let compiled =
                plugin.compile(&topology, &text, &CompileOptions::new().partitions(4)).unwrap();
            let signature = compiled.signature();
            assert_eq!(signature.parameters.len(), function.parameters().len());
            assert!(signature.donated.iter().any(|&donated| donated), "the state is donated");
            assert!(compiled.cost_analysis().unwrap().flops() > Some(1e6));
        }
    }
}
