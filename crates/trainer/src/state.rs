//! The training state: every tensor that a step changes, by name, in device memory.
//!
//! While a fit runs the state owns the buffers and each step takes and returns them; before and after, a module's
//! variables hold them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmen_pjrt::Buffer;
use fulmen_tensor::{DType, Literal, Runtime, Tensor, TensorType, Variable};

use crate::{Error, Result};

/// The prefix of optimizer state in names: `optimizer/exp_avg/conv1.weight`.
pub(crate) const OPTIMIZER: &str = "optimizer/";
/// The name of the counter of finished steps.
pub(crate) const STEP: &str = "trainer/step";

/// Whether a name is none of a module's: the optimizer's or the Trainer's own.
pub(crate) fn is_of_training(name: &str) -> bool {
    name.starts_with(OPTIMIZER) || name.starts_with("trainer/")
}

/// One tensor of the state.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// The module's cell, for parameters and buffers.
    pub(crate) variable: Option<Variable>,
    /// The value before the first step, for what is no variable.
    first: Option<Tensor>,
}

impl Entry {
    /// The value that a fit starts with.
    fn value(&self) -> Tensor {
        match (&self.variable, &self.first) {
            (Some(variable), _) => variable.get(),
            (None, Some(first)) => first.clone(),
            (None, None) => Tensor::zeros(self.ty.dtype, &self.ty.shape),
        }
    }
}

/// The entries of a training state: those of the module, then the optimizer's, then the step counter.
pub(crate) fn entries(module: Vec<(String, Variable)>, optimizer: Vec<(String, Tensor)>) -> Vec<Entry> {
    let step = (STEP.to_owned(), Tensor::zeros(DType::I32, []));
    let module = module.into_iter().map(|(name, variable)| Entry {
        name,
        ty: variable.ty(),
        variable: Some(variable),
        first: None,
    });
    let further = optimizer.into_iter().chain([step]).map(|(name, first)| Entry {
        name,
        ty: first.ty().clone(),
        variable: None,
        first: Some(first),
    });
    module.chain(further).collect()
}

/// Takes the value of each name out of what a file holds.
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

/// All tensors of the state with their buffers. Dropped, it gives the module its values back.
pub(crate) struct State {
    entries: Vec<Entry>,
    buffers: Vec<Option<Buffer>>,
}

impl State {
    /// Moves the values to the device: those of a checkpoint, one an entry, or else those that the entries have, which
    /// one program computes. The module's variables are left without a value while the state lives.
    pub(crate) fn new(entries: Vec<Entry>, checkpoint: Option<Vec<Literal>>, runtime: &Runtime) -> Result<State> {
        let buffers = match checkpoint {
            Some(literals) => literals.iter().map(|l| Ok(runtime.to_device(l)?)).collect::<Result<Vec<_>>>()?,
            None => {
                let values: Vec<Tensor> = entries.iter().map(Entry::value).collect();
                let computed = runtime.compute(&values.iter().collect::<Vec<_>>());
                computed.map_err(|e| Error::doing("setting up the training state", e))?
            }
        };
        for variable in entries.iter().filter_map(|e| e.variable.as_ref()) {
            variable.set(Tensor::poison("fit", "the module is being trained; its values are back when fit returns"));
        }
        Ok(State { entries, buffers: buffers.into_iter().map(Some).collect() })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes a buffer out, to be donated.
    pub(crate) fn take_buffer(&mut self, i: usize) -> Result<Buffer> {
        self.buffers[i].take().ok_or_else(|| lost(&self.entries[i].name))
    }

    /// Puts the buffer that a step returned in its place.
    pub(crate) fn put_buffer(&mut self, i: usize, buffer: Buffer) {
        self.buffers[i] = Some(buffer);
    }

    pub(crate) fn buffer(&self, i: usize) -> Result<&Buffer> {
        self.buffers[i].as_ref().ok_or_else(|| lost(&self.entries[i].name))
    }

    /// The module's values, in the order of its variables.
    pub(crate) fn module(&self) -> Result<Vec<&Buffer>> {
        let module = self.entries.iter().take_while(|e| e.variable.is_some()).count();
        (0..module).map(|i| self.buffer(i)).collect()
    }

    /// All values on the host, by name, as one transfer.
    pub(crate) fn read(&self, runtime: &Runtime) -> Result<Vec<(String, Literal)>> {
        let buffers: Vec<&Buffer> = (0..self.entries.len()).map(|i| self.buffer(i)).collect::<Result<_>>()?;
        let literals = runtime.read(&buffers)?.wait()?;
        Ok(self.entries.iter().map(|e| e.name.clone()).zip(literals).collect())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (entry, buffer) in self.entries.iter().zip(&mut self.buffers) {
            if let Some(variable) = &entry.variable {
                variable.set(match buffer.take() {
                    Some(buffer) => Tensor::from_buffer(Arc::new(buffer)),
                    None => Tensor::poison("fit", lost(&entry.name).to_string()),
                });
            }
        }
    }
}

fn lost(name: &str) -> Error {
    Error::data(format!(
        "the value of `{name}` was lost when a step failed; load the last checkpoint or call reinitialize()"
    ))
}
