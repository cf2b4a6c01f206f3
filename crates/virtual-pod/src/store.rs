//! The key-value store that the caller of `PJRT_Client_Create` passes: this side calls it.

use std::ffi::c_void;
use std::time::Duration;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{guarded, list};

use crate::error::{PodError, callback_error, take};

/// The callbacks of a client.
pub(crate) struct Store {
    get: PJRT_KeyValueGetCallback,
    get_arg: *mut c_void,
    put: PJRT_KeyValuePutCallback,
    put_arg: *mut c_void,
}

impl Store {
    /// The store of these arguments, if they have one.
    pub(crate) fn of(args: &PJRT_Client_Create_Args) -> Option<Store> {
        Some(Self {
            get: args.kv_get_callback?,
            get_arg: args.kv_get_user_arg,
            put: args.kv_put_callback?,
            put_arg: args.kv_put_user_arg,
        })
    }

    /// The value of a key. Waits until it is set.
    pub(crate) fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, PodError> {
        let make_error: PJRT_CallbackError = callback_error;
        let mut args = PJRT_KeyValueGetCallback_Args::new();
        args.key = key.as_ptr().cast();
        args.key_size = key.len();
        args.timeout_in_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        args.callback_error = &make_error;
        args.user_arg = self.get_arg;
        // SAFETY: the caller's callback and its argument are valid while the client is created, and
        // the key and the function outlive the call.
        check(guarded("PJRT_KeyValueGetCallback", || unsafe { (self.get)(&mut args) }))?;
        // SAFETY: the callback succeeded, so it has set the value.
        let value = unsafe { list(args.value.cast::<u8>(), args.value_size) }.to_vec();
        if let Some(delete) = args.value_deleter_callback {
            // SAFETY: the value is copied, and this is its deleter.
            unsafe { delete(args.value) };
        }
        Ok(value)
    }

    pub(crate) fn put(&self, key: &str, value: &[u8]) -> Result<(), PodError> {
        let make_error: PJRT_CallbackError = callback_error;
        let mut args = PJRT_KeyValuePutCallback_Args::new();
        args.key = key.as_ptr().cast();
        args.key_size = key.len();
        args.value = value.as_ptr().cast();
        args.value_size = value.len();
        args.callback_error = &make_error;
        args.user_arg = self.put_arg;
        // SAFETY: as in `get`.
        check(guarded("PJRT_KeyValuePutCallback", || unsafe { (self.put)(&mut args) }))
    }
}

fn check(error: *mut PJRT_Error) -> Result<(), PodError> {
    if error.is_null() {
        return Ok(());
    }
    // The store has created the error with `callback_error`.
    let unknown = || {
        PodError::new(PJRT_Error_Code::INTERNAL, "the key-value store returned an unknown error")
    };
    Err(take(error).unwrap_or_else(unknown))
}
