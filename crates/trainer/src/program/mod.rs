//! A module's steps as functions: what is traced, what goes in and out of the compiled program. The parts of a training
//! step stand in files of their own: the user's step (`forward.rs`), its gradients (`gradients.rs`), the optimizer
//! (`update.rs`), and what is put together of them (`train.rs`).

mod checks;
mod eval;
mod forward;
mod gradients;
mod train;
mod update;
mod values;

use fulmen_data::{DataLoader, Field};
use fulmen_tensor::Function;

pub(crate) use eval::{Stage, eval};
pub(crate) use train::train;

use crate::Strategy;
use crate::logs::LogLayout;
use crate::setting::Setting;
use crate::state::EntryId;

/// What an error says where a step asks for a value.
pub(crate) const LOG_IT: &str = "to see the value, log it: `cx.log(\"name\", &tensor)`";

/// A training step as a function.
///
/// Inputs: the entries of the state, the vector of logged values, the random key, the batch. Results: the entries that
/// change, then the vector.
pub(crate) struct TrainProgram {
    /// One for each shape of batches.
    pub(crate) functions: Vec<Function>,
    pub(crate) layout: LogLayout,
    /// The entries that the step changes, in the order of the results.
    pub(crate) changes: Vec<EntryId>,
    /// The name under which the loss is logged.
    pub(crate) loss: String,
}

/// A validation or test step as a function.
///
/// Inputs: the module's values, the vector of logged values, the batch. Result: the vector.
pub(crate) struct EvalProgram {
    /// One for each shape of batches.
    pub(crate) functions: Vec<Function>,
    pub(crate) layout: LogLayout,
}

/// What the programs of a step are called, one for each of the loader's shapes: by the fields whose shape differs.
pub(crate) fn titles(step: &str, loader: &DataLoader) -> Vec<String> {
    let shapes = loader.shapes();
    let differs = |field: &&Field| shapes.iter().flatten().any(|f| f.name == field.name && f.shape != field.shape);
    let title = |fields: &Vec<Field>| {
        let parts = fields.iter().filter(differs).map(|f| format!("{} {:?}", f.name, f.shape)).collect::<Vec<_>>();
        if parts.is_empty() { step.to_owned() } else { format!("{step} for {}", parts.join(", ")) }
    };
    shapes.iter().map(title).collect()
}

/// The folder of these files, as locations name it: what is recorded here is not on a line of the user's.
pub(crate) fn folder() -> &'static str {
    file!().strip_suffix("mod.rs").unwrap_or(file!())
}

/// The inputs from `first_of_batch` on are the batch's; they are split as batches are, and products are as exact as asked.
pub(crate) fn for_setting(mut function: Function, first_of_batch: usize, setting: &Setting) -> Function {
    let sharding = Strategy::batch(&setting.mesh);
    for input in first_of_batch..function.parameters().len() {
        function = function.shard_parameter(input, sharding.clone());
    }
    function.matmul_precision(setting.matmul_precision)
}

#[cfg(test)]
mod tests {
    use fulmen_data::{DataLoader, TensorDataset};
    use fulmen_nn::loss::{Reduction, cross_entropy};
    use fulmen_nn::metrics::{Accuracy, Auroc, ConfusionMatrix, Perplexity};
    use fulmen_nn::optim::{AdamW, Optimizer};
    use fulmen_nn::schedule::OneCycle;
    use fulmen_nn::{BatchNorm2d, Conv2d, Dropout, Linear, MaxPool2d, Module};
    use fulmen_pjrt::CompileOptions;
    use fulmen_tensor::{Mesh, Tensor};

    use super::*;
    use crate::state::{StateLayout, of_module};
    use crate::{Batch, Plan, Precision, StepContext, Trainer, TrainingModule};

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
            let (x, y) = (batch.get("x"), batch.get("y"));
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

    #[test]
    fn training_and_validation_steps_compile_for_a_tpu() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
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
        let optimizer = net.configure_optimizers(&plan);
        let builder = Trainer::builder().strategy(Strategy::Fsdp).precision(Precision::Bf16Mixed);
        // With a branch for the optimizer.
        let options = builder.accumulate_grad_batches(2).gradient_clip_val(1.0).options().unwrap();
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let replicas = Strategy::replicas(&mesh);
        let setting = Setting::new(&options, mesh, replicas);
        let layout = StateLayout::new(&net, &*optimizer, &setting);
        let train = train(&net, &*optimizer, &Batch::placeholders(&loader, None), 2, &layout, &setting, 0).unwrap();
        let eval = eval(&net, Stage::Validation, &loader, &of_module(&net, &setting), &setting, 0).unwrap();

        let topology = plugin.topology("v5e:2x2").unwrap();
        for function in train.functions.iter().chain(&eval.functions) {
            let text = function.stablehlo_for(&setting.mesh).unwrap();
            let compiled = plugin.compile(&topology, &text, &CompileOptions::new().partitions(4)).unwrap();
            let signature = compiled.signature();
            assert_eq!(signature.parameters.len(), function.parameters().len());
            assert!(signature.donated.iter().any(|&donated| donated), "the state is donated");
            assert!(compiled.cost_analysis().unwrap().flops() > Some(1e6));
        }
    }
}
