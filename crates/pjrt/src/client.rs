//! A client: one opening of a plugin's devices. Everything that lives on a device belongs to one and keeps it open.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::abi::*;
use crate::api::{Api, given, list, text};
use crate::callback;
use crate::device::Device;
use crate::error::{Error, Kind, Result};
use crate::event::RawEvent;
use crate::frame::Frame;
use crate::key_value::SharedStore;
use crate::loaded::LoadedExecutable;
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::program;
use crate::topology::Topology;

/// One opening of a plugin's devices. Clones are the same client; it closes with the last thing that lives on it.
///
/// ```
/// # use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
/// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// let client = plugin.create_client(&[("cpu_device_count", 4.into())])?;
/// assert_eq!(client.platform_name(), "cpu");
/// assert_eq!(client.addressable_devices().len(), 4);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
    devices: Arc<[Device]>,
    addressable: Arc<[Device]>,
}

/// The plugin's client itself, which devices, buffers and events hold on to.
pub(crate) struct ClientInner {
    plugin: Plugin,
    raw: NonNull<PJRT_Client>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    in_flight: Mutex<Vec<Arc<RawEvent>>>,
    launches: AtomicI32,
    /// What the plugin's threads may ask as long as the client lives.
    store: Option<SharedStore>,
}

// SAFETY: clients are thread-safe by the API's contract.
unsafe impl Send for ClientInner {}
// SAFETY: as above.
unsafe impl Sync for ClientInner {}

impl ClientInner {
    pub(crate) fn api(&self) -> Api {
        self.plugin.api()
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Client {
        self.raw.as_ptr()
    }

    pub(crate) fn platform_name(&self) -> &str {
        &self.platform_name
    }

    /// Whether its devices are this machine's processors.
    pub(crate) fn is_cpu(&self) -> bool {
        self.platform_name == "cpu"
    }

    /// The completion events of the launch under way. The lock is held over the next launch.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, Vec<Arc<RawEvent>>> {
        self.in_flight.lock()
    }

    /// A number for the next launch over several devices: the same on each host, as each makes the same launches.
    pub(crate) fn next_launch(&self) -> i32 {
        // Zero means "no number".
        (self.launches.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        let in_flight = std::mem::take(self.in_flight.get_mut());
        let (api, raw, store) = (self.api(), SendClient(self.raw), self.store.take());
        let close = move || {
            let SendClient(raw) = { raw };
            for event in &in_flight {
                let _ = event.wait();
            }
            drop(in_flight);
            let mut args = PJRT_Client_Destroy_Args::new();
            args.client = raw.as_ptr();
            // SAFETY: everything that lived on the client held it open, so nothing is left.
            unsafe { api.destroy(&mut args) }
            drop(store);
        };
        if callback::is_inside() {
            // This thread is one of those that closing the client waits for.
            drop(std::thread::Builder::new().name("fulmen-close".to_owned()).spawn(close));
        } else {
            close();
        }
    }
}

struct SendClient(NonNull<PJRT_Client>);

// SAFETY: clients may be destroyed from any thread.
unsafe impl Send for SendClient {}

impl Client {
    /// Takes over a client that the plugin made.
    pub(crate) fn new(plugin: Plugin, raw: NonNull<PJRT_Client>, store: Option<SharedStore>) -> Result<Self> {
        let mut inner = ClientInner {
            plugin,
            raw,
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            in_flight: Mutex::default(),
            launches: AtomicI32::new(1),
            store,
        };
        let api = inner.api();
        let mut name = PJRT_Client_PlatformName_Args::new();
        name.client = raw.as_ptr();
        let mut version = PJRT_Client_PlatformVersion_Args::new();
        version.client = raw.as_ptr();
        let mut process = PJRT_Client_ProcessIndex_Args::new();
        process.client = raw.as_ptr();
        let mut devices = PJRT_Client_Devices_Args::new();
        devices.client = raw.as_ptr();
        let mut addressable = PJRT_Client_AddressableDevices_Args::new();
        addressable.client = raw.as_ptr();
        // SAFETY: the client is alive; strings and lists live as long as it.
        let (all, addressable) = unsafe {
            api.call(&mut name)?;
            inner.platform_name = text(name.platform_name, name.platform_name_size);
            api.call(&mut version)?;
            inner.platform_version = text(version.platform_version, version.platform_version_size);
            api.call(&mut process)?;
            inner.process_index = process.process_index;
            api.call(&mut devices)?;
            api.call(&mut addressable)?;
            (
                list(devices.devices, devices.num_devices),
                list(addressable.addressable_devices, addressable.num_addressable_devices),
            )
        };
        #[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
        if inner.is_cpu() {
            // SAFETY: the table lies in the plugin, which is never unloaded.
            unsafe { crate::large_blocks::serve(api.address()) };
        }
        let inner = Arc::new(inner);
        let devices = all
            .iter()
            .map(|&raw| Device::new(inner.clone(), raw, addressable.contains(&raw)))
            .collect::<Result<Arc<[_]>>>()?;
        let find = |raw: &*mut PJRT_Device| devices.iter().find(|device| device.raw().as_ptr() == *raw).cloned();
        let addressable = addressable.iter().filter_map(find).collect();
        Ok(Self { inner, devices, addressable })
    }

