//! [`StepConfig`]: all settings of how a step is recorded, except the model and its data. It holds
//! no device, so a step can be recorded for devices that this machine does not have.

pub(crate) mod limits;
pub(crate) mod optimizers;
pub(crate) mod phases;

use std::ops::Deref;
use std::sync::Arc;

use fulmen_data::{DataLoader, Replicas};
use fulmen_nn::Parameter;
use fulmen_nn::auto_kernels::{AllTaken, with_auto_kernels};
use fulmen_nn::axes::AxisRules;
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{Mesh, Sharding};

use crate::approved_kernels::ApprovedKernels;
use crate::batches_per_step::BatchesPerStep;
use crate::rules::evaluated_weights::EvaluatedWeights;
use crate::rules::step_rule::StepRule;
use crate::stage::Stage;
use crate::step_config::limits::{EpochSize, Limits};
use crate::{Error, Options, Plan, Result, Strategy, error, rules};

/// A builder's settings of how steps are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    pub(crate) options: Options,
    /// The rule of the weights that are evaluated instead of the trained ones.
    pub(crate) evaluated: Option<Arc<dyn EvaluatedWeights>>,
    /// Whether a callback changes the learning rate during training.
    pub(crate) scales_learning_rate: bool,
    /// The rules of the step that callbacks add.
    pub(crate) callback_rules: Vec<Arc<dyn StepRule>>,
    /// The rules for the axes that modules name, if the strategy has sizes or the user set rules.
    pub(crate) axis_rules: Option<Arc<AxisRules>>,
    /// Whether the kernels of convolutions are stored with the output channels last.
    pub(crate) stores_output_channels_last: bool,
    /// Which kernels the methods named `auto` take.
    pub(crate) kernels: ApprovedKernels,
}

impl From<Options> for Choices {
    fn from(options: Options) -> Choices {
        let has_sizes = matches!(options.strategy, Strategy::Sizes(_));
        Choices {
            options,
            axis_rules: has_sizes.then(Arc::default),
            evaluated: None,
            scales_learning_rate: false,
            callback_rules: Vec::new(),
            stores_output_channels_last: false,
            kernels: ApprovedKernels::default(),
        }
    }
}

impl Choices {
    /// These choices for programs of this platform.
    pub(crate) fn for_platform(self, platform: &str) -> Choices {
        Choices { stores_output_channels_last: platform == Platform::Tpu.name(), ..self }
    }

    /// The configuration for a mesh, whose devices are these replicas.
    pub(crate) fn for_mesh(&self, mesh: Mesh, replicas: Replicas) -> StepConfig {
        let rules = rules::with_options(&self.options, &self.callback_rules);
        let scheduling = rules.iter().find_map(|rule| rule.scheduling());
        StepConfig {
            batches_per_step: BatchesPerStep::new(scheduling.unwrap_or_default()),
            choices: Arc::new(self.clone()),
            rules,
            mesh,
            replicas,
        }
    }
}

/// How steps are recorded, and over which mesh they are spread: the [`Choices`] and what follows
/// from them for a mesh.
#[derive(Clone, Debug)]
pub(crate) struct StepConfig {
    choices: Arc<Choices>,
    /// The rules of the step, in the order in which they are called.
    pub(crate) rules: Vec<Arc<dyn StepRule>>,
    pub(crate) batches_per_step: BatchesPerStep,
    pub(crate) mesh: Mesh,
    /// The devices that share a batch.
    pub(crate) replicas: Replicas,
}

impl Deref for StepConfig {
    type Target = Choices;

    fn deref(&self) -> &Choices {
        &self.choices
    }
}

impl StepConfig {
    /// Runs `record` with the rules for axes in force. Also returns what methods named `auto` took.
    pub(crate) fn in_force<T>(&self, record: impl FnOnce() -> T) -> (T, AllTaken) {
        // Devices that share the batch alone each compute the kernel for their part of it.
        let only_share_batch = self.replicas.devices == self.mesh.num_devices();
        let approved = if only_share_batch { self.kernels.approved() } else { Vec::new() };
        with_auto_kernels(&approved, || match &self.axis_rules {
            Some(rules) => rules.apply(&self.mesh, record),
            None => Strategy::batch_rules(&self.mesh).apply_without_constraints(&self.mesh, record),
        })
    }

    /// How a parameter is split by the rules for its axes; `None` if it has no names or there are no
    /// rules.
    ///
    /// # Errors
    /// A message, if the mesh does not divide an axis.
    pub(crate) fn sharding_by_rules(
        &self,
        parameter: &Parameter,
    ) -> Option<Result<Sharding, String>> {
        let rules = self.axis_rules.as_ref().filter(|_| self.mesh.num_devices() > 1)?;
        Some(rules.sharding(&parameter.axes()?, &parameter.ty().shape, &self.mesh))
    }

    /// The loader with its batches shared by the devices of the mesh. `which` names the loader in
    /// errors.
    fn distribute(&self, loader: &DataLoader, which: &str) -> Result<DataLoader> {
        loader
            .distributed(self.replicas)
            .map_err(|e| Error::usage(format!("the {which} loader: {e}")))
    }

    /// The training loader for the devices of the mesh, limited to the configured number of
    /// batches.
    pub(crate) fn training_loader(&self, loader: &DataLoader) -> Result<DataLoader> {
        self.options
            .limit_train_batches
            .apply(self.distribute(loader, "training")?, "limit_train_batches")
    }

    /// Like [`training_loader`](StepConfig::training_loader), for steps that do not train.
    pub(crate) fn evaluation_loader(
        &self,
        loader: &DataLoader,
        stage: Stage,
    ) -> Result<DataLoader> {
        let (option, limit) = match stage {
            Stage::Validation => ("limit_val_batches", self.options.limit_val_batches),
            Stage::Test => ("limit_test_batches", self.options.limit_test_batches),
            Stage::Prediction => ("limit_predict_batches", self.options.limit_predict_batches),
        };
        let loader = limit.apply(self.distribute(loader, stage.noun())?, option)?;
        if loader.is_endless() {
            let noun = stage.noun();
            return Err(error::option(format!(
                "{option}: the {noun} loader is endless; use a number of batches"
            )));
        }
        Ok(loader)
    }

    /// Where training ends with epochs of this size, and how long it will be.
    pub(crate) fn plan(&self, epoch: EpochSize) -> (Limits, Plan) {
        let sizes = &self.batches_per_step;
        let limits = Limits::new(&self.options, sizes, epoch);
        (limits, limits.plan(epoch.batches, sizes))
    }

    /// The factor on the learning rate for the number of devices.
    pub(crate) fn learning_rate_factor(&self) -> f64 {
        self.options.learning_rate_scaling.factor(self.replicas.devices)
    }
}

#[cfg(test)]
mod tests {
    use fulmen_nn::axes::axis_parts;

    use super::*;
    use crate::Trainer;

    #[test]
    fn a_strategy_without_sizes_tells_modules_how_samples_are_split() {
        let mesh = Mesh::new([("fsdp", 4), ("model", 2)]).unwrap();
        let choices = Choices::from(Trainer::builder().options().unwrap());
        let config = choices.for_mesh(mesh.clone(), Strategy::replicas(&mesh));
        let (parts, _) = config.in_force(|| ["batch", "heads"].map(axis_parts));
        assert_eq!(parts, [4, 1]);
    }
}
