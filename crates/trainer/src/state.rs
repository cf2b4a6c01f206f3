//! The training state: every tensor that a step changes, by name, in device memory.
//!
//! While a fit runs the state owns the values and each step takes and returns them; before and after, a module's
//! variables hold them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmen_nn::optim::Optimizer;
use fulmen_tensor::{
    Argument, Compiled, DType, DeviceArray, Function, Literal, Runtime, Sharding, Tensor, TensorType, Variable,
};

use crate::averaging::{self, AVERAGE, CURRENT, WeightAveraging};
use crate::hosts::{self, Hosts};
use crate::setting::Setting;
use crate::{Error, Result, TrainingModule, accumulate, epoch, loss_scale};

/// The prefix of optimizer state in names: `optimizer/exp_avg/conv1.weight`.
pub(crate) const OPTIMIZER: &str = "optimizer/";
/// The name of the counter of finished batches.
pub(crate) const STEP: &str = "trainer/step";
/// The name of the counter of the optimizer's steps.
pub(crate) const UPDATES: &str = "trainer/updates";
/// The name of what the host multiplies the learning rate by, where a callback does.
pub(crate) const LR_FACTOR: &str = "trainer/lr_factor";

/// The prefix of what is the Trainer's own.
pub(crate) const OWN: &str = "trainer/";

/// Whether a name is none of a module's: the optimizer's or the Trainer's own.
pub(crate) fn is_of_training(name: &str) -> bool {
    name.starts_with(OPTIMIZER) || name.starts_with(OWN)
}

/// One tensor of the state.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// The module's cell, for parameters and buffers.
    pub(crate) variable: Option<Variable>,
    /// The value before the first step, for what is no variable.
    first: Option<Tensor>,
    /// The cell that the value before the first step is taken from, for an average.
    average_of: Option<Variable>,
    /// How it lies over the devices between steps.
    pub(crate) sharding: Sharding,
    /// Whether it is gathered where it is used; else it is used as it lies.
    pub(crate) gathered: bool,
    /// Whether it is a parameter that the optimizer changes.
    pub(crate) trained: bool,
}

impl Entry {
    /// The first value of what is the Trainer's own: a number, or zeros.
    pub(crate) fn first(&self) -> Result<Literal> {
        match self.first.as_ref().and_then(Tensor::literal) {
            Some(literal) => Ok(literal),
            None => Ok(Literal::from_bytes(self.ty.clone(), &vec![0; self.ty.size_in_bytes()])?),
        }
    }

    /// The value that a fit starts with.
    fn value(&self) -> Tensor {
        match (&self.variable, &self.average_of, &self.first) {
            (Some(variable), ..) => variable.get(),
            (_, Some(variable), _) => variable.get().to_dtype(self.ty.dtype),
            (_, _, Some(first)) => first.clone(),
            (None, None, None) => Tensor::zeros(self.ty.dtype, &self.ty.shape),
        }
    }
}

/// The entries of a training state: those of the module, then those of the optimizer, then the Trainer's own.
pub(crate) fn entries(module: &dyn TrainingModule, optimizer: &dyn Optimizer, setting: &Setting) -> Vec<Entry> {
    let mut entries = of_module(module, setting);
    let own = |name: String, first: Tensor, sharding: Sharding| Entry {
        name,
        ty: first.ty().clone(),
        variable: None,
        first: Some(first),
        average_of: None,
        sharding,
        gathered: false,
        trained: false,
    };
    let (mut remembered, mut sums) = (vec![], vec![]);
    let parameters = module.parameters().len();
    for (entry, (name, parameter)) in entries.iter_mut().zip(module.parameters()) {
        entry.trained = parameter.requires_grad() && optimizer.trains(&name, &parameter.ty());
        if !entry.trained {
            continue;
        }
        for (slot, first) in optimizer.state(&name, &parameter.ty()) {
            // What is remembered of each element lies where the element lies.
            let alike = parameter.sharding().filter(|_| *first.shape() == parameter.ty().shape);
            let sharding = alike.unwrap_or_else(|| setting.strategy.parameter(first.ty(), &setting.mesh));
            remembered.push(own(format!("{OPTIMIZER}{slot}/{name}"), first, sharding));
        }
        if setting.accumulate > 1 {
            sums.push(own(accumulate::buffer(&name), accumulate::first(&parameter.ty()), entry.sharding.clone()));
        }
    }
    let averages = setting.averaging.iter().flat_map(|averaging| averages(&entries, parameters, averaging));
    let averages: Vec<Entry> = averages.collect();
    entries.extend(remembered.into_iter().chain(sums).chain(averages));
    let counter = |name: &str| (name.to_owned(), Tensor::zeros(DType::I32, []));
    let mut scalars = if setting.precision.scales_loss() { loss_scale::entries() } else { vec![] };
    if setting.accumulate > 1 {
        scalars.extend(accumulate::entries());
    }
    if setting.accumulate > 1 || setting.averaging.as_ref().is_some_and(WeightAveraging::counts_epochs) {
        scalars.extend(epoch::entries());
    }
    // Also where each step is one of the optimizer's: a run may go on from one where it was not, or the other way.
    scalars.push(counter(UPDATES));
    if setting.averaging.is_some() {
        scalars.push(counter(averaging::COUNT));
    }
    if setting.scales_learning_rate {
        scalars.push((LR_FACTOR.to_owned(), Tensor::scalar(1.0f32)));
    }
    scalars.push(counter(STEP));
    entries.extend(scalars.into_iter().map(|(name, first)| own(name, first, Sharding::replicated())));
    entries
}

