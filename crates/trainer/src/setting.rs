//! [`Setting`]: all that decides how a step is recorded besides the model and its data. It holds no device, so that a
//! step can be recorded for devices that are not there.

use fulmen_data::{DataLoader, Replicas};
use fulmen_tensor::{MatmulPrecision, Mesh};

use crate::clip::Clip;
use crate::{Error, LearningRateScaling, Options, Plan, Precision, Result, Strategy, WeightAveraging, accumulate};

/// How steps are recorded: spread over which mesh, and in which precision.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) mesh: Mesh,
    pub(crate) strategy: Strategy,
    pub(crate) precision: Precision,
    pub(crate) matmul_precision: MatmulPrecision,
    pub(crate) learning_rate_scaling: LearningRateScaling,
    pub(crate) clip: Clip,
    pub(crate) log_grad_norm: bool,
    /// Batches for which the optimizer steps once.
    pub(crate) accumulate: u64,
    pub(crate) averaging: Option<WeightAveraging>,
    /// Whether a callback changes the learning rate while training runs.
    pub(crate) scales_learning_rate: bool,
    /// Who shares a batch.
    pub(crate) replicas: Replicas,
}

/// What a builder says besides its options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) averaging: Option<WeightAveraging>,
    pub(crate) scales_learning_rate: bool,
}

impl Setting {
    /// With what the options do not say.
    pub(crate) fn with(self, extras: &Extras) -> Setting {
        Setting { averaging: extras.averaging.clone(), scales_learning_rate: extras.scales_learning_rate, ..self }
    }

    /// What the options say, for a mesh whose devices these replicas are.
    pub(crate) fn new(options: &Options, mesh: Mesh, replicas: Replicas) -> Setting {
        Setting {
            mesh,
            strategy: options.strategy,
            precision: options.precision,
            matmul_precision: options.matmul_precision,
            learning_rate_scaling: options.learning_rate_scaling,
            clip: (options.gradient_clip_val > 0.0)
                .then_some((options.gradient_clip_algorithm, options.gradient_clip_val)),
            log_grad_norm: options.log_grad_norm,
            accumulate: options.accumulate_grad_batches,
            averaging: None,
            scales_learning_rate: false,
            replicas,
        }
    }

    /// A loader whose batches the devices of the mesh share; `which` names it.
    pub(crate) fn distribute(&self, loader: &DataLoader, which: &str) -> Result<DataLoader> {
        loader.distributed(self.replicas).map_err(|e| Error::usage(format!("the {which} loader: {e}")))
    }

    /// How long training is, where an epoch has so many batches.
    pub(crate) fn plan(&self, batches: u64, max_epochs: u64) -> Plan {
        let steps_per_epoch = accumulate::steps_per_epoch(batches, self.accumulate);
        Plan { steps_per_epoch, max_epochs, total_steps: steps_per_epoch.saturating_mul(max_epochs) }
    }

    /// What the learning rate is multiplied by for the number of devices.
    pub(crate) fn learning_rate_factor(&self) -> f64 {
        self.learning_rate_scaling.factor(self.replicas.devices)
    }
}
