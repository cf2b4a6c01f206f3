//! [`StepProgram`]: a step as a program. Only this file knows its inputs and results and their
//! order.
//!
//! Inputs: the entries of the state, the sums of logged values, the random key, the batch. Results:
//! the outputs, the sums, and the entries that the step changes.

use fulmen_data::{DataLoader, DeviceBatch, Field};
use fulmen_tensor::{Argument, Compiled, Completion, DeviceArray, Function, Mesh, Runtime, Tensor};

use crate::logs::LogLayout;
use crate::out_of_memory;
use crate::state::{Entry, EntryId, StepState};
use crate::step_config::StepConfig;
use crate::{Batch, Error, Result, Strategy, error};

/// A step that was recorded on one batch.
pub(super) struct RecordedStep<'a> {
    pub(super) name: &'static str,
    /// The entries of the state that the step takes.
    pub(super) entries: &'a [Entry],
    /// The values of these entries before the step.
    pub(super) state: Vec<Tensor>,
    /// The entries that the step changes, and their values after it.
    pub(super) changes: Vec<(EntryId, Tensor)>,
    /// The layout of the logged values. It is empty if the step logs nothing.
    pub(super) logs: LogLayout,
    /// The sums of logged values before and after the step.
    pub(super) sums: [Tensor; 2],
    pub(super) key: Option<Tensor>,
    pub(super) batch: &'a Batch,
    /// The other results.
    pub(super) outputs: Vec<(String, Tensor)>,
}

/// A step, recorded for each shape of batches.
pub(crate) struct StepProgram {
    functions: Vec<Function>,
    signature: Signature,
}

/// The inputs and results of a step.
#[derive(Clone)]
struct Signature {
    /// The number of state entries that it takes.
    entries: usize,
    /// The entries that it changes, in the order of the results. Their memory is donated.
    changes: Vec<EntryId>,
    /// The layout of the sums of logged values.
    logs: LogLayout,
    /// The names of the other results.
    outputs: Vec<String>,
}

impl StepProgram {
    /// Records a step on a batch of each shape. The recordings may differ only in shapes. `step` is
    /// the module's method, for errors.
    pub(super) fn of_shapes(
        batches: &[Batch],
        step: &str,
        mut record: impl FnMut(&Batch) -> Result<StepProgram>,
    ) -> Result<StepProgram> {
        let (first, others) =
            batches.split_first().ok_or_else(|| error::data("the loader has no batch shapes"))?;
        let mut program = record(first)?;
        for batch in others {
            let other = record(batch)?;
            program.signature.logs.check_same(
                &other.signature.logs,
                step,
                "length of the batch",
            )?;
            if program.signature.changes != other.signature.changes {
                return Err(Error::usage(format!(
                    "{step} changes different values of the module for batches of different lengths; it must change the \
                     same values for all lengths"
                )));
            }
            program.signature.logs.merge_checks(&other.signature.logs);
            program.functions.extend(other.functions);
        }
        let variants = batches.iter().map(|batch| shape_title(batch, batches));
        program.functions =
            program.functions.into_iter().zip(variants).map(|(f, v)| f.variant(v)).collect();
        Ok(program)
    }

    /// Distinguishes the step from others of the same name in a run; see [`Function::variant`].
    pub(super) fn variant(mut self, variant: &str) -> StepProgram {
        self.functions = self.functions.into_iter().map(|f| f.variant(variant)).collect();
        self
    }

    pub(super) fn new(step: RecordedStep<'_>, config: &StepConfig) -> Result<StepProgram> {
        let RecordedStep { name, entries, state, changes, logs, sums, key, batch, outputs } = step;
        let (changes, after): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let (outputs, given): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let [sums_before, sums_after] = sums.map(|sums| (!logs.is_empty()).then_some(sums));
        let sums = sums_before.is_some().then_some((state.len(), given.len()));
        let first_change = given.len() + usize::from(sums.is_some());
        let first_of_batch = state.len() + usize::from(sums.is_some()) + usize::from(key.is_some());
        let inputs = state
            .into_iter()
            .chain(sums_before)
            .chain(key)
            .chain(batch.inputs().cloned())
            .collect();
        let results = given.into_iter().chain(sums_after).chain(after).collect();
        let mut function =
            Function::new(name, inputs, results).matmul_precision(config.options.matmul_precision);
        for (i, entry) in entries.iter().enumerate() {
            function = function.shard_parameter(i, entry.sharding.clone());
        }
        for input in first_of_batch..function.parameters().len() {
            function = function.shard_parameter(input, Strategy::batch(&config.mesh));
        }
        for (result, id) in (first_change..).zip(&changes) {
            let sharding = entries[id.index()].sharding.clone();
            function = function.donate(id.index(), result)?.shard_result(result, sharding);
        }
        if let Some((input, result)) = sums {
            function = function.donate(input, result)?;
        }
        let signature = Signature { entries: entries.len(), changes, logs, outputs };
        Ok(StepProgram { functions: vec![function], signature })
    }

