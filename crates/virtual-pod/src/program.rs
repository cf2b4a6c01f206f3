//! Programs that are loaded on the devices of several processes. Out of scope: running them
//! (`launch`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{list, non_null, text};
use parking_lot::Mutex;

use crate::client::pod_of;
use crate::error::{Failure, PodError};
use crate::inner::{Entry, forward};
use crate::live::Counted;
use crate::pod::{Pod, Raw};
use crate::serialized::{fingerprint, split};

/// A loaded program. It has the CPU plugin's address, so that functions that we do not replace take
/// it too.
pub(crate) struct Program {
    pub(crate) pod: Arc<Pod>,
    raw: Raw<PJRT_LoadedExecutable>,
    pub(crate) name: String,
    /// Equal programs have equal fingerprints in all processes.
    pub(crate) fingerprint: String,
    /// The devices of all processes that run it, in the order of the CPU plugin's arguments.
    pub(crate) devices: Vec<Raw<PJRT_Device>>,
    /// The positions of this process's devices among them.
    pub(crate) own: Vec<usize>,
    own_devices: Vec<Raw<PJRT_Device>>,
    own_ids: Vec<PJRT_LogicalDeviceIds>,
    /// The processes that run it.
    pub(crate) processes: BTreeSet<usize>,
    pub(crate) num_outputs: usize,
    _counted: Counted,
}

/// The programs that callers have not destroyed, by address.
static PROGRAMS: Mutex<Option<HashMap<usize, Arc<Program>>>> = Mutex::new(None);

pub(crate) fn program_of(raw: *mut PJRT_LoadedExecutable) -> Result<Arc<Program>, PodError> {
    let programs = PROGRAMS.lock();
    let program = programs.as_ref().and_then(|programs| programs.get(&(raw as usize)));
    program.cloned().ok_or_else(|| PodError::invalid("the program is not loaded"))
}

impl Program {
    /// Takes ownership of a program that the CPU plugin has loaded. `fingerprint` is that of the
    /// program that was serialized, if there was one.
    fn register(
        pod: Arc<Pod>,
        raw: *mut PJRT_LoadedExecutable,
        fingerprint: Option<&[u8]>,
    ) -> Result<(), PodError> {
        let raw = Raw(non_null(raw, "executable")?.as_ptr());
        // Created first, so that an error below destroys the program.
        let mut program = Self {
            pod: pod.clone(),
            raw,
            name: String::new(),
            fingerprint: String::new(),
            devices: Vec::new(),
            own: Vec::new(),
            own_devices: Vec::new(),
            own_ids: Vec::new(),
            processes: BTreeSet::new(),
            num_outputs: 0,
            _counted: Counted::new(),
        };
        program.read_executable(fingerprint)?;
        let mut devices = PJRT_LoadedExecutable_AddressableDevices_Args::new();
        devices.executable = raw.0;
        // SAFETY: the program is alive, and the list lives as long as it.
        let all = unsafe {
            pod.inner.call(&mut devices)?;
            list(devices.addressable_devices, devices.num_addressable_devices)
        };
        let mut ids = PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args::new();
        ids.executable = raw.0;
        // SAFETY: as above. Older plugins do not have the function.
        let ids = unsafe {
            let known = pod.inner.call(&mut ids).is_ok();
            let count = if known { ids.num_addressable_device_logical_ids } else { 0 };
            list(ids.addressable_device_logical_ids, count)
        };
        for (position, &device) in all.iter().enumerate() {
            let device = Raw(device);
            let process = pod.process_of(device).ok_or_else(|| {
                PodError::new(PJRT_Error_Code::INTERNAL, "the program runs on an unknown device")
            })?;
            program.devices.push(device);
            program.processes.insert(process);
            if process == pod.process {
                program.own.push(position);
                program.own_devices.push(device);
                program.own_ids.extend(ids.get(position));
            }
        }
        PROGRAMS.lock().get_or_insert_default().insert(raw.0 as usize, Arc::new(program));
        Ok(())
    }

    fn read_executable(&mut self, serialized: Option<&[u8]>) -> Result<(), PodError> {
        let inner = self.pod.inner;
        let mut args = PJRT_LoadedExecutable_GetExecutable_Args::new();
        args.loaded_executable = self.raw.0;
        // SAFETY: the program is alive, and the executable is ours to destroy.
        unsafe { inner.call(&mut args) }?;
        let executable = non_null(args.executable, "executable")?.as_ptr();
        let mut name = PJRT_Executable_Name_Args::new();
        name.executable = executable;
        let mut outputs = PJRT_Executable_NumOutputs_Args::new();
        outputs.executable = executable;
        // SAFETY: the executable is alive, and its texts live as long as it.
        let mut read = || unsafe {
            inner.call(&mut name)?;
            inner.call(&mut outputs)?;
            self.name = text(name.executable_name, name.executable_name_size);
            self.num_outputs = outputs.num_outputs;
            let bytes = match serialized {
                Some(bytes) => bytes.to_vec(),
                None => fingerprint(executable)?,
            };
            self.fingerprint = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok::<(), PodError>(())
        };
        let outcome = read();
        let mut destroy = PJRT_Executable_Destroy_Args::new();
        destroy.executable = executable;
        // SAFETY: this is its last use.
        unsafe { inner.destroy(&mut destroy) };
        outcome
    }

    pub(crate) fn raw(&self) -> *mut PJRT_LoadedExecutable {
        self.raw.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut args = PJRT_LoadedExecutable_Destroy_Args::new();
        args.executable = self.raw.0;
        // SAFETY: the caller and all launches have given it up.
        unsafe { self.pod.inner.destroy(&mut args) }
    }
}

impl Entry for PJRT_Client_Compile_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }?;
        Ok(Program::register(pod, self.executable, None)?)
    }
}

impl Entry for PJRT_Executable_DeserializeAndLoad_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        // SAFETY: the caller's bytes.
        let bytes = unsafe {
            list(self.serialized_executable.cast::<u8>(), self.serialized_executable_size)
        };
        let (fingerprint, inner) = split(bytes)?;
        self.serialized_executable = inner.as_ptr().cast();
        self.serialized_executable_size = inner.len();
        // SAFETY: the caller's arguments, with the bytes that the CPU plugin knows.
        let outcome = unsafe { forward(self) };
        self.serialized_executable = bytes.as_ptr().cast();
        self.serialized_executable_size = bytes.len();
        outcome?;
        Ok(Program::register(pod, self.loaded_executable, Some(fingerprint))?)
    }
}

impl Entry for PJRT_LoadedExecutable_Destroy_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // A launch that is queued keeps the program.
        let program =
            PROGRAMS.lock().as_mut().and_then(|all| all.remove(&(self.executable as usize)));
        drop(program);
        Ok(())
    }
}

impl Entry for PJRT_LoadedExecutable_AddressableDevices_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let program = program_of(self.executable)?;
        // The list lives as long as the program.
        self.addressable_devices = program.own_devices.as_ptr().cast();
        self.num_addressable_devices = program.own_devices.len();
        Ok(())
    }
}

impl Entry for PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let program = program_of(self.executable)?;
        self.addressable_device_logical_ids = program.own_ids.as_ptr();
        self.num_addressable_device_logical_ids = program.own_ids.len();
        Ok(())
    }
}
