//! Devices and their descriptions. Buffers and programs are in their own modules.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::api::{Api, non_null, text};
use crate::client_inner::ClientInner;
use crate::error::Result;
use crate::named_value::{NamedValue, read_named};

/// The description of a device, which need not be present. A [`Topology`](crate::Topology) is a
/// list of them.
#[derive(Clone)]
pub struct DeviceDescription {
    id: i32,
    process_index: i32,
    kind: String,
    attributes: BTreeMap<String, NamedValue>,
    debug: String,
    display: String,
}

impl DeviceDescription {
    /// # Safety
    /// `raw` must be a live description from this plugin.
    pub(crate) unsafe fn read(
        api: Api,
        raw: NonNull<PJRT_DeviceDescription>,
    ) -> Result<DeviceDescription> {
        let raw = raw.as_ptr();
        let mut id = PJRT_DeviceDescription_Id_Args::new();
        id.device_description = raw;
        let mut process = PJRT_DeviceDescription_ProcessIndex_Args::new();
        process.device_description = raw;
        let mut kind = PJRT_DeviceDescription_Kind_Args::new();
        kind.device_description = raw;
        let mut attributes = PJRT_DeviceDescription_Attributes_Args::new();
        attributes.device_description = raw;
        let mut debug = PJRT_DeviceDescription_DebugString_Args::new();
        debug.device_description = raw;
        let mut display = PJRT_DeviceDescription_ToString_Args::new();
        display.device_description = raw;
        // SAFETY: the description is alive. Its strings and lists live as long as it does, and are
        // copied at once.
        unsafe {
            api.call(&mut id)?;
            api.call(&mut process)?;
            api.call(&mut kind)?;
            api.call(&mut attributes)?;
            api.call(&mut debug)?;
            api.call(&mut display)?;
            Ok(Self {
                id: id.id,
                process_index: process.process_index,
                kind: text(kind.device_kind, kind.device_kind_size),
                attributes: read_named(attributes.attributes, attributes.num_attributes)?,
                debug: text(debug.debug_string, debug.debug_string_size),
                display: text(display.to_string, display.to_string_size),
            })
        }
    }

    /// The device's number, unique over all hosts.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The host (process) that the device belongs to.
    pub fn process_index(&self) -> i32 {
        self.process_index
    }

    /// The kind by name, such as `cpu` or `TPU v5 lite`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Other attributes that the plugin reports, such as `coords` or `device_memory_bytes_limit`.
    pub fn attributes(&self) -> &BTreeMap<String, NamedValue> {
        &self.attributes
    }

    /// The chip's coordinates in the torus, if it has one.
    pub fn coordinates(&self) -> Option<Vec<i64>> {
        match self.attributes.get("coords") {
            Some(NamedValue::IntList(coordinates)) => Some(coordinates.clone()),
            _ => None,
        }
    }
}

impl DeviceDescription {
    /// The index of the core on its chip: chips of some generations are two devices. Only TPUs
    /// report it.
    pub fn core_on_chip(&self) -> Option<i64> {
        self.integer("core_on_chip")
    }

    /// The TPU slice that the device belongs to, in a set of several slices. The devices of a slice
    /// are connected to each other; slices are connected by the data center network. Only TPUs
    /// report it.
    pub fn slice_index(&self) -> Option<i64> {
        self.integer("slice_index")
    }

    /// The number of cores that form this device. Only TPUs report it.
    pub fn num_cores(&self) -> Option<i64> {
        self.integer("num_cores")
    }

    /// The device memory that programs can use, in bytes, if it is known without the device. Only
    /// TPUs report it. For a device that is present, see also [`Device::memory_stats`].
    pub fn memory_bytes(&self) -> Option<u64> {
        self.integer("device_memory_bytes_limit").and_then(|bytes| u64::try_from(bytes).ok())
    }

    fn integer(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name) {
            Some(NamedValue::Int(value)) => Some(*value),
            _ => None,
        }
    }
}

impl fmt::Debug for DeviceDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.debug)
    }
}

impl fmt::Display for DeviceDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display)
    }
}

/// A device of a client. It dereferences to its [`DeviceDescription`].
///
/// ```
/// # use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
/// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
/// let device = &client.devices()[0];
/// assert_eq!((device.id(), device.kind()), (0, "cpu"));
/// assert_eq!(device.coordinates(), None);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    client: Arc<ClientInner>,
    raw: NonNull<PJRT_Device>,
    addressable: bool,
    description: Arc<DeviceDescription>,
}

