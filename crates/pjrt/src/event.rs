//! A completion event of a device: wait for it, query it, or get a callback.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::client_inner::ClientInner;
use crate::error::Result;
use crate::raw_event::RawEvent;

/// A completion event of a device. Clones are the same event.
///
/// ```
/// # use fulmen_pjrt::{Plugin, ElementType, locate::{Platform, locate}};
/// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
/// let buffer = client.buffer_from_host(&[1, 2, 3], ElementType::U8, &[3], &client.devices()[0])?;
/// let event = buffer.ready()?;
/// event.wait()?;
/// assert!(event.is_ready()?);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
#[derive(Clone)]
pub struct Event {
    // Dropped before the client.
    raw: Arc<RawEvent>,
    client: Arc<ClientInner>,
}

impl Event {
    pub(crate) fn new(client: Arc<ClientInner>, raw: NonNull<PJRT_Event>) -> Self {
        Self { raw: Arc::new(RawEvent::new(client.api(), raw)), client }
    }

    pub(crate) fn raw(&self) -> &Arc<RawEvent> {
        &self.raw
    }

    /// Blocks until it has happened, and returns its result.
    pub fn wait(&self) -> Result<()> {
        self.raw.wait()
    }

    /// Whether it has happened, well or badly.
    pub fn is_ready(&self) -> Result<bool> {
        self.raw.is_ready()
    }

    /// Its result, or `None` if it has not happened yet.
    pub fn outcome(&self) -> Result<Option<Result<()>>> {
        self.raw.outcome()
    }

    /// Has `callback` called once it has happened: on a thread of the plugin's, or at once on this one.
    ///
    /// The callback holds up the plugin while it runs, so it should do no more than note or send something; it must not
    /// wait for the device. A panic in it is caught and goes no further.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.raw.on_ready(Box::new(callback))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.is_ready() {
            Ok(true) => "ready",
            Ok(false) => "not ready",
            Err(_) => "unknown",
        };
        write!(f, "Event({state}, {})", self.client.platform_name())
    }
}
