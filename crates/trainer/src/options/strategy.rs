//! [`Strategy`]: how training uses several devices, as a sharding for each tensor of the step.
//!
//! Fulmen writes no collectives. Shardings are annotations on one program, and XLA inserts the
//! collectives.

use std::fmt;
use std::str::FromStr;

use fulmen_data::Replicas;
use fulmen_durable::messages::quantity;
use fulmen_nn::axes::AxisRules;
use fulmen_tensor::{Mesh, Sharding, TensorType};

use crate::options::named_enum::named_value;
use crate::{Error, Result};

/// The mesh axes over which a batch is split, if the mesh has them.
const BATCH_AXES: [&str; 3] = ["data", "fsdp", "expert"];

/// How training uses several devices. On one device all strategies are the same.
///
/// ```
/// use fulmen_trainer::{ParallelSizes, Strategy};
/// assert_eq!("fsdp".parse::<Strategy>()?, Strategy::Fsdp);
/// let sizes = ParallelSizes { fsdp: 4, tp: 2, ..ParallelSizes::default() };
/// assert_eq!("fsdp=4,tp=2".parse::<Strategy>()?, Strategy::Sizes(sizes));
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
    /// Several kinds of parallelism together, each with its number of devices: `fsdp=4,tp=2`. They
    /// are the axes of the mesh. The axes with names of modules are split over them by a table of
    /// rules, [`AxisRules`](fulmen_nn::axes::AxisRules).
    Sizes(ParallelSizes),
}

/// The number of devices of each kind of parallelism. Their product is the number of devices.
///
/// ```
/// use fulmen_trainer::ParallelSizes;
/// let sizes: ParallelSizes = "ddp=2,tp=4".parse()?;
/// assert_eq!((sizes.ddp, sizes.fsdp, sizes.context, sizes.tp), (2, 1, 1, 4));
/// assert!("tp=4,pp=2".parse::<ParallelSizes>().unwrap_err().to_string().contains("`pp`"));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParallelSizes {
    /// Data parallelism, the mesh axis `data`: the batch is split, and each part of the mesh has all
    /// parameters.
    pub ddp: usize,
    /// Fully sharded data parallelism, the mesh axis `fsdp`: the batch and the stored parameters are
    /// split.
    pub fsdp: usize,
    /// Expert parallelism, the mesh axis `expert`: the axes named `expert` are split, so each device
    /// has some of the experts. The batch is split, too. Other parameters are on each device, or
    /// split over `fsdp`.
    pub expert: usize,
    /// Context parallelism, the mesh axis `context`: the axes named `length` are split, and each
    /// device gathers the keys and values of attention.
    pub context: usize,
    /// Tensor parallelism, the mesh axis `model`: the axes named `heads`, `kv_heads`, `mlp` and
    /// `vocab` are split.
    pub tp: usize,
}

impl Default for ParallelSizes {
    /// One device.
    fn default() -> ParallelSizes {
        ParallelSizes { ddp: 1, fsdp: 1, expert: 1, context: 1, tp: 1 }
    }
}

impl ParallelSizes {
    /// The kinds, with their mesh axes and numbers of devices. Axes that send the most are last,
    /// where devices are next to each other; slices of TPUs are along the first.
    fn axes(self) -> [(&'static str, &'static str, usize); 5] {
        [
            ("ddp", "data", self.ddp),
            ("fsdp", "fsdp", self.fsdp),
            ("expert", "expert", self.expert),
            ("context", "context", self.context),
            ("tp", "model", self.tp),
        ]
    }

    /// The mesh of these axes, for this number of devices.
    fn mesh(self, devices: usize) -> Result<Mesh> {
        let split = self.axes().into_iter().filter(|axis| axis.2 != 1);
        let mut axes: Vec<(&str, usize)> = split.map(|(_, axis, size)| (axis, size)).collect();
        if axes.is_empty() {
            axes.push(("data", 1));
        }
        let mesh = Mesh::new(axes)?;
        let needed = mesh.num_devices();
        if needed == devices {
            return Ok(mesh);
        }
        let sizes: Vec<String> = mesh.axes().iter().map(|axis| axis.1.to_string()).collect();
        Err(Error::usage(format!(
            "strategy: `{self}` needs {} ({}), but there are {devices}; choose sizes whose product is {devices}, or use {} \
             with `devices`",
            quantity(needed, "device"),
            sizes.join(" × "),
            quantity(needed, "device"),
        )))
    }
}

