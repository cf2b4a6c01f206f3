//! The training state: every tensor that a step changes, in device memory.
//!
//! During a fit, the state owns the values; each step takes and returns them. Before and after, the
//! module's variables hold them. `layout.rs` lists the tensors, and `names.rs` names them.

mod kernel_order;
mod layout;
pub(crate) mod names;
mod rows;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use fulmen_nn::Module;
use fulmen_tensor::{Argument, Compiled, DeviceArray, Function, Literal, Runtime, Tensor};

pub(crate) use layout::{
    Entry, EntryId, Evaluated, OptimizerSlots, Origin, ParamSlots, StateLayout, of_module,
};

use crate::step_config::StepConfig;
use crate::{Error, ModelSummary, Result, error};

/// The parts of a module, with the sharding of the parameters over the configured devices.
pub(crate) fn model_summary(
    module: &dyn Module,
    config: &StepConfig,
    max_depth: usize,
) -> ModelSummary {
    let several = config.mesh.num_devices() > 1;
    let entries: BTreeMap<_, _> = if several {
        of_module(module, config).into_iter().map(|entry| (entry.name, entry.sharding)).collect()
    } else {
        BTreeMap::new()
    };
    ModelSummary::with_shardings(module, max_depth, |name| entries.get(name).cloned())
}

/// A program that computes the current values of entries, each with its sharding.
pub(crate) fn to_compute<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Function {
    let entries: Vec<&Entry> = entries.into_iter().collect();
    let mut function =
        Function::new("eval", Vec::new(), entries.iter().map(|entry| entry.value()).collect());
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_result(i, entry.sharding.clone());
    }
    // The program runs once per fit. Its constants become inputs, so another seed gives the same
    // program.
    function.constants_as_inputs()
}

/// Like [`to_compute`], for the entries whose value the host does not supply on this platform.
pub(crate) fn to_initialize(entries: &[Entry], platform: &str) -> Function {
    to_compute(entries.iter().filter(|entry| entry.on_host(platform == CPU).is_none()))
}

/// The name of the platform of CPUs.
const CPU: &str = "cpu";

/// Computes the values of entries. Of values on the host, each device gets its shard, and each
/// process reads only what its devices hold.
pub(crate) fn compute(
    runtime: &Runtime,
    entries: &[Entry],
) -> fulmen_tensor::Result<Vec<DeviceArray>> {
    compute_with(runtime, entries, |function| runtime.compile(function))
}

/// Like [`compute`], with `compile` to compile the program.
fn compute_with(
    runtime: &Runtime,
    entries: &[Entry],
    compile: impl FnOnce(&Function) -> fulmen_tensor::Result<Compiled>,
) -> fulmen_tensor::Result<Vec<DeviceArray>> {
    let platform = runtime.client().platform_name();
    let function = to_initialize(entries, platform);
    let mut computed = compile(&function)?.call(Vec::new())?.arrays.into_iter();
    let mut arrays = Vec::with_capacity(entries.len());
    for entry in entries {
        match entry.on_host(platform == CPU) {
            Some(value) => arrays.push(
                value
                    .to_devices(runtime)
                    .map_err(|e| e.context(format_args!("`{}`", entry.name)))?,
            ),
            None => arrays.extend(computed.next()),
        }
    }
    Ok(arrays)
}

/// The values that a step takes and returns.
pub(crate) trait StepState {
    /// Adds an argument for each entry. Entries that the step changes are donated.
    fn arguments<'a>(
        &'a mut self,
        changes: &[EntryId],
        arguments: &mut Vec<Argument<'a>>,
    ) -> Result<()>;
    /// Stores a value that the step returned.
    fn put(&mut self, id: EntryId, array: DeviceArray);
}

/// Weights that no step changes.
pub(crate) struct FixedWeights<'a, A>(pub(crate) &'a [A]);

