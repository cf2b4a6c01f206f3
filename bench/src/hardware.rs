//! [`Hardware`]: the devices on which all sides of a comparison run.

use std::error::Error;
use std::process::Command;

use fulmen::low_level::pjrt::locate::{Platform, locate};
use fulmen::low_level::pjrt::{NamedValue, Plugin};
use fulmen::prelude::*;
use fulmen::tensor::{Devices, Runtime};

/// A number of devices of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware {
    pub(crate) accelerator: Accelerator,
    pub(crate) devices: usize,
}

impl Hardware {
    /// A CPU that is split into this many devices.
    pub(crate) fn cpu(devices: usize) -> Hardware {
        Hardware { accelerator: Accelerator::Cpu, devices }
    }

    /// A trainer on these devices. It takes a GPU's memory as it needs it, because the peers train
    /// on the same GPU. By default, the plugin takes three quarters at the start.
    pub(crate) fn trainer(self) -> Result<TrainerBuilder, Box<dyn Error>> {
        let builder = Trainer::builder();
        if self.accelerator != Accelerator::Cuda {
            return Ok(builder.accelerator(self.accelerator).devices(self.devices));
        }
        let plugin = Plugin::load(&locate(Platform::Cuda, None)?)?;
        let client = plugin.create_client(&[("preallocate", NamedValue::Bool(false))])?;
        Ok(builder.runtime(Runtime::new(client, &Devices::from(self.devices))?))
    }

    /// Adds the devices to the arguments of a peer. Peers without the option `--accelerator` run on
    /// the CPU only.
    pub(crate) fn add_to(self, peer: &mut Command) {
        if self.accelerator != Accelerator::Cpu {
            peer.args(["--accelerator", &self.accelerator.to_string()]);
        }
        peer.args(["--devices", &self.devices.to_string()]);
    }
}