/// The averages of a module's values, of which the first are its parameters.
fn averages(entries: &[Entry], parameters: usize, averaging: &WeightAveraging) -> Vec<Entry> {
    let averaged = entries.iter().enumerate().filter(|(i, e)| averaging.has(&e.ty, e.trained, *i >= parameters));
    let average = |(_, entry): (usize, &Entry)| Entry {
        name: format!("{AVERAGE}{}", entry.name),
        ty: TensorType::new(accumulate::dtype(entry.ty.dtype), &entry.ty.shape),
        variable: None,
        first: None,
        average_of: entry.variable.clone(),
        sharding: entry.sharding.clone(),
        gathered: false,
        trained: false,
    };
    averaged.map(average).collect()
}

/// The entries of a module: its parameters, which lie as the user or else the strategy says, and its buffers.
pub(crate) fn of_module(module: &dyn TrainingModule, setting: &Setting) -> Vec<Entry> {
    let parameters = module.parameters().into_iter().map(|(name, parameter)| {
        let own = parameter.sharding();
        let sharding = own.clone().unwrap_or_else(|| setting.strategy.parameter(&parameter.ty(), &setting.mesh));
        // A sharding of the user's own is also how the model computes (tensor parallel).
        (name, parameter.variable(), own.is_none() && !sharding.is_replicated(), sharding)
    });
    let buffers = module.buffers().into_iter();
    let buffers = buffers.map(|(name, buffer)| (name, buffer.variable().clone(), false, Sharding::replicated()));
    let entry = |(name, variable, gathered, sharding): (String, Variable, bool, Sharding)| Entry {
        name,
        ty: variable.ty(),
        variable: Some(variable),
        first: None,
        average_of: None,
        sharding,
        gathered,
        trained: false,
    };
    parameters.chain(buffers).map(entry).collect()
}

/// Takes the value of each name out of what a file holds. A floating-point number of another width is rounded to this one.
///
/// # Errors
/// All names that are missing or have another type, so that nothing need be changed before it is known that all fits.
pub(crate) fn choose<'a>(
    names: impl IntoIterator<Item = (&'a str, &'a TensorType)>,
    tensors: &mut BTreeMap<String, Literal>,
) -> Result<Vec<Literal>> {
    let (mut chosen, mut problems) = (vec![], vec![]);
    for (name, ty) in names {
        match tensors.remove(name) {
            Some(literal) if literal.ty() == ty => chosen.push(literal),
            Some(literal) if literal.ty().shape == ty.shape && literal.ty().dtype.is_float() && ty.dtype.is_float() => {
                chosen.push(literal.to_dtype(ty.dtype)?);
            }
            Some(literal) => problems.push(format!("`{name}` is {} there and {ty} here", literal.ty())),
            None => problems.push(format!("`{name}` ({ty}) is missing")),
        }
    }
    if problems.is_empty() {
        Ok(chosen)
    } else {
        Err(Error::usage(format!("it does not fit:\n  {}", problems.join("\n  "))))
    }
}

/// The program that computes the values that entries have now, each to lie over the devices as it is to.
pub(crate) fn to_compute<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Function {
    let entries: Vec<&Entry> = entries.into_iter().collect();
    let mut function = Function::new("eval", vec![], entries.iter().map(|entry| entry.value()).collect());
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_result(i, entry.sharding.clone());
    }
    // Once a fit: with another seed it is the same program.
    function.constants_as_inputs()
}

