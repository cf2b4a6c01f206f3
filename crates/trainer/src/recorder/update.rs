//! The optimizer's part of a step: the new parameters and optimizer state.

use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Tensor, call, cond, random};

use super::chain_step::ChainStep;
use super::gradients::{Gradient, Gradients, Param};
use super::values::Values;
use crate::logs::MonitoredValue;
use crate::rules::row_gradient::{Table, rows_at};
use crate::rules::step_rule::StepRule;
use crate::rules::sum_dtype::sum_dtype;
use crate::state::{Entry, EntryId, ParamSlots};
use crate::step_config::optimizers::Member;
use crate::{Error, Result};

pub(super) struct OptimizerSteps {
    /// The step of the optimizer's own schedule.
    pub(super) own: Step,
    /// The steps of parameters that were frozen at first, one for each frozen part.
    pub(super) frozen_parts: Vec<Step>,
    /// The rule that rounds updated parameters, with its random key of the step.
    pub(super) rounding: Option<(Arc<dyn StepRule>, Tensor)>,
    /// The random key of the step for an optimizer that draws.
    pub(super) key: Option<Tensor>,
}

impl OptimizerSteps {
    /// The step of one parameter.
    pub(super) fn step_of(&self, param: &ParamSlots) -> &Step {
        param.frozen_part.map_or(&self.own, |number| &self.frozen_parts[number])
    }

