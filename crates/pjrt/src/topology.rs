//! A set of devices for the compiler. The devices need not be present.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use crate::abi::*;
use crate::api::{Api, list, non_null, text};
use crate::client::Client;
use crate::client_inner::ClientInner;
use crate::device::DeviceDescription;
use crate::error::{self, Result};
use crate::executable::{Executable, Origin};
use crate::named_value::{NamedValue, check_create_options, read_named, write_named};
use crate::options::CompileOptions;
use crate::plugin::Plugin;
use crate::{heap, program};

/// A description of devices to compile for with [`Plugin::compile`]. libtpu creates one from a
/// name, without a TPU:
///
/// ```no_run
/// use fulmen_pjrt::{Plugin, CompileOptions, locate::{Platform, locate}};
/// let plugin = Plugin::load(locate(Platform::Tpu, None)?)?;
/// let topology = plugin.topology("v5e:2x4")?;
/// assert_eq!(topology.devices().len(), 8);
/// let program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }";
/// println!("{:?}", plugin.compile(&topology, program, &CompileOptions::new())?.memory_analysis()?);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub struct Topology {
    raw: NonNull<PJRT_TopologyDescription>,
    owner: Owner,
    platform_name: String,
    platform_version: String,
    attributes: BTreeMap<String, NamedValue>,
    devices: Vec<DeviceDescription>,
}

/// The owner that destroys the description.
enum Owner {
    Us(Plugin),
    Client(Plugin, #[allow(dead_code, reason = "keeps the client open")] Arc<ClientInner>),
}

// SAFETY: topologies are constants.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Topology {
    fn by_name(plugin: &Plugin, name: &str, options: &[(&str, NamedValue)]) -> Result<Topology> {
        if name.trim().is_empty() {
            // libtpu would interpret it as a v2.
            return Err(error::invalid("the topology's name is empty; pass one such as v5e:2x4"));
        }
        let mut args = PJRT_TopologyDescription_Create_Args::new();
        args.topology_name = name.as_ptr().cast();
        args.topology_name_size = name.len();
        let named = write_named(options);
        args.create_options = named.as_ptr();
        args.num_options = named.len();
        // SAFETY: the name and the options outlive the call, and the plugin is initialized.
        unsafe { plugin.api().call(&mut args) }.map_err(|error| {
            error.context(format_args!(
                "describing the topology {name:?} with {}",
                plugin.path().display()
            ))
        })?;
        Self::read(non_null(args.topology, "topology")?, Owner::Us(plugin.clone()))
    }

    fn of_client(client: &Client) -> Result<Topology> {
        let mut args = PJRT_Client_TopologyDescription_Args::new();
        args.client = client.inner().raw();
        // SAFETY: the client is alive.
        unsafe { client.api().call(&mut args) }?;
        let owner = Owner::Client(client.plugin().clone(), client.inner().clone());
        Self::read(non_null(args.topology, "topology")?, owner)
    }

    fn read(raw: NonNull<PJRT_TopologyDescription>, owner: Owner) -> Result<Topology> {
        // Created first, so that an error below destroys the description.
        let mut topology = Self {
            raw,
            owner,
            platform_name: String::new(),
            platform_version: String::new(),
            attributes: BTreeMap::new(),
            devices: Vec::new(),
        };
        let api = topology.api();
        let raw = raw.as_ptr();
        let mut name = PJRT_TopologyDescription_PlatformName_Args::new();
        name.topology = raw;
        let mut version = PJRT_TopologyDescription_PlatformVersion_Args::new();
        version.topology = raw;
        let mut attributes = PJRT_TopologyDescription_Attributes_Args::new();
        attributes.topology = raw;
        let mut devices = PJRT_TopologyDescription_GetDeviceDescriptions_Args::new();
        devices.topology = raw;
        // SAFETY: the topology is alive. Its data lives as long as it does, and is copied at once.
        unsafe {
            api.call(&mut name)?;
            topology.platform_name = text(name.platform_name, name.platform_name_size);
            api.call(&mut version)?;
            topology.platform_version =
                text(version.platform_version, version.platform_version_size);
            api.call(&mut attributes)?;
            topology.attributes = read_named(attributes.attributes, attributes.num_attributes)?;
            api.call(&mut devices)?;
            for &device in list(devices.descriptions, devices.num_descriptions) {
                topology
                    .devices
                    .push(DeviceDescription::read(api, non_null(device, "device description")?)?);
            }
        }
        Ok(topology)
    }

