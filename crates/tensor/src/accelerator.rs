//! [`Accelerator`]: the kind of device to compute on.

use std::fmt;
use std::str::FromStr;

use fulmen_pjrt::diagnosis::evidence;
use fulmen_pjrt::locate::Platform;

use crate::{Error, Result, names};

/// The kind of device to compute on.
///
/// ```
/// use fulmen_tensor::Accelerator;
/// assert_eq!("tpu".parse::<Accelerator>().unwrap(), Accelerator::Tpu);
/// assert_eq!("gpu".parse::<Accelerator>().unwrap(), Accelerator::Cuda); // as in Lightning
/// assert!("tpux".parse::<Accelerator>().unwrap_err().to_string().contains("auto, cpu, cuda, tpu"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// A TPU if this machine has one, otherwise an NVIDIA GPU if this machine has one, otherwise the
    /// CPU. A TPU or GPU without a usable plugin is an error: a machine that costs money must not
    /// compute on its CPU unless it is told to.
    #[default]
    Auto,
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A Google TPU.
    Tpu,
}

const NAMES: [(&str, Accelerator); 4] = [
    ("auto", Accelerator::Auto),
    ("cpu", Accelerator::Cpu),
    ("cuda", Accelerator::Cuda),
    ("tpu", Accelerator::Tpu),
];

impl Accelerator {
    /// The platform to use on this machine. For `Auto`, it is the best one with a sign of a device
    /// ([`evidence`]). This does not check for plugins.
    pub fn platform(self) -> Platform {
        self.platform_with(|platform| evidence(platform).is_some())
    }

    /// Like [`Accelerator::platform`], on a machine that has these platforms.
    fn platform_with(self, has: impl Fn(Platform) -> bool) -> Platform {
        match self {
            Accelerator::Cpu => Platform::Cpu,
            Accelerator::Cuda => Platform::Cuda,
            Accelerator::Tpu => Platform::Tpu,
            Accelerator::Auto => {
                let best = [Platform::Tpu, Platform::Cuda].into_iter().find(|&kind| has(kind));
                best.unwrap_or(Platform::Cpu)
            }
        }
    }

    /// For messages about a device that cannot be used: why `Auto` selected it, and how to compute
    /// on the CPU instead. Empty if the user named the accelerator.
    pub(crate) fn selection(self, platform: Platform) -> String {
        match (self, evidence(platform)) {
            (Accelerator::Auto, Some(evidence)) => format!(
                " (the accelerator `auto` is `{platform}` on this machine, because {evidence}; to compute on the CPU, \
                 set the accelerator to `cpu`)"
            ),
            _ => String::new(),
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;
    fn from_str(name: &str) -> Result<Accelerator> {
        match &*name.to_lowercase() {
            // Lightning's name.
            "gpu" => Ok(Accelerator::Cuda),
            "mps" | "hpu" | "xpu" | "ipu" => Err(Error::usage(format!(
                "`{name}` is not an accelerator: devices are CPUs, NVIDIA GPUs or TPUs; use auto, cpu, cuda or tpu"
            ))),
            _ => names::find(&NAMES, name, "an accelerator"),
        }
    }
}

impl TryFrom<&str> for Accelerator {
    type Error = Error;
    fn try_from(name: &str) -> Result<Accelerator> {
        name.parse()
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|row| row.1 == *self).map_or("auto", |row| row.0);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_the_best_device_of_the_machine_and_never_skips_one() {
        let folder = tempfile::tempdir().unwrap();
        let auto = || {
            Accelerator::Auto.platform_with(|platform| {
                fulmen_pjrt::diagnosis::evidence_under(folder.path(), platform, &|_| None).is_some()
            })
        };
        assert_eq!(auto(), Platform::Cpu);
        std::fs::create_dir(folder.path().join("dev")).unwrap();
        std::fs::write(folder.path().join("dev/nvidia0"), "").unwrap();
        assert_eq!(auto(), Platform::Cuda);
        std::fs::write(folder.path().join("dev/accel0"), "").unwrap();
        assert_eq!(auto(), Platform::Tpu);
        assert_eq!(Accelerator::Cpu.platform_with(|_| true), Platform::Cpu);
        assert_eq!(Accelerator::Cuda.platform_with(|_| true), Platform::Cuda);
    }
}