    /// The rounding key of each parameter, if a rule rounds it.
    fn rounding_keys(&self, params: &[Gradient<'_>], values: &Values) -> Vec<Option<Tensor>> {
        let Some((rule, key)) = &self.rounding else { return vec![None; params.len()] };
        keys(key, params, values, |entry| rule.rounds_to() == Some(entry.ty.dtype))
    }

    /// The key of each parameter for which the optimizer draws random numbers.
    fn drawing_keys(
        &self,
        optimizer: &dyn Optimizer,
        params: &[Gradient<'_>],
        values: &Values,
    ) -> Vec<Option<Tensor>> {
        let Some(key) = &self.key else { return vec![None; params.len()] };
        keys(key, params, values, |entry| optimizer.draws(&entry.names()[0], &entry.row_type()))
    }

    /// An updated parameter in its dtype, from its value in the optimizer's.
    fn round(&self, value: Tensor, key: &Tensor) -> Tensor {
        match &self.rounding {
            Some((rule, _)) if value.dtype() == DType::F32 => rule.round(&value, key),
            _ => value,
        }
    }
}

/// A key for each parameter that has one.
fn keys(
    key: &Tensor,
    params: &[Gradient<'_>],
    values: &Values,
    has_key: impl Fn(&Entry) -> bool,
) -> Vec<Option<Tensor>> {
    let entry = |gradient: &Gradient<'_>| &values.layout[gradient.param.slots.param];
    let names: Vec<&str> = params.iter().map(|gradient| entry(gradient).name.as_str()).collect();
    let keys = random::fold_in_names(key, &names);
    let key = |(row, gradient)| has_key(entry(gradient)).then(|| keys.index(0, row as isize));
    params.iter().enumerate().map(key).collect()
}

/// Changes the parameters that have a gradient. If the optimizer doesn't step (before the last
/// batch of a step, after an overflow, in a spike), no parameter changes.
///
/// If steps take several batches, a branch saves most of these the work of the optimizer and of
/// rules that change gradients; evaluated weights are computed separately. On one TPU, a branch needs memory
/// for one more copy of the parameters than a select operation; under FSDP it needs no copy.
/// Overflows and spikes are too rare to be worth a branch. XLA's CPU compiler runs a branch on one
/// thread.
pub(super) fn update(
    member: &Member,
    steps: &OptimizerSteps,
    values: &mut Values,
    gradients: &Gradients<'_>,
) -> Result<Vec<MonitoredValue>> {
    let updated = updated_values(member, steps, values, gradients)?;
    for id in changed_entries(gradients) {
        values.set(id, updated.after[id.index()].clone());
    }
    Ok(updated.logged)
}

/// The state after an optimizer's step.
pub(super) struct Updated {
    /// All values of the state.
    pub(super) after: Vec<Tensor>,
    /// The values that the rules around the optimizer log.
    logged: Vec<MonitoredValue>,
}

/// The entries that an optimizer changes: each parameter and its state, then the state of the rules.
fn changed_entries(gradients: &Gradients<'_>) -> Vec<EntryId> {
    let params = gradients.params.iter().map(|gradient| gradient.param.slots);
    let by_optimizer = params.clone().flat_map(ParamSlots::changed);
    let by_rules = params.flat_map(ParamSlots::rule_state);
    let own = gradients.slots.rules.iter().flatten().copied();
    by_optimizer.chain(by_rules).chain(own).collect()
}

/// All values of the state after the optimizer changed its parameters.
pub(super) fn updated_values(
    member: &Member,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Updated> {
    let changed = changed_entries(gradients);
    let before = values_before(values, gradients);
    let mut outcome = Ok(Vec::new());
    let logged_count = Cell::new(0);
    let mut step = || match changed_values(member, steps, values, gradients) {
        Ok(Changed { mut new, logged }) => {
            logged_count.set(logged.len());
            new.extend(logged.iter().map(|logged| logged.value.clone()));
            outcome = Ok(logged);
            new
        }
        Err(error) => {
            outcome = Err(error);
            before.clone()
        }
    };
    let new = match &gradients.updates {
        Some(updates) if gradients.step_ends.is_some() => {
            let unchanged = || {
                let nothing = Tensor::full(DType::F32, [], 0.0);
                let mut values = before.clone();
                values.extend(vec![nothing; logged_count.get()]);
                values
            };
            cond(updates, (), |()| step(), |()| unchanged())
        }
        _ => step(),
    };
    let mut logged = outcome?;
    let mut new = new.into_iter();
    let mut after = values.all_after().to_vec();
    for (id, value) in changed.into_iter().zip(&mut new) {
        after[id.index()] = value;
    }
    for (logged, value) in logged.iter_mut().zip(new) {
        logged.value = value;
    }
    Ok(Updated { after, logged })
}

/// The values of the [changed entries](changed_entries) before the step.
fn values_before(values: &Values, gradients: &Gradients<'_>) -> Vec<Tensor> {
    let params = gradients.params.iter().map(|gradient| &gradient.param);
    let by_optimizer = params.clone().flat_map(|param| optimizer_inputs(param, values));
    let by_rules = params.flat_map(|param| param.slots.rule_state());
    let own = gradients.slots.rules.iter().flatten().copied();
    let states = by_rules.chain(own).map(|id| values.after(id).clone());
    by_optimizer.chain(states).collect()
}

/// The value of a parameter and its optimizer state.
fn optimizer_inputs(param: &Param<'_>, values: &Values) -> Vec<Tensor> {
    let slots = param.slots.slots.iter().map(|&slot| values.after(slot));
    [&param.value].into_iter().chain(slots).cloned().collect()
}

/// What an optimizer and the rules around it change.
struct Changed {
    /// The new values of the [changed entries](changed_entries). Their types stay the same.
    new: Vec<Tensor>,
    logged: Vec<MonitoredValue>,
}

/// The new values of all entries that the optimizer and the rules around it change.
fn changed_values(
    member: &Member,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Changed> {
    let optimizer = &*member.optimizer;
    let mut chain = ChainStep::new(member, &steps.own, values, gradients);
    let norm = gradients.norm_for_rules();
    let ready = if chain.has_rules_before() {
        let sums = gradients.params.iter().map(|gradient| &gradient.sum);
        let ready = sums.map(|sum| gradients.final_gradient(sum, norm.as_ref())).collect();
        Some(chain.before_optimizer(ready)?)
    } else {
        None
    };
    // If steps take several batches, a branch decides.
    let updates = gradients.updates.as_ref().filter(|_| gradients.step_ends.is_none());
    let keys = steps.rounding_keys(&gradients.params, values);
    let drawing_keys = steps.drawing_keys(optimizer, &gradients.params, values);
    let mut changed = Vec::new();
    for (index, (gradient, key)) in gradients.params.iter().zip(&keys).enumerate() {
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
            check_rows(member, step, entry, &before, location)?;
        }
        let updated = rows.as_ref().map_or_else(|| before.clone(), |rows| rows.read(&before));
        let sum = ready.as_ref().map_or(&gradient.sum, |ready| &ready[index]);
        let key = key.as_ref().filter(|_| !chain.has_rules_after());
        let drawing_key = drawing_keys[index].as_ref();
        let inputs = (sum, &updated, key, drawing_key);
        // Where no row is changed, none has to be kept. What rules change is kept after them.
        let updates = updates.filter(|_| rows.is_none() && !chain.has_rules());
        let step = if rows.is_some() { &step.of_rows() } else { step };
        // Parameters of one type share a function.
        let after = call("update", inputs, |(sum, before, rounding, drawing)| {
            let ready = match ready {
                Some(_) => sum,
                None => gradients.final_gradient(&sum, norm.as_ref()),
            };
            let rounding = rounding.as_ref().map(|key| move |value| steps.round(value, key));
            let drawing = drawing.as_ref().map(|key| step.with_random_key(key));
            let step = drawing.as_ref().unwrap_or(step);
            let new = updated_param(optimizer, step, entry, &chain, &ready, &before, rounding);
            match updates {
                Some(updates) => keep_unless(updates, &before, new),
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
        changed.push(rows.as_ref().map_or(after.clone(), |rows| rows.write(&before, &after)));
    }
    if chain.has_rules_after() {
        apply_rules_after(&mut chain, steps, &keys, values, gradients, &mut changed)?;
    }
    let new = in_order_of_entries(&chain, updates, values, gradients, changed);
    for (id, value) in changed_entries(gradients).into_iter().zip(&new) {
        values.check_one(id, value)?;
    }
    Ok(Changed { new, logged: chain.logged })
}

/// The new values of a parameter and its optimizer state, from the mean gradient. The parameter is
/// rounded to its dtype, by a rule if there is a `rounding`, unless rules after the optimizer need
/// the change before it is rounded.
fn updated_param(
    optimizer: &dyn Optimizer,
    step: &Step,
    entry: &Entry,
    chain: &ChainStep<'_>,
    gradient: &Tensor,
    before: &[Tensor],
    rounding: Option<impl FnOnce(Tensor) -> Tensor>,
) -> Vec<Tensor> {
    let parameter = &before[0];
    let state = &before[1..];
    let name = &entry.names()[0];
    let wide = sum_dtype(parameter.dtype());
    let (parameter, state) = match rounding {
        Some(round) => {
            let wide = parameter.to_dtype(DType::F32);
            let (wide, state) = optimizer.update(step, name, &wide, gradient, state);
            (round(wide), state)
        }
        None if chain.has_rules_after() => {
            optimizer.update(step, name, &parameter.to_dtype(wide), gradient, state)
        }
        None => optimizer.update(step, name, parameter, gradient, state),
    };
    // The gradient of several batches may have a wider type than its parameter, and then the result
    // has it too.
    let rounds = parameter.dtype().is_float() && entry.ty.dtype.is_float();
    let rounds = rounds && !chain.has_rules_after();
    let parameter = if rounds { parameter.to_dtype(entry.ty.dtype) } else { parameter };
    [parameter].into_iter().chain(state).collect()
}

/// Applies the rules after the optimizer to the parameters, and rounds these to their dtype, with
/// the keys of those that a rule rounds.
/// `changed` has each parameter, in the optimizer's precision, followed by its state.
fn apply_rules_after(
    chain: &mut ChainStep<'_>,
    steps: &OptimizerSteps,
    keys: &[Option<Tensor>],
    values: &Values,
    gradients: &Gradients<'_>,
    changed: &mut [Vec<Tensor>],
) -> Result<()> {
    let new = changed.iter().map(|values| values[0].clone()).collect();
    let new = chain.after_optimizer(new)?;
    for (index, value) in new.into_iter().enumerate() {
        let entry = &values.layout[gradients.params[index].param.slots.param];
        let value = match &keys[index] {
            Some(key) => steps.round(value, key),
            None => value,
        };
        let rounds = value.dtype().is_float() && entry.ty.dtype.is_float();
        changed[index][0] = if rounds { value.to_dtype(entry.ty.dtype) } else { value };
    }
    Ok(())
}

/// The new values in the order of the [changed entries](changed_entries). With rules, `updates` says
/// whether the step changes them; without, the values were selected already.
fn in_order_of_entries(
    chain: &ChainStep<'_>,
    updates: Option<&Tensor>,
    values: &Values,
    gradients: &Gradients<'_>,
    changed: Vec<Vec<Tensor>>,
) -> Vec<Tensor> {
    if !chain.has_rules() {
        return changed.into_iter().flatten().collect();
    }
    let mut by_optimizer = Vec::new();
    let mut by_rules = Vec::new();
    for (index, new) in changed.into_iter().enumerate() {
        let param = &gradients.params[index].param;
        let count = new.len();
        let mut new = new;
        new.extend(chain.state_of(index).cloned());
        if let Some(updates) = updates {
            let mut before = optimizer_inputs(param, values);
            before.extend(param.slots.rule_state().map(|id| values.after(id).clone()));
            new = keep_unless(updates, &before, new);
        }
        by_rules.extend(new.split_off(count));
        by_optimizer.extend(new);
    }
    let ids = gradients.slots.rules.iter().flatten();
    for (&id, new) in ids.zip(chain.state.iter().flatten()) {
        by_rules.push(match updates {
            Some(updates) => updates.select(new, values.after(id)),
            None => new.clone(),
        });
    }
    by_optimizer.extend(by_rules);
    by_optimizer
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
    member: &Member,
    step: &Step,
    entry: &Entry,
    tables: &[Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let by_row = tables.iter().all(|table| table.shape() == tables[0].shape());
    let reason = member
        .optimizer
        .refuses_rows(step, &entry.name, &entry.ty)
        .or_else(|| {
            (!by_row).then(|| "the optimizer has state that is not one row for each row".into())
        })
        .or_else(|| entry.is_joined().then(|| "it is one of the layers of a scan".into()))
        .or_else(|| {
            let has_rules = !member.rules.is_empty();
            has_rules.then(|| "the rules of the optimizer's chain need whole gradients".into())
        });
    reason.map_or(Ok(()), |reason| Err(Table { name: &entry.name, location }.error(&reason)))
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
    use fulmen_nn::optim::{Adam, Optimizer};
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
