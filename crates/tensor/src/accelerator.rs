//! Which kind of device to compute on, as a user says it.

use std::fmt;
use std::str::FromStr;

use fulmen_pjrt::diagnosis::device_files;
use fulmen_pjrt::locate::Platform;

use crate::{Error, Result};

/// The kind of device to compute on.
///
/// ```
/// use fulmen_tensor::Accelerator;
/// assert_eq!("tpu".parse::<Accelerator>().unwrap(), Accelerator::Tpu);
/// assert!("tpux".parse::<Accelerator>().unwrap_err().to_string().contains("auto, cpu, cuda, tpu"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accelerator {
    /// A TPU if this machine has one and a plugin for it, else a CUDA GPU likewise, else the CPU.
    #[default]
    Auto,
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A Google TPU.
    Tpu,
}

const NAMES: [(&str, Accelerator); 4] =
    [("auto", Accelerator::Auto), ("cpu", Accelerator::Cpu), ("cuda", Accelerator::Cuda), ("tpu", Accelerator::Tpu)];

impl Accelerator {
    /// The platforms that this names on this machine, best first: for `Auto` those whose device files are there, and
    /// the CPU. Which of them has a plugin is not looked at.
    pub fn candidates(self) -> Vec<Platform> {
        let any = |platform| !device_files(platform).is_empty();
        match self {
            Accelerator::Cpu => vec![Platform::Cpu],
            Accelerator::Cuda => vec![Platform::Cuda],
            Accelerator::Tpu => vec![Platform::Tpu],
            Accelerator::Auto => {
                let seen =
                    [(Platform::Tpu, any(Platform::Tpu)), (Platform::Cuda, any(Platform::Cuda)), (Platform::Cpu, true)];
                seen.into_iter().filter_map(|(platform, there)| there.then_some(platform)).collect()
            }
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;
    fn from_str(name: &str) -> Result<Accelerator> {
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|row| row.1).ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|row| row.0).collect();
            Error::usage(format!("`{name}` is not an accelerator; there are: {}", known.join(", ")))
        })
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
