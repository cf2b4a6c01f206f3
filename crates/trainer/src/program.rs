//! A module's steps as functions: what is traced, what goes in and out of the compiled program.

use fulmen_data::DataLoader;
use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Function, Tensor, TensorType, autocast, grad, random};

use crate::logs::LogLayout;
use crate::loss_scale::LossScale;
use crate::module::{Logged, StepContext};
use crate::placeholders::Placeholders;
use crate::setting::Setting;
use crate::state::{Entry, STEP};
use crate::{Batch, Error, Result, Strategy, TrainingModule};

/// A training step as a function.
///
/// Inputs: the entries of the state, the vector of logged values, the random key, the batch. Results: the entries that
/// change, then the vector.
pub(crate) struct TrainProgram {
    pub(crate) function: Function,
    pub(crate) layout: LogLayout,
    /// The entries that the step changes, in the order of the results.
    pub(crate) changes: Vec<usize>,
    /// The name under which the loss is logged.
    pub(crate) loss: String,
}

/// A validation or test step as a function.
///
/// Inputs: the module's values, the vector of logged values, the batch. Result: the vector.
pub(crate) struct EvalProgram {
    pub(crate) function: Function,
    pub(crate) layout: LogLayout,
}

/// This file, as locations name it: what is recorded here is not on a line of the user's.
pub(crate) const FILE: &str = file!();

/// The name that the training loss is logged under unless the user logs it.
const TRAIN_LOSS: &str = "train_loss";