// SAFETY: a device is a constant of its client, which `client` keeps alive.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(
        client: Arc<ClientInner>,
        raw: *mut PJRT_Device,
        addressable: bool,
    ) -> Result<Device> {
        let raw = non_null(raw, "device")?;
        let api = client.api();
        let mut args = PJRT_Device_GetDescription_Args::new();
        args.device = raw.as_ptr();
        // SAFETY: the device belongs to the client, which is alive. So does its description.
        let description = unsafe {
            api.call(&mut args)?;
            DeviceDescription::read(api, non_null(args.device_description, "device description")?)?
        };
        Ok(Self { client, raw, addressable, description: Arc::new(description) })
    }

    pub(crate) fn client(&self) -> &Arc<ClientInner> {
        &self.client
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_Device> {
        self.raw
    }

    /// Whether this process can put buffers on the device and run programs there.
    pub fn is_addressable(&self) -> bool {
        self.addressable
    }

    /// The device's number on this host, if the plugin reports it.
    pub fn local_hardware_id(&self) -> Option<i32> {
        let mut args = PJRT_Device_LocalHardwareId_Args::new();
        args.device = self.raw.as_ptr();
        // SAFETY: the device lives as long as its client.
        let answer = unsafe { self.client.api().call(&mut args) };
        (answer.is_ok() && args.local_hardware_id >= 0).then_some(args.local_hardware_id)
    }

    /// The use of the device's memory. CPU plugins do not report it: the error is
    /// [unsupported](crate::Error::is_unsupported).
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut args = PJRT_Device_MemoryStats_Args::new();
        args.device = self.raw.as_ptr();
        // SAFETY: the device lives as long as its client.
        unsafe { self.client.api().call(&mut args) }?;
        let set = |is_set: bool, value: i64| is_set.then_some(value);
        Ok(MemoryStats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: set(args.peak_bytes_in_use_is_set, args.peak_bytes_in_use),
            bytes_limit: set(args.bytes_limit_is_set, args.bytes_limit),
            bytes_reserved: set(args.bytes_reserved_is_set, args.bytes_reserved),
            peak_bytes_reserved: set(args.peak_bytes_reserved_is_set, args.peak_bytes_reserved),
            bytes_reservable_limit: set(
                args.bytes_reservable_limit_is_set,
                args.bytes_reservable_limit,
            ),
            largest_free_block_bytes: set(
                args.largest_free_block_bytes_is_set,
                args.largest_free_block_bytes,
            ),
            largest_alloc_size: set(args.largest_alloc_size_is_set, args.largest_alloc_size),
            num_allocs: set(args.num_allocs_is_set, args.num_allocs),
            pool_bytes: set(args.pool_bytes_is_set, args.pool_bytes),
            peak_pool_bytes: set(args.peak_pool_bytes_is_set, args.peak_pool_bytes),
        })
    }
}

/// Equal if they are the same device of the same client.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw && Arc::ptr_eq(&self.client, &other.client)
    }
}

impl Eq for Device {}

impl Deref for Device {
    type Target = DeviceDescription;

    fn deref(&self) -> &DeviceDescription {
        &self.description
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.description, f)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.description, f)
    }
}

/// The memory of a device, in bytes. Values that the plugin does not report are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The bytes that buffers and programs use.
    pub bytes_in_use: i64,
    /// The peak of the bytes in use.
    pub peak_bytes_in_use: Option<i64>,
    /// The limit of the bytes in use.
    pub bytes_limit: Option<i64>,
    /// Reserved.
    pub bytes_reserved: Option<i64>,
    /// The peak of the reserved bytes.
    pub peak_bytes_reserved: Option<i64>,
    /// The limit of the reserved bytes.
    pub bytes_reservable_limit: Option<i64>,
    /// The largest free block.
    pub largest_free_block_bytes: Option<i64>,
    /// The largest allocation so far.
    pub largest_alloc_size: Option<i64>,
    /// The number of allocations so far.
    pub num_allocs: Option<i64>,
    /// The size of the allocator's pool.
    pub pool_bytes: Option<i64>,
    /// The peak size of the pool.
    pub peak_pool_bytes: Option<i64>,
}
