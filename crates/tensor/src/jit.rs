//! [`Jit`]: a function that is compiled once for each combination of input types, and called many
//! times.

use std::sync::Arc;

use fulmen_durable::messages::quantity;

use crate::missing_values::{placeholder_of, with_eval_advice};
use crate::note;
use crate::scope::Scope;
use crate::tree::{label, placeholders};
use crate::{
    Argument, Compiled, DType, DeviceArray, Error, Function, IntoTree, Result, Runtime, Sharding,
    Tensor, TensorType, Tree,
};

/// A function that is compiled once and called many times with new values, like JAX's `jit`.
/// [`Runtime::jit`] makes one. Its inputs and its results are [trees](trait@Tree) of tensors.
///
/// The first call records the function with a placeholder for each input, and compiles it. A later
/// call with inputs of the same types runs that program. A call with inputs of other types compiles
/// another program and keeps it. The first time, a note says which input changed.
///
/// Within a function that is being recorded, such as a training step or another function of
/// `jit`, a call with its tensors records the closure again, as a part of that function. Gradients
/// flow through it, and a mistake in it is one in that function.
///
/// The closure runs only while it is recorded. A value that changes from call to call must be an
/// input. A number that the closure captures keeps its first value, and so does a field that does
/// not belong to the tree.
///
/// ```
/// use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor};
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
/// let mut scale = runtime.jit("scale", |(x, factor): (Tensor, Tensor)| x * factor);
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
/// for factor in [2.0f32, 5.0, 7.0] {
///     let scaled = scale.call((&x, Tensor::scalar(factor)))?;
///     assert_eq!(scaled.eval()?.to_vec::<f32>()?, [factor, 2.0 * factor, 3.0 * factor]);
/// }
/// assert_eq!(scale.programs(), 1);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub struct Jit<'f, Inputs, Outputs> {
    runtime: Runtime,
    name: String,
    record: Box<Record<'f, Inputs, Outputs>>,
    programs: Vec<Program<Outputs>>,
}

type Record<'f, Inputs, Outputs> = dyn Fn(Inputs, &[Tensor]) -> Outputs + 'f;

struct Program<Outputs> {
    /// The names of the tensors of the inputs.
    names: Vec<String>,
    /// The type and the sharding of each tensor of the inputs, and of each further array.
    inputs: Vec<(TensorType, Sharding)>,
    compiled: Compiled,
    /// A tree like that of the results.
    outputs: Outputs,
}

impl Runtime {
    /// A function that is compiled at its first call; see [`Jit`]. Profiles and messages show the
    /// name.
    pub fn jit<'f, Inputs: Tree, Outputs: Tree>(
        &self,
        name: impl Into<String>,
        f: impl Fn(Inputs) -> Outputs + 'f,
    ) -> Jit<'f, Inputs, Outputs> {
        self.jit_with_arrays(name, move |inputs, _| f(inputs))
    }

    /// [`Runtime::jit`] for a function that also takes a list of tensors:
    /// [`Jit::call_with_arrays`] passes their values.
    #[doc(hidden)]
    pub fn jit_with_arrays<'f, Inputs: Tree, Outputs: Tree>(
        &self,
        name: impl Into<String>,
        f: impl Fn(Inputs, &[Tensor]) -> Outputs + 'f,
    ) -> Jit<'f, Inputs, Outputs> {
        Jit { runtime: self.clone(), name: name.into(), record: Box::new(f), programs: Vec::new() }
    }
}

