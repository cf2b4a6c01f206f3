//! [`Strategy`]: how training is spread over devices, as a sharding for each tensor of the step.
//!
//! No collective is written here or anywhere: shardings are annotations on one program, and XLA puts in what they need.

use fulmen_data::Replicas;
use fulmen_tensor::{Mesh, Sharding, TensorType};

use crate::options::named::named;

/// The mesh axes that a batch is split over, where the mesh has them.
const BATCH_AXES: [&str; 2] = ["data", "fsdp"];

/// How training is spread over devices. On one device all are the same.
///
/// ```
/// use fulmen_trainer::Strategy;
/// assert_eq!("fsdp".parse::<Strategy>()?, Strategy::Fsdp);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Each device has all parameters and its part of the batch (distributed data parallel).
    #[default]
    Ddp,
    /// Parameters, gradients and optimizer state are split over the devices too, and gathered where they are used (fully
    /// sharded data parallel).
    Fsdp,
    /// As [`Ddp`](Strategy::Ddp); a fit ends with [`Trainer::metrics_report`](crate::Trainer::metrics_report) on standard
    /// error.
    Debug,
}

/// The first of each is its name; the others are Lightning's.
const NAMES: [(&str, Strategy); 9] = [
    ("ddp", Strategy::Ddp),
    ("fsdp", Strategy::Fsdp),
    ("debug", Strategy::Debug),
    ("auto", Strategy::Ddp),
    ("xla", Strategy::Ddp),
    ("tpu_spawn", Strategy::Ddp),
    ("xla_fsdp", Strategy::Fsdp),
    ("xla_debug", Strategy::Debug),
    ("tpu_spawn_debug", Strategy::Debug),
];

impl Strategy {
    /// How a batch is split: its rows over `data`, and over `fsdp` if the mesh has such an axis.
    pub(crate) fn batch(mesh: &Mesh) -> Sharding {
        let axes = mesh.axes().iter().map(|axis| axis.0.as_str());
        Sharding::over([axes.filter(|axis| BATCH_AXES.contains(axis)).collect()])
    }

    /// The devices of a mesh that share a batch, where one process feeds them all.
    pub(crate) fn replicas(mesh: &Mesh) -> Replicas {
        let batch = Strategy::batch(mesh);
        let devices = batch.axes().iter().flatten().filter_map(|axis| mesh.size(axis)).product();
        Replicas { devices, ..Replicas::default() }
    }

    /// How a trained tensor of this type is sharded while it is not used: under FSDP split along its largest axis that the
    /// devices divide, over the mesh axis `fsdp`, or `data` where there is none such; else whole.
    pub(crate) fn parameter(self, ty: &TensorType, mesh: &Mesh) -> Sharding {
        let axis = if mesh.size("fsdp").is_some() { "fsdp" } else { "data" };
        let Some(parts) = mesh.size(axis).filter(|&parts| self == Strategy::Fsdp && parts > 1) else {
            return Sharding::replicated();
        };
        let dims = ty.shape.dims();
        let fits = (0..dims.len()).filter(|&i| dims[i] > 0 && dims[i].is_multiple_of(parts));
        // The first of the largest.
        match fits.max_by_key(|&i| (dims[i], std::cmp::Reverse(i))) {
            Some(largest) => Sharding::new((0..=largest).map(|i| (i == largest).then_some(axis))),
            None => Sharding::replicated(),
        }
    }
}

named!(Strategy, "strategy");

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    #[test]
    fn fsdp_splits_the_largest_axis_that_the_devices_divide() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let lies = |dims: &[usize]| Strategy::Fsdp.parameter(&TensorType::new(DType::F32, dims), &mesh).to_string();
        assert_eq!(lies(&[512, 784]), "[-, data]");
        assert_eq!(lies(&[16, 16]), "[data]");
        assert_eq!(lies(&[10, 256]), "[-, data]");
        assert_eq!(lies(&[10]), "[]");
        assert_eq!(lies(&[]), "[]");
        let both = Mesh::new([("data", 2), ("fsdp", 4)]).unwrap();
        assert_eq!(Strategy::Fsdp.parameter(&TensorType::new(DType::F32, [6, 4]), &both).to_string(), "[-, fsdp]");
        assert_eq!(Strategy::batch(&both).to_string(), "[data+fsdp]");
        let turned = Mesh::new([("fsdp", 4), ("model", 2), ("data", 2)]).unwrap();
        assert_eq!(Strategy::batch(&turned).to_string(), "[fsdp+data]");
        assert_eq!(Strategy::replicas(&turned).devices, 8);
        assert!(Strategy::Ddp.parameter(&TensorType::new(DType::F32, [8]), &mesh).is_replicated());
        assert_eq!(("xla".parse().unwrap(), "XLA_FSDP".parse().unwrap()), (Strategy::Ddp, Strategy::Fsdp));
        assert_eq!("auto".parse::<Strategy>().unwrap().to_string(), "ddp");
        for debug in ["xla_debug", "tpu_spawn_debug"] {
            assert_eq!(debug.parse::<Strategy>().unwrap().to_string(), "debug");
        }
        assert!("ring".parse::<Strategy>().unwrap_err().to_string().contains("ddp, fsdp"));
    }
}