    /// The functions of the step, one for each shape of batches.
    pub(crate) fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub(crate) fn logs(&self) -> &LogLayout {
        &self.signature.logs
    }

    /// Compiles the step for each shape of the loader's batches, for a mesh. `compile` gets the title
    /// of each program.
    pub(crate) fn compile<'f>(
        &'f self,
        step: &str,
        loader: &DataLoader,
        mesh: &Mesh,
        mut compile: impl FnMut(&str, &'f Function) -> fulmen_tensor::Result<Compiled>,
    ) -> Result<CompiledStep> {
        let each = titles(step, loader).into_iter().zip(&self.functions);
        let shapes = each
            .map(|(title, function)| {
                let compiled = compile(&title, function);
                compiled.map_err(|e| out_of_memory::when_compiling(&title, function, mesh, e))
            })
            .collect::<Result<_>>()?;
        Ok(CompiledStep { shapes, signature: self.signature.clone() })
    }
}

/// The inputs of a batch whose shapes differ from those of other batches, with the shape of a
/// sample. Empty if there is only one shape.
fn shape_title(batch: &Batch, batches: &[Batch]) -> String {
    let mut parts = Vec::new();
    for (i, input) in batch.inputs().enumerate() {
        if batches.iter().any(|other| other.inputs().nth(i).map(Tensor::ty) != Some(input.ty())) {
            parts.push(format!("input {i} {:?}", &input.shape().dims()[1..]));
        }
    }
    parts.join(", ")
}

/// The titles of a step's programs, one for each of the loader's shapes. They name the fields whose
/// shape differs.
fn titles(step: &str, loader: &DataLoader) -> Vec<String> {
    let shapes = loader.shapes();
    let differs = |field: &&Field| {
        shapes.iter().flatten().any(|f| f.name == field.name && f.shape != field.shape)
    };
    let title = |fields: &Vec<Field>| {
        let parts = fields
            .iter()
            .filter(differs)
            .map(|f| format!("{} {:?}", f.name, f.shape))
            .collect::<Vec<_>>();
        if parts.is_empty() { step.to_owned() } else { format!("{step} for {}", parts.join(", ")) }
    };
    shapes.iter().map(title).collect()
}

pub(crate) struct CompiledStep {
    /// One for each shape of batches.
    shapes: Vec<Compiled>,
    signature: Signature,
}

impl CompiledStep {
    /// The programs, one for each shape of batches.
    pub(crate) fn programs(&self) -> &[Compiled] {
        &self.shapes
    }

    /// The number of programs that were compiled now, not loaded from the cache.
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

    /// The names of the results other than the state and the sums.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.signature.outputs
    }

    /// Enqueues one step on the device. Updates the state and the sums of logged values; `None`
    /// sums start from zero. Returns the other results of the step.
    pub(crate) fn call(
        &self,
        runtime: &Runtime,
        state: &mut impl StepState,
        sums: &mut Option<DeviceArray>,
        key: Option<&DeviceArray>,
        batch: &DeviceBatch,
    ) -> Result<(Vec<DeviceArray>, Completion)> {
        let Signature { entries, changes, logs, outputs } = &self.signature;
        let compiled = self.shapes.get(batch.bucket).ok_or_else(|| {
            error::data(format!(
                "the loader returned a batch of bucket {}, which it did not declare",
                batch.bucket
            ))
        })?;
        if sums.is_none() && !logs.is_empty() {
            *sums = Some(runtime.to_device(&logs.start()?)?);
        }
        let mut arguments = Vec::with_capacity(entries + batch.arrays.len() + 2);
        state.arguments(changes, &mut arguments)?;
        arguments.extend(sums.take().map(Argument::Donate));
        arguments.extend(key.map(Argument::Borrow));
        arguments.extend(batch.arrays.iter().map(Argument::Borrow));
        let results =
            compiled.call(arguments).map_err(|e| out_of_memory::when_running(compiled, e))?;
        let mut arrays = results.arrays.into_iter();
        let given = arrays.by_ref().take(outputs.len()).collect();
        *sums = if logs.is_empty() { None } else { arrays.next() };
        for (&id, array) in changes.iter().zip(arrays) {
            state.put(id, array);
        }
        Ok((given, results.completion))
    }
}
