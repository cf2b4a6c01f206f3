//! [`Pod`]: what all objects of one client share. Out of scope: the functions of clients (`client`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::Api;
use parking_lot::{Condvar, Mutex};

use crate::device;
use crate::error::PodError;
use crate::live::Counted;
use crate::settings::Settings;

/// A pointer to an object of the CPU plugin. A list of these is a list of pointers.
#[repr(transparent)]
pub(crate) struct Raw<T>(pub(crate) *mut T);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

impl<T> Raw<T> {
    /// The pointer. A closure that calls this captures the whole value, which other threads may use.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

impl<T> PartialEq for Raw<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

// SAFETY: the API's objects may be used from any thread.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

/// What all objects of one client share. It closes the CPU plugin's client when the last of them
/// is gone.
pub(crate) struct Pod {
    pub(crate) inner: Api,
    pub(crate) raw: Raw<PJRT_Client>,
    pub(crate) settings: Settings,
    /// The index of this process.
    pub(crate) process: usize,
    /// The devices of all processes, in the order of processes.
    pub(crate) devices: Vec<Raw<PJRT_Device>>,
    /// The same in the order in which callers get them.
    pub(crate) listed_devices: Vec<Raw<PJRT_Device>>,
    pub(crate) own_devices: Vec<Raw<PJRT_Device>>,
    pub(crate) own_memories: Vec<Raw<PJRT_Memory>>,
    pub(crate) platform_version: String,
    /// Values that other processes may drop, by process.
    forgotten: Mutex<BTreeMap<usize, Vec<u64>>>,
    next_value: AtomicU64,
    launches: AtomicI32,
    /// The first failure, after which the processes no longer agree.
    pub(crate) failure: Mutex<Option<PodError>>,
    is_closing: Mutex<bool>,
    closing: Condvar,
    /// Whether `device::register` was called.
    pub(crate) is_registered: bool,
    _counted: Counted,
}

impl Pod {
    /// A pod without devices.
    pub(crate) fn new(
        inner: Api,
        raw: Raw<PJRT_Client>,
        settings: Settings,
        process: usize,
        platform_version: String,
    ) -> Pod {
        Pod {
            inner,
            raw,
            settings,
            process,
            devices: Vec::new(),
            listed_devices: Vec::new(),
            own_devices: Vec::new(),
            own_memories: Vec::new(),
            platform_version,
            forgotten: Mutex::default(),
            next_value: AtomicU64::new(0),
            launches: AtomicI32::new(0),
            failure: Mutex::new(None),
            is_closing: Mutex::new(false),
            closing: Condvar::new(),
            is_registered: false,
            _counted: Counted::new(),
        }
    }

    /// The process that a device belongs to.
    pub(crate) fn process_of(&self, device: Raw<PJRT_Device>) -> Option<usize> {
        let position = self.devices.iter().position(|&known| known == device)?;
        Some(position / self.settings.devices)
    }

    pub(crate) fn check_device(&self, device: *mut PJRT_Device) -> Result<(), PodError> {
        if self.own_devices.contains(&Raw(device)) {
            return Ok(());
        }
        Err(PodError::invalid(format!(
            "the device is not one of the {} addressable devices of process {}",
            self.own_devices.len(),
            self.process
        )))
    }

    pub(crate) fn check_memory(&self, memory: *mut PJRT_Memory) -> Result<(), PodError> {
        if self.own_memories.contains(&Raw(memory)) {
            return Ok(());
        }
        Err(PodError::invalid(format!("the memory is not addressable in process {}", self.process)))
    }

    /// A number for a value that is sent to other processes.
    pub(crate) fn number_value(&self) -> u64 {
        self.next_value.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number for the CPU plugin's collectives.
    pub(crate) fn next_launch_id(&self) -> i32 {
        self.launches.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Tells the processes, with the next launch, that a value is no longer needed.
    pub(crate) fn forget(&self, id: u64, processes: BTreeSet<usize>) {
        let mut forgotten = self.forgotten.lock();
        for process in processes {
            forgotten.entry(process).or_default().push(id);
        }
    }

    /// The values that a process may drop.
    pub(crate) fn take_forgotten(&self, process: usize) -> Vec<u64> {
        self.forgotten.lock().remove(&process).unwrap_or_default()
    }

    /// Blocks until the client is closed, as a device that waits for others would.
    pub(crate) fn hang(&self) {
        let mut is_closing = self.is_closing.lock();
        while !*is_closing {
            self.closing.wait(&mut is_closing);
        }
    }

    pub(crate) fn close(&self) {
        *self.is_closing.lock() = true;
        self.closing.notify_all();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if self.is_registered {
            device::unregister(self);
        }
        let mut args = PJRT_Client_Destroy_Args::new();
        args.client = self.raw.0;
        // SAFETY: every object of the client holds the pod, so none is left.
        unsafe { self.inner.destroy(&mut args) }
    }
}
