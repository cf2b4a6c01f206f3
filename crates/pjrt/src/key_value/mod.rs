//! The key-value store by which the processes of one run find each other while their clients are made. Here is its face
//! and the way it is handed to a plugin; a store itself, and the network under it, is the caller's.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::abi::*;
use crate::api::{guarded, list};
use crate::callback;

/// A store that all processes of a run share. Plugins whose clients span processes, such as CUDA's, keep there who has
/// which devices and how to reach them.
///
/// A plugin calls it from its own threads, several at a time, and waits for the answer. It is called while the client is
/// made, and as long as it lives.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Condvar, Mutex};
/// use std::time::Duration;
/// use fulmen_pjrt::{KeyValueError, KeyValueStore, Plugin, locate::{Platform, locate}};
///
/// /// A store for the threads of one process.
/// #[derive(Default)]
/// struct Local(Mutex<HashMap<String, Vec<u8>>>, Condvar);
///
/// impl KeyValueStore for Local {
///     fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
///         let values = self.0.lock().map_err(|_| "the store is broken")?;
///         let missing = |values: &mut HashMap<_, _>| !values.contains_key(key);
///         let (values, _) = self.1.wait_timeout_while(values, timeout, missing).map_err(|_| "the store is broken")?;
///         values.get(key).cloned().ok_or_else(|| KeyValueError::timed_out(format!("the key {key} is not set")))
///     }
///     fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
///         Ok(self.0.lock().map_err(|_| "the store is broken")?.get(key).cloned())
///     }
///     fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
///         self.0.lock().map_err(|_| "the store is broken")?.insert(key.to_owned(), value.to_owned());
///         self.1.notify_all();
///         Ok(())
///     }
/// }
///
/// let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// // A CPU plugin takes a store and never asks it.
/// let client = plugin.create_client_with(&[("cpu_device_count", 1.into())], Arc::new(Local::default()))?;
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub trait KeyValueStore: Send + Sync {
    /// The value of a key, which may be set only later: waits for it up to `timeout`, then
    /// [`KeyValueError::timed_out`].
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError>;

    /// The value of a key, if it is set now. It does not wait.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError>;

    /// Sets a key. If it is set already, a store may replace the value or answer [`KeyValueError::already_exists`].
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError>;
}

/// Why a store has no answer. The message goes to the plugin, which puts it into its own error; so it should name the
/// process or host that is missing. A text is such an error, for whatever is not one of the cases below.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValueError {
    code: PJRT_Error_Code,
    message: String,
}

impl KeyValueError {
    /// The key was not set within the time.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self { code: PJRT_Error_Code::DEADLINE_EXCEEDED, message: message.into() }
    }

    /// The key is set already, and stays as it is.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self { code: PJRT_Error_Code::ALREADY_EXISTS, message: message.into() }
    }

    /// The store cannot be reached.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: PJRT_Error_Code::UNAVAILABLE, message: message.into() }
    }

    fn not_found(key: &str) -> Self {
        Self { code: PJRT_Error_Code::NOT_FOUND, message: format!("the key {key} is not set") }
    }
}

impl<T: Into<String>> From<T> for KeyValueError {
    fn from(message: T) -> Self {
        Self { code: PJRT_Error_Code::INTERNAL, message: message.into() }
    }
}

impl fmt::Display for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// As the message.
impl fmt::Debug for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for KeyValueError {}

/// A store at an address that stays, which the plugin is given. It must live until the plugin's client is gone.
pub(crate) struct SharedStore(Box<Arc<dyn KeyValueStore>>);

impl SharedStore {
    pub(crate) fn new(store: Arc<dyn KeyValueStore>) -> Self {
        Self(Box::new(store))
    }

    /// Names the store to the plugin that is to make a client.
    pub(crate) fn give(&self, args: &mut PJRT_Client_Create_Args) {
        let store = std::ptr::from_ref(&*self.0).cast_mut().cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = store;
        args.kv_try_get_callback = Some(try_get);
        args.kv_try_get_user_arg = store;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = store;
    }
}

/// A call that a plugin makes: its fields are read and written through the pointer, because plugins leave those that they
/// do not use, `struct_size` among them, without a value.
macro_rules! field {
    ($args:expr, $field:ident) => {
        (&raw mut (*$args).$field)
    };
}