impl fmt::Display for ParallelSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split = self.axes().into_iter().filter(|axis| axis.2 != 1);
        let parts: Vec<String> = split.map(|(kind, _, size)| format!("{kind}={size}")).collect();
        f.write_str(if parts.is_empty() { "ddp=1" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

impl FromStr for ParallelSizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<ParallelSizes> {
        let wrong = |what: String| Err(Error::usage(format!("strategy `{text}`: {what}")));
        let mut sizes = ParallelSizes::default();
        let mut known: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (kind, number) = part.split_once('=').unwrap_or((part, ""));
            let size = match kind {
                "ddp" => &mut sizes.ddp,
                "fsdp" => &mut sizes.fsdp,
                "expert" => &mut sizes.expert,
                "context" => &mut sizes.context,
                "tp" => &mut sizes.tp,
                _ => {
                    return wrong(format!(
                        "`{kind}` is not a kind of parallelism; there are: ddp, fsdp, expert, context, tp"
                    ));
                }
            };
            if known.contains(&kind) {
                return wrong(format!("`{kind}` is given twice"));
            }
            known.push(kind);
            *size = match number.parse() {
                Ok(number) if number > 0 => number,
                _ => {
                    return wrong(format!(
                        "`{kind}` needs a number of devices from 1 on, such as `{kind}=8`, not `{number}`"
                    ));
                }
            };
        }
        Ok(sizes)
    }
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

    /// The rules for modules that compute the samples of each device on their own.
    pub(crate) fn batch_rules(mesh: &Mesh) -> AxisRules {
        let batch = Strategy::batch(mesh);
        let axes: Vec<&str> = batch.axes().iter().flatten().map(String::as_str).collect();
        AxisRules::new([("batch", &axes[..])])
    }

    /// The replicas of a mesh: the devices that share a batch. One process feeds all of them.
    pub(crate) fn replicas(mesh: &Mesh) -> Replicas {
        let batch = Strategy::batch(mesh);
        let devices = batch.axes().iter().flatten().filter_map(|axis| mesh.size(axis)).product();
        Replicas { devices, ..Replicas::default() }
    }

    /// The mesh to use instead of the default one for this number of devices: the user's own, or
    /// that of a strategy with sizes.
    pub(crate) fn mesh(self, own: Option<&Mesh>, devices: usize) -> Result<Option<Mesh>> {
        match (self, own) {
            (Strategy::Sizes(sizes), None) => sizes.mesh(devices).map(Some),
            (Strategy::Sizes(sizes), Some(own)) => Err(Error::usage(format!(
                "strategy: `{sizes}` makes the mesh, but the builder has the mesh {own}; leave out `mesh`, or choose `ddp` or \
                 `fsdp`"
            ))),
            (_, own) => Ok(own.cloned()),
        }
    }

    /// Whether parameters are split between their uses.
    fn is_fully_sharded(self) -> bool {
        match self {
            Strategy::Fsdp => true,
            Strategy::Ddp | Strategy::Debug => false,
            Strategy::Sizes(sizes) => sizes.fsdp > 1,
        }
    }

    /// The sharding of a trained tensor between its uses, where it has `used` while it is used. FSDP
    /// also splits it along its largest other axis that the number of devices divides, over the
    /// mesh axis `fsdp`, or `data` if there is none. Other strategies do not split it further.
    pub(crate) fn parameter(self, ty: &TensorType, mesh: &Mesh, used: &Sharding) -> Sharding {
        let axis = if mesh.size("fsdp").is_some() { "fsdp" } else { "data" };
        let mut axes: Vec<Vec<&str>> = used.axes().iter().map(|axes| names(axes)).collect();
        let is_used = axes.iter().flatten().any(|&used| used == axis);
        let parts = mesh.size(axis).filter(|&parts| parts > 1 && self.is_fully_sharded());
        let Some(parts) = parts.filter(|_| !is_used) else { return used.clone() };
        let dims = ty.shape.dims();
        axes.resize(dims.len(), Vec::new());
        let divisible = (0..dims.len())
            .filter(|&i| axes[i].is_empty() && dims[i] > 0 && dims[i].is_multiple_of(parts));
        // Of several largest axes, take the first.
        if let Some(largest) = divisible.max_by_key(|&i| (dims[i], std::cmp::Reverse(i))) {
            axes[largest].push(axis);
        }
        Sharding::over(axes)
    }
}

fn names(axes: &[String]) -> Vec<&str> {
    axes.iter().map(String::as_str).collect()
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Strategy> {
        if text.contains('=') {
            return text.parse().map(Strategy::Sizes);
        }
        named_value("strategy", &NAMES, text)
    }
}

impl TryFrom<&str> for Strategy {
    type Error = Error;

