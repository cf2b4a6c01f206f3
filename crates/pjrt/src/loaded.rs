//! A program loaded on devices. How it is run is in `execute`.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::abi::*;
use crate::api::{list, non_null};
use crate::client::Client;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::executable::Executable;
use crate::hlo::proto::HeaderWithConfig;

/// A program loaded on devices, ready to run. What it is, is told by the [`Executable`] that it dereferences to.
pub struct LoadedExecutable {
    // Destroyed before the client, and before the loaded program.
    executable: Executable,
    raw: Owned,
    devices: Vec<Device>,
    runs_alone: bool,
}

/// The least temporaries of a program, in bytes, for which a CPU waits until the program before has given back its own.
const LARGE_TEMPORARIES: i64 = 64 << 20;

/// Destroys the loaded program.
struct Owned {
    raw: NonNull<PJRT_LoadedExecutable>,
    client: Client,
}

// SAFETY: loaded executables are thread-safe by the API's contract.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut args = PJRT_LoadedExecutable_Destroy_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the program is ours, and this is the end of it. A run under way holds it by itself.
        unsafe { self.client.api().destroy(&mut args) }
    }
}

impl LoadedExecutable {
    /// Takes over a program that the plugin loaded.
    pub(crate) fn new(
        client: Client,
        raw: NonNull<PJRT_LoadedExecutable>,
        header: Option<HeaderWithConfig>,
    ) -> Result<Self> {
        let owned = Owned { raw, client };
        let client = &owned.client;
        let mut args = PJRT_LoadedExecutable_GetExecutable_Args::new();
        args.loaded_executable = raw.as_ptr();
        // SAFETY: the program is alive. The executable given is ours to destroy.
        unsafe { client.api().call(&mut args) }?;
        let executable = non_null(args.executable, "executable")?;
        let executable = Executable::new(client.plugin().clone(), Some(client.inner().clone()), executable, header)?;
        let mut args = PJRT_LoadedExecutable_AddressableDevices_Args::new();
        args.executable = raw.as_ptr();
        // SAFETY: the program is alive; the list lives as long as it.
        let devices = unsafe {
            client.api().call(&mut args)?;
            list(args.addressable_devices, args.num_addressable_devices)
        };
        let devices = devices
            .iter()
            .map(|&raw| client.devices().iter().find(|device| device.raw().as_ptr() == raw).cloned())
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::broken("the plugin loaded the program on a device that is not the client's"))?;
        let on_cpu = client.inner().is_cpu();
        let large = || executable.memory_analysis().is_ok_and(|memory| memory.temp_bytes >= LARGE_TEMPORARIES);
        let runs_alone = on_cpu && (executable.num_replicas() * executable.num_partitions() > 1 || large());
        Ok(Self { executable, raw: owned, devices, runs_alone })
    }

    /// Whether a launch waits until the one before has ended.
    ///
    /// A CPU plugin takes a launch's temporaries when it is queued, so each launch that waits would hold them a second
    /// time; a program that needs this much memory runs for so long that the wait costs nothing. And over several devices the
    /// plugin's threads would each wait in a collective of another launch, and after 40 seconds end the process.
    pub(crate) fn runs_alone(&self) -> bool {
        self.runs_alone
    }

    pub(crate) fn raw(&self) -> *mut PJRT_LoadedExecutable {
        self.raw.raw.as_ptr()
    }

    /// The client that it is loaded in.
    pub fn client(&self) -> &Client {
        &self.raw.client
    }

    /// The devices of this host that it runs on, in the order in which [`execute`](Self::execute) takes arguments.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

impl Deref for LoadedExecutable {
    type Target = Executable;

    fn deref(&self) -> &Executable {
        &self.executable
    }
}

impl fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedExecutable({} {} on {} devices)", self.name(), self.signature(), self.devices.len())
    }
}
