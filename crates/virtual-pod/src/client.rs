//! The clients of this process. A client has the CPU plugin's address, so that functions that we do
//! not replace take it too.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{Api, list, non_null, text};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::device::Names;
use crate::error::{Failure, PodError};
use crate::fault::Fault;
use crate::inner::{Entry, forward, inner, inner_plugin};
use crate::launch::Queue;
use crate::network::{self, Peer};
use crate::pod::{Pod, Raw};
use crate::settings::{SHAPE, Settings};
use crate::store::Store;
use crate::{device, launch};

struct Client {
    pod: Arc<Pod>,
    queue: Queue,
}

/// The open clients, by address.
static CLIENTS: Mutex<Option<HashMap<usize, Client>>> = Mutex::new(None);

fn with_client<T>(raw: *mut PJRT_Client, read: impl FnOnce(&Client) -> T) -> Result<T, PodError> {
    let clients = CLIENTS.lock();
    let client = clients.as_ref().and_then(|clients| clients.get(&(raw as usize)));
    client.map(read).ok_or_else(|| PodError::invalid("the client is not open"))
}

/// The pod of an open client.
pub(crate) fn pod_of(raw: *mut PJRT_Client) -> Result<Arc<Pod>, PodError> {
    with_client(raw, |client| client.pod.clone())
}

/// The queue of launches of an open client.
pub(crate) fn queue_of(raw: *mut PJRT_Client) -> Result<Queue, PodError> {
    with_client(raw, |client| client.queue.clone())
}

/// The index of this process and the number of processes, from the options of a client.
///
/// # Safety
/// The options must be valid as the header requires.
unsafe fn read_options(args: &PJRT_Client_Create_Args) -> Result<(i64, i64), PodError> {
    let mut index = 0;
    let mut count = 1;
    // SAFETY: the caller's options.
    for option in unsafe { list(args.create_options, args.num_options) } {
        // SAFETY: the option's name.
        let name = unsafe { text(option.name, option.name_size) };
        let value = match name.as_str() {
            "node_id" => &mut index,
            "num_nodes" => &mut count,
            _ => {
                return Err(PodError::invalid(format!(
                    "a virtual pod has no option {name}; its options are node_id and num_nodes, and {SHAPE} gives the \
                     number of devices"
                )));
            }
        };
        if option.kind != PJRT_NAMED_VALUE_INT64 {
            return Err(PodError::invalid(format!("the option {name} must be an integer")));
        }
        // SAFETY: the kind says which member is set.
        *value = unsafe { option.value.int64_value };
    }
    Ok((index, count))
}

/// Opens the CPU plugin's client.
fn open_inner(inner: Api, devices: usize) -> Result<*mut PJRT_Client, PodError> {
    const COUNT: &str = "cpu_device_count";
    let mut option = PJRT_NamedValue::new();
    option.name = COUNT.as_ptr().cast();
    option.name_size = COUNT.len();
    option.kind = PJRT_NAMED_VALUE_INT64;
    option.value.int64_value = devices as i64;
    option.value_size = 1;
    let mut args = PJRT_Client_Create_Args::new();
    args.create_options = &option;
    args.num_options = 1;
    // SAFETY: the option outlives the call, and the plugin copies it.
    unsafe { inner.call(&mut args) }?;
    Ok(non_null(args.client, "client")?.as_ptr())
}

/// What distinguishes programs of this pod from those of another CPU plugin. It is the same for
/// copies of the plugin, because the processes compare it.
fn version() -> Result<String, PodError> {
    let plugin = inner_plugin()?;
    let path = plugin.path();
    let api = plugin.api_version();
    let (bytes, end) = size_and_end(path)
        .map_err(|e| PodError::invalid(format!("cannot read {}: {e}", path.display())))?;
    Ok(format!("virtual pod on a CPU plugin of PJRT API {api} ({bytes} bytes, the end is {end})"))
}

/// The size of a shared object, and a hash of its last megabyte, which has the table of its
/// sections. A hash of the whole file would take longer than a small fit.
fn size_and_end(path: &Path) -> io::Result<(u64, String)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut end = vec![0; size.min(1 << 20) as usize];
    let start = size - end.len() as u64;
    file.read_exact_at(&mut end, start)?;
    let hash = Sha256::digest(&end);
    Ok((size, hash[..4].iter().map(|byte| format!("{byte:02x}")).collect()))
}