    fn try_from(text: &str) -> Result<Strategy> {
        text.parse()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Ddp => f.write_str("ddp"),
            Strategy::Fsdp => f.write_str("fsdp"),
            Strategy::Debug => f.write_str("debug"),
            Strategy::Sizes(sizes) => fmt::Display::fmt(sizes, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    #[test]
    fn fsdp_splits_the_largest_axis_that_the_devices_divide() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let sharding = |dims: &[usize]| {
            let ty = TensorType::new(DType::F32, dims);
            Strategy::Fsdp.parameter(&ty, &mesh, &Sharding::replicated()).to_string()
        };
        assert_eq!(sharding(&[512, 784]), "[-, data]");
        assert_eq!(sharding(&[16, 16]), "[data]");
        assert_eq!(sharding(&[10, 256]), "[-, data]");
        assert_eq!(sharding(&[10]), "[]");
        assert_eq!(sharding(&[]), "[]");
        let hybrid = Mesh::new([("data", 2), ("fsdp", 4)]).unwrap();
        assert_eq!(
            Strategy::Fsdp
                .parameter(&TensorType::new(DType::F32, [6, 4]), &hybrid, &Sharding::replicated())
                .to_string(),
            "[-, fsdp]"
        );
        assert_eq!(Strategy::batch(&hybrid).to_string(), "[data+fsdp]");
        let reversed = Mesh::new([("fsdp", 4), ("model", 2), ("data", 2)]).unwrap();
        assert_eq!(Strategy::batch(&reversed).to_string(), "[fsdp+data]");
        assert_eq!(Strategy::replicas(&reversed).devices, 8);
        let eight = TensorType::new(DType::F32, [8]);
        assert!(Strategy::Ddp.parameter(&eight, &mesh, &Sharding::replicated()).is_replicated());
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
    #[test]
    fn fsdp_splits_an_axis_that_the_rules_leave_whole() {
        let mesh = Mesh::new([("fsdp", 4), ("model", 2)]).unwrap();
        let strategy: Strategy = "fsdp=4,tp=2".parse().unwrap();
        let sharding = |dims: &[usize], used: &Sharding| {
            strategy.parameter(&TensorType::new(DType::F32, dims), &mesh, used).to_string()
        };
        let columns = Sharding::new([Some("model")]);
        assert_eq!(sharding(&[512, 64], &columns), "[model, fsdp]");
        assert_eq!(sharding(&[512, 6], &columns), "[model]");
        assert_eq!(sharding(&[64, 512], &Sharding::new([None, Some("model")])), "[fsdp, model]");
        assert_eq!(sharding(&[64], &Sharding::replicated()), "[fsdp]");
        // The rules split something over `fsdp` themselves.
        assert_eq!(sharding(&[64, 8], &Sharding::new([None, Some("fsdp")])), "[-, fsdp]");
        let tensor: Strategy = "tp=8".parse().unwrap();
        let ty = TensorType::new(DType::F32, [512, 64]);
        assert_eq!(tensor.parameter(&ty, &mesh, &columns), columns);
    }

    #[test]
    fn sizes_make_the_mesh() {
        let mesh = |text: &str, devices| {
            let strategy = text.parse::<Strategy>()?;
            strategy.mesh(None, devices).map(|mesh| mesh.unwrap().to_string())
        };
        for (text, devices, expected) in [
            ("tp=8", 8, "model=8"),
            ("expert=4,fsdp=2", 8, "fsdp=2 × expert=4"),
            ("tp=2,fsdp=4", 8, "fsdp=4 × model=2"),
            ("ddp=2,tp=4", 8, "data=2 × model=4"),
            ("fsdp=2, context=4", 8, "fsdp=2 × context=4"),
            ("ddp=1,fsdp=1", 1, "data=1"),
            ("ddp=2,fsdp=2,context=2,tp=2", 16, "data=2 × fsdp=2 × context=2 × model=2"),
        ] {
            assert_eq!(mesh(text, devices).unwrap(), expected);
            let again: Strategy = text.parse::<Strategy>().unwrap().to_string().parse().unwrap();
            assert_eq!(again, text.parse().unwrap());
        }
        for (text, devices, expected) in [
            ("fsdp=2,tp=3", 8, "`fsdp=2,tp=3` needs 6 devices (2 × 3), but there are 8"),
            ("fsdp=8,stage=8", 64, "`stage` is not a kind of parallelism; there are: ddp, fsdp"),
            ("tp=4,pp=2", 8, "`pp` is not a kind"),
            ("tp=4,tp=2", 8, "`tp` is given twice"),
            ("fsdp,tp=2", 8, "`fsdp` needs a number of devices"),
            ("tp=0", 8, "`tp` needs a number of devices from 1 on, such as `tp=8`, not `0`"),
            ("tp=-1", 8, "not `-1`"),
            ("tp=99999999999999999999", 8, "`tp` needs"),
            ("=8", 8, "`` is not a kind"),
            ("ddp=9223372036854775807,tp=4", 8, "overflows"),
        ] {
            let error = mesh(text, devices).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let own = Mesh::new([("data", 8)]).unwrap();
        let strategy: Strategy = "tp=8".parse().unwrap();
        let error = strategy.mesh(Some(&own), 8).unwrap_err().to_string();
        assert!(error.contains("`tp=8` makes the mesh, but the builder has the mesh data=8"));
        assert_eq!(Strategy::Fsdp.mesh(Some(&own), 8).unwrap(), Some(own));
        assert_eq!(Strategy::Ddp.mesh(None, 8).unwrap(), None);
    }
}