impl<A: Borrow<DeviceArray>> StepState for FixedWeights<'_, A> {
    fn arguments<'a>(&'a mut self, _: &[EntryId], arguments: &mut Vec<Argument<'a>>) -> Result<()> {
        arguments.extend(self.0.iter().map(|array| Argument::Borrow(array.borrow())));
        Ok(())
    }

    fn put(&mut self, _: EntryId, _: DeviceArray) {}
}

/// All tensors of the state with their values. On drop, it returns the values to the module.
pub(crate) struct State {
    layout: Arc<StateLayout>,
    arrays: Vec<Option<DeviceArray>>,
    runtime: Runtime,
}

impl State {
    /// Moves the values to the devices: those of a checkpoint, one per entry, or else the current
    /// values of the entries, which one program computes. The module's variables have no value
    /// while the state exists.
    pub(crate) fn new(
        layout: Arc<StateLayout>,
        checkpoint: Option<Vec<RestoredValue>>,
        runtime: &Runtime,
        compile: impl FnOnce(&Function) -> fulmen_tensor::Result<Compiled>,
    ) -> Result<State> {
        let arrays = match checkpoint {
            Some(values) => {
                let pairs = values.into_iter().zip(layout.entries());
                pairs
                    .map(|(value, entry)| value.to_devices(entry, runtime))
                    .collect::<Result<Vec<_>>>()?
            }
            None => {
                let computed = compute_with(runtime, layout.entries(), compile);
                computed.map_err(|e| e.context("setting up the training state"))?
            }
        };
        for variable in layout.module().iter().flat_map(Entry::variables) {
            variable.set(Tensor::poison(
                "fit",
                "the module is being trained; it has values again when fit returns, or when the TrainStep is dropped",
            ));
        }
        Ok(State {
            layout,
            arrays: arrays.into_iter().map(Some).collect(),
            runtime: runtime.clone(),
        })
    }

    /// Replaces all values with those of a checkpoint, one per entry.
    pub(crate) fn replace(&mut self, values: Vec<RestoredValue>, runtime: &Runtime) -> Result<()> {
        for ((array, entry), value) in self.arrays.iter_mut().zip(self.layout.entries()).zip(values)
        {
            // Drop the old value first: there may be no room for both.
            *array = None;
            *array = Some(value.to_devices(entry, runtime)?);
        }
        Ok(())
    }

    /// The bytes on each device of this process.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        let mut bytes = Vec::new();
        for array in self.arrays.iter().flatten() {
            bytes.resize(array.shards().len(), 0);
            bytes
                .iter_mut()
                .zip(array.shards())
                .for_each(|(sum, shard)| *sum += shard.size_in_bytes());
        }
        bytes
    }

    pub(crate) fn layout(&self) -> &StateLayout {
        &self.layout
    }

    pub(crate) fn array(&self, id: EntryId) -> Result<&DeviceArray> {
        self.arrays[id.index()].as_ref().ok_or_else(|| lost(&self.layout[id].name))
    }

    /// The values to validate a module with, in the order of its variables: evaluated ones where
    /// they exist. `converted` holds those whose dtype differs from the module's, as converted by
    /// [`StateLayout::to_validate_with`].
    pub(crate) fn validation_weights<'a>(
        &'a self,
        converted: &'a [DeviceArray],
    ) -> Result<Vec<&'a DeviceArray>> {
        let mut converted = converted.iter();
        let value = |(entry, id): (&Entry, EntryId)| {
            if self.layout[id].ty == entry.ty {
                self.array(id)
            } else {
                converted.next().ok_or_else(|| lost(&entry.name))
            }
        };
        self.layout.module().iter().zip(self.layout.evaluated_entries()).map(value).collect()
    }
}

