//! Completion events of a device: wait for one, query it, or register a callback.

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
    pub(crate) fn new(client: Arc<ClientInner>, raw: NonNull<PJRT_Event>) -> Event {
        Self { raw: Arc::new(RawEvent::new(client.api(), raw)), client }
    }

    pub(crate) fn raw(&self) -> &Arc<RawEvent> {
        &self.raw
    }

    /// Blocks until the event is ready, and returns its result.
    pub fn wait(&self) -> Result<()> {
        self.raw.wait()
    }

    /// Whether the event is ready, with success or failure.
    pub fn is_ready(&self) -> Result<bool> {
        self.raw.is_ready()
    }

    /// The result, or `None` if the event is not ready.
    pub fn outcome(&self) -> Result<Option<Result<()>>> {
        self.raw.outcome()
    }

    /// Calls `callback` when the event is ready: on a thread of the plugin, or immediately on this
    /// one.
    ///
    /// The callback blocks the plugin while it runs. It should only record or send something, and
    /// must not wait for the device. A panic in it is caught and does not propagate.
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
