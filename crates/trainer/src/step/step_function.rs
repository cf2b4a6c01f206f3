//! [`StepFunction`]: a function of your own inputs and the current weights of a [`TrainStep`].

use std::sync::Arc;

use fulmen_tensor::{DeviceArray, IntoTree, Jit, Literal, Tree, autocast, random};

use super::TrainStep;
use crate::process_group;
use crate::program::set_random_key;
use crate::recorder::placeholders::Placeholders;
use crate::state::Entry;
use crate::{Result, error};

/// A function of your own inputs and the weights in training, to be called often. Examples are the
/// actions of a policy in reinforcement learning, and the samples of a generator.
/// [`TrainStep::function`] makes it.
///
/// It is compiled at the first call, and again for inputs with other shapes or dtypes; other values
/// reuse the program. A note reports the first recompilation. The closure runs only while it is
/// recorded, so everything that changes must be an input. For random numbers, pass a key.
///
/// The inputs and the results are [trees](trait@Tree) of tensors, as for
/// [`Runtime::jit`](fulmen_tensor::Runtime::jit).
///
/// ```no_run
/// # use fulmen_nn::Linear;
/// # use fulmen_tensor::Tensor;
/// # use fulmen_trainer::{Result, TrainStep};
/// # fn f<'m>(step: &TrainStep<'m>, policy: &'m Linear, mut play: impl FnMut(i64) -> Tensor) -> Result<()> {
/// let mut act = step.function("act", |observation: Tensor| policy.forward(&observation).argmax(-1));
/// let mut observation = play(0);
/// for _ in 0..1000 {
///     let action = act.call(step, &observation)?.eval()?.to_vec::<i64>()?[0];
///     observation = play(action);
/// }
/// # Ok(()) }
/// ```
pub struct StepFunction<'m, Inputs, Outputs> {
    name: String,
    jit: Jit<'m, Inputs, Outputs>,
    step_identity: Arc<()>,
}

impl<'m> TrainStep<'m> {
    /// Makes a function of your own inputs and the current weights, to be called often; see
    /// [`StepFunction`]. It is recorded at its first call, in evaluation mode and with the step's
    /// precision. Messages show `name`. For a function without weights, use
    /// [`Runtime::jit`](fulmen_tensor::Runtime::jit).
    pub fn function<Inputs: Tree, Outputs: Tree>(
        &self,
        name: &str,
        f: impl Fn(Inputs) -> Outputs + 'm,
    ) -> StepFunction<'m, Inputs, Outputs> {
        let module = self.module;
        let seed = self.position.seed;
        let entries: Vec<Entry> = self.state.layout().module().to_vec();
        let precision = self.config.options.precision.autocast();
        let jit = self.runtime.jit_with_arrays(name, move |inputs, weights| {
            let _cells = Placeholders::with(module, &entries, weights);
            module.eval();
            set_random_key(module, &random::key(seed));
            autocast(precision, || f(inputs))
        });
        StepFunction { name: name.to_owned(), jit, step_identity: self.identity.clone() }
    }
}

impl<Inputs: Tree, Outputs: Tree> StepFunction<'_, Inputs, Outputs> {
    /// Calls the function with these inputs and the current weights of the training step, and waits
    /// for the results, which come to the host in one transfer. [`Tensor::eval`](fulmen_tensor::Tensor::eval) of a result only
    /// reads its value.
    ///
    /// # Errors
    /// A training step other than the one that made this; a mistake in the function, reported with
    /// its line; other tensors than in the first call, such as a list of another length; an error
    /// of the device.
    #[track_caller]
    pub fn call(
        &mut self,
        step: &TrainStep<'_>,
        inputs: impl IntoTree<Tree = Inputs>,
    ) -> Result<Outputs> {
        if !Arc::ptr_eq(&self.step_identity, &step.identity) {
            return Err(error::of_another_step(&format!("function `{}`", self.name), "function"));
        }
        let result = self.compute(step, inputs);
        step.report_error(result)
    }

    #[track_caller]
    fn compute(
        &mut self,
        step: &TrainStep<'_>,
        inputs: impl IntoTree<Tree = Inputs>,
    ) -> Result<Outputs> {
        let weights = step
            .state
            .layout()
            .ids()
            .take(step.state.layout().module().len())
            .map(|id| step.state.array(id))
            .collect::<Result<Vec<_>>>()?;
        let outputs = self.jit.call_with_arrays(inputs, &weights)?;
        let on_devices = outputs.flatten();
        let arrays: Vec<&DeviceArray> =
            on_devices.iter().filter_map(|output| output.array().map(|array| &**array)).collect();
        let values = process_group::wait_for_literals(
            step.executor.process_group(),
            step.runtime.read(&arrays)?,
        )?;
        Ok(outputs.unflatten(values.iter().map(Literal::to_tensor)))
    }

    /// The number of programs compiled: one for each combination of input types.
    pub fn programs(&self) -> usize {
        self.jit.programs()
    }
}
