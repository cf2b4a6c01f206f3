//! [`Phases`]: the parts of a fit that differ in which parameters are trained. Each phase has its
//! own training step over the same state. All phase boundaries are known before the first step.

use std::sync::Arc;

use fulmen_nn::optim::pattern::{check_pattern, matches_pattern};
use fulmen_nn::optim::{Optimizer as _, Step};
use fulmen_nn::{Module, TrainingMode, Visit, Visitor};
use fulmen_tensor::Tensor;

use crate::position::BatchPosition;
use crate::rules::epoch::to_counter;
use crate::rules::step_rule::{FrozenParameters, StepRule};
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Optimizers;
use crate::{Error, Plan, Result, TrainDuration};

/// The parameters that are frozen at first, and when they are trained.
#[derive(Clone, Debug)]
pub(crate) struct Phases {
    frozen_parts: Vec<FrozenPart>,
    /// The start of each phase, in order. The first is the start of the fit.
    starts: Vec<BatchPosition>,
}

/// Parameters that are frozen at first.
#[derive(Clone, Debug)]
pub(crate) struct FrozenPart {
    pub(crate) pattern: String,
    pub(crate) rule: Arc<dyn StepRule>,
    start: BatchPosition,
    parameters: Vec<String>,
    /// The batch norm layers with frozen parameters, if batch norm is frozen too.
    batch_norms: Vec<String>,
}

impl FrozenPart {
    /// The parameters of a module that a rule freezes. `position` gives the place of a step.
    ///
    /// # Errors
    /// A pattern that matches no parameter; an end that is not in epochs or steps.
    fn new(
        rule: &Arc<dyn StepRule>,
        frozen: FrozenParameters,
        module: &dyn Module,
        position: impl Fn(u64) -> BatchPosition,
    ) -> Result<FrozenPart> {
        let FrozenParameters { pattern, until, freezes_batch_norms } = frozen;
        let start = match until {
            TrainDuration::Epochs(epoch) => BatchPosition { epoch, batch: 0 },
            TrainDuration::Steps(steps) => position(steps),
            _ => {
                return Err(wrong(
                    &**rule,
                    format!(
                        "`{pattern}` is unfrozen after epochs (2ep) or steps (500ba), not after {until}"
                    ),
                ));
            }
        };
        let mut parameters: Vec<String> =
            module.parameters().into_iter().map(|(name, _)| name).collect();
        if let Some(why) = check_pattern(&pattern, parameters.iter().map(String::as_str)) {
            return Err(wrong(&**rule, why));
        }
        let mut batch_norms = Vec::new();
        for (name, _) in module.buffers() {
            let layer = name.strip_suffix("running_mean").map(|name| name.trim_end_matches('.'));
            batch_norms.extend(layer.map(str::to_owned));
        }
        let is_of_batch_norm =
            |name: &str| batch_norms.iter().any(|layer| belongs_to_layer(name, layer));
        parameters.retain(|name| {
            matches_pattern(&pattern, name) && (freezes_batch_norms || !is_of_batch_norm(name))
        });
        batch_norms.retain(|layer| parameters.iter().any(|name| belongs_to_layer(name, layer)));
        Ok(FrozenPart { pattern, rule: rule.clone(), start, parameters, batch_norms })
    }
}

impl Phases {
    /// The phases of a fit whose epochs have `batches` batches.
    ///
    /// # Errors
    /// A pattern that matches no parameter; an optimizer with nothing to train in a phase.
    pub(crate) fn new(
        module: &dyn Module,
        optimizers: &Optimizers,
        config: &StepConfig,
        plan: &Plan,
        batches: u64,
    ) -> Result<Phases> {
        let sizes = &config.batches_per_step;
        let position = |steps| sizes.position(steps, batches);
        let mut frozen_parts: Vec<FrozenPart> = Vec::new();
        for rule in &config.rules {
            let Some(frozen) = rule.frozen() else { continue };
            let is_double = frozen_parts.iter().any(|earlier| earlier.pattern == frozen.pattern);
            let part = FrozenPart::new(rule, frozen, module, position)?;
            if is_double {
                let message = format!("there are two for `{}`; keep one", part.pattern);
                return Err(wrong(&**rule, message));
            }
            // If two patterns match a parameter, the later one applies.
            for earlier in &mut frozen_parts {
                earlier.parameters.retain(|name| !part.parameters.contains(name));
                earlier.batch_norms.retain(|layer| !part.batch_norms.contains(layer));
            }
            frozen_parts.push(part);
        }
        // Phases after the end of the run never begin.
        let end = position(plan.total_steps);
        let non_empty = frozen_parts.iter().filter(|part| !part.parameters.is_empty());
        let mut starts: Vec<BatchPosition> =
            non_empty.map(|part| part.start).filter(|start| *start < end).collect();
        starts.push(BatchPosition::default());
        starts.sort_unstable();
        starts.dedup();
        let phases = Phases { frozen_parts, starts };
        phases.check_optimizers(module, optimizers)?;
        Ok(phases)
    }