/// # Safety
/// As the header says of `PJRT_KeyValueGetCallback`.
unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the plugin gives arguments that are alive until the return, with a key, a place for the value and what
    // `SharedStore::give` named. The value and its deleter go together.
    unsafe {
        let timeout = milliseconds(field!(args, timeout_in_ms).read());
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let answer = ask(field!(args, user_arg).read(), key, |store, key| store.get(key, timeout));
        let out = (field!(args, value), field!(args, value_size), field!(args, value_deleter_callback));
        finish(answer.and_then(|value| hand_over(&value, out)), field!(args, callback_error).read())
    }
}

/// # Safety
/// As the header says of `PJRT_KeyValueTryGetCallback`.
unsafe extern "C" fn try_get(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`.
    unsafe {
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let answer = ask(field!(args, user_arg).read(), key, |store, key| {
            store.try_get(key)?.ok_or_else(|| KeyValueError::not_found(key))
        });
        let out = (field!(args, value), field!(args, value_size), field!(args, value_deleter_callback));
        finish(answer.and_then(|value| hand_over(&value, out)), field!(args, callback_error).read())
    }
}

/// # Safety
/// As the header says of `PJRT_KeyValuePutCallback`.
unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`; the value is readable until the return.
    unsafe {
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let value = list(field!(args, value).read().cast::<u8>(), field!(args, value_size).read());
        let answer = ask(field!(args, user_arg).read(), key, |store, key| store.put(key, value));
        finish(answer, field!(args, callback_error).read())
    }
}

/// A negative time means no limit, which here is 24 days: a sum of it and the present must not overflow.
fn milliseconds(timeout: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout).unwrap_or(i32::MAX as u64))
}

/// Asks the store, whatever happens in it.
///
/// # Safety
/// `store` must be what `SharedStore::give` named, and alive.
unsafe fn ask<T>(
    store: *mut c_void,
    key: &[u8],
    question: impl FnOnce(&dyn KeyValueStore, &str) -> Result<T, KeyValueError>,
) -> Result<T, KeyValueError> {
    let Ok(key) = std::str::from_utf8(key) else {
        return Err(KeyValueError {
            code: PJRT_Error_Code::INVALID_ARGUMENT,
            message: format!("the key {:?} is not UTF-8", String::from_utf8_lossy(key)),
        });
    };
    // SAFETY: the caller's promise.
    let store = unsafe { &*store.cast::<Arc<dyn KeyValueStore>>() };
    callback::run(|| question(&**store, key)).unwrap_or_else(|| Err("the key-value store panicked".into()))
}

/// Where the plugin wants a value: its start, its length and what frees it.
type Out = (*mut *mut c_char, *mut usize, *mut Option<PJRT_KeyValueGetCallback_ValueDeleter>);

/// Gives the plugin a copy, which it frees by calling `delete`, whose only argument is the start.
///
/// # Safety
/// The places must be writable.
unsafe fn hand_over(value: &[u8], out: Out) -> Result<(), KeyValueError> {
    // SAFETY: malloc takes any size. Not zero, for which it may give null.
    let copy = unsafe { libc::malloc(value.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        return Err(KeyValueError {
            code: PJRT_Error_Code::RESOURCE_EXHAUSTED,
            message: format!("no memory for a value of {} bytes", value.len()),
        });
    }
    // SAFETY: the new memory is large enough and apart from the value; the caller promises the places.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), copy, value.len());
        out.0.write(copy.cast());
        out.1.write(value.len());
        out.2.write(Some(delete));
    }
    Ok(())
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: it came from malloc, and the plugin calls this once for it.
    unsafe { libc::free(value.cast()) }
}

/// What the plugin is told: nothing, or an error that it makes of code and text and then owns.
///
/// # Safety
/// `callback_error` must point to the plugin's function that makes errors.
unsafe fn finish(answer: Result<(), KeyValueError>, callback_error: *const PJRT_CallbackError) -> *mut PJRT_Error {
    let Err(KeyValueError { code, message }) = answer else { return std::ptr::null_mut() };
    // SAFETY: the caller's promise; the plugin copies the text.
    let make = || unsafe { (*callback_error)(code, message.as_ptr().cast(), message.len()) };
    guarded("PJRT_CallbackError", make)
}

#[cfg(test)]
mod tests;
