//! The optimizer's part of a step: the new parameters and optimizer state.

use std::panic::Location;

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Tensor, call, cond, random};

use super::gradients::{Gradient, Gradients, Param, refused_rows};
use super::values::Values;
use crate::rules::rounding::round_to_bf16;
use crate::rules::row_gradient::rows_at;
use crate::state::{Entry, ParamSlots};
use crate::{Error, Result};

pub(super) struct OptimizerSteps {
    /// The step of the optimizer's own schedule.
    pub(super) own: Step,
    /// The steps of parameters that were frozen at first, one for each unfreezing.
    pub(super) unfrozen: Vec<Step>,
    /// The key by which updated parameters are rounded, if they are rounded stochastically.
    pub(super) rounding_key: Option<Tensor>,
}

impl OptimizerSteps {
    /// The step of one parameter.
    pub(super) fn step_of(&self, param: &ParamSlots) -> &Step {
        param.unfreezing.map_or(&self.own, |number| &self.unfrozen[number])
    }

    /// The rounding key of each parameter, if it is rounded stochastically.
    fn rounding_keys(&self, params: &[Gradient<'_>], values: &Values) -> Vec<Option<Tensor>> {
        let entry = |gradient: &Gradient<'_>| &values.layout[gradient.param.slots.param];
        let names: Vec<&str> =
            params.iter().map(|gradient| entry(gradient).name.as_str()).collect();
        let keys = self.rounding_key.as_ref().map(|key| random::fold_in_names(key, &names));
        let key = |(row, gradient)| {
            let keys = keys.as_ref().filter(|_| entry(gradient).ty.dtype == DType::Bf16)?;
            Some(keys.index(0, row as isize))
        };
        params.iter().enumerate().map(key).collect()
    }
}

/// Changes the parameters that have a gradient. If the optimizer doesn't step (within a group of
/// batches, after an overflow, in a spike), no parameter changes.
///
/// With accumulation, most steps are within a group. A branch saves them the work of the optimizer
/// and of clipping; averages of weights are computed separately. On one TPU, a branch needs memory
/// for one more copy of the parameters than a select operation; under FSDP it needs no copy.
/// Overflows and spikes are too rare to be worth a branch. XLA's CPU compiler runs a branch on one
/// thread.
pub(super) fn update(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &mut Values,
    gradients: &Gradients<'_>,
) -> Result<()> {
    let after = updated_values(optimizer, steps, values, gradients)?;
    for id in gradients.params.iter().flat_map(|gradient| gradient.param.slots.changed()) {
        values.set(id, after[id.index()].clone());
    }
    for gradient in &gradients.params {
        if let (Some(group_complete), Some(sum)) =
            (&gradients.group_complete, gradient.param.slots.grad_sum)
        {
            values.set(sum, group_complete.select(&gradient.sum.zeros_like(), &gradient.sum));
        }
    }
    Ok(())
}

/// All values of the state after the optimizer changed its parameters.
pub(super) fn updated_values(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Vec<Tensor>> {
    let params = gradients.params.iter().map(|gradient| &gradient.param);
    let changed = params.clone().flat_map(|param| param.slots.changed());
    let before: Vec<Tensor> = params.flat_map(|param| optimizer_inputs(param, values)).collect();
    let mut outcome = Ok(());
    let mut step = || {
        changed_values(optimizer, steps, values, gradients).unwrap_or_else(|error| {
            outcome = Err(error);
            before.clone()
        })
    };
    let new = match &gradients.updates {
        Some(updates) if gradients.group_complete.is_some() => {
            cond(updates, &[] as &[Tensor], |_| step(), |_| before.clone())
        }
        _ => step(),
    };
    outcome?;
    let mut after = values.all_after().to_vec();
    for (id, value) in changed.zip(new) {
        after[id.index()] = value;
    }
    Ok(after)
}

/// The value of a parameter and its optimizer state.
fn optimizer_inputs(param: &Param<'_>, values: &Values) -> Vec<Tensor> {
    let slots = param.slots.slots.iter().map(|&slot| values.after(slot));
    [&param.value].into_iter().chain(slots).cloned().collect()
}

/// The new values of all entries that the optimizer changes. Their types stay the same.
fn changed_values(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Vec<Tensor>> {
    let mut changed = Vec::new();
    let norm = gradients.norm_to_clip();
    // Within a group, a branch decides.
    let updates = gradients.updates.as_ref().filter(|_| gradients.group_complete.is_none());
    let keys = steps.rounding_keys(&gradients.params, values);
    for (gradient, key) in gradients.params.iter().zip(&keys) {
        let slots = gradient.param.slots;
        let entry = &values.layout[slots.param];
        let before = optimizer_inputs(&gradient.param, values);
        let step = if entry.is_joined() {
            &steps.step_of(slots).of_stacked()
        } else {
            steps.step_of(slots)
        };
        let rows = gradient.rows.as_ref().map(|rows| Rows::new(rows, updates, &before[0]));
        if let (Some(_), Some(location)) = (&rows, slots.sparse) {
            check_rows(optimizer, step, entry, &before, location)?;
        }
        let updated = rows.as_ref().map_or_else(|| before.clone(), |rows| rows.read(&before));
        let inputs: Vec<&Tensor> = [&gradient.sum].into_iter().chain(&updated).chain(key).collect();
        // Where no row is changed, none has to be kept.
        let updates = updates.filter(|_| rows.is_none());
        let step = if rows.is_some() { &step.of_rows() } else { step };
        // Parameters of one type share a function.
        let after = call("update", &inputs, |inputs| {
            let ready = gradients.final_gradient(&inputs[0], norm.as_ref());
            let (before, key) = inputs[1..].split_at(before.len());
            let parameter = &before[0];
            let state = &before[1..];
            let name = &entry.names()[0];
            let (parameter, state) = match key {
                [key] => {
                    let wide = parameter.to_dtype(DType::F32);
                    let (wide, state) = optimizer.update(step, name, &wide, &ready, state);
                    let stochastic = wide.dtype() == DType::F32;
                    (if stochastic { round_to_bf16(key, &wide) } else { wide }, state)
                }
                _ => optimizer.update(step, name, parameter, &ready, state),
            };
            // The gradient of a group of batches may have a wider type than its parameter, and then
            // the result has it too.
            let rounds = parameter.dtype().is_float() && entry.ty.dtype.is_float();
            let parameter = if rounds { parameter.to_dtype(entry.ty.dtype) } else { parameter };
            let new = [parameter].into_iter().chain(state).collect();
            match updates {
                Some(updates) => keep_unless(updates, before, new),
                None => new,
            }
        });
        if after.len() != before.len() {
            return Err(Error::usage(format!(
                "the optimizer has {} tensors of state for `{}`, but its update() returned {}",
                before.len() - 1,
                entry.name,
                after.len() - 1
            )));
        }
        let after = rows.as_ref().map_or(after.clone(), |rows| rows.write(&before, &after));
        for (new, id) in after.into_iter().zip(slots.changed()) {
            values.check_one(id, &new)?;
            changed.push(new);
        }
    }
    Ok(changed)
}

/// The rows of a table that a step changes.
struct Rows {
    indices: Tensor,
}

impl Rows {
    /// Those at `indices`, or none if the step does not update.
    fn new(indices: &Tensor, updates: Option<&Tensor>, table: &Tensor) -> Rows {
        let none = Tensor::full(indices.dtype(), indices.shape(), table.size(0) as f64);
        Rows { indices: updates.map_or(indices.clone(), |updates| updates.select(indices, &none)) }
    }

    /// The rows of a table and of its optimizer state.
    fn read(&self, tables: &[Tensor]) -> Vec<Tensor> {
        tables.iter().map(|table| rows_at(table, &self.indices)).collect()
    }

    /// The table and its optimizer state with new rows.
    fn write(&self, tables: &[Tensor], rows: &[Tensor]) -> Vec<Tensor> {
        let write = |(table, rows): (&Tensor, &Tensor)| table.index_copy(0, &self.indices, rows);
        tables.iter().zip(rows).map(write).collect()
    }
}

/// Checks that the optimizer can change rows of a table and of its state.
fn check_rows(
    optimizer: &dyn Optimizer,
    step: &Step,
    entry: &Entry,
    tables: &[Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let by_row = tables.iter().all(|table| table.shape() == tables[0].shape());
    let reason = optimizer
        .refuses_rows(step, &entry.name, &entry.ty)
        .or_else(|| {
            (!by_row).then(|| "the optimizer has state that is not one row for each row".into())
        })
        .or_else(|| entry.is_joined().then(|| "it is one of the layers of a scan".into()));
    reason.map_or(Ok(()), |reason| Err(refused_rows(&entry.name, location, &reason)))
}

/// The new value of a parameter and of its optimizer state where the step updates, else the old
/// ones. The new parameter depends on the selected state. Otherwise, XLA would compute the state a
/// second time, from a copy.
fn keep_unless(updates: &Tensor, before: &[Tensor], new: Vec<Tensor>) -> Vec<Tensor> {
    // The caller refuses values of other types.
    if new.len() != before.len() || new.iter().zip(before).any(|(new, old)| new.ty() != old.ty()) {
        return new;
    }
    let select = |(new, old): (&Tensor, &Tensor)| updates.select(new, old);
    let state: Vec<Tensor> = new.iter().zip(before).skip(1).map(select).collect();
    let pairs: Vec<_> = new.iter().skip(1).zip(&state).collect();
    let parameter = new.first().map(|parameter| parameter.substitute(&pairs));
    parameter.iter().zip(before).map(select).chain(state).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fulmen_data::{DataLoader, TensorDataset};
    use fulmen_nn::optim::Adam;
    use fulmen_nn::{Embedding, Module};
    use fulmen_tensor::{Accelerator, Devices, Mesh, Runtime};

    use super::*;
    use crate::program::record_train_step;
    use crate::state::StateLayout;
    use crate::step_config::Choices;
    use crate::step_config::optimizers::Optimizers;
    use crate::step_config::phases::Phases;
    use crate::{Batch, Plan, StepContext, Strategy, Trainer, TrainingModule};

    const ROWS: usize = 10_000_000;
    const WIDTH: usize = 4;

    #[derive(Module)]
    struct Users {
        table: Embedding,
    }

    impl TrainingModule for Users {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            let rows = self.table.forward(batch.get("user"));
            (&rows * &rows).mean_all()
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(Adam::new(0.1))
        }
    }

    /// The instructions of the compiled step that read or write a whole table, or a device's part
    /// of it.
    fn of_whole_tables(sparse: bool, devices: usize, strategy: Strategy) -> Vec<String> {
        let module = Users { table: Embedding::new(ROWS, WIDTH).sparse(sparse) };
        let data = TensorDataset::builder().array("user", [16], vec![3i32; 16]).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(16).build().unwrap();
        let mesh = Mesh::new([("data", devices)]).unwrap();
        let options = Trainer::builder().strategy(strategy).options().unwrap();
        let config = Choices::from(options).for_mesh(mesh.clone(), Strategy::replicas(&mesh));
        let plan = Plan { steps_per_epoch: 1, max_epochs: 1, total_steps: 1 };
        let optimizers = Arc::new(Optimizers::from_module(module.configure_optimizers(&plan)));
        let phases = Phases::new(&module, &optimizers, &config, &plan, 1).unwrap();
        let layout = Arc::new(StateLayout::new(&module, &optimizers, &config, phases, &[]));
        let batches = Batch::placeholders(&loader, None);
        let program =
            record_train_step(&module, &optimizers, &batches, 1, &layout, &config, 0).unwrap();
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap();
        let runtime = runtime.with_mesh(&mesh).unwrap();
        let compiled = runtime.compile(&program.steps[0].functions()[0]).unwrap();
        let hlo = compiled.executable().hlo().unwrap();
        // These pass a table on, read or write rows of it, or stand for instructions that are
        // listed too.
        let harmless = [
            "parameter",
            "get-tuple-element",
            "tuple",
            "bitcast",
            "while",
            "conditional",
            "call",
            "fusion",
            "gather",
            "scatter",
            "dynamic-update-slice",
        ];
        let table = (ROWS * WIDTH / devices) as u64;
        let instructions = hlo.computations.iter().flat_map(|c| &c.instructions);
        instructions
            .filter(|i| i.shape.arrays().iter().any(|array| array.num_elements() >= table))
            .map(|i| i.opcode.clone())
            .filter(|opcode| !harmless.contains(&opcode.as_str()))
            .collect()
    }

    #[test]
    fn a_step_with_sparse_gradients_touches_only_rows_of_a_large_table() {
        for (devices, strategy) in [(1, Strategy::Ddp), (8, Strategy::Ddp), (8, Strategy::Fsdp)] {
            let whole = of_whole_tables(true, devices, strategy);
            assert!(whole.is_empty(), "{strategy} on {devices}: {whole:?}");
        }
        assert!(!of_whole_tables(false, 1, Strategy::Ddp).is_empty());
    }
}