/// Records the training step on a batch: forward, backward, optimizer, counters and logs as one function.
pub(crate) fn train(
    module: &dyn TrainingModule,
    optimizer: &dyn Optimizer,
    batch: &Batch,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<TrainProgram> {
    let variables = entries.iter().filter(|e| e.variable.is_some()).count();
    let trained: Vec<usize> = module
        .parameters()
        .iter()
        .enumerate()
        .filter(|(_, (name, parameter))| parameter.requires_grad() && optimizer.trains(name, &parameter.ty()))
        .map(|(i, _)| i)
        .collect();
    // What is no variable, the optimizer's state and the step, has placeholders of its own.
    let further: Vec<Tensor> =
        entries[variables..].iter().map(|e| Tensor::placeholder(e.name.clone(), e.ty.clone())).collect();
    let Some(step) = further.last() else {
        return Err(Error::usage("the training state has no step counter"));
    };
    let key = Tensor::placeholder("trainer/key", TensorType::new(DType::U32, [2]));

    let cells = Placeholders::new(module, entries);
    module.train();
    module.set_random_key(&random::fold_in_tensor(&key, &step.to_dtype(DType::U32)));
    let mut cx = StepContext::default();
    let loss = autocast(setting.precision.autocast(), || module.training_step(batch, &mut cx));
    let mut logged = cx.into_logged();
    let after = cells.after();
    let (placeholders, used) = (cells.placeholders(), cells.used());
    drop(cells);
    // The step's key means nothing outside of it.
    module.set_random_key(&random::key(seed));
    check_loss(&loss, batch)?;
    if let Some(entry) = logged.iter().find(|l| l.name == TRAIN_LOSS).filter(|l| !l.value.is(&loss)) {
        let message = "this name is that of the loss, which training_step returns; choose another";
        return Err(Error::usage(format!("log `{TRAIN_LOSS}`: {message}\n  at {}", entry.location)));
    }
    let loss_name = match logged.iter().find(|l| l.value.is(&loss)) {
        Some(entry) => entry.name.clone(),
        None => {
            logged.insert(0, Logged { name: TRAIN_LOSS.into(), value: loss.clone(), location: loss.location() });
            TRAIN_LOSS.into()
        }
    };
    let layout = LogLayout::new(&logged, batch)?;

    // New values by entry: buffers that the model set, parameters and optimizer state from the optimizer, the step.
    let wrt: Vec<&Tensor> = trained.iter().map(|&i| &used[i]).collect();
    let loss_scale = match &further[..] {
        [.., scale, good_steps, updates, _] if setting.precision.scales_loss() => {
            Some(LossScale { scale, good_steps, updates })
        }
        _ => None,
    };
    let mut gradients = match &loss_scale {
        Some(scale) => grad(&scale.scaled(&loss), &wrt).iter().map(|g| scale.unscaled(g)).collect(),
        None => grad(&loss, &wrt),
    };
    // A step that was skipped is none for the optimizer.
    let updates = loss_scale.as_ref().map_or(step, |scale| scale.updates);
    let finite = loss_scale.as_ref().map(|scale| scale.all_finite(&gradients));
    // A step whose gradients overflowed changes nothing that the optimizer changes.
    let kept = |new: Tensor, old: &Tensor| match &finite {
        Some(finite) => finite.select(&new, old),
        None => new,
    };
    for (&i, gradient) in trained.iter().zip(&mut gradients) {
        // Summed over the devices, of which each keeps only the part that it updates.
        if !entries[i].sharding.is_replicated() {
            *gradient = gradient.with_sharding(&entries[i].sharding);
        }
    }
    let mut inputs: Vec<Tensor> = placeholders.iter().chain(&further).cloned().collect();
    let mut next: Vec<Tensor> = after.into_iter().chain(further.iter().cloned()).collect();
    let turn = Step::new(updates).scaled(setting.learning_rate_factor());
    let mut slot = variables;
    for (&i, gradient) in trained.iter().zip(&gradients) {
        let slots = optimizer.state(&entries[i].name, placeholders[i].ty()).len();
        if !loss.depends_on(&placeholders[i]) {
            // As in PyTorch: what has no gradient is left alone, by weight decay too.
            slot += slots;
            continue;
        }
        let before = &further[slot - variables..][..slots];
        let (parameter, state) = optimizer.update(&turn, &entries[i].name, &placeholders[i], gradient, before);
        if state.len() != slots {
            return Err(Error::usage(format!(
                "the optimizer has {slots} tensors of state for `{}`, and its update() returned {}",
                entries[i].name,
                state.len()
            )));
        }
        next[i] = kept(parameter, &placeholders[i]);
        for (value, before) in state.into_iter().zip(before) {
            next[slot] = kept(value, before);
            slot += 1;
        }
    }
    if let (Some(scale), Some(finite)) = (&loss_scale, &finite) {
        for (i, value) in scale.next(finite).into_iter().enumerate() {
            next[slot + i] = value;
        }
    }
    if batch.is_padded() {
        check_statistics(&entries[..variables], &trained, &next, batch)?;
    }
    for (entry, value) in entries.iter().zip(&mut next) {
        if entry.name == STEP {
            *value = step + 1.0;
        }
        value.check()?;
        if *value.ty() != entry.ty {
            return Err(Error::usage(format!(
                "a step would turn `{}` from {} into {}\n  at {}",
                entry.name,
                entry.ty,
                value.ty(),
                value.location()
            )));
        }
    }
    let changes: Vec<usize> = (0..entries.len()).filter(|&i| !next[i].is(&inputs[i])).collect();

    let so_far = Tensor::placeholder("trainer/logs", layout.ty());
    let rate = optimizer.learning_rate(&turn);
    let logs = layout.accumulate(&so_far, &logged, batch, Some((&loss, step)), Some(&rate));
    let mut results: Vec<Tensor> = changes.iter().map(|&i| next[i].clone()).collect();
    results.push(logs);
    let (logs_in, logs_out) = (inputs.len(), changes.len());
    inputs.extend([so_far, key]);
    let first_of_batch = inputs.len();
    inputs.extend(batch.inputs().cloned());
    let mut function = Function::new("train_step", inputs, results);
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_parameter(i, entry.sharding.clone());
    }
    for (result, &entry) in changes.iter().enumerate() {
        function = function.donate(entry, result)?.shard_result(result, entries[entry].sharding.clone());
    }
    let function = for_setting(function, first_of_batch, setting);
    let function = function.donate(logs_in, logs_out)?;
    Ok(TrainProgram { function, layout, changes, loss: loss_name })
}

/// The inputs from `first_of_batch` on are the batch's; they are split as batches are, and products are as exact as asked.
pub(crate) fn for_setting(mut function: Function, first_of_batch: usize, setting: &Setting) -> Function {
    let sharding = Strategy::batch(&setting.mesh);
    for input in first_of_batch..function.parameters().len() {
        function = function.shard_parameter(input, sharding.clone());
    }
    function.matmul_precision(setting.matmul_precision)
}

