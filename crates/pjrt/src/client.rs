//! A client: one opening of a plugin's devices. Everything that lives on a device belongs to one and keeps it open.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::api::{Api, list, non_null};
use crate::client_inner::ClientInner;
use crate::device::Device;
use crate::envelope::Envelope;
use crate::error::{Error, Kind, Result};
use crate::key_value::{KeyValueStore, SharedStore};
use crate::loaded::LoadedExecutable;
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::value::{Value, check_create_options, write_named};
use crate::{environment, program};

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

impl Client {
    /// Takes over a client that the plugin made.
    pub(crate) fn new(plugin: Plugin, raw: NonNull<PJRT_Client>, store: Option<SharedStore>) -> Result<Self> {
        let inner = ClientInner::new(plugin, raw, store)?;
        let api = inner.api();
        let mut devices = PJRT_Client_Devices_Args::new();
        devices.client = raw.as_ptr();
        let mut addressable = PJRT_Client_AddressableDevices_Args::new();
        addressable.client = raw.as_ptr();
        // SAFETY: the client is alive, and the lists live as long as it.
        let (all, addressable) = unsafe {
            api.call(&mut devices)?;
            api.call(&mut addressable)?;
            (
                list(devices.devices, devices.num_devices),
                list(addressable.addressable_devices, addressable.num_addressable_devices),
            )
        };
        #[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
        if inner.is_cpu() {
            // SAFETY: the table is part of the plugin, which is never unloaded.
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
        self.inner.plugin()
    }

    /// The kind of device: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        self.inner.platform_name()
    }

    /// The version of the runtime under the plugin, in its own words.
    pub fn platform_version(&self) -> &str {
        self.inner.platform_version()
    }

    /// Which of the processes of a many-host run this is.
    pub fn process_index(&self) -> i32 {
        self.inner.process_index()
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
        LoadedExecutable::new(self.clone(), non_null(args.executable, "executable")?, None)
    }

    /// Loads what [`Executable::serialize`](crate::Executable::serialize) wrote, without compiling again.
    ///
    /// Damaged bytes, and those of another plugin file or another CPU, are refused before the plugin sees them; a plugin
    /// would take them for machine code. The check is against accidents, not against malice: load only what you wrote.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        let envelope = Envelope::open(serialized, self.plugin(), self.platform_name())?;
        let needed = envelope.devices();
        if needed > self.devices.len() as u64 {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("the stored executable runs on {needed} devices, and this client has {}", self.devices.len()),
            ));
        }
        let mut args = PJRT_Executable_DeserializeAndLoad_Args::new();
        args.client = self.inner.raw();
        args.serialized_executable = envelope.payload().as_ptr().cast();
        args.serialized_executable_size = envelope.payload().len();
        // SAFETY: the client is alive, the bytes live until after the call and are, by their checksum, what this very
        // plugin wrote.
        unsafe { self.api().call(&mut args) }.map_err(|error| error.during("loading a stored executable"))?;
        LoadedExecutable::new(self.clone(), non_null(args.loaded_executable, "executable")?, envelope.into_header())
    }
}

impl Plugin {
    /// Opens the plugin's devices.
    ///
    /// The options differ from one plugin to the next. A CPU plugin takes `cpu_device_count` (an integer; left to itself
    /// it makes 4 devices of any machine). Options whose type is known are checked here, because some plugins end the process
    /// on a wrong one.
    ///
    /// On Linux with glibc, a CPU plugin's blocks of 1 MiB and more are kept for the next step when they are freed, which
    /// saves the time of fetching fresh pages; the rest of the process keeps its allocator as it is.
    pub fn create_client(&self, options: &[(&str, Value)]) -> Result<Client> {
        self.create(options, None)
    }

    /// Opens the plugin's devices as one process of several, which tell each other of their devices through `store`.
    ///
    /// CUDA's plugin needs one where the option `num_nodes` is above 1; `node_id` tells it which process this is. Others
    /// take a store and never ask it. It is kept until the client is closed.
    pub fn create_client_with(&self, options: &[(&str, Value)], store: Arc<dyn KeyValueStore>) -> Result<Client> {
        self.create(options, Some(SharedStore::new(store)))
    }

    fn create(&self, options: &[(&str, Value)], store: Option<SharedStore>) -> Result<Client> {
        environment::refuse_xla_flags()?;
        check_create_options(options)?;
        let named = write_named(options);
        let mut args = PJRT_Client_Create_Args::new();
        args.create_options = named.as_ptr();
        args.num_options = named.len();
        if let Some(store) = &store {
            store.give(&mut args);
        }
        // SAFETY: the options live until after the call, and the plugin copies them. The store lives as long as the client.
        unsafe { self.api().call(&mut args) }
            .map_err(|error| error.during(format_args!("opening the devices of {}", self.path().display())))?;
        Client::new(self.clone(), non_null(args.client, "client")?, store)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.platform_name(), self.devices.len())
    }
}
