//! A program that is loaded on devices. Execution is in `execute`.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use fulmen_durable::messages::quantity;

use crate::abi::*;
use crate::api::{list, non_null};
use crate::client::Client;
use crate::device::Device;
use crate::error::{self, Result};
use crate::executable::{Executable, Origin};

/// A program that is loaded on devices, ready to run. It dereferences to its [`Executable`].
pub struct LoadedExecutable {
    // Destroyed before the client and the loaded program.
    executable: Executable,
    raw: Owned,
    devices: Vec<Device>,
    runs_alone: bool,
}

/// If a program has at least this many bytes of temporaries, a CPU waits until the previous program
/// has freed its own.
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
        // SAFETY: we own the program, and this is its last use. A running execution holds its own
        // reference.
        unsafe { self.client.api().destroy(&mut args) }
    }
}

impl LoadedExecutable {
    /// Takes ownership of a program that the plugin loaded.
    pub(crate) fn new(
        client: Client,
        raw: NonNull<PJRT_LoadedExecutable>,
        origin: Origin,
    ) -> Result<LoadedExecutable> {
        let owned = Owned { raw, client };
        let client = &owned.client;
        let mut args = PJRT_LoadedExecutable_GetExecutable_Args::new();
        args.loaded_executable = raw.as_ptr();
        // SAFETY: the program is alive. The returned executable is ours to destroy.
        unsafe { client.api().call(&mut args) }?;
        let executable = non_null(args.executable, "executable")?;
        let executable = Executable::new(
            client.plugin().clone(),
            Some(client.inner().clone()),
            executable,
            origin,
        )?;
        let mut args = PJRT_LoadedExecutable_AddressableDevices_Args::new();
        args.executable = raw.as_ptr();
        // SAFETY: the program is alive; the list lives as long as it does.
        let raw_devices = unsafe {
            client.api().call(&mut args)?;
            list(args.addressable_devices, args.num_addressable_devices)
        };
        let devices = raw_devices
            .iter()
            .map(|&raw| {
                client.devices().iter().find(|device| device.raw().as_ptr() == raw).cloned()
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                error::broken("the plugin loaded the program on a device that is not the client's")
            })?;
        let on_cpu = client.inner().is_cpu();
        let large = || {
            executable.memory_analysis().is_ok_and(|memory| memory.temp_bytes >= LARGE_TEMPORARIES)
        };
        let runs_alone =
            on_cpu && (executable.num_replicas() * executable.num_partitions() > 1 || large());
        Ok(Self { executable, raw: owned, devices, runs_alone })
    }

    /// Whether a launch waits until the previous one has ended.
    ///
    /// A CPU plugin allocates the temporaries of a launch when the launch is queued, so each
    /// waiting launch would need them again. A program that needs this much memory runs long enough
    /// to hide the wait. Over several devices, the plugin's threads could wait in collectives of
    /// different launches. The plugin then ends the process after 40 seconds.
    pub(crate) fn runs_alone(&self) -> bool {
        self.runs_alone
    }

    pub(crate) fn raw(&self) -> *mut PJRT_LoadedExecutable {
        self.raw.raw.as_ptr()
    }

    /// The client that the program is loaded in.
    pub fn client(&self) -> &Client {
        &self.raw.client
    }

    /// The devices of this host that the program runs on, in the order of the arguments of
    /// [`execute`](Self::execute).
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
        write!(
            f,
            "LoadedExecutable({} {} on {})",
            self.name(),
            self.signature(),
            quantity(self.devices.len(), "device")
        )
    }
}