/// Computes them. A value that lies on the host goes to each device as far as the device keeps it.
pub(crate) fn compute(runtime: &Runtime, entries: &[Entry]) -> fulmen_tensor::Result<Vec<DeviceArray>> {
    compute_with(runtime, entries, |function| runtime.compile(function))
}

/// As [`compute`], with a program that `compile` compiles.
fn compute_with(
    runtime: &Runtime,
    entries: &[Entry],
    compile: impl FnOnce(&Function) -> fulmen_tensor::Result<Compiled>,
) -> fulmen_tensor::Result<Vec<DeviceArray>> {
    let on_host: Vec<Option<Literal>> = entries.iter().map(|entry| entry.value().literal()).collect();
    let expressions = entries.iter().zip(&on_host).filter(|(_, literal)| literal.is_none()).map(|(entry, _)| entry);
    let mut computed = compile(&to_compute(expressions))?.call(vec![])?.arrays.into_iter();
    let mut arrays = Vec::with_capacity(entries.len());
    for (entry, literal) in entries.iter().zip(on_host) {
        match literal {
            Some(literal) => arrays.push(runtime.to_devices(&literal, &entry.sharding)?),
            None => arrays.extend(computed.next()),
        }
    }
    Ok(arrays)
}

/// All tensors of the state with their values. Dropped, it gives the module its values back.
pub(crate) struct State {
    entries: Vec<Entry>,
    arrays: Vec<Option<DeviceArray>>,
}

impl State {
    /// Moves the values to the devices: those of a checkpoint, one an entry, or else those that the entries have, which
    /// one program computes. The module's variables are left without a value while the state lives.
    pub(crate) fn new(
        entries: Vec<Entry>,
        checkpoint: Option<Vec<Literal>>,
        runtime: &Runtime,
        compile: impl FnOnce(&Function) -> fulmen_tensor::Result<Compiled>,
    ) -> Result<State> {
        let arrays = match checkpoint {
            Some(literals) => {
                let pairs = literals.iter().zip(&entries);
                pairs.map(|(l, e)| Ok(runtime.to_devices(l, &e.sharding)?)).collect::<Result<Vec<_>>>()?
            }
            None => {
                let computed = compute_with(runtime, &entries, compile);
                computed.map_err(|e| Error::doing("setting up the training state", e))?
            }
        };
        for variable in entries.iter().filter_map(|e| e.variable.as_ref()) {
            variable.set(Tensor::poison("fit", "the module is being trained; its values are back when fit returns"));
        }
        Ok(State { entries, arrays: arrays.into_iter().map(Some).collect() })
    }

    /// The bytes that lie in the memory of each device of this process.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        let mut bytes = vec![];
        for array in self.arrays.iter().flatten() {
            bytes.resize(array.shards().len(), 0);
            bytes.iter_mut().zip(array.shards()).for_each(|(sum, shard)| *sum += shard.size_in_bytes());
        }
        bytes
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes a value out, to be donated.
    pub(crate) fn take(&mut self, i: usize) -> Result<DeviceArray> {
        self.arrays[i].take().ok_or_else(|| lost(&self.entries[i].name))
    }

    /// Puts the value that a step returned in its place.
    pub(crate) fn put(&mut self, i: usize, array: DeviceArray) {
        self.arrays[i] = Some(array);
    }

    pub(crate) fn array(&self, i: usize) -> Result<&DeviceArray> {
        self.arrays[i].as_ref().ok_or_else(|| lost(&self.entries[i].name))
    }

    /// The values that a module is validated with, in the order of its variables: averages where there are some. Those of
    /// another dtype than the module's are converted, by the program of [`State::to_validate_with`].
    pub(crate) fn validated<'a>(&'a self, converted: &'a [DeviceArray]) -> Result<Vec<&'a DeviceArray>> {
        let mut converted = converted.iter();
        let module = self.entries.iter().take_while(|e| e.variable.is_some()).enumerate();
        let value = |(i, entry): (usize, &Entry)| match average_of(&self.entries, entry) {
            Some(average) if self.entries[average].ty == entry.ty => self.array(average),
            Some(_) => converted.next().ok_or_else(|| lost(&entry.name)),
            None => self.array(i),
        };
        module.map(value).collect()
    }

