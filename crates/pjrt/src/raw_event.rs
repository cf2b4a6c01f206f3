//! The plugin's event itself, and the callback that it runs. What users hold is in `event`.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::abi::*;
use crate::api::Api;
use crate::callback;
use crate::error::Result;

/// An event that owns no client, so that the client may own it.
pub(crate) struct RawEvent {
    api: Api,
    raw: NonNull<PJRT_Event>,
}

// SAFETY: events are thread-safe by the API's contract.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// Takes over an event that the plugin gave.
    pub(crate) fn new(api: Api, raw: NonNull<PJRT_Event>) -> Self {
        Self { api, raw }
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let mut args = PJRT_Event_Await_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive as long as `self`.
        unsafe { self.api.call(&mut args) }
    }

    pub(crate) fn is_ready(&self) -> Result<bool> {
        let mut args = PJRT_Event_IsReady_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive as long as `self`.
        unsafe { self.api.call(&mut args) }?;
        Ok(args.is_ready)
    }

    /// The outcome, if there is one yet. Asking for it earlier would end the process.
    pub(crate) fn outcome(&self) -> Result<Option<Result<()>>> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let mut args = PJRT_Event_Error_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive and, as was just seen, ready.
        Ok(Some(unsafe { self.api.call(&mut args) }))
    }

    /// Has `callback` called once. If this fails, it may or may not have been dropped, but is never called.
    pub(crate) fn on_ready(&self, callback: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        let mut args = PJRT_Event_OnReady_Args::new();
        args.event = self.raw.as_ptr();
        args.callback = Some(call_back);
        // A callback that the plugin refused is leaked rather than risk that it was kept all the same.
        args.user_arg = Box::into_raw(Box::new(Callback { api: self.api, function: callback })).cast();
        // SAFETY: the event is alive, `call_back` takes what `user_arg` is, once.
        unsafe { self.api.call(&mut args) }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let mut args = PJRT_Event_Destroy_Args::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is ours, and this is the end of it.
        unsafe { self.api.destroy(&mut args) }
    }
}

struct Callback {
    api: Api,
    function: Box<dyn FnOnce(Result<()>) + Send>,
}

/// What the plugin calls.
unsafe extern "C" fn call_back(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `on_ready` made it of such a box, and the plugin calls this once.
    let callback = unsafe { Box::from_raw(user_arg.cast::<Callback>()) };
    // SAFETY: the plugin gives the error to the callback.
    let outcome = unsafe { callback.api.check(error) };
    let _ = callback::run(move || (callback.function)(outcome));
}