impl StateLayout {
    /// The program that converts evaluated weights to the module's dtypes, with the converted entries.
    /// `None` if all dtypes match.
    pub(crate) fn to_validate_with(&self) -> Option<(Function, Vec<EntryId>)> {
        let evaluated = self.module().iter().zip(self.evaluated_entries());
        let misfits: Vec<(&Entry, EntryId)> =
            evaluated.filter(|(entry, id)| self[*id].ty != entry.ty).collect();
        let ids: Vec<EntryId> = misfits.iter().map(|&(_, id)| id).collect();
        let inputs = self.placeholders(&ids);
        let results = inputs
            .iter()
            .zip(&misfits)
            .map(|(input, (entry, _))| input.to_dtype(entry.ty.dtype))
            .collect();
        let mut function = Function::new("averages", inputs, results);
        for (i, (entry, id)) in misfits.iter().enumerate() {
            function = function.shard_parameter(i, self[*id].sharding.clone());
            function = function.shard_result(i, entry.sharding.clone());
        }
        (!ids.is_empty()).then_some((function, ids))
    }

    /// The program that copies some of the values. Joined ones are copied row by row.
    pub(crate) fn to_copy(&self, ids: &[EntryId]) -> Function {
        let inputs = self.placeholders(ids);
        let copies = ids.iter().zip(&inputs).map(|(&id, input)| self[id].split(input));
        let mut function = Function::new("checkpoint", inputs.clone(), copies.flatten().collect());
        let mut result = 0;
        for (i, &id) in ids.iter().enumerate() {
            function = function.shard_parameter(i, self[id].sharding.clone());
            for _ in self[id].names() {
                function = function.shard_result(result, self[id].row_sharding());
                result += 1;
            }
        }
        function
    }

    fn placeholders(&self, ids: &[EntryId]) -> Vec<Tensor> {
        ids.iter()
            .map(|&id| Tensor::placeholder(self[id].name.clone(), self[id].ty.clone()))
            .collect()
    }
}

/// A value of a checkpoint, to be moved to the devices of this process.
pub(crate) enum RestoredValue {
    Whole(Literal),
    /// The blocks that this process's devices hold, by their start.
    Parts(BTreeMap<Vec<usize>, Literal>),
}

impl RestoredValue {
    fn to_devices(&self, entry: &Entry, runtime: &Runtime) -> Result<DeviceArray> {
        let parts = match self {
            RestoredValue::Whole(literal) => {
                return runtime.to_devices(literal, &entry.sharding);
            }
            RestoredValue::Parts(parts) => parts,
        };
        runtime.parts_to_devices(&entry.ty, &entry.sharding, |block| {
            Ok(parts.get(&block.start).map_or(&[][..], Literal::bytes).into())
        })
    }
}

impl StepState for State {
    fn arguments<'a>(
        &'a mut self,
        changes: &[EntryId],
        arguments: &mut Vec<Argument<'a>>,
    ) -> Result<()> {
        let State { layout, arrays, .. } = self;
        let mut changes = changes.iter().peekable();
        for (id, array) in layout.ids().zip(arrays) {
            let argument = match changes.next_if_eq(&&id) {
                Some(_) => array.take().map(Argument::Donate),
                None => array.as_ref().map(Argument::Borrow),
            };
            arguments.push(argument.ok_or_else(|| lost(&layout[id].name))?);
        }
        Ok(())
    }

    fn put(&mut self, id: EntryId, array: DeviceArray) {
        self.arrays[id.index()] = Some(array);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (entry, evaluated) in self.layout.module().iter().zip(self.layout.evaluated_entries()) {
            let values = match self.arrays[evaluated.index()].take() {
                Some(array) => split(&self.layout[evaluated], array, &self.runtime),
                None => entry
                    .names()
                    .iter()
                    .map(|name| Tensor::poison("fit", lost(name).to_string()))
                    .collect(),
            };
            for (variable, value) in entry.variables().iter().zip(values) {
                variable.set(value.to_dtype(entry.ty.dtype));
            }
        }
    }
}

