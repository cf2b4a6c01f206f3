//! [`StepProgram`]: a step as a compiled program. Only this file knows what goes in and out of one, and in which order.
//!
//! Inputs: the entries of the state, the sums of logged values, the random key, the batch. Results: the entries that the
//! step changes, the sums, and what else it gives.

use fulmen_data::{DataLoader, DeviceBatch, Field};
use fulmen_tensor::{Argument, Compiled, DeviceArray, Done, Function, Runtime, Tensor};

use crate::logs::LogLayout;
use crate::state::{Entry, EntryId, StepState};
use crate::step_config::StepConfig;
use crate::{Batch, Error, Result, Strategy};

/// What was recorded of a step on one batch.
pub(super) struct RecordedStep<'a> {
    pub(super) name: &'static str,
    /// The entries of the state that the step takes, and what each is before it.
    pub(super) entries: &'a [Entry],
    pub(super) state: Vec<Tensor>,
    /// The entries that it changes, and what each is after it.
    pub(super) changes: Vec<(EntryId, Tensor)>,
    /// The sums of logged values before and after it. A step that logs nothing has none.
    pub(super) logs: LogLayout,
    pub(super) sums: [Tensor; 2],
    pub(super) key: Option<Tensor>,
    pub(super) batch: &'a Batch,
    /// What else it gives.
    pub(super) outputs: Vec<(String, Tensor)>,
}

/// A step, recorded for each shape of batches.
pub(crate) struct StepProgram {
    functions: Vec<Function>,
    signature: Signature,
}

/// What goes in and out of a step.
#[derive(Clone)]
struct Signature {
    /// How many entries of the state it takes.
    entries: usize,
    /// Those that it changes, in the order of the results. Their memory is donated.
    changes: Vec<EntryId>,
    /// The layout of the sums of logged values, if there are any.
    logs: LogLayout,
    /// The names of what else it gives.
    outputs: Vec<String>,
}

impl StepProgram {
    /// Records a step on a batch of each shape. Only the shapes may differ: `step` is the module's method that is to blame.
    pub(super) fn of_shapes(
        batches: &[Batch],
        step: &str,
        mut record: impl FnMut(&Batch) -> Result<StepProgram>,
    ) -> Result<StepProgram> {
        let (first, others) = batches.split_first().ok_or_else(|| Error::data("the loader has batches of no shape"))?;
        let mut program = record(first)?;
        for batch in others {
            let other = record(batch)?;
            program.signature.logs.check_same(&other.signature.logs, step, "length of the batch")?;
            if program.signature.changes != other.signature.changes {
                return Err(Error::usage(format!(
                    "{step} changes other values of the module for batches of one length than for those of another; which \
                     ones it changes must not depend on the length"
                )));
            }
            program.functions.extend(other.functions);
        }
        Ok(program)
    }

    pub(super) fn new(step: RecordedStep<'_>, setting: &StepConfig) -> Result<StepProgram> {
        let RecordedStep { name, entries, state, changes, logs, sums, key, batch, outputs } = step;
        let (changes, after): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let (outputs, given): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let [sums_before, sums_after] = sums.map(|sums| (!logs.is_empty()).then_some(sums));
        let sums = sums_before.is_some().then_some((state.len(), changes.len()));
        let first_of_batch = state.len() + usize::from(sums.is_some()) + usize::from(key.is_some());
        let inputs = state.into_iter().chain(sums_before).chain(key).chain(batch.inputs().cloned()).collect();
        let results = after.into_iter().chain(sums_after).chain(given).collect();
        let mut function = Function::new(name, inputs, results).matmul_precision(setting.options.matmul_precision);
        for (i, entry) in entries.iter().enumerate() {
            function = function.shard_parameter(i, entry.sharding.clone());
        }
        for input in first_of_batch..function.parameters().len() {
            function = function.shard_parameter(input, Strategy::batch(&setting.mesh));
        }
        for (result, id) in changes.iter().enumerate() {
            let sharding = entries[id.index()].sharding.clone();
            function = function.donate(id.index(), result)?.shard_result(result, sharding);
        }
        if let Some((input, result)) = sums {
            function = function.donate(input, result)?;
        }
        let signature = Signature { entries: entries.len(), changes, logs, outputs };
        Ok(StepProgram { functions: vec![function], signature })
    }

