//! [`StepConfig`]: all that decides how a step is recorded besides the model and its data. It holds no device, so that a
//! step can be recorded for devices that are not there.

pub(crate) mod limits;
pub(crate) mod optimizers;
pub(crate) mod phases;
pub(crate) mod step_part;

use fulmen_data::{DataLoader, Replicas};
use fulmen_tensor::Mesh;

use crate::rules::accumulate::Accumulation;
use crate::rules::clip::Clip;
use crate::stage::Stage;
use crate::step_config::limits::{EpochSize, Limits};
use crate::step_config::step_part::StepPart;
use crate::{Error, Options, Plan, Result, WeightAveraging};

/// What a builder says of how steps are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    pub(crate) options: Options,
    pub(crate) averaging: Option<WeightAveraging>,
    /// Whether a callback changes the learning rate while training runs.
    pub(crate) scales_learning_rate: bool,
    /// What the step does for callbacks.
    pub(crate) parts: Vec<StepPart>,
}

impl From<Options> for Choices {
    fn from(options: Options) -> Choices {
        Choices { options, averaging: None, scales_learning_rate: false, parts: vec![] }
    }
}

impl Choices {
    /// For a mesh whose devices these replicas are.
    pub(crate) fn on(&self, mesh: Mesh, replicas: Replicas) -> StepConfig {
        let Choices { options, averaging, scales_learning_rate, parts } = self.clone();
        StepConfig { options, averaging, scales_learning_rate, parts, mesh, replicas }
    }
}

/// How steps are recorded: by which choices, and spread over which mesh.
#[derive(Clone, Debug)]
pub(crate) struct StepConfig {
    pub(crate) options: Options,
    pub(crate) averaging: Option<WeightAveraging>,
    pub(crate) scales_learning_rate: bool,
    pub(crate) parts: Vec<StepPart>,
    pub(crate) mesh: Mesh,
    /// Who shares a batch.
    pub(crate) replicas: Replicas,
}

impl StepConfig {
    /// What gradients are clipped to, and how.
    pub(crate) fn clip(&self) -> Clip {
        let (algorithm, value) = (self.options.gradient_clip_algorithm, self.options.gradient_clip_val);
        (value > 0.0).then_some((algorithm, value))
    }

    /// How many numbers of a step are remembered where steps out of line are skipped, and of how many steps.
    pub(crate) fn spike_windows(&self) -> Option<(usize, usize)> {
        self.parts.iter().find_map(|part| match *part {
            StepPart::SpikeGuard { window, gradients, .. } => Some((1 + usize::from(gradients), window)),
            _ => None,
        })
    }

    /// Whether the length of all gradients is logged.
    pub(crate) fn logs_grad_norm(&self) -> bool {
        let norms = |part: &StepPart| matches!(part, StepPart::Norms { gradients: true, .. });
        self.options.log_grad_norm || self.parts.iter().any(norms)
    }

    /// For how many batches the optimizer steps once.
    pub(crate) fn accumulation(&self) -> Accumulation {
        let scheduled = self.parts.iter().find_map(|part| match part {
            StepPart::Accumulation { scheduling } => Some(Accumulation::scheduled(scheduling)),
            _ => None,
        });
        scheduled.unwrap_or_else(|| Accumulation::constant(self.options.accumulate_grad_batches))
    }

    /// A loader whose batches the devices of the mesh share; `which` names it.
    fn distribute(&self, loader: &DataLoader, which: &str) -> Result<DataLoader> {
        loader.distributed(self.replicas).map_err(|e| Error::usage(format!("the {which} loader: {e}")))
    }

    /// The training loader for the devices of the mesh, with as many batches as are wanted.
    pub(crate) fn training_loader(&self, loader: &DataLoader) -> Result<DataLoader> {
        self.options.limit_train_batches.apply(self.distribute(loader, "training")?, "limit_train_batches")
    }

    /// As [`training_loader`](StepConfig::training_loader), of what does not train.
    pub(crate) fn evaluation_loader(&self, loader: &DataLoader, stage: Stage) -> Result<DataLoader> {
        let (option, limit) = match stage {
            Stage::Validation => ("limit_val_batches", self.options.limit_val_batches),
            Stage::Test => ("limit_test_batches", self.options.limit_test_batches),
            Stage::Prediction => ("limit_predict_batches", self.options.limit_predict_batches),
        };
        let loader = limit.apply(self.distribute(loader, stage.noun())?, option)?;
        if loader.is_endless() {
            let noun = stage.noun();
            return Err(Error::option(format!("{option}: the {noun} loader is endless; give a number of batches")));
        }
        Ok(loader)
    }

    /// Where training ends with such epochs, and how long it is.
    pub(crate) fn plan(&self, epoch: EpochSize) -> (Limits, Plan) {
        let accumulation = self.accumulation();
        let limits = Limits::new(&self.options, &accumulation, epoch);
        (limits, limits.plan(epoch.batches, &accumulation))
    }

    /// What the learning rate is multiplied by for the number of devices.
    pub(crate) fn learning_rate_factor(&self) -> f64 {
        self.options.learning_rate_scaling.factor(self.replicas.devices)
    }
}