/// The named values in an entry. The rows of a joined entry are copied on the devices. If that
/// fails, each row is copied when it is used.
fn split(entry: &Entry, array: DeviceArray, runtime: &Runtime) -> Vec<Tensor> {
    let whole = Tensor::placeholder(entry.name.clone(), entry.ty.clone());
    let rows = entry.is_joined().then(|| {
        let mut function = Function::new("rows", vec![whole.clone()], entry.split(&whole));
        function = function.shard_parameter(0, entry.sharding.clone());
        for row in 0..entry.names().len() {
            function = function.shard_result(row, entry.row_sharding());
        }
        Ok::<_, fulmen_tensor::Error>(
            runtime.compile_alone(&function)?.call(vec![Argument::Borrow(&array)])?.arrays,
        )
    });
    match rows {
        Some(Ok(rows)) => rows.into_iter().map(|row| Tensor::from_array(Arc::new(row))).collect(),
        _ => entry.split(&Tensor::from_array(Arc::new(array))),
    }
}

fn lost(name: &str) -> Error {
    error::data(format!(
        "the value of `{name}` was lost when a step failed; load the last checkpoint or call reinitialize()"
    ))
}

#[cfg(test)]
mod tests {
    use fulmen_nn::Linear;
    use fulmen_nn::optim::Adagrad;
    use fulmen_tensor::Mesh;

    use super::*;
    use crate::step_config::Choices;
    use crate::step_config::optimizers::Optimizers;
    use crate::step_config::phases::Phases;
    use crate::{Plan, Strategy, Trainer};

    #[derive(Module)]
    struct Net(Linear);

    #[test]
    fn on_cpus_the_host_supplies_the_large_first_values() {
        let trainer = Trainer::builder().accelerator("cpu").devices(2).build().unwrap();
        let runtime = trainer.runtime();
        let options = Trainer::builder().strategy(Strategy::Fsdp).options().unwrap();
        let replicas = Strategy::replicas(runtime.mesh());
        let config = Choices::from(options).for_mesh(runtime.mesh().clone(), replicas);
        let net = Net(Linear::new(1024, 512));
        net.initialize(0);
        let adagrad = Adagrad::new(0.1).initial_accumulator_value(0.5);
        let optimizers = Optimizers::from_module(Box::new(adagrad));
        let plan = Plan { steps_per_epoch: 1, max_epochs: 1, total_steps: 1 };
        let phases = Phases::new(&net, &optimizers, &config, &plan, 1).unwrap();
        let layout = StateLayout::new(&net, &optimizers, &config, phases, &[]);
        let entries = layout.entries();
        let results = |platform| to_initialize(entries, platform).results().len();
        assert_eq!(results("tpu"), entries.len());
        assert_eq!(
            results("cpu"),
            entries.len() - 1,
            "the sum of the squares of the weight's gradients"
        );
        let arrays = compute(runtime, entries).unwrap();
        for (entry, array) in entries.iter().zip(&arrays) {
            assert_eq!((array.ty(), array.sharding()), (&entry.ty, &entry.sharding));
            if matches!(entry.origin, Origin::Own(_)) && entry.ty.shape.rank() > 0 {
                let values = runtime.read(&[array]).unwrap().wait().unwrap();
                assert!(values[0].to_f64().iter().all(|&value| value == 0.5), "{}", entry.name);
            }
        }
    }

    #[test]
    fn the_summary_of_a_model_shows_how_its_parameters_are_split() {
        let shapes = |devices: usize| {
            let mesh = Mesh::new([("data", devices)]).unwrap();
            let options = Trainer::builder().strategy(Strategy::Fsdp).options().unwrap();
            let config = Choices::from(options).for_mesh(mesh.clone(), Strategy::replicas(&mesh));
            model_summary(&Net(Linear::new(16, 6)), &config, 1).rows()[0][3].clone()
        };
        assert_eq!(shapes(1), "weight f32[6, 16], bias f32[6]");
        assert_eq!(shapes(8), "weight f32[6, 16] split [-, data], bias f32[6]");
    }
}
