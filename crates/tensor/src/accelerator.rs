//! [`Accelerator`]: the kind of device to compute on.

use std::fmt;
use std::str::FromStr;

use fulmen_pjrt::diagnosis::device_files;
use fulmen_pjrt::locate::Platform;

use crate::{Error, Result, names};

/// The kind of device to compute on.
///
/// ```
/// use fulmen_tensor::Accelerator;
/// assert_eq!("tpu".parse::<Accelerator>().unwrap(), Accelerator::Tpu);
/// assert!("tpux".parse::<Accelerator>().unwrap_err().to_string().contains("auto, cpu, cuda, tpu"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// A TPU if this machine has one and a plugin for it. Otherwise an NVIDIA GPU if this machine
    /// has one and a plugin for it. Otherwise the CPU.
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
    /// The platforms to try on this machine, best first. `Auto` tries each platform whose device
    /// files exist, then the CPU. This does not check for plugins.
    pub fn candidates(self) -> Vec<Platform> {
        match self {
            Accelerator::Cpu => vec![Platform::Cpu],
            Accelerator::Cuda => vec![Platform::Cuda],
            Accelerator::Tpu => vec![Platform::Tpu],
            Accelerator::Auto => {
                let mut platforms = vec![Platform::Tpu, Platform::Cuda];
                platforms.retain(|&platform| !device_files(platform).is_empty());
                platforms.push(Platform::Cpu);
                platforms
            }
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;
    fn from_str(name: &str) -> Result<Accelerator> {
        names::find(&NAMES, name, "an accelerator")
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