/// Padding must not get into running statistics: what a step makes of a batch must know the mask.
fn check_statistics(entries: &[Entry], trained: &[usize], next: &[Tensor], batch: &Batch) -> Result<()> {
    for (i, (entry, value)) in entries.iter().zip(next).enumerate() {
        let from_batch = batch.inputs().any(|field| !field.is(batch.mask()) && value.depends_on(field));
        if !trained.contains(&i) && from_batch && !value.depends_on(batch.mask()) {
            return Err(Error::usage(format!(
                "the last batch is padded, and `{}` would take padding into its statistics; let the training loader \
                 drop the last batch\n  at {}",
                entry.name,
                value.location()
            )));
        }
    }
    Ok(())
}

fn check_loss(loss: &Tensor, batch: &Batch) -> Result<()> {
    loss.check()?;
    let at = |problem: String| Error::usage(format!("training_step: {problem}\n  at {}", loss.location()));
    if loss.rank() != 0 || !loss.dtype().is_float() {
        return Err(at(format!("the loss must be a floating-point scalar, it is {}; take its mean", loss.ty())));
    }
    if batch.is_padded() && !loss.depends_on(batch.mask()) {
        return Err(at(
            "the last batch is padded, and the loss does not depend on the batch's mask, so padding would be \
                       trained on; use batch.mean() on the losses a sample, or let the loader drop the last batch"
                .into(),
        ));
    }
    Ok(())
}

/// Which of a module's evaluation steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Validation,
    Test,
}

/// Records a validation or test step.
pub(crate) fn eval(
    module: &dyn TrainingModule,
    stage: Stage,
    loader: &DataLoader,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<EvalProgram> {
    let batch = Batch::placeholders(loader, setting.precision.whole());
    let cells = Placeholders::new(module, entries);
    module.eval();
    module.set_random_key(&random::key(seed));
    let mut cx = StepContext::default();
    autocast(setting.precision.autocast(), || match stage {
        Stage::Validation => module.validation_step(&batch, &mut cx),
        Stage::Test => module.test_step(&batch, &mut cx),
    });
    let logged = cx.into_logged();
    let placeholders = cells.placeholders();
    drop(cells);
    let layout = LogLayout::new(&logged, &batch)?;
    let so_far = Tensor::placeholder("trainer/logs", layout.ty());
    let logs = layout.accumulate(&so_far, &logged, &batch, None, None);
    let logs_in = placeholders.len();
    let inputs = placeholders.into_iter().chain([so_far]).chain(batch.inputs().cloned()).collect();
    // One name for both: a test step that computes what validation computes is the same program.
    let mut function = Function::new("eval_step", inputs, vec![logs]).donate(logs_in, 0)?;
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_parameter(i, entry.sharding.clone());
    }
    let function = for_setting(function, logs_in + 1, setting);
    Ok(EvalProgram { function, layout })
}

#[cfg(test)]
mod tests {
    use fulmen_data::TensorDataset;
    use fulmen_nn::loss::{Reduction, cross_entropy};
    use fulmen_nn::optim::AdamW;
    use fulmen_nn::schedule::OneCycle;
    use fulmen_nn::{BatchNorm2d, Conv2d, Dropout, Linear, MaxPool2d, Module};
    use fulmen_pjrt::CompileOptions;
    use fulmen_tensor::Mesh;

    use super::*;
    use crate::state::{entries, of_module};
    use crate::{Plan, Precision, Trainer};

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
            cx.log("val_loss", &self.training_step(batch, &mut StepContext::default()));
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
        let optimizer = net.configure_optimizers(&Plan { steps_per_epoch: 2, max_epochs: 1, total_steps: 2 });
        let options = Trainer::builder().strategy(Strategy::Fsdp).precision(Precision::Bf16Mixed).options().unwrap();
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let replicas = Strategy::replicas(&mesh);
        let setting = Setting::new(&options, mesh, replicas);
        let entries = entries(&net, &*optimizer, &setting);
        let train = train(&net, &*optimizer, &Batch::placeholders(&loader, None), &entries, &setting, 0).unwrap();
        let eval = eval(&net, Stage::Validation, &loader, &of_module(&net, &setting), &setting, 0).unwrap();

        let topology = plugin.topology("v5e:2x2").unwrap();
        for function in [&train.function, &eval.function] {
            let text = function.stablehlo_for(&setting.mesh).unwrap();
            let compiled = plugin.compile(&topology, &text, &CompileOptions::new().partitions(4)).unwrap();
            let signature = compiled.signature();
            assert_eq!(signature.parameters.len(), function.parameters().len());
            assert!(signature.donated.iter().any(|&donated| donated), "the state is donated");
            assert!(compiled.cost_analysis().unwrap().flops() > Some(1e6));
        }
    }
}
