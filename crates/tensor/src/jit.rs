//! [`Jit`]: a function that is called often with new values, compiled once for each combination of types.

use crate::notes::note;
use crate::{
    Argument, Compiled, DeviceArray, Error, Function, Literal, Outputs, Result, Runtime, Sharding, Tensor, TensorType,
    recording,
};

/// A function that is called often with new values: JAX's `jit`.
///
/// The first call records the function, with a placeholder for each input, and compiles it. A later call with inputs of
/// the same types runs that program. Inputs of other types are another program, which is compiled at that call and then
/// kept as well; the first time, a note says which input has changed. [`Runtime::jit`] makes one.
///
/// The function itself runs only when it is recorded. What shall change from call to call must be an input: a number that
/// the closure captures remains what it was.
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
    /// A function that is compiled when it is first called; see [`Jit`]. The name shows in profiles and messages.
    pub fn jit<'f>(&self, name: impl Into<String>, f: impl Fn(&[Tensor]) -> Vec<Tensor> + 'f) -> Jit<'f> {
        Jit { runtime: self.clone(), name: name.into(), record: Box::new(f), programs: vec![] }
    }
}

impl Jit<'_> {
    /// Calls the function with values of the host and waits for its results: one transfer.
    ///
    /// # Errors
    /// A mistake in the function, with its line; another number of inputs than in the first call; whatever the compiler or
    /// the device reports.
    pub fn call(&mut self, inputs: &[&Literal]) -> Result<Vec<Literal>> {
        let arrays = inputs.iter().map(|input| self.runtime.to_device(input)).collect::<Result<Vec<_>>>()?;
        let outputs = self.run(&arrays.iter().collect::<Vec<_>>())?;
        self.runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()
    }

    /// Calls the function with values on the devices. Its results stay there. Each device has the whole of each
    /// result.
    ///
    /// # Errors
    /// Those of [`Jit::call`]; values of other devices than the runtime's.
    pub fn run(&mut self, inputs: &[&DeviceArray]) -> Result<Outputs> {
        let same = |program: &Program| {
            let types = program.inputs.iter().map(|(ty, sharding)| (ty, sharding));
            types.eq(inputs.iter().map(|input| (input.ty(), input.sharding())))
        };
        let program = match self.programs.iter().position(same) {
            Some(known) => known,
            None => self.compile(inputs)?,
        };
        self.programs[program].compiled.call(inputs.iter().map(|&input| Argument::Borrow(input)).collect())
    }

    /// How many combinations of types the function was compiled for.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Compiles the program for such inputs, and gives its number.
    fn compile(&mut self, inputs: &[&DeviceArray]) -> Result<usize> {
        if self.programs.first().is_some_and(|first| first.inputs.len() != inputs.len()) {
            let name = &self.name;
            return Err(Error::usage(format!(
                "`{name}` was first called with another number of inputs; give it as many"
            )));
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty().clone()).collect();
        let advice = "make it a result of the function, whose values the call gives";
        let mut function =
            Function::trace(&self.name, &types, |x| recording("the function", advice, || (self.record)(x)));
        for (i, input) in inputs.iter().enumerate() {
            function = function.shard_parameter(i, input.sharding().clone());
        }
        let compiled = self.runtime.compile(&function)?;
        if let [before] = &self.programs[..] {
            note(&again(&self.name, &before.inputs, &types));
        }
        let shardings = inputs.iter().map(|input| input.sharding().clone());
        self.programs.push(Program { inputs: types.into_iter().zip(shardings).collect(), compiled });
        Ok(self.programs.len() - 1)
    }
}

/// Why a function was compiled a second time.
fn again(name: &str, before: &[(TensorType, Sharding)], now: &[TensorType]) -> String {
    let changed = before.iter().zip(now).enumerate().find(|(_, (before, now))| before.0 != **now);
    let why = match changed {
        Some((i, (before, now))) => format!("input {i} was {}, then {now}", before.0),
        None => "its inputs have another sharding".to_owned(),
    };
    format!(
        "`{name}` was compiled again: {why}. Each combination of shapes and dtypes is a program of its own, which is \
         kept; give the values one shape or a few, by padding. Further programs of `{name}` are not told of"
    )
}
