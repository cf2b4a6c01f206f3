//! What the tensors of a training state are called: in a program, in messages and in a checkpoint. A module's tensors
//! have their own names; everything else is under `optimizer/` and `trainer/`.

use fulmen_checkpoint::OPTIMIZER;
pub(crate) use fulmen_checkpoint::{TRAINER as OWN, is_training_state};

/// Finished batches: i32.
pub(crate) const STEP: &str = "trainer/step";
/// Steps of the optimizer; of several, those of the training: i32.
pub(crate) const UPDATES: &str = "trainer/updates";
/// The prefix of the steps of parameters that were frozen at first: i32.
pub(crate) const UNFROZEN: &str = "trainer/unfrozen_updates/";
/// What the host multiplies the learning rate by, where a callback does: f32.
pub(crate) const LR_FACTOR: &str = "trainer/lr_factor";
/// The loss scale, f32, and the good steps since it changed, i32.
pub(crate) const LOSS_SCALE: [&str; 2] = ["trainer/loss_scale", "trainer/good_steps"];
/// The loss of the latest step of an optimizer that skips some: f32.
pub(crate) const LOSS: &str = "trainer/loss";
/// The real samples that the sums of gradients hold, f32.
pub(crate) const SAMPLES: &str = "trainer/accumulated_samples";
/// Groups of batches that have ended: i32.
pub(crate) const GROUPS: &str = "trainer/groups";
/// The number of the batch within its epoch, from 0: i32.
pub(crate) const BATCH: &str = "trainer/batch";
/// Epochs that have ended: i32.
pub(crate) const EPOCHS: &str = "trainer/epochs";
/// Steps that weights were averaged after: i32.
pub(crate) const AVERAGED: &str = "trainer/averaged";
/// The losses and the lengths of the gradients of the latest steps, by which spikes are told: f32.
pub(crate) const SPIKE_WINDOWS: [&str; 2] = ["trainer/spikes/losses", "trainer/spikes/grad_norms"];
/// How many of them were seen, how many steps were skipped, and the number of the last of those: i32.
pub(crate) const SPIKE_COUNTS: [&str; 3] = ["trainer/spikes/seen", "trainer/spikes/skipped", "trainer/spikes/last"];
/// The sum of the losses of the samples of a group of batches: f32.
pub(crate) const SPIKE_LOSS_SUM: &str = "trainer/spikes/loss_sum";
/// What was logged since the last log point; only in a checkpoint within an epoch.
pub(crate) const LOGS: &str = "trainer/logs";
/// The random key of a step; in no checkpoint.
pub(crate) const KEY: &str = "trainer/key";

/// The prefix of sums of gradients.
const GRADIENTS: &str = "trainer/gradients/";
/// The prefix that averages have in the state. In a file they have the module's names.
pub(crate) const AVERAGE: &str = "average/";
/// The prefix in a file of the weights that training goes on with, where averages have their names.
pub(crate) const CURRENT: &str = "trainer/current/";

/// What an optimizer remembers of a parameter: `optimizer/exp_avg/conv1.weight`.
pub(super) fn slot(slot: &str, parameter: &str) -> String {
    format!("{OPTIMIZER}{slot}/{parameter}")
}

/// What the rows of one tensor are called together: `layers.*.weight`.
pub(super) fn joined(rows: &[String]) -> String {
    let parts: Vec<Vec<&str>> = rows.iter().map(|row| row.split('.').collect()).collect();
    let part = |(i, part): (usize, &&str)| {
        if parts.iter().all(|row| row.get(i) == Some(part)) { *part } else { "*" }.to_owned()
    };
    parts.first().into_iter().flatten().enumerate().map(part).collect::<Vec<_>>().join(".")
}

/// What belongs to one of several optimizers: `trainer/updates/generator`. A single one has no name.
pub(super) fn of_optimizer(name: &str, optimizer: &str) -> String {
    if optimizer.is_empty() { name.to_owned() } else { format!("{name}/{optimizer}") }
}

/// The steps of the parameters that fit a pattern and were frozen at first.
pub(super) fn unfrozen(pattern: &str) -> String {
    format!("{UNFROZEN}{pattern}")
}

/// The parameter whose slot has this name.
pub(crate) fn parameter_of(slot: &str) -> Option<&str> {
    slot.strip_prefix(OPTIMIZER)?.split_once('/').map(|(_, parameter)| parameter)
}

/// The sum of a parameter's gradients, each times the samples of its batch.
pub(super) fn grad_sum(parameter: &str) -> String {
    format!("{GRADIENTS}{parameter}")
}

/// Whether it is the name of a sum of gradients.
pub(crate) fn is_grad_sum(name: &str) -> bool {
    name.starts_with(GRADIENTS)
}
