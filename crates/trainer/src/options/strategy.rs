//! [`Strategy`]: how training uses several devices, as a sharding for each tensor of the step.
//!
//! Fulmen writes no collectives. Shardings are annotations on one program, and XLA inserts the
//! collectives.

use fulmen_data::Replicas;
use fulmen_tensor::{Mesh, Sharding, TensorType};

use crate::options::named_enum::named_enum;

/// The mesh axes over which a batch is split, if the mesh has them.
const BATCH_AXES: [&str; 2] = ["data", "fsdp"];

/// How training uses several devices. On one device all strategies are the same.
///
/// ```
/// use fulmen_trainer::Strategy;
/// assert_eq!("fsdp".parse::<Strategy>()?, Strategy::Fsdp);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Distributed data parallel: each device has all parameters and its part of the batch.
    #[default]
    Ddp,
    /// Fully sharded data parallel: parameters, gradients and optimizer state are split over the
    /// devices too. They are gathered when they are used.
    Fsdp,
    /// Like [`Ddp`](Strategy::Ddp), but a fit ends with
    /// [`Trainer::metrics_report`](crate::Trainer::metrics_report) on standard error.
    Debug,
}

/// The first name of each strategy is Fulmen's; the others are Lightning's.
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
    /// The sharding of a batch: its rows are split over `data`, and over `fsdp` if the mesh has
    /// that axis.
    pub(crate) fn batch(mesh: &Mesh) -> Sharding {
        let axes = mesh.axes().iter().map(|axis| axis.0.as_str());
        Sharding::over([axes.filter(|axis| BATCH_AXES.contains(axis)).collect()])
    }

    /// The replicas of a mesh: the devices that share a batch. One process feeds all of them.
    pub(crate) fn replicas(mesh: &Mesh) -> Replicas {
        let batch = Strategy::batch(mesh);
        let devices = batch.axes().iter().flatten().filter_map(|axis| mesh.size(axis)).product();
        Replicas { devices, ..Replicas::default() }
    }

    /// The sharding of a trained tensor between its uses. FSDP splits it along its largest axis
    /// that the number of devices divides, over the mesh axis `fsdp`, or `data` if there is none.
    /// Other strategies replicate it.
    pub(crate) fn parameter(self, ty: &TensorType, mesh: &Mesh) -> Sharding {
        let axis = if mesh.size("fsdp").is_some() { "fsdp" } else { "data" };
        let Some(parts) = mesh.size(axis).filter(|&parts| self == Strategy::Fsdp && parts > 1)
        else {
            return Sharding::replicated();
        };
        let dims = ty.shape.dims();
        let divisible = (0..dims.len()).filter(|&i| dims[i] > 0 && dims[i].is_multiple_of(parts));
        // Of several largest axes, take the first.
        match divisible.max_by_key(|&i| (dims[i], std::cmp::Reverse(i))) {
            Some(largest) => Sharding::new((0..=largest).map(|i| (i == largest).then_some(axis))),
            None => Sharding::replicated(),
        }
    }
}

named_enum!(Strategy, "strategy");

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    #[test]
    fn fsdp_splits_the_largest_axis_that_the_devices_divide() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let sharding = |dims: &[usize]| {
            Strategy::Fsdp.parameter(&TensorType::new(DType::F32, dims), &mesh).to_string()
        };
        assert_eq!(sharding(&[512, 784]), "[-, data]");
        assert_eq!(sharding(&[16, 16]), "[data]");
        assert_eq!(sharding(&[10, 256]), "[-, data]");
        assert_eq!(sharding(&[10]), "[]");
        assert_eq!(sharding(&[]), "[]");
        let hybrid = Mesh::new([("data", 2), ("fsdp", 4)]).unwrap();
        assert_eq!(
            Strategy::Fsdp.parameter(&TensorType::new(DType::F32, [6, 4]), &hybrid).to_string(),
            "[-, fsdp]"
        );
        assert_eq!(Strategy::batch(&hybrid).to_string(), "[data+fsdp]");
        let reversed = Mesh::new([("fsdp", 4), ("model", 2), ("data", 2)]).unwrap();
        assert_eq!(Strategy::batch(&reversed).to_string(), "[fsdp+data]");
        assert_eq!(Strategy::replicas(&reversed).devices, 8);
        assert!(Strategy::Ddp.parameter(&TensorType::new(DType::F32, [8]), &mesh).is_replicated());
        assert_eq!(
            ("xla".parse().unwrap(), "XLA_FSDP".parse().unwrap()),
            (Strategy::Ddp, Strategy::Fsdp)
        );
        assert_eq!("auto".parse::<Strategy>().unwrap().to_string(), "ddp");
        for debug in ["xla_debug", "tpu_spawn_debug"] {
            assert_eq!(debug.parse::<Strategy>().unwrap().to_string(), "debug");
        }
        assert!("ring".parse::<Strategy>().unwrap_err().to_string().contains("ddp, fsdp"));
    }
}