    /// The plugin that created the description.
    pub fn plugin(&self) -> &Plugin {
        match &self.owner {
            Owner::Us(plugin) | Owner::Client(plugin, _) => plugin,
        }
    }

    fn api(&self) -> Api {
        self.plugin().api()
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_TopologyDescription> {
        self.raw
    }

    fn is_of(&self, plugin: &Plugin) -> bool {
        self.plugin().is_same(plugin)
    }

    /// The kind of device: `cpu`, `cuda` or `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.platform_name
    }

    /// The version of the plugin's runtime, as the plugin reports it.
    pub fn platform_version(&self) -> &str {
        &self.platform_version
    }

    /// Further attributes that the plugin reports.
    pub fn attributes(&self) -> &BTreeMap<String, NamedValue> {
        &self.attributes
    }

    /// The devices.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// The plugin's fingerprint of this set of devices, if it computes one.
    pub fn fingerprint(&self) -> Result<u64> {
        let mut args = PJRT_TopologyDescription_Fingerprint_Args::new();
        args.topology = self.raw.as_ptr();
        // SAFETY: the topology is alive.
        unsafe { self.api().call(&mut args) }?;
        Ok(args.fingerprint)
    }

    /// The description in the plugin's own format, if it supports serialization.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = PJRT_TopologyDescription_Serialize_Args::new();
        args.topology = self.raw.as_ptr();
        // SAFETY: the topology is alive. The bytes live until the deleter is called, once.
        unsafe {
            self.api().call(&mut args)?;
            let bytes =
                list(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size).to_vec();
            if let Some(delete) = args.serialized_topology_deleter {
                crate::api::guarded("the deleter of serialized bytes", || {
                    delete(args.serialized_topology)
                });
            }
            Ok(bytes)
        }
    }
}

impl Plugin {
    /// Describes devices to compile for, which need not be present, such as `v5e:2x4` for libtpu.
    pub fn topology(&self, name: &str) -> Result<Topology> {
        Topology::by_name(self, name, &[])
    }

    /// Like [`Plugin::topology`], with options of the plugin. libtpu has `chip_config_name`:
    /// `megacore` combines the two cores of a v4 chip into one device, as a real v4 does.
    pub fn topology_with(&self, name: &str, options: &[(&str, NamedValue)]) -> Result<Topology> {
        check_create_options(options)?;
        Topology::by_name(self, name, options)
    }

    /// Compiles a program for devices that need not be present.
    pub fn compile(
        &self,
        topology: &Topology,
        mlir: &str,
        options: &CompileOptions,
    ) -> Result<Executable> {
        if !topology.is_of(self) {
            return Err(error::invalid(
                "the topology belongs to a different plugin; compile with the plugin that created it",
            ));
        }
        program::check(mlir)?;
        let ids =
            topology.devices().iter().map(|device| i64::from(device.id())).collect::<Vec<_>>();
        let options = options.encode(&ids, "topology")?;
        let text = program::MlirText::new(mlir);
        let program = text.as_program();
        let mut args = PJRT_Compile_Args::new();
        args.topology = topology.raw().as_ptr();
        args.program = &program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: the program and the options outlive the call. The header allows a call without a
        // client.
        heap::run_and_trim(|| unsafe { self.api().call(&mut args) })
            .map_err(|error| error.context("compiling for a topology"))?;
        let executable = non_null(args.executable, "executable")?;
        Executable::new(self.clone(), None, executable, Origin::Compiled)
    }
}

impl Client {
    /// Describes this client's devices, to compile for them without loading the program.
    pub fn topology(&self) -> Result<Topology> {
        Topology::of_client(self)
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if let Owner::Us(plugin) = &self.owner {
            let mut args = PJRT_TopologyDescription_Destroy_Args::new();
            args.topology = self.raw.as_ptr();
            // SAFETY: we own the topology, and this is its last use.
            unsafe { plugin.api().destroy(&mut args) }
        }
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = quantity(self.devices.len(), "device");
        write!(f, "Topology({}, {devices})", self.platform_name)
    }
}