    /// The program that converts averages to the module's dtypes, with its arguments' places; none where all fit.
    pub(crate) fn to_validate_with(&self) -> Option<(Function, Vec<usize>)> {
        let misfits = self.entries.iter().take_while(|e| e.variable.is_some()).filter_map(|entry| {
            let average = average_of(&self.entries, entry)?;
            (self.entries[average].ty != entry.ty).then_some((average, entry))
        });
        let misfits: Vec<(usize, &Entry)> = misfits.collect();
        let input = |average: usize| {
            let entry = &self.entries[average];
            Tensor::placeholder(entry.name.clone(), entry.ty.clone())
        };
        let inputs: Vec<Tensor> = misfits.iter().map(|&(average, _)| input(average)).collect();
        let results = inputs.iter().zip(&misfits).map(|(input, (_, entry))| input.to_dtype(entry.ty.dtype)).collect();
        let mut function = Function::new("averages", inputs, results);
        for (i, (average, entry)) in misfits.iter().enumerate() {
            function = function.shard_parameter(i, self.entries[*average].sharding.clone());
            function = function.shard_result(i, entry.sharding.clone());
        }
        (!misfits.is_empty()).then(|| (function, misfits.into_iter().map(|(average, _)| average).collect()))
    }

    /// All values on the host, by name, as one transfer. With several processes all must call it: what is split over
    /// them is gathered first.
    pub(crate) fn read(&self, runtime: &Runtime, hosts: Option<&Arc<Hosts>>) -> Result<Vec<(String, Literal)>> {
        let arrays: Vec<&DeviceArray> = (0..self.entries.len()).map(|i| self.array(i)).collect::<Result<_>>()?;
        let literals = match hosts {
            None => runtime.read(&arrays)?.wait()?,
            Some(_) => {
                let mut literals = vec![];
                for array in arrays {
                    // One after the other, as the devices have no room for all of them whole.
                    let whole = gather(runtime, array)?;
                    let read = runtime.read(&[whole.as_ref().unwrap_or(array)])?;
                    literals.extend(hosts::arrive(hosts, read)?);
                }
                literals
            }
        };
        let name = |entry: &Entry| match entry.name.strip_prefix(AVERAGE) {
            // In a file the module's names are those of the averages.
            Some(name) if entry.average_of.is_some() => name.to_owned(),
            _ if average_of(&self.entries, entry).is_some() => format!("{CURRENT}{}", entry.name),
            _ => entry.name.clone(),
        };
        Ok(self.entries.iter().map(name).zip(literals).collect())
    }
}

/// A value whole on each device; `None` if it is.
fn gather(runtime: &Runtime, array: &DeviceArray) -> Result<Option<DeviceArray>> {
    if *array.sharding() == Sharding::replicated() {
        return Ok(None);
    }
    let whole = Tensor::placeholder("value", array.ty().clone());
    let function =
        Function::new("gather", vec![whole.clone()], vec![whole]).shard_parameter(0, array.sharding().clone());
    let outputs = runtime.compile(&function)?.call(vec![Argument::Borrow(array)])?;
    Ok(outputs.arrays.into_iter().next())
}

impl Drop for State {
    fn drop(&mut self) {
        for (i, entry) in self.entries.iter().enumerate() {
            let Some(variable) = &entry.variable else { continue };
            let array = self.arrays[average_of(&self.entries, entry).unwrap_or(i)].take();
            variable.set(match array {
                Some(array) => Tensor::from_array(Arc::new(array)).to_dtype(entry.ty.dtype),
                None => Tensor::poison("fit", lost(&entry.name).to_string()),
            });
        }
    }
}

/// The place of the average of a module's value, if it has one.
fn average_of(entries: &[Entry], entry: &Entry) -> Option<usize> {
    let variable = entry.variable.as_ref()?;
    entries.iter().position(|other| other.average_of.as_ref().is_some_and(|of| of.is(variable)))
}

fn lost(name: &str) -> Error {
    Error::data(format!(
        "the value of `{name}` was lost when a step failed; load the last checkpoint or call reinitialize()"
    ))
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{Accelerator, Devices};

    use super::*;

    #[test]
    fn a_split_value_is_gathered_on_each_device() {
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(4)).unwrap();
        let values = Literal::from_slice(&(0..24).map(|i| i as f32).collect::<Vec<_>>(), [3, 8]).unwrap();
        let split = runtime.to_devices(&values, &Sharding::new([None, Some("data")])).unwrap();
        assert_eq!(split.shards()[1].dims(), [3, 2]);
        let whole = gather(&runtime, &split).unwrap().unwrap();
        assert!(whole.shards().iter().all(|shard| shard.dims() == [3, 8]));
        assert_eq!(runtime.read(&[&whole]).unwrap().wait().unwrap()[0].bytes(), values.bytes());
        // It is still there, and what is whole is not copied.
        assert_eq!(runtime.read(&[&split]).unwrap().wait().unwrap()[0].bytes(), values.bytes());
        assert!(gather(&runtime, &whole).unwrap().is_none());
    }
}
