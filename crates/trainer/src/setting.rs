//! [`Setting`]: all that decides how a step is recorded besides the model and its data. It holds no device, so that a
//! step can be recorded for devices that are not there.

use fulmen_data::{DataLoader, Replicas};
use fulmen_tensor::{MatmulPrecision, Mesh};

use crate::{Error, LearningRateScaling, Options, Precision, Result, Strategy};

/// How steps are recorded: spread over which mesh, and in which precision.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) mesh: Mesh,
    pub(crate) strategy: Strategy,
    pub(crate) precision: Precision,
    pub(crate) matmul_precision: MatmulPrecision,
    pub(crate) learning_rate_scaling: LearningRateScaling,
    /// Who shares a batch.
    pub(crate) replicas: Replicas,
}

impl Setting {
    /// What the options say, for a mesh whose devices these replicas are.
    pub(crate) fn new(options: &Options, mesh: Mesh, replicas: Replicas) -> Setting {
        Setting {
            mesh,
            strategy: options.strategy,
            precision: options.precision,
            matmul_precision: options.matmul_precision,
            learning_rate_scaling: options.learning_rate_scaling,
            replicas,
        }
    }

    /// A loader whose batches the devices of the mesh share; `which` names it.
    pub(crate) fn distribute(&self, loader: &DataLoader, which: &str) -> Result<DataLoader> {
        loader.distributed(self.replicas).map_err(|e| Error::usage(format!("the {which} loader: {e}")))
    }

    /// What the learning rate is multiplied by.
    pub(crate) fn learning_rate_factor(&self) -> f64 {
        self.learning_rate_scaling.factor(self.replicas.devices)
    }
}