fn open(args: &PJRT_Client_Create_Args) -> Result<(Arc<Pod>, Vec<Peer>), PodError> {
    // SAFETY: the caller's arguments.
    let (index, count) = unsafe { read_options(args) }?;
    let settings = Settings::from_env(|name| std::env::var_os(name))?;
    let process = usize::try_from(index).ok().filter(|_| index < count).ok_or_else(|| {
        PodError::invalid(format!("node_id is {index}, but num_nodes is {count}"))
    })?;
    let processes = count as usize;
    // A process that has joined no other is a pod of its own, as with GPUs.
    if processes != settings.processes && processes != 1 {
        return Err(PodError::invalid(format!(
            "{SHAPE} has {} processes, but num_nodes is {processes}",
            settings.processes
        )));
    }
    let inner = inner()?;
    let raw = open_inner(inner, processes * settings.devices)?;
    // Created first, so that an error below closes the client.
    let mut pod = Pod::new(inner, Raw(raw), settings, process, version()?);
    let mut devices = PJRT_Client_Devices_Args::new();
    devices.client = raw;
    // SAFETY: the client is alive, and the list lives as long as it.
    let all = unsafe {
        inner.call(&mut devices)?;
        list(devices.devices, devices.num_devices)
    };
    pod.devices = all.iter().map(|&device| Raw(device)).collect();
    if pod.devices.len() != processes * pod.settings.devices {
        return Err(PodError::new(
            PJRT_Error_Code::INTERNAL,
            format!("the CPU plugin opened {} devices", pod.devices.len()),
        ));
    }
    pod.listed_devices = pod.devices.clone();
    if pod.settings.fault.as_ref().is_some_and(Fault::reorders_devices) {
        pod.listed_devices.reverse();
    }
    let first = process * pod.settings.devices;
    pod.own_devices = pod.devices[first..first + pod.settings.devices].to_vec();
    for device in &pod.own_devices {
        let mut args = PJRT_Device_AddressableMemories_Args::new();
        args.device = device.0;
        // SAFETY: the device belongs to the client, and the list lives as long as it.
        let memories = unsafe {
            inner.call(&mut args)?;
            list(args.memories, args.num_memories)
        };
        pod.own_memories.extend(memories.iter().map(|&memory| Raw(memory)));
    }
    device::register(&pod)?;
    pod.is_registered = true;
    let peers = if processes == 1 {
        Vec::new()
    } else {
        let store = Store::of(args).ok_or_else(|| {
            PodError::invalid(format!(
                "num_nodes is {processes}, but there is no key-value store in which the processes find each other"
            ))
        })?;
        network::connect(process, processes, pod.settings.host.as_deref(), &store)?
    };
    Ok((Arc::new(pod), peers))
}

impl Entry for PJRT_Client_Create_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let (pod, peers) = open(self)?;
        let queue = launch::start(&pod, peers)?;
        self.client = pod.raw.0;
        let client = Client { pod, queue };
        CLIENTS.lock().get_or_insert_default().insert(self.client as usize, client);
        Ok(())
    }
}

impl Entry for PJRT_Client_Destroy_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let client = CLIENTS.lock().as_mut().and_then(|all| all.remove(&(self.client as usize)));
        if let Some(Client { pod, queue }) = client {
            // Launches that hang end now; others are finished first.
            pod.close();
            queue.finish();
        }
        Ok(())
    }
}

impl Entry for PJRT_Client_PlatformName_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        // The text lives as long as the client.
        self.platform_name = pod.settings.platform.as_ptr().cast::<c_char>();
        self.platform_name_size = pod.settings.platform.len();
        Ok(())
    }
}

impl Entry for PJRT_Client_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        self.platform_version = pod.platform_version.as_ptr().cast::<c_char>();
        self.platform_version_size = pod.platform_version.len();
        Ok(())
    }
}

impl Entry for PJRT_Client_ProcessIndex_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        self.process_index = pod_of(self.client)?.process as c_int;
        Ok(())
    }
}

impl Entry for PJRT_Client_Devices_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        self.devices = pod.listed_devices.as_ptr().cast();
        self.num_devices = pod.listed_devices.len();
        Ok(())
    }
}

impl Entry for PJRT_Client_AddressableDevices_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        self.addressable_devices = pod.own_devices.as_ptr().cast();
        self.num_addressable_devices = pod.own_devices.len();
        Ok(())
    }
}

impl Entry for PJRT_Client_LookupAddressableDevice_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        let index = usize::try_from(self.local_hardware_id).ok();
        let device = index.and_then(|index| pod.own_devices.get(index)).ok_or_else(|| {
            PodError::invalid(format!(
                "process {} has {} devices, and none with the local number {}",
                pod.process,
                pod.own_devices.len(),
                self.local_hardware_id
            ))
        })?;
        self.addressable_device = device.0;
        Ok(())
    }
}

impl Entry for PJRT_Client_AddressableMemories_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        self.addressable_memories = pod.own_memories.as_ptr().cast();
        self.num_addressable_memories = pod.own_memories.len();
        Ok(())
    }
}

impl Entry for PJRT_TopologyDescription_PlatformName_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if let Some(Names { platform, .. }) = device::names(self.topology as usize) {
            // The text lives as long as the client, as the topology does.
            self.platform_name = platform.as_ptr().cast();
            self.platform_name_size = platform.len();
            return Ok(());
        }
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }
    }
}

impl Entry for PJRT_TopologyDescription_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if let Some(Names { version, .. }) = device::names(self.topology as usize) {
            self.platform_version = version.as_ptr().cast();
            self.platform_version_size = version.len();
            return Ok(());
        }
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }
    }
}