    /// Checks that each optimizer has something to train in the first phase, which trains the
    /// fewest parameters.
    fn check_optimizers(&self, module: &dyn Module, optimizers: &Optimizers) -> Result<()> {
        let parameters = module.parameters();
        for (i, member) in optimizers.members().iter().enumerate() {
            let mut own = parameters
                .iter()
                .filter(|(name, parameter)| {
                    parameter.requires_grad()
                        && optimizers.optimizer_of(name) == Some(i)
                        && optimizers.trains(name, &parameter.ty())
                })
                .peekable();
            let is_frozen =
                |name: &str| self.frozen_part_of(name).is_some_and(|part| self.is_frozen(part, 0));
            if own.peek().is_some() && own.all(|(name, _)| is_frozen(name)) {
                let owner = if member.name.is_empty() {
                    String::new()
                } else {
                    format!(" of the optimizer `{}`", member.name)
                };
                let patterns: Vec<_> =
                    self.frozen_parts.iter().map(|part| format!("`{}`", part.pattern)).collect();
                return Err(wrong(
                    &*self.frozen_parts[0].rule,
                    format!(
                        "all parameters{owner} are frozen at first by {}; leave some to train, such as a head",
                        patterns.join(", ")
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The number of phases.
    pub(crate) fn count(&self) -> usize {
        self.starts.len()
    }

    /// The phase of the next batch after this position.
    pub(crate) fn phase_of(&self, position: BatchPosition) -> usize {
        self.starts.iter().rposition(|start| *start <= position).unwrap_or(0)
    }

    /// The starts of the last `count` phases.
    pub(crate) fn last_starts(&self, count: usize) -> &[BatchPosition] {
        &self.starts[self.starts.len().saturating_sub(count)..]
    }

    /// The name of a phase's training step in messages, which count from 1.
    pub(crate) fn title(&self, phase: usize) -> String {
        match self.starts[phase] {
            BatchPosition { epoch: 0, batch: 0 } => "training step".into(),
            BatchPosition { epoch, batch: 0 } => {
                format!("training step from epoch {} on", epoch + 1)
            }
            BatchPosition { epoch, batch } => {
                format!("training step from epoch {}, batch {} on", epoch + 1, batch + 1)
            }
        }
    }

    pub(crate) fn frozen_parts(&self) -> &[FrozenPart] {
        &self.frozen_parts
    }

    /// The index of the frozen part that has a parameter.
    pub(crate) fn frozen_part_of(&self, parameter: &str) -> Option<usize> {
        self.frozen_parts
            .iter()
            .position(|frozen_part| frozen_part.parameters.iter().any(|name| name == parameter))
    }

    /// Whether the parameters of a frozen part are still frozen in a phase.
    pub(crate) fn is_frozen(&self, frozen_part: usize, phase: usize) -> bool {
        self.frozen_parts[frozen_part].start > self.starts[phase]
    }

    /// Lets the batch norm layers that are frozen in a phase use their running statistics.
    pub(crate) fn freeze_batch_norms(&self, phase: usize, module: &dyn Module) {
        let frozen =
            (0..self.frozen_parts.len()).filter(|&frozen_part| self.is_frozen(frozen_part, phase));
        let layers: Vec<&str> = frozen
            .flat_map(|frozen_part| &self.frozen_parts[frozen_part].batch_norms)
            .map(String::as_str)
            .collect();
        if !layers.is_empty() {
            module.visit(&mut Visit::new(&mut EvalModeSetter(layers)));
        }
    }
}

impl FrozenPart {
    /// The optimizer step of the parameters once they are trained. `updates` counts their earlier
    /// steps, and `epoch` is the number of the epoch.
    pub(crate) fn step(&self, step: &Step, updates: &Tensor, epoch: &Tensor) -> Step {
        let epochs = epoch - to_counter(self.start.epoch);
        self.rule.unfrozen_step(step.of_parameter(updates), &epochs)
    }
}

fn wrong(rule: &dyn StepRule, why: String) -> Error {
    Error::usage(format!("{}: {why}", rule.name()))
}

/// Whether a name belongs to a layer or to something inside it.
fn belongs_to_layer(name: &str, layer: &str) -> bool {
    layer.is_empty()
        || name.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Puts layers in evaluation mode.
struct EvalModeSetter<'a>(Vec<&'a str>);

impl Visitor for EvalModeSetter<'_> {
    fn mode(&mut self, name: &str, mode: &TrainingMode) {
        if self.0.iter().any(|layer| belongs_to_layer(name, layer)) {
            mode.set_training(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fulmen_data::{DataLoader, TensorDataset};
    use fulmen_nn::Linear;
    use fulmen_nn::optim::{Adam, Optimizer};
    use fulmen_tensor::Mesh;

    use super::*;
    use crate::callbacks::BackboneFinetuning;
    use crate::state::StateLayout;
    use crate::step_config::Choices;
    use crate::{Batch, Callback, StepContext, Strategy, Trainer, TrainingModule, program};

    #[derive(Module)]
    struct Two {
        body: Linear,
        head: Linear,
    }

    impl TrainingModule for Two {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            self.head.forward(self.body.forward(batch.get("x")).tanh()).pow(2.0).mean_all()
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(Adam::new(0.1))
        }
    }

    #[test]
    fn nothing_is_computed_or_written_for_frozen_parameters() {
        let module = Two { body: Linear::new(4, 4), head: Linear::new(4, 2) };
        let data = TensorDataset::builder().array("x", [8, 4], vec![0.5f32; 32]).build().unwrap();
        let batch =
            Batch::of_size(&DataLoader::builder(data).batch_size(8).build().unwrap(), 8, None);
        let mesh = Mesh::new([("data", 1)]).unwrap();
        let replicas = Strategy::replicas(&mesh);
        let mut choices = Choices::from(Trainer::builder().options().unwrap());
        choices
            .callback_rules
            .extend(BackboneFinetuning::new("body.*", TrainDuration::Steps(3)).step_rule());
        let config = choices.for_mesh(mesh, replicas);
        let plan = Plan { steps_per_epoch: 2, max_epochs: 3, total_steps: 6 };
        let optimizers = Arc::new(Optimizers::from_module(module.configure_optimizers(&plan)));
        let phases = Phases::new(&module, &optimizers, &config, &plan, 2).unwrap();
        let position = |epoch: u64, batch: u64| BatchPosition { epoch, batch };
        assert_eq!(phases.starts, [position(0, 0), position(1, 1)]);
        assert_eq!(
            [(0, 2), (1, 0), (1, 1), (2, 0)]
                .map(|(epoch, batch)| phases.phase_of(position(epoch, batch))),
            [0, 0, 1, 1]
        );
        assert_eq!(phases.title(1), "training step from epoch 2, batch 2 on");
        let layout = Arc::new(StateLayout::new(&module, &optimizers, &config, phases, &[]));
        let program =
            program::record_train_step(&module, &optimizers, &[batch], 2, &layout, &config, 0)
                .unwrap();
        let counts = |count: fn(&fulmen_tensor::Function) -> usize| {
            program.steps.iter().map(|step| count(&step.functions()[0])).collect::<Vec<_>>()
        };
        let products = |function: &fulmen_tensor::Function| {
            let recorded = function.recorded().unwrap();
            recorded.iter().filter(|value| value.operation == Some("dot_general")).count()
        };
        // Matrix products for gradients: one per weight, and one through the head.
        assert_eq!(counts(products), [1, 3]);
        // The weight and the bias of the body, two moments of each, and the count of their steps.
        let results = counts(|function| function.results().len());
        assert_eq!(results[1] - results[0], 2 * 3 + 1);
    }
}
