//! Which kind of device to compute on, as a user says it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

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
    /// A TPU if this machine has one, else a CUDA GPU if it has one, else the CPU.
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
    /// The platform that this names on this machine: for `Auto` by the device files that are there.
    pub fn platform(self) -> Platform {
        let any = |files: &[&str]| files.iter().any(|file| Path::new(file).exists());
        match self {
            Accelerator::Cpu => Platform::Cpu,
            Accelerator::Cuda => Platform::Cuda,
            Accelerator::Tpu => Platform::Tpu,
            Accelerator::Auto if any(&["/dev/accel0", "/dev/vfio/0"]) => Platform::Tpu,
            Accelerator::Auto if any(&["/dev/nvidiactl"]) => Platform::Cuda,
            Accelerator::Auto => Platform::Cpu,
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;
    fn from_str(name: &str) -> Result<Accelerator> {
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|row| row.1).ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|row| row.0).collect();
            Error::usage(format!("`{name}` is no accelerator; there are: {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|row| row.1 == *self).map_or("auto", |row| row.0);
        f.write_str(name)
    }
}