    /// One for each shape of batches.
    pub(crate) fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub(crate) fn logs(&self) -> &LogLayout {
        &self.signature.logs
    }

    /// Compiles the step for each shape of the loader's batches; `compile` is told what a program is called.
    pub(crate) fn compile<'f>(
        &'f self,
        step: &str,
        loader: &DataLoader,
        mut compile: impl FnMut(&str, &'f Function) -> fulmen_tensor::Result<Compiled>,
    ) -> Result<CompiledStep> {
        let each = titles(step, loader).into_iter().zip(&self.functions);
        let shapes = each.map(|(title, function)| compile(&title, function)).collect::<Result<_, _>>()?;
        Ok(CompiledStep { shapes, signature: self.signature.clone() })
    }
}

/// What the programs of a step are called, one for each of the loader's shapes: by the fields whose shape differs.
fn titles(step: &str, loader: &DataLoader) -> Vec<String> {
    let shapes = loader.shapes();
    let differs = |field: &&Field| shapes.iter().flatten().any(|f| f.name == field.name && f.shape != field.shape);
    let title = |fields: &Vec<Field>| {
        let parts = fields.iter().filter(differs).map(|f| format!("{} {:?}", f.name, f.shape)).collect::<Vec<_>>();
        if parts.is_empty() { step.to_owned() } else { format!("{step} for {}", parts.join(", ")) }
    };
    shapes.iter().map(title).collect()
}

/// A compiled step.
pub(crate) struct CompiledStep {
    /// One for each shape of batches.
    shapes: Vec<Compiled>,
    signature: Signature,
}

impl CompiledStep {
    /// One for each shape of batches.
    pub(crate) fn programs(&self) -> &[Compiled] {
        &self.shapes
    }

    /// How many of its programs were not there before.
    pub(crate) fn compilations(&self) -> u64 {
        self.shapes.iter().filter(|compiled| !compiled.was_cached()).count() as u64
    }

    pub(crate) fn logs(&self) -> &LogLayout {
        &self.signature.logs
    }

    /// The entries that the step changes.
    pub(crate) fn changes(&self) -> &[EntryId] {
        &self.signature.changes
    }

    /// The names of what it gives besides the state and the sums.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.signature.outputs
    }

    /// Hands one step to the device. The state is afterwards that after the step, and so are the sums of what it logs, which
    /// start from zero where there are none. Returns the other results of the step.
    pub(crate) fn call(
        &self,
        runtime: &Runtime,
        state: &mut impl StepState,
        sums: &mut Option<DeviceArray>,
        key: Option<&DeviceArray>,
        batch: &DeviceBatch,
    ) -> Result<(Vec<DeviceArray>, Done)> {
        let Signature { entries, changes, logs, .. } = &self.signature;
        let compiled = self.shapes.get(batch.bucket).ok_or_else(|| {
            Error::data(format!("the loader gave a batch of shape {}, which it did not name", batch.bucket))
        })?;
        if sums.is_none() && !logs.is_empty() {
            *sums = Some(runtime.to_device(&logs.start()?)?);
        }
        let mut arguments = Vec::with_capacity(entries + batch.arrays.len() + 2);
        state.arguments(changes, &mut arguments)?;
        arguments.extend(sums.take().map(Argument::Donate));
        arguments.extend(key.map(Argument::Borrow));
        arguments.extend(batch.arrays.iter().map(Argument::Borrow));
        let outputs = compiled.call(arguments)?;
        let mut arrays = outputs.arrays.into_iter();
        for (&id, array) in changes.iter().zip(&mut arrays) {
            state.put(id, array);
        }
        *sums = if logs.is_empty() { None } else { arrays.next() };
        Ok((arrays.collect(), outputs.done))
    }
}
