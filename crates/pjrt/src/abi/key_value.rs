//! The calls that a plugin makes to our key-value store. Here the plugin creates the structs.
#![cfg_attr(
    not(test),
    allow(dead_code, reason = "only tests, which act as the plugin, create these")
)]

use std::ffi::{c_char, c_int, c_void};

use super::*;

/// Creates a plugin error from a code and a text, and copies the text.
pub type PJRT_CallbackError = unsafe extern "C-unwind" fn(
    code: PJRT_Error_Code,
    message: *const c_char,
    message_size: usize,
) -> *mut PJRT_Error;

/// Frees a value that a callback returned.
pub type PJRT_KeyValueGetCallback_ValueDeleter = unsafe extern "C" fn(value: *mut c_char);

/// Waits for the value of a key.
pub type PJRT_KeyValueGetCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error;
/// Returns the value of a key if it is set.
pub type PJRT_KeyValueTryGetCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error;
/// Sets a key.
pub type PJRT_KeyValuePutCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error;

sized_struct! {
    /// The arguments of `PJRT_KeyValueGetCallback`. The last three are outputs.
    PJRT_KeyValueGetCallback_Args {
        key: *const c_char,
        key_size: usize,
        timeout_in_ms: c_int,
        callback_error: *const PJRT_CallbackError,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<PJRT_KeyValueGetCallback_ValueDeleter>,
    }
}

sized_struct! {
    /// The arguments of `PJRT_KeyValueTryGetCallback`. The last three are outputs.
    PJRT_KeyValueTryGetCallback_Args {
        key: *const c_char,
        key_size: usize,
        callback_error: *const PJRT_CallbackError,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<PJRT_KeyValueGetCallback_ValueDeleter>,
    }
}

sized_struct! {
    /// The arguments of `PJRT_KeyValuePutCallback`.
    PJRT_KeyValuePutCallback_Args {
        key: *const c_char,
        key_size: usize,
        value: *const c_char,
        value_size: usize,
        callback_error: *const PJRT_CallbackError,
        user_arg: *mut c_void,
    }
}