impl<Inputs: Tree, Outputs: Tree> Jit<'_, Inputs, Outputs> {
    /// Calls the function. Returns as soon as the work is queued. The results are values on the
    /// devices, replicated: another call takes them without a copy, and [`Tensor::eval`] waits for
    /// them and reads them. [`Runtime::eval_many`] reads several in one transfer.
    ///
    /// An input with a value on the host is copied to the devices. An input that is an expression
    /// is computed first, as by [`Runtime::compute`].
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor, Tree};
    ///
    /// #[derive(Clone, Tree)]
    /// struct Body {
    ///     position: Tensor,
    ///     velocity: Tensor,
    /// }
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let mut step = runtime.jit("step", |(body, time): (Body, Tensor)| Body {
    ///     position: body.position + &body.velocity * time,
    ///     velocity: body.velocity,
    /// });
    /// let mut body = Body { position: Tensor::scalar(1.0f32), velocity: Tensor::scalar(4.0f32) };
    /// for _ in 0..3 {
    ///     body = step.call((body, Tensor::scalar(0.5f32)))?;
    /// }
    /// assert_eq!(body.position.eval()?.to_vec::<f32>()?, [7.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The function has a mistake; the error has its line.
    /// - An input is poisoned.
    /// - The inputs are not the tensors of the first call, such as a list of another length.
    /// - The compiler or the device fails.
    #[track_caller]
    pub fn call(&mut self, inputs: impl IntoTree<Tree = Inputs>) -> Result<Outputs> {
        let _scope = Scope::open();
        let inputs = inputs.into_tree();
        if placeholder_of(&inputs.flatten()).is_some() {
            self.check_names(&inputs.names())?;
            return Ok(Scope::outside(|| (self.record)(inputs, &[])));
        }
        self.call_with_arrays(inputs, &[])
    }

    /// [`Jit::call`] for a function of [`Runtime::jit_with_arrays`].
    ///
    /// # Errors
    /// As for [`Jit::call`]. Also if an array is not on the runtime's devices.
    #[doc(hidden)]
    #[track_caller]
    pub fn call_with_arrays(
        &mut self,
        inputs: impl IntoTree<Tree = Inputs>,
        arrays: &[&DeviceArray],
    ) -> Result<Outputs> {
        let _scope = Scope::open();
        let inputs = inputs.into_tree();
        let names = inputs.names();
        self.check_names(&names)?;
        let values = self.runtime.to_arrays(&inputs.flatten())?;
        let arrays: Vec<&DeviceArray> =
            values.iter().map(|value| &**value).chain(arrays.iter().copied()).collect();
        let same = |program: &Program<Outputs>| {
            let types = program.inputs.iter().map(|(ty, sharding)| (ty, sharding));
            types.eq(arrays.iter().map(|array| (array.ty(), array.sharding())))
        };
        let index = match self.programs.iter().position(same) {
            Some(index) => index,
            None => self.compile(&inputs, names, &arrays)?,
        };
        let Program { compiled, outputs, .. } = &self.programs[index];
        let arguments = arrays.into_iter().map(Argument::Borrow).collect();
        let results = compiled.call(arguments)?.arrays.into_iter();
        Ok(outputs.unflatten(results.map(|array| Tensor::from_array(Arc::new(array)))))
    }

    /// The number of compiled programs, one for each combination of input types.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Checks that the inputs are the tensors of the first call.
    fn check_names(&self, names: &[String]) -> Result<()> {
        let Some(Program { names: before, .. }) = self.programs.first() else { return Ok(()) };
        if before == names {
            return Ok(());
        }
        let [before, now] = if before.len() == names.len() {
            [before, names].map(|names| format!("the inputs {}", names.join(", ")))
        } else {
            [quantity(before.len(), "tensor"), names.len().to_string()]
        };
        Err(Error::usage(format!(
            "`{}` was first called with {before}, and is now called with {now}; pass the same tensors in each call, or make \
             another function for the others",
            self.name
        )))
    }

    /// Compiles a program for inputs of these types. Returns its index.
    fn compile(
        &mut self,
        inputs: &Inputs,
        names: Vec<String>,
        arrays: &[&DeviceArray],
    ) -> Result<usize> {
        let inputs = placeholders(inputs);
        let mut parameters = inputs.flatten();
        let others: Vec<Tensor> = arrays[parameters.len()..]
            .iter()
            .enumerate()
            .map(|(i, array)| Tensor::placeholder(format!("array {i}"), array.ty().clone()))
            .collect();
        parameters.extend(others.iter().cloned());
        let advice = "make it a result of the function; the call returns its value";
        let outputs = with_eval_advice("the function", advice, || {
            Scope::outside(|| (self.record)(inputs, &others))
        });
        let mut function = Function::new(&self.name, parameters, outputs.flatten());
        for (i, array) in arrays.iter().enumerate() {
            function = function.shard_parameter(i, array.sharding().clone());
        }
        let compiled = self.runtime.compile(&function)?;
        let inputs: Vec<(TensorType, Sharding)> =
            arrays.iter().map(|array| (array.ty().clone(), array.sharding().clone())).collect();
        if let [before] = &self.programs[..] {
            note!("{}", recompile_note(&self.name, &names, &before.inputs, &inputs));
        }
        // The recorded expressions may hold large values, which are needed no more.
        let empty = Tensor::placeholder("result", TensorType::scalar(DType::F32));
        let outputs = outputs.map_tensors(&mut |_| empty.clone());
        self.programs.push(Program { names, inputs, compiled, outputs });
        Ok(self.programs.len() - 1)
    }
}

/// A note that says why a function was compiled a second time.
fn recompile_note(
    name: &str,
    names: &[String],
    before: &[(TensorType, Sharding)],
    after: &[(TensorType, Sharding)],
) -> String {
    let changed =
        before.iter().zip(after).zip(names).find(|((before, after), _)| before.0 != after.0);
    let reason = match changed {
        Some(((before, after), input)) => {
            format!("{} was {}, then {}", label("input", input), before.0, after.0)
        }
        None => "the sharding of an input changed".to_owned(),
    };
    format!(
        "`{name}` was compiled again: {reason}. Each combination of shapes and dtypes needs its own program, which is kept. \
         Pad the values to one shape or a few. This note is shown once for `{name}`"
    )
}