    pub(crate) fn inner(&self) -> &Arc<ClientInner> {
        &self.inner
    }

    pub(crate) fn api(&self) -> Api {
        self.inner.api()
    }

    /// The plugin whose client this is.
    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
    }

    /// The kind of device: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The version of the runtime under the plugin, in its own words.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// Which of the processes of a many-host run this is.
    pub fn process_index(&self) -> i32 {
        self.inner.process_index
    }

    /// Every device of the run, those of other hosts too.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The devices that this process can use.
    pub fn addressable_devices(&self) -> &[Device] {
        &self.addressable
    }

    /// Compiles a StableHLO program (as MLIR text) for these devices.
    ///
    /// Text that is known to end a plugin's process is refused: see the crate's README.
    pub fn compile(&self, mlir: &str, options: &CompileOptions) -> Result<LoadedExecutable> {
        program::check(mlir, options)?;
        let ids = self.devices.iter().map(|device| i64::from(device.id())).collect::<Vec<_>>();
        let options = options.encode(&ids, "client")?;
        let program = program::as_mlir(mlir);
        let mut args = PJRT_Client_Compile_Args::new();
        args.client = self.inner.raw();
        args.program = &program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: the client is alive; program and options live until after the call.
        unsafe { self.api().call(&mut args) }
            .map_err(|error| error.during(format_args!("compiling for {}", self.platform_name())))?;
        LoadedExecutable::new(self.clone(), given(args.executable, "executable")?)
    }

    /// Loads what [`Executable::serialize`](crate::Executable::serialize) wrote, without compiling again.
    ///
    /// Damaged bytes, and those of another plugin file or another CPU, are refused before the plugin sees them; a plugin
    /// would take them for machine code. The check is against accidents, not against malice: load only what you wrote.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        let frame = Frame::open(serialized, self.plugin(), self.platform_name())?;
        let needed = frame.devices();
        if needed > self.devices.len() as u64 {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("the stored executable runs on {needed} devices, and this client has {}", self.devices.len()),
            ));
        }
        let mut args = PJRT_Executable_DeserializeAndLoad_Args::new();
        args.client = self.inner.raw();
        args.serialized_executable = frame.payload().as_ptr().cast();
        args.serialized_executable_size = frame.payload().len();
        // SAFETY: the client is alive, the bytes live until after the call and are, by their checksum, what this very
        // plugin wrote.
        unsafe { self.api().call(&mut args) }.map_err(|error| error.during("loading a stored executable"))?;
        LoadedExecutable::new(self.clone(), given(args.loaded_executable, "executable")?)
    }

    /// The description of this client's devices, to compile for them without loading the program.
    pub fn topology(&self) -> Result<Topology> {
        Topology::of_client(self)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.platform_name(), self.devices.len())
    }
}
