//! Events that the pod sets itself, made of the CPU plugin's events.
//!
//! A caller may destroy an event before it is set. Then the pod destroys it after setting it.

use std::collections::HashMap;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{Api, non_null};
use parking_lot::Mutex;

use crate::error::{Failure, PodError};
use crate::inner::{Entry, forward};

/// The events that are not set yet, and whether their caller has destroyed them.
static UNSET: Mutex<Option<HashMap<usize, bool>>> = Mutex::new(None);

/// The number of events that are not set.
pub(crate) fn count() -> usize {
    UNSET.lock().as_ref().map_or(0, HashMap::len)
}

/// Checks that the CPU plugin can create events.
pub(crate) fn check(inner: Api) -> Result<(), PodError> {
    for slot in [Slot::PJRT_Event_Create, Slot::PJRT_Event_Set] {
        inner.function(slot).map_err(|error| {
            let message = format!("this CPU plugin is too old for a virtual pod: {error}");
            PodError::new(PJRT_Error_Code::UNIMPLEMENTED, message)
        })?;
    }
    Ok(())
}

/// An event that the pod sets. The caller of the pod owns the raw event.
pub(crate) struct UnsetEvent {
    inner: Api,
    raw: *mut PJRT_Event,
    is_set: bool,
}

// SAFETY: events are thread-safe by the API's contract.
unsafe impl Send for UnsetEvent {}

impl UnsetEvent {
    pub(crate) fn new(inner: Api) -> Result<UnsetEvent, PodError> {
        let mut args = PJRT_Event_Create_Args::new();
        // SAFETY: the function has no inputs.
        unsafe { inner.call(&mut args) }?;
        let raw = non_null(args.event, "event")?.as_ptr();
        UNSET.lock().get_or_insert_default().insert(raw as usize, false);
        Ok(Self { inner, raw, is_set: false })
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Event {
        self.raw
    }

    /// Makes the event ready, with success if there is no error.
    pub(crate) fn set(mut self, error: Option<&PodError>) {
        self.set_once(error);
    }

    fn set_once(&mut self, error: Option<&PodError>) {
        self.is_set = true;
        let mut args = PJRT_Event_Set_Args::new();
        args.event = self.raw;
        args.error_code = PJRT_Error_Code(0);
        if let Some(error) = error {
            args.error_code = error.code;
            args.error_message = error.message.as_ptr().cast();
            args.error_message_size = error.message.len();
        }
        // No lock is held, because callbacks of the event run here.
        // SAFETY: the event is alive, because it is still in the table, and is set once.
        let _ = unsafe { self.inner.call(&mut args) };
        let destroyed = UNSET.lock().as_mut().and_then(|unset| unset.remove(&(self.raw as usize)));
        if destroyed == Some(true) {
            let mut args = PJRT_Event_Destroy_Args::new();
            args.event = self.raw;
            // SAFETY: the caller has given the event up, and this is its last use.
            unsafe { self.inner.destroy(&mut args) };
        }
    }
}

/// An event that nobody will set would block its waiters forever.
impl Drop for UnsetEvent {
    fn drop(&mut self) {
        if !self.is_set {
            let message = "the client was closed before this was done";
            self.set_once(Some(&PodError::new(PJRT_Error_Code::UNAVAILABLE, message)));
        }
    }
}

impl Entry for PJRT_Event_Destroy_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if let Some(destroyed) =
            UNSET.lock().as_mut().and_then(|unset| unset.get_mut(&(self.event as usize)))
        {
            *destroyed = true;
            return Ok(());
        }
        // SAFETY: the caller's event, which is set.
        unsafe { forward(self) }
    }
}
