//! The training state: every tensor that a step changes, by name, in device memory.
//!
//! While a fit runs the state owns the buffers and each step takes and returns them; before and after, a module's
//! variables hold them.

use std::sync::Arc;

use fulmen_pjrt::Buffer;
use fulmen_tensor::{DType, Literal, Runtime, Tensor, TensorType, Variable};

use crate::{Error, Result};

/// The prefix of optimizer state in names: `optimizer/exp_avg/conv1.weight`.
pub(crate) const OPTIMIZER: &str = "optimizer/";
/// The name of the counter of finished steps.
pub(crate) const STEP: &str = "trainer/step";

/// One tensor of the state.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// The module's cell, for parameters and buffers.
    pub(crate) variable: Option<Variable>,
    buffer: Option<Buffer>,
}

/// All tensors of the state, the module's first.
pub(crate) struct State {
    entries: Vec<Entry>,
}

impl State {
    /// Moves a module's values to the device, and with them further tensors (optimizer state, the step counter), all
    /// computed by one program. The module's variables are left without a value until [`State::release`].
    pub(crate) fn take(
        module: &[(String, Variable)],
        further: Vec<(String, Tensor)>,
        runtime: &Runtime,
    ) -> Result<State> {
        let values: Vec<Tensor> = module.iter().map(|(_, v)| v.get()).collect();
        let further_values: Vec<Tensor> = further.iter().map(|(_, t)| t.clone()).collect();
        let all: Vec<&Tensor> = values.iter().chain(&further_values).collect();
        let buffers = runtime.compute(&all).map_err(|e| Error::doing("setting up the training state", e))?;
        for (_, variable) in module {
            variable.set(Tensor::poison("fit", "the module is being trained; its values are back when fit returns"));
        }
        let names = module.iter().map(|(name, v)| (name.clone(), Some(v.clone())));
        let entries = names
            .chain(further.into_iter().map(|(name, _)| (name, None)))
            .zip(all.iter().map(|t| t.ty().clone()))
            .zip(buffers)
            .map(|(((name, variable), ty), buffer)| Entry { name, ty, variable, buffer: Some(buffer) })
            .collect();
        Ok(State { entries })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes a buffer out, to be donated.
    pub(crate) fn take_buffer(&mut self, i: usize) -> Result<Buffer> {
        let entry = &mut self.entries[i];
        entry.buffer.take().ok_or_else(|| lost(&entry.name))
    }

    /// Puts the buffer that a step returned in its place.
    pub(crate) fn put_buffer(&mut self, i: usize, buffer: Buffer) {
        self.entries[i].buffer = Some(buffer);
    }

    pub(crate) fn buffer(&self, i: usize) -> Result<&Buffer> {
        self.entries[i].buffer.as_ref().ok_or_else(|| lost(&self.entries[i].name))
    }

    /// Replaces the values of entries by those of a checkpoint, which must have them all.
    pub(crate) fn load(&mut self, runtime: &Runtime, mut find: impl FnMut(&str) -> Option<Literal>) -> Result<()> {
        let mut problems = vec![];
        for entry in &mut self.entries {
            match find(&entry.name) {
                Some(literal) if *literal.ty() == entry.ty => {
                    entry.buffer = Some(runtime.to_device(&literal)?);
                }
                Some(literal) => {
                    problems.push(format!("`{}` is {} there and {} here", entry.name, literal.ty(), entry.ty));
                }
                None => problems.push(format!("`{}` ({}) is missing", entry.name, entry.ty)),
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::usage(format!("it does not fit this module and optimizer:\n  {}", problems.join("\n  "))))
        }
    }

    /// All values on the host, by name, as one transfer.
    pub(crate) fn read(&self, runtime: &Runtime) -> Result<Vec<(String, Literal)>> {
        let buffers: Vec<&Buffer> = (0..self.entries.len()).map(|i| self.buffer(i)).collect::<Result<_>>()?;
        let literals = runtime.read(&buffers)?.wait()?;
        Ok(self.entries.iter().map(|e| e.name.clone()).zip(literals).collect())
    }

    /// Gives the module its values back.
    pub(crate) fn release(self) {
        for entry in self.entries {
            if let Some(variable) = entry.variable {
                variable.set(match entry.buffer {
                    Some(buffer) => Tensor::from_buffer(Arc::new(buffer)),
                    None => Tensor::poison("fit", lost(&entry.name).to_string()),
                });
            }
        }
    }
}

fn lost(name: &str) -> Error {
    Error::usage(format!(
        "the value of `{name}` was lost when a training step failed; load the last checkpoint or call initialize()"
    ))
}

/// The counter of finished steps before the first.
pub(crate) fn first_step() -> Tensor {
    Tensor::zeros(DType::I32, [])
}
