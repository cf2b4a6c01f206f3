//! A client: an open connection to a plugin's devices. Everything on a device belongs to a client
//! and keeps it open.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use crate::abi::*;
use crate::api::{Api, list, non_null};
use crate::client_inner::ClientInner;
use crate::device::Device;
use crate::envelope::Envelope;
use crate::error::{Error, Fact, Result};
use crate::executable::Origin;
use crate::key_value::{KeyValueStore, SharedStore};
use crate::loaded_executable::LoadedExecutable;
use crate::named_value::{NamedValue, check_create_options, write_named};
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::{at_exit, environment, heap, program};

/// An open connection to a plugin's devices. Clones are the same client. It closes when the last
/// object that belongs to it is dropped.
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
    /// Takes ownership of a client from the plugin.
    pub(crate) fn new(
        plugin: Plugin,
        raw: NonNull<PJRT_Client>,
        store: Option<SharedStore>,
    ) -> Result<Client> {
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
        let inner = Arc::new(inner);
        if inner.is_cpu() {
            at_exit::wait_for(&inner);
        }
        let devices = all
            .iter()
            .map(|&raw| Device::new(inner.clone(), raw, addressable.contains(&raw)))
            .collect::<Result<Arc<[_]>>>()?;
        let find = |raw: &*mut PJRT_Device| {
            devices.iter().find(|device| device.raw().as_ptr() == *raw).cloned()
        };
        let addressable = addressable.iter().filter_map(find).collect();
        Ok(Self { inner, devices, addressable })
    }

    pub(crate) fn inner(&self) -> &Arc<ClientInner> {
        &self.inner
    }

    pub(crate) fn api(&self) -> Api {
        self.inner.api()
    }

    /// The plugin that created this client.
    pub fn plugin(&self) -> &Plugin {
        self.inner.plugin()
    }

    /// The kind of device: `cpu`, `cuda` or `tpu`.
    pub fn platform_name(&self) -> &str {
        self.inner.platform_name()
    }

    /// The version of the plugin's runtime, as the plugin reports it.
    pub fn platform_version(&self) -> &str {
        self.inner.platform_version()
    }

    /// The index of this process in a run of several hosts.
    pub fn process_index(&self) -> i32 {
        self.inner.process_index()
    }

    /// All devices of the run, including those of other hosts.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The devices that this process can use.
    pub fn addressable_devices(&self) -> &[Device] {
        &self.addressable
    }

    /// Compiles a StableHLO program (MLIR text) for these devices.
    ///
    /// Debug builds reject programs that are known to crash a plugin: see the README of this crate.
    pub fn compile(&self, mlir: &str, options: &CompileOptions) -> Result<LoadedExecutable> {
        program::check(mlir)?;
        let ids = self.devices.iter().map(|device| i64::from(device.id())).collect::<Vec<_>>();
        let options = options.encode(&ids, "client")?;
        let text = program::MlirText::new(mlir);
        let program = text.as_program();
        let mut args = PJRT_Client_Compile_Args::new();
        args.client = self.inner.raw();
        args.program = &program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: the client is alive; the program and the options outlive the call.
        heap::run_and_trim(|| unsafe { self.api().call(&mut args) }).map_err(|error| {
            error.context(format_args!("compiling for {}", self.platform_name()))
        })?;
        let program = non_null(args.executable, "executable")?;
        LoadedExecutable::new(self.clone(), program, Origin::Compiled)
    }

    /// Loads the output of [`Executable::serialize`](crate::Executable::serialize) without
    /// compiling again.
    ///
    /// Damaged bytes, and bytes from a different plugin file or another CPU, are rejected before
    /// the plugin sees them. A plugin would execute them as machine code. The check detects
    /// accidents, not attacks: load only bytes that you wrote.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        let envelope = Envelope::open(serialized, self.plugin(), self.platform_name())?;
        let needed = envelope.devices();
        if needed > self.devices.len() as u64 {
            return Err(Error::of(
                Fact::Rejected,
                format!(
                    "the stored executable needs {}, but this client has {}",
                    quantity(needed, "device"),
                    self.devices.len()
                ),
            ));
        }
        let mut args = PJRT_Executable_DeserializeAndLoad_Args::new();
        args.client = self.inner.raw();
        args.serialized_executable = envelope.payload().as_ptr().cast();
        args.serialized_executable_size = envelope.payload().len();
        // SAFETY: the client is alive, and the bytes outlive the call. Their checksum shows that
        // this plugin wrote them.
        unsafe { self.api().call(&mut args) }
            .map_err(|error| error.context("loading a stored executable"))?;
        LoadedExecutable::new(
            self.clone(),
            non_null(args.loaded_executable, "executable")?,
            Origin::Stored(envelope.into_header().map(Box::new)),
        )
    }
}

impl Plugin {
    /// Opens the plugin's devices.
    ///
    /// Each plugin has its own options. A CPU plugin takes `cpu_device_count` (an integer; the
    /// plugin's default is 4 devices). Options with known types are checked here, because some
    /// plugins end the process if the type is wrong.
    pub fn create_client(&self, options: &[(&str, NamedValue)]) -> Result<Client> {
        self.create(options, None)
    }

    /// Opens the plugin's devices in one of several processes, which exchange their devices through
    /// `store`.
    ///
    /// The CUDA plugin needs a store if the option `num_nodes` is above 1; `node_id` is the index
    /// of this process. Other plugins ignore the store. It is kept until the client is closed.
    pub fn create_client_with(
        &self,
        options: &[(&str, NamedValue)],
        store: Arc<dyn KeyValueStore>,
    ) -> Result<Client> {
        self.create(options, Some(SharedStore::new(store)))
    }

    fn create(&self, options: &[(&str, NamedValue)], store: Option<SharedStore>) -> Result<Client> {
        environment::refuse_xla_flags()?;
        check_create_options(options)?;
        let named = write_named(options);
        let mut args = PJRT_Client_Create_Args::new();
        args.create_options = named.as_ptr();
        args.num_options = named.len();
        if let Some(store) = &store {
            store.set_callbacks(&mut args);
        }
        // SAFETY: the options outlive the call, and the plugin copies them. The store lives as long
        // as the client.
        unsafe { self.api().call(&mut args) }.map_err(|error| {
            error.context(format_args!("opening the devices of {}", self.path().display()))
        })?;
        Client::new(self.clone(), non_null(args.client, "client")?, store)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = quantity(self.devices.len(), "device");
        write!(f, "Client({}, {devices})", self.platform_name())
    }
}
