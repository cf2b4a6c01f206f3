//! [`StepFunction`]: a function of your own inputs and the current weights of a [`TrainStep`].

use std::sync::Arc;

use fulmen_tensor::{DeviceArray, Jit, Literal, Tensor, autocast, random};

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
/// ```no_run
/// # use fulmen_nn::Linear;
/// # use fulmen_tensor::Literal;
/// # use fulmen_trainer::{Result, TrainStep};
/// # fn f<'m>(step: &TrainStep<'m>, policy: &'m Linear, mut play: impl FnMut(i64) -> Literal) -> Result<()> {
/// let mut act = step.function("act", |x| vec![policy.forward(&x[0]).argmax(-1)]);
/// let mut observation = play(0);
/// for _ in 0..1000 {
///     let action = act.call(step, &[&observation])?[0].to_vec::<i64>()?[0];
///     observation = play(action);
/// }
/// # Ok(()) }
/// ```
pub struct StepFunction<'m> {
    name: String,
    jit: Jit<'m>,
    step_identity: Arc<()>,
}

impl<'m> TrainStep<'m> {
    /// Makes a function of your own inputs and the current weights, to be called often; see
    /// [`StepFunction`]. It is recorded at its first call, in evaluation mode and with the step's
    /// precision. Messages show `name`. For a function without weights, use
    /// [`Runtime::jit`](fulmen_tensor::Runtime::jit).
    pub fn function(
        &self,
        name: &str,
        f: impl Fn(&[Tensor]) -> Vec<Tensor> + 'm,
    ) -> StepFunction<'m> {
        let module = self.module;
        let seed = self.position.seed;
        let entries: Vec<Entry> = self.state.layout().module().to_vec();
        let precision = self.config.options.precision.autocast();
        // The weights come last, so that messages number the user's inputs from 0.
        let jit = self.runtime.jit(name, move |x| {
            let (inputs, weights) = x.split_at(x.len() - entries.len());
            let _cells = Placeholders::with(module, &entries, weights);
            module.eval();
            set_random_key(module, &random::key(seed));
            autocast(precision, || f(inputs))
        });
        StepFunction { name: name.to_owned(), jit, step_identity: self.identity.clone() }
    }
}

impl StepFunction<'_> {
    /// Calls the function with these inputs and the current weights of the training step, and waits
    /// for the results.
    ///
    /// # Errors
    /// A training step other than the one that made this; a mistake in the function, reported with
    /// its line; a different number of inputs than in the first call; an error of the device.
    pub fn call(&mut self, step: &TrainStep<'_>, inputs: &[&Literal]) -> Result<Vec<Literal>> {
        if !Arc::ptr_eq(&self.step_identity, &step.identity) {
            return Err(error::of_another_step(&format!("function `{}`", self.name), "function"));
        }
        let result = self.compute(step, inputs);
        step.report_error(result)
    }

    fn compute(&mut self, step: &TrainStep<'_>, inputs: &[&Literal]) -> Result<Vec<Literal>> {
        let inputs = inputs
            .iter()
            .map(|input| step.runtime.to_device(input))
            .collect::<Result<Vec<_>, _>>()?;
        let weights = step
            .state
            .layout()
            .ids()
            .take(step.state.layout().module().len())
            .map(|id| step.state.array(id))
            .collect::<Result<Vec<_>>>()?;
        let arrays: Vec<&DeviceArray> = inputs.iter().chain(weights).collect();
        let outputs = self.jit.run(&arrays)?.arrays;
        process_group::wait_for_literals(
            step.executor.process_group(),
            step.runtime.read(&outputs.iter().collect::<Vec<_>>())?,
        )
    }

    /// The number of programs compiled: one for each combination of input types.
    pub fn programs(&self) -> usize {
        self.jit.programs()
    }
}
