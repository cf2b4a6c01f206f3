//! [`Jit`]: a function that is compiled once for each combination of input types, and called many
//! times.

use crate::missing_values::with_eval_advice;
use crate::notes::note;
use crate::{
    Argument, Compiled, DeviceArray, Error, Function, Literal, Outputs, Result, Runtime, Sharding,
    Tensor, TensorType,
};

/// A function that is compiled once and called many times with new values, like JAX's `jit`.
/// [`Runtime::jit`] makes one.
///
/// The first call records the function with a placeholder for each input, and compiles it. A later
/// call with inputs of the same types runs that program. A call with inputs of other types compiles
/// another program and keeps it. The first time, a note says which input changed.
///
/// The closure runs only while it is recorded. A value that changes from call to call must be an
/// input. A number that the closure captures keeps its first value.
///
/// ```
/// use fulmen_tensor::{Accelerator, Devices, Literal, Runtime};
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
/// let mut scale = runtime.jit("scale", |x| vec![&x[0] * &x[1]]);
/// let x = Literal::from_slice(&[1.0f32, 2.0, 3.0], [3])?;
/// for factor in [2.0f32, 5.0, 7.0] {
///     let scaled = scale.call(&[&x, &Literal::from_slice(&[factor], [])?])?;
///     assert_eq!(scaled[0].to_vec::<f32>()?, [factor, 2.0 * factor, 3.0 * factor]);
/// }
/// assert_eq!(scale.programs(), 1);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub struct Jit<'f> {
    runtime: Runtime,
    name: String,
    record: Box<Record<'f>>,
    programs: Vec<Program>,
}

type Record<'f> = dyn Fn(&[Tensor]) -> Vec<Tensor> + 'f;

struct Program {
    /// The type and the sharding of each input.
    inputs: Vec<(TensorType, Sharding)>,
    compiled: Compiled,
}

impl Runtime {
    /// A function that is compiled at its first call; see [`Jit`]. Profiles and messages show the
    /// name.
    pub fn jit<'f>(
        &self,
        name: impl Into<String>,
        f: impl Fn(&[Tensor]) -> Vec<Tensor> + 'f,
    ) -> Jit<'f> {
        Jit { runtime: self.clone(), name: name.into(), record: Box::new(f), programs: Vec::new() }
    }
}

impl Jit<'_> {
    /// Calls the function with host values, and waits for its results, which come in one transfer.
    ///
    /// # Errors
    /// - The function has a mistake; the error has its line.
    /// - The number of inputs differs from the first call.
    /// - The compiler or the device fails.
    pub fn call(&mut self, inputs: &[&Literal]) -> Result<Vec<Literal>> {
        let arrays =
            inputs.iter().map(|input| self.runtime.to_device(input)).collect::<Result<Vec<_>>>()?;
        let outputs = self.run(&arrays.iter().collect::<Vec<_>>())?;
        self.runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()
    }

    /// Calls the function with values on the devices. The results stay on the devices, replicated.
    ///
    /// # Errors
    /// As for [`Jit::call`]. Also if a value is not on the runtime's devices.
    pub fn run(&mut self, inputs: &[&DeviceArray]) -> Result<Outputs> {
        let same = |program: &Program| {
            let types = program.inputs.iter().map(|(ty, sharding)| (ty, sharding));
            types.eq(inputs.iter().map(|input| (input.ty(), input.sharding())))
        };
        let program = match self.programs.iter().position(same) {
            Some(index) => index,
            None => self.compile(inputs)?,
        };
        self.programs[program]
            .compiled
            .call(inputs.iter().map(|&input| Argument::Borrow(input)).collect())
    }

    /// The number of compiled programs, one for each combination of input types.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Compiles a program for inputs of these types. Returns its index.
    fn compile(&mut self, inputs: &[&DeviceArray]) -> Result<usize> {
        if self.programs.first().is_some_and(|first| first.inputs.len() != inputs.len()) {
            return Err(Error::usage(format!(
                "`{}` was first called with a different number of inputs; pass the same number",
                self.name
            )));
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty().clone()).collect();
        let advice = "make it a result of the function; the call returns its value";
        let mut function = Function::trace(&self.name, &types, |x| {
            with_eval_advice("the function", advice, || (self.record)(x))
        });
        for (i, input) in inputs.iter().enumerate() {
            function = function.shard_parameter(i, input.sharding().clone());
        }
        let compiled = self.runtime.compile(&function)?;
        if let [before] = &self.programs[..] {
            note(&recompile_note(&self.name, &before.inputs, &types));
        }
        let shardings = inputs.iter().map(|input| input.sharding().clone());
        self.programs
            .push(Program { inputs: types.into_iter().zip(shardings).collect(), compiled });
        Ok(self.programs.len() - 1)
    }
}

/// A note that says why a function was compiled a second time.
fn recompile_note(name: &str, before: &[(TensorType, Sharding)], after: &[TensorType]) -> String {
    let changed =
        before.iter().zip(after).enumerate().find(|(_, (before, after))| before.0 != **after);
    let reason = match changed {
        Some((i, (before, after))) => format!("input {i} was {}, then {after}", before.0),
        None => "the sharding of an input changed".to_owned(),
    };
    format!(
        "`{name}` was compiled again: {reason}. Each combination of shapes and dtypes needs its own program, which is kept. \
         Pad the values to one shape or a few. This note is shown once for `{name}`"
    )
}
