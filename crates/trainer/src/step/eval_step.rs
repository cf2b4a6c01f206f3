//! [`EvalStep`]: a module's `validation_step`, run with the weights of a [`TrainStep`].

use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_tensor::DeviceArray;

use super::TrainStep;
use super::train_step::WeightConversion;
use crate::evaluation::{Evaluation, EvaluationResult, evaluation_point};
use crate::process_group;
use crate::program;
use crate::stage::Stage;
use crate::{BatchLimit, LogPoint, Result, error};

/// A module's `validation_step`, compiled, with its loader. [`TrainStep::eval_step`] makes it.
///
/// ```no_run
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      train: &fulmen_data::DataLoader, validation: &fulmen_data::DataLoader) -> fulmen_trainer::Result<()> {
/// let mut step = trainer.train_step(module, train)?;
/// let validation = step.eval_step(validation)?;
/// for batch in step.batches() {
///     let progress = step.run(&batch?)?;
///     if progress.global_step % 500 == 0 {
///         println!("{}", validation.run(&step)?);
///     }
/// }
/// # Ok(()) }
/// ```
pub struct EvalStep {
    evaluation: Evaluation,
    conversion: Option<WeightConversion>,
    step_identity: Arc<()>,
}

impl TrainStep<'_> {
    /// Compiles the module's `validation_step`, to run it with the weights of this training step at
    /// any time; see [`EvalStep`].
    ///
    /// # Errors
    /// A mistake in the step, reported with its line; a step that logs nothing; a loader whose
    /// batches the devices cannot share.
    pub fn eval_step(&self, loader: &DataLoader) -> Result<EvalStep> {
        let result = EvalStep::new(self, loader);
        self.report_error(result)
    }
}

impl EvalStep {
    fn new(step: &TrainStep<'_>, loader: &DataLoader) -> Result<EvalStep> {
        let stage = Stage::Validation;
        let runtime = &step.runtime;
        let loader = step.config.evaluation_loader(loader, stage)?;
        let entries = step.state.layout().module();
        let program = program::record_eval_step(
            step.module,
            stage,
            "",
            &loader,
            entries,
            &step.config,
            step.position.seed,
        )?;
        if program.logs().is_empty() {
            return Err(error::nothing_logged(stage.step()));
        }
        step.check_consistent("eval_step", |facts| {
            process_group::add_program(facts, "eval_step", program.functions(), &loader, runtime)
        })?;
        let compile = |_: &str, function| runtime.compile(function);
        let compiled = program.compile("validation step", &loader, runtime.mesh(), compile)?;
        let conversion = match step.state.layout().to_validate_with() {
            Some((function, entries)) => {
                Some(WeightConversion { program: runtime.compile(&function)?, entries })
            }
            None => None,
        };
        let evaluation = Evaluation { stage, dataset: String::new(), step: compiled, loader };
        Ok(EvalStep { evaluation, conversion, step_identity: step.identity.clone() })
    }

    /// Runs the step over all batches of its loader and waits for the logged values. It uses the
    /// current weights of the training step, or their averages if the Trainer averages weights.
    ///
    /// # Errors
    /// A training step other than the one that made this; a sample that cannot be read; an error of
    /// the device.
    pub fn run(&self, step: &TrainStep<'_>) -> Result<LogPoint> {
        if !Arc::ptr_eq(&self.step_identity, &step.identity) {
            return Err(error::of_another_step("eval step", "eval_step"));
        }
        let result = self.evaluate(step);
        step.report_error(result)
    }

    fn evaluate(&self, step: &TrainStep<'_>) -> Result<LogPoint> {
        let evaluation = &self.evaluation;
        let runtime = &step.runtime;
        let process_group = step.executor.process_group();
        let pass = |weights: &[&DeviceArray]| {
            evaluation.run(runtime, process_group, weights, BatchLimit::ALL, |_| Ok(None))
        };
        let EvaluationResult::Logged(logged) = step.with_weights(self.conversion.as_ref(), pass)?
        else {
            return Err(error::data("the evaluation ended before its last batch"));
        };
        let literals = process_group::wait_for_literals(
            process_group,
            runtime.read(&logged.iter().collect::<Vec<_>>())?,
        )?;
        evaluation_point([evaluation], &literals, step.position.step())
    }

    /// How many times the step was compiled: once for each shape of batches, or never if the
    /// programs were cached.
    pub fn compilations(&self) -> u64 {
        self.evaluation.step.compilations()
    }
}
