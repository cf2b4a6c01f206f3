//! The plugin's event and its callback. The public type is in `event`.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::abi::*;
use crate::api::Api;
use crate::callback;
use crate::error::Result;

/// An event that does not own a client, so that the client can own it.
pub(crate) struct RawEvent {
    api: Api,
    raw: NonNull<PJRT_Event>,
}

// SAFETY: events are thread-safe by the API's contract.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// Takes ownership of an event from the plugin.
    pub(crate) fn new(api: Api, raw: NonNull<PJRT_Event>) -> RawEvent {
        Self { api, raw }
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let mut args = PJRT_Event_Await_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event lives as long as `self`.
        unsafe { self.api.call(&mut args) }
    }

    pub(crate) fn is_ready(&self) -> Result<bool> {
        let mut args = PJRT_Event_IsReady_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event lives as long as `self`.
        unsafe { self.api.call(&mut args) }?;
        Ok(args.is_ready)
    }

    /// The outcome, if the event is ready. Requesting it earlier would end the process.
    pub(crate) fn outcome(&self) -> Result<Option<Result<()>>> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let mut args = PJRT_Event_Error_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive and, as checked above, ready.
        Ok(Some(unsafe { self.api.call(&mut args) }))
    }

    /// Registers `callback`, which is called once. If this fails, it is never called, and may be
    /// leaked.
    pub(crate) fn on_ready(&self, callback: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        let mut args = PJRT_Event_OnReady_Args::new();
        args.event = self.raw.as_ptr();
        args.callback = Some(call_back);
        // A rejected callback is leaked, because the plugin may have kept it.
        args.user_arg =
            Box::into_raw(Box::new(Callback { api: self.api, function: callback })).cast();
        // SAFETY: the event is alive, and `call_back` accepts `user_arg`, once.
        unsafe { self.api.call(&mut args) }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let mut args = PJRT_Event_Destroy_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: we own the event, and this is its last use.
        unsafe { self.api.destroy(&mut args) }
    }
}

struct Callback {
    api: Api,
    function: Box<dyn FnOnce(Result<()>) + Send>,
}

/// The function that the plugin calls.
unsafe extern "C" fn call_back(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `on_ready` created the pointer from such a box, and the plugin calls this once.
    let callback = unsafe { Box::from_raw(user_arg.cast::<Callback>()) };
    // SAFETY: the callback owns the plugin's error.
    let outcome = unsafe { callback.api.check(error) };
    let _ = callback::run(move || (callback.function)(outcome));
}
