//! The names of the tensors of a training state: in programs, messages and checkpoints. A module's
//! tensors have their own names; all others are under `optimizer/` and `trainer/`.

use fulmen_checkpoint::OPTIMIZER_PREFIX;
pub(crate) use fulmen_checkpoint::{TRAINER_PREFIX as OWN, is_training_state};

use crate::rules::evaluated_weights::EvaluatedWeights;
use crate::rules::step_rule::StepRule;

/// Finished batches: i32.
pub(crate) const STEP: &str = "trainer/step";
/// Steps of the optimizer: i32. With several optimizers, the steps of the training.
pub(crate) const UPDATES: &str = "trainer/updates";
/// The host's factor on the learning rate, if a callback changes it: f32.
pub(crate) const LR_FACTOR: &str = "trainer/lr_factor";
/// The latest loss of an optimizer that skips steps: f32.
pub(crate) const LOSS: &str = "trainer/loss";
/// Finished steps, if they take several batches: i32.
pub(crate) const FINISHED_STEPS: &str = "trainer/groups";
/// The index of the batch within its epoch, from 0: i32.
pub(crate) const BATCH: &str = "trainer/batch";
/// Finished epochs: i32.
pub(crate) const EPOCHS: &str = "trainer/epochs";
/// The sums logged since the last log point. Only checkpoints within an epoch have it.
pub(crate) const LOGS: &str = "trainer/logs";
/// The random key of a step. Checkpoints don't have it.
pub(crate) const KEY: &str = "trainer/key";

/// The prefix for evaluated weights in the state. In a file, they have the module's names.
pub(crate) const EVALUATED: &str = "average/";
/// In a file with evaluated weights, the prefix for the weights that training continues with.
pub(crate) const CURRENT: &str = "trainer/current/";

/// An optimizer's state for a parameter: `optimizer/exp_avg/conv1.weight`.
pub(super) fn slot(slot: &str, parameter: &str) -> String {
    format!("{OPTIMIZER_PREFIX}{slot}/{parameter}")
}

/// The name of a rule's state among the optimizer's: `lookahead.slow`.
pub(super) fn of_rule(rule: &str, slot: &str) -> String {
    format!("{rule}.{slot}")
}

/// The state of a rule itself: `optimizer/lookahead.count`, or `optimizer/lookahead.count.generator`
/// with several optimizers.
pub(super) fn own_state_of_rule(rule: &str, slot: &str, optimizer: &str) -> String {
    let name = of_rule(rule, slot);
    if optimizer.is_empty() {
        format!("{OPTIMIZER_PREFIX}{name}")
    } else {
        format!("{OPTIMIZER_PREFIX}{name}.{optimizer}")
    }
}

/// The name of a tensor that joins these rows: `layers.*.weight`.
pub(super) fn joined(rows: &[String]) -> String {
    let parts: Vec<Vec<&str>> = rows.iter().map(|row| row.split('.').collect()).collect();
    let part = |(i, part): (usize, &&str)| {
        if parts.iter().all(|row| row.get(i) == Some(part)) { *part } else { "*" }.to_owned()
    };
    parts.first().into_iter().flatten().enumerate().map(part).collect::<Vec<_>>().join(".")
}

/// A value of one of several optimizers: `trainer/updates/generator`. A single optimizer has no
/// name.
pub(super) fn of_optimizer(name: &str, optimizer: &str) -> String {
    if optimizer.is_empty() { name.to_owned() } else { format!("{name}/{optimizer}") }
}

/// The number of steps that changed evaluated weights: `trainer/averaged`.
pub(crate) fn evaluated_steps(rule: &dyn EvaluatedWeights) -> String {
    format!("{OWN}{}", rule.name())
}

/// The state of a rule of the step: `trainer/spikes/losses`.
pub(super) fn of_rule_state(rule: &dyn StepRule, slot: &str) -> String {
    format!("{OWN}{}", rule.state_name(slot))
}

/// The state of a rule of the step for a parameter: `trainer/gradients/conv1.weight`.
pub(super) fn of_rule_state_for(rule: &dyn StepRule, slot: &str, parameter: &str) -> String {
    format!("{}/{parameter}", of_rule_state(rule, slot))
}

/// The parameter that this slot belongs to.
pub(crate) fn parameter_of(slot: &str) -> Option<&str> {
    slot.strip_prefix(OPTIMIZER_PREFIX)?.split_once('/').map(|(_, parameter)| parameter)
}
