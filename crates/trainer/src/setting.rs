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
    /// What the options say, for a mesh that one process feeds.
    pub(crate) fn new(options: &Options, mesh: Mesh) -> Setting {
        let batch = Strategy::batch(&mesh);
        let devices = batch.axes().iter().flatten().filter_map(|axis| mesh.size(axis)).product();
        let replicas = Replicas { devices, ..Replicas::default() };
        Setting {
            mesh,
            strategy: options.strategy,
            precision: options.precision,
            matmul_precision: options.matmul_precision,
            learning_rate_scaling: options.learning_rate_scaling,
            replicas,
        }
    }

    /// A loader whose batches the devices of the mesh share.
    pub(crate) fn distribute(&self, loader: &DataLoader) -> Result<DataLoader> {
        loader.distributed(self.replicas).map_err(|e| Error::usage(e.to_string()))
    }
}
