//! Devices, their descriptions and the topology: which process they belong to, and what they are
//! called.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::list;
use parking_lot::Mutex;

use crate::error::{Failure, PodError};
use crate::inner::{Entry, forward};
use crate::named_values::NamedValues;
use crate::pod::Pod;

/// The attribute that names a device's slice, as libtpu's devices have it.
const SLICE_INDEX: &str = "slice_index";

/// The properties of a device, of its description, or of a topology.
#[derive(Clone)]
pub(crate) struct Names {
    client: usize,
    process: usize,
    /// The number among the devices of this process.
    local: Option<usize>,
    pub(crate) platform: Arc<str>,
    pub(crate) version: Arc<str>,
    kind: Arc<str>,
    text: Arc<str>,
    /// The attributes of a device, if there are several slices: the CPU plugin's and `slice_index`.
    attributes: Option<Arc<NamedValues>>,
}

/// By the address of the object. The texts live until the client is closed.
static NAMES: Mutex<Option<HashMap<usize, Names>>> = Mutex::new(None);

pub(crate) fn names(address: usize) -> Option<Names> {
    NAMES.lock().as_ref()?.get(&address).cloned()
}

/// The properties of an object that must be a client's.
fn known(address: usize) -> Result<Names, PodError> {
    names(address).ok_or_else(|| PodError::invalid("the device is not one of an open client"))
}

/// Records the devices of a client.
pub(crate) fn register(pod: &Pod) -> Result<(), PodError> {
    let platform: Arc<str> = pod.settings.platform.as_str().into();
    let version: Arc<str> = pod.platform_version.as_str().into();
    let kind: Arc<str> = pod.settings.device_kind.as_str().into();
    let mut found = HashMap::new();
    let mut all = Vec::new();
    for (i, device) in pod.devices.iter().enumerate() {
        let mut description = PJRT_Device_GetDescription_Args::new();
        description.device = device.0;
        // SAFETY: the device belongs to the client, which is alive.
        unsafe { pod.inner.call(&mut description) }?;
        let process = i / pod.settings.devices;
        let slice = process * pod.settings.slices / pod.settings.processes;
        let (attributes, in_slice) = if pod.settings.slices == 1 {
            (None, String::new())
        } else {
            let mut args = PJRT_DeviceDescription_Attributes_Args::new();
            args.device_description = description.device_description;
            // SAFETY: the description belongs to the client, and its list lives as long as it.
            let mut all = unsafe {
                pod.inner.call(&mut args)?;
                NamedValues::copy(args.attributes, args.num_attributes)
            };
            all.push_integer(SLICE_INDEX, slice as i64);
            (Some(Arc::new(all)), format!(", slice_index={slice}"))
        };
        let properties = Names {
            client: pod.raw.0 as usize,
            process,
            local: (process == pod.process).then_some(i % pod.settings.devices),
            platform: platform.clone(),
            version: version.clone(),
            kind: kind.clone(),
            text: format!("{kind}(id={i}, process_index={process}{in_slice})").into(),
            attributes,
        };
        found.insert(device.0 as usize, properties.clone());
        found.insert(description.device_description as usize, properties.clone());
        all.push(properties);
    }
    let mut topology = PJRT_Client_TopologyDescription_Args::new();
    topology.client = pod.raw.0;
    // SAFETY: the client is alive. A plugin need not have topologies.
    if unsafe { pod.inner.call(&mut topology) }.is_ok()
        && let Some(first) = all.first()
    {
        found.insert(topology.topology as usize, first.clone());
        let mut args = PJRT_TopologyDescription_GetDeviceDescriptions_Args::new();
        args.topology = topology.topology;
        // SAFETY: the topology lives as long as the client, and the list as long as the topology.
        let descriptions = unsafe {
            pod.inner.call(&mut args)?;
            list(args.descriptions, args.num_descriptions)
        };
        for (&description, properties) in descriptions.iter().zip(all) {
            found.insert(description as usize, properties);
        }
    }
    NAMES.lock().get_or_insert_default().extend(found);
    Ok(())
}

/// Removes what [`register`] recorded.
pub(crate) fn unregister(pod: &Pod) {
    if let Some(names) = NAMES.lock().as_mut() {
        names.retain(|_, names| names.client != pod.raw.0 as usize);
    }
}

impl Entry for PJRT_DeviceDescription_ProcessIndex_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        self.process_index = known(self.device_description as usize)?.process as c_int;
        Ok(())
    }
}

impl Entry for PJRT_DeviceDescription_Attributes_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if let Some(attributes) = known(self.device_description as usize)?.attributes {
            // The list lives as long as the client.
            self.attributes = attributes.0.as_ptr();
            self.num_attributes = attributes.0.len();
            return Ok(());
        }
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }
    }
}

impl Entry for PJRT_DeviceDescription_Kind_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let names = known(self.device_description as usize)?;
        self.device_kind = names.kind.as_ptr().cast();
        self.device_kind_size = names.kind.len();
        Ok(())
    }
}

impl Entry for PJRT_DeviceDescription_DebugString_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let names = known(self.device_description as usize)?;
        self.debug_string = names.text.as_ptr().cast();
        self.debug_string_size = names.text.len();
        Ok(())
    }
}

impl Entry for PJRT_DeviceDescription_ToString_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let names = known(self.device_description as usize)?;
        self.to_string = names.text.as_ptr().cast();
        self.to_string_size = names.text.len();
        Ok(())
    }
}

impl Entry for PJRT_Device_IsAddressable_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        self.is_addressable = known(self.device as usize)?.local.is_some();
        Ok(())
    }
}

impl Entry for PJRT_Device_LocalHardwareId_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let local = known(self.device as usize)?.local;
        self.local_hardware_id = local.map_or(-1, |number| number as c_int);
        Ok(())
    }
}

impl Entry for PJRT_Device_AddressableMemories_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if known(self.device as usize)?.local.is_none() {
            self.memories = std::ptr::null();
            self.num_memories = 0;
            return Ok(());
        }
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }
    }
}
