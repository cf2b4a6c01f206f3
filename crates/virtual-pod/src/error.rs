//! Errors of this plugin. The CPU plugin's own errors go through unchanged, so the functions for
//! errors take both.

use std::collections::HashMap;
use std::ffi::c_char;
use std::fmt;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::guarded;
use parking_lot::Mutex;

use crate::inner::inner;

/// Why an operation of the pod failed.
#[derive(Clone, Debug)]
pub(crate) struct PodError {
    pub(crate) code: PJRT_Error_Code,
    pub(crate) message: String,
}

impl PodError {
    pub(crate) fn new(code: PJRT_Error_Code, message: impl Into<String>) -> PodError {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> PodError {
        Self::new(PJRT_Error_Code::INVALID_ARGUMENT, message)
    }
}

impl fmt::Display for PodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<fulmen_pjrt::Error> for PodError {
    fn from(error: fulmen_pjrt::Error) -> Self {
        Self::new(fulmen_pjrt::status(&error), error.to_string())
    }
}

/// Why a function of the table failed.
pub(crate) enum Failure {
    Own(PodError),
    /// An error of the CPU plugin, for the caller.
    Inner(*mut PJRT_Error),
}

impl<E: Into<PodError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Own(error.into())
    }
}

impl Failure {
    /// The error for the caller, who owns it.
    pub(crate) fn into_raw(self) -> *mut PJRT_Error {
        match self {
            Self::Own(error) => give(error),
            Self::Inner(error) => error,
        }
    }
}

/// The errors that callers own, by address.
static GIVEN: Mutex<Option<HashMap<usize, Box<PodError>>>> = Mutex::new(None);

fn give(error: PodError) -> *mut PJRT_Error {
    let error = Box::new(error);
    let raw = std::ptr::from_ref(&*error).cast_mut().cast::<PJRT_Error>();
    GIVEN.lock().get_or_insert_default().insert(raw as usize, error);
    raw
}

/// Takes back an error that was given away.
pub(crate) fn take(error: *const PJRT_Error) -> Option<PodError> {
    GIVEN.lock().as_mut()?.remove(&(error as usize)).map(|error| *error)
}

/// The number of errors that callers own.
pub(crate) fn count() -> usize {
    GIVEN.lock().as_ref().map_or(0, HashMap::len)
}

/// Creates an error for a key-value store, which calls this.
pub(crate) unsafe extern "C-unwind" fn callback_error(
    code: PJRT_Error_Code,
    message: *const c_char,
    message_size: usize,
) -> *mut PJRT_Error {
    // SAFETY: the store passes a text of this size.
    let message = unsafe { fulmen_pjrt::api::text(message, message_size) };
    give(PodError { code, message })
}

/// `PJRT_Error_Destroy`.
pub(crate) unsafe extern "C" fn destroy(args: *mut PJRT_Error_Destroy_Args) {
    // SAFETY: the caller passes valid arguments.
    if take(unsafe { (*args).error }).is_none() {
        // SAFETY: the error is the CPU plugin's.
        unsafe { forward_void(Slot::PJRT_Error_Destroy, args) }
    }
}

/// `PJRT_Error_Message`.
pub(crate) unsafe extern "C" fn message(args: *mut PJRT_Error_Message_Args) {
    // SAFETY: the caller passes valid arguments.
    let args_ref = unsafe { &mut *args };
    if let Some(error) =
        GIVEN.lock().as_ref().and_then(|given| given.get(&(args_ref.error as usize)))
    {
        args_ref.message = error.message.as_ptr().cast();
        args_ref.message_size = error.message.len();
        return;
    }
    // SAFETY: the error is the CPU plugin's.
    unsafe { forward_void(Slot::PJRT_Error_Message, args) }
}

/// `PJRT_Error_GetCode`.
pub(crate) unsafe extern "C" fn get_code(args: *mut PJRT_Error_GetCode_Args) -> *mut PJRT_Error {
    // SAFETY: the caller passes valid arguments.
    let args_ref = unsafe { &mut *args };
    if let Some(error) =
        GIVEN.lock().as_ref().and_then(|given| given.get(&(args_ref.error as usize)))
    {
        args_ref.code = error.code.0;
        return std::ptr::null_mut();
    }
    // SAFETY: the error is the CPU plugin's.
    match unsafe { crate::inner::forward(args_ref) } {
        Ok(()) => std::ptr::null_mut(),
        Err(failure) => failure.into_raw(),
    }
}

/// Calls a function of the CPU plugin that returns nothing.
///
/// # Safety
/// `args` must be valid arguments of the function.
unsafe fn forward_void<A>(slot: Slot, args: *mut A) {
    let Ok(function) = inner().and_then(|inner| Ok(inner.function(slot)?)) else { return };
    // SAFETY: the caller names a function that takes these arguments.
    let function: unsafe extern "C-unwind" fn(*mut A) = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller's promise.
    guarded(slot, || unsafe { function(args) });
}
