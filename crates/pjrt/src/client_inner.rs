//! The plugin's client, which all objects on its devices keep open. The public type is in `client`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::abi::*;
use crate::api::{Api, text};
use crate::callback;
use crate::error::Result;
use crate::key_value::SharedStore;
use crate::plugin::Plugin;
use crate::raw_event::RawEvent;

/// The plugin's client. Devices, buffers and events hold it.
pub(crate) struct ClientInner {
    plugin: Plugin,
    raw: NonNull<PJRT_Client>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    in_flight: Mutex<Vec<Arc<RawEvent>>>,
    launches: AtomicI32,
    /// The store that the plugin's threads may call while the client lives.
    store: Option<SharedStore>,
}

// SAFETY: clients are thread-safe by the API's contract.
unsafe impl Send for ClientInner {}
// SAFETY: as above.
unsafe impl Sync for ClientInner {}

impl ClientInner {
    /// Takes ownership of a client from the plugin, and reads its properties.
    pub(crate) fn new(
        plugin: Plugin,
        raw: NonNull<PJRT_Client>,
        store: Option<SharedStore>,
    ) -> Result<ClientInner> {
        // Created first, so that an error below closes the client.
        let mut inner = Self {
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
        // SAFETY: the client is alive, and the strings live as long as it.
        unsafe {
            api.call(&mut name)?;
            inner.platform_name = text(name.platform_name, name.platform_name_size);
            api.call(&mut version)?;
            inner.platform_version = text(version.platform_version, version.platform_version_size);
            api.call(&mut process)?;
        }
        inner.process_index = process.process_index;
        Ok(inner)
    }

    pub(crate) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    pub(crate) fn api(&self) -> Api {
        self.plugin.api()
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Client {
        self.raw.as_ptr()
    }

    pub(crate) fn platform_name(&self) -> &str {
        &self.platform_name
    }

    pub(crate) fn platform_version(&self) -> &str {
        &self.platform_version
    }

    pub(crate) fn process_index(&self) -> i32 {
        self.process_index
    }

    /// Whether its devices are the processors of this machine.
    pub(crate) fn is_cpu(&self) -> bool {
        self.platform_name == "cpu"
    }

    /// The completion events of the running launch. The caller holds the lock during the next
    /// launch.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, Vec<Arc<RawEvent>>> {
        self.in_flight.lock()
    }

    /// Whether the running launch has not ended on all devices. False if another thread launches.
    pub(crate) fn is_computing(&self) -> bool {
        let Some(events) = self.in_flight.try_lock() else { return false };
        events.iter().any(|event| event.is_ready().is_ok_and(|ready| !ready))
    }

    /// A number for the next launch over several devices. It is the same on each host, because
    /// every host makes the same launches.
    pub(crate) fn next_launch(&self) -> i32 {
        // Zero means "no number".
        (self.launches.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        let in_flight = std::mem::take(self.in_flight.get_mut());
        let api = self.api();
        let raw = SendClient(self.raw);
        let store = self.store.take();
        let close = move || {
            let SendClient(raw) = { raw };
            for event in &in_flight {
                let _ = event.wait();
            }
            drop(in_flight);
            let mut args = PJRT_Client_Destroy_Args::new();
            args.client = raw.as_ptr();
            // SAFETY: every object on the client holds it, so none is left.
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
