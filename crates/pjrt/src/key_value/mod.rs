//! The key-value store through which the processes of a run find each other while they create
//! clients. This module has the interface and passes a store to a plugin. The caller provides the
//! store and its network.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::abi::*;
use crate::api::{guarded, list};
use crate::callback;

/// A store that all processes of a run share. Plugins whose clients span processes, such as CUDA's,
/// use it to exchange their devices and addresses.
///
/// A plugin calls it from its own threads, several at a time, and waits for the result. It calls it
/// while the client is created, and as long as the client lives.
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
/// // A CPU plugin accepts a store and ignores it.
/// let client = plugin.create_client_with(&[("cpu_device_count", 1.into())], Arc::new(Local::default()))?;
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub trait KeyValueStore: Send + Sync {
    /// The value of a key, which may not be set yet: waits for it up to `timeout`, then returns
    /// [`KeyValueError::timed_out`].
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError>;

    /// The value of a key, if it is set. Does not wait.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError>;

    /// Sets a key. If it is already set, a store may replace the value or return
    /// [`KeyValueError::already_exists`].
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError>;
}

/// Why a store has no result. The plugin includes the message in its own error, so the message
/// should name the missing process or host. Errors other than those below can be created from a
/// text.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValueError {
    code: PJRT_Error_Code,
    message: String,
}

impl KeyValueError {
    /// The key was not set in time.
    pub fn timed_out(message: impl Into<String>) -> KeyValueError {
        Self { code: PJRT_Error_Code::DEADLINE_EXCEEDED, message: message.into() }
    }

    /// The key is already set, and keeps its value.
    pub fn already_exists(message: impl Into<String>) -> KeyValueError {
        Self { code: PJRT_Error_Code::ALREADY_EXISTS, message: message.into() }
    }

    /// The store cannot be reached.
    pub fn unavailable(message: impl Into<String>) -> KeyValueError {
        Self { code: PJRT_Error_Code::UNAVAILABLE, message: message.into() }
    }

    fn not_found(key: &str) -> KeyValueError {
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

/// Prints the message.
impl fmt::Debug for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for KeyValueError {}

/// A store at a fixed address, for a plugin. It must outlive the plugin's client.
pub(crate) struct SharedStore(Box<Arc<dyn KeyValueStore>>);

impl SharedStore {
    pub(crate) fn new(store: Arc<dyn KeyValueStore>) -> SharedStore {
        Self(Box::new(store))
    }

    /// Sets the arguments of the plugin function that creates a client.
    pub(crate) fn set_callbacks(&self, args: &mut PJRT_Client_Create_Args) {
        let store = std::ptr::from_ref(&*self.0).cast_mut().cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = store;
        args.kv_try_get_callback = Some(try_get);
        args.kv_try_get_user_arg = store;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = store;
    }
}

/// A call from a plugin. Its fields are read and written through the pointer, because plugins leave
/// unused fields uninitialized, `struct_size` among them.
macro_rules! field {
    ($args:expr, $field:ident) => {
        (&raw mut (*$args).$field)
    };
}

/// # Safety
/// As the header requires for `PJRT_KeyValueGetCallback`.
unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the plugin passes arguments that live until the return: a key, a place for the value,
    // and the pointers from `SharedStore::set_callbacks`. The value and its deleter are set
    // together.
    unsafe {
        let timeout = milliseconds(field!(args, timeout_in_ms).read());
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let answer =
            call_store(field!(args, user_arg).read(), key, |store, key| store.get(key, timeout));
        let output = ValueOutput {
            start: field!(args, value),
            len: field!(args, value_size),
            deleter: field!(args, value_deleter_callback),
        };
        finish(
            answer.and_then(|value| write_value(&value, output)),
            field!(args, callback_error).read(),
        )
    }
}

/// # Safety
/// As the header requires for `PJRT_KeyValueTryGetCallback`.
unsafe extern "C" fn try_get(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`.
    unsafe {
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let answer = call_store(field!(args, user_arg).read(), key, |store, key| {
            store.try_get(key)?.ok_or_else(|| KeyValueError::not_found(key))
        });
        let output = ValueOutput {
            start: field!(args, value),
            len: field!(args, value_size),
            deleter: field!(args, value_deleter_callback),
        };
        finish(
            answer.and_then(|value| write_value(&value, output)),
            field!(args, callback_error).read(),
        )
    }
}

/// # Safety
/// As the header requires for `PJRT_KeyValuePutCallback`.
unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`; the value is readable until the return.
    unsafe {
        let key = list(field!(args, key).read().cast::<u8>(), field!(args, key_size).read());
        let value = list(field!(args, value).read().cast::<u8>(), field!(args, value_size).read());
        let answer =
            call_store(field!(args, user_arg).read(), key, |store, key| store.put(key, value));
        finish(answer, field!(args, callback_error).read())
    }
}

/// A negative time means no limit. It becomes 24 days, because a sum with the current time must not
/// overflow.
fn milliseconds(timeout: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout).unwrap_or(i32::MAX as u64))
}

/// Calls the store, and converts a panic to an error.
///
/// # Safety
/// `store` must be a live pointer from `SharedStore::set_callbacks`.
unsafe fn call_store<T>(
    store: *mut c_void,
    key: &[u8],
    request: impl FnOnce(&dyn KeyValueStore, &str) -> Result<T, KeyValueError>,
) -> Result<T, KeyValueError> {
    let Ok(key) = std::str::from_utf8(key) else {
        return Err(KeyValueError {
            code: PJRT_Error_Code::INVALID_ARGUMENT,
            message: format!("the key {:?} is not UTF-8", String::from_utf8_lossy(key)),
        });
    };
    // SAFETY: the caller's promise.
    let store = unsafe { &*store.cast::<Arc<dyn KeyValueStore>>() };
    callback::run(|| request(&**store, key))
        .unwrap_or_else(|| Err("the key-value store panicked".into()))
}

/// The places where the plugin expects a value.
struct ValueOutput {
    start: *mut *mut c_char,
    len: *mut usize,
    deleter: *mut Option<PJRT_KeyValueGetCallback_ValueDeleter>,
}

/// Gives the plugin a copy. The plugin frees it with `delete`, whose only argument is the start.
///
/// # Safety
/// The places must be writable.
unsafe fn write_value(value: &[u8], output: ValueOutput) -> Result<(), KeyValueError> {
    // SAFETY: malloc accepts any size. The size is not zero, because malloc may return null for
    // zero.
    let copy = unsafe { libc::malloc(value.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        return Err(KeyValueError {
            code: PJRT_Error_Code::RESOURCE_EXHAUSTED,
            message: format!("no memory for a value of {} bytes", value.len()),
        });
    }
    // SAFETY: the new memory is large enough and does not overlap the value. The caller promises
    // that the places are writable.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), copy, value.len());
        output.start.write(copy.cast());
        output.len.write(value.len());
        output.deleter.write(Some(delete));
    }
    Ok(())
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: the memory came from malloc, and the plugin calls this once for it.
    unsafe { libc::free(value.cast()) }
}

/// The result for the plugin: null, or an error that the plugin creates from the code and the text,
/// and then owns.
///
/// # Safety
/// `callback_error` must point to the plugin's function that creates errors.
unsafe fn finish(
    answer: Result<(), KeyValueError>,
    callback_error: *const PJRT_CallbackError,
) -> *mut PJRT_Error {
    let Err(KeyValueError { code, message }) = answer else { return std::ptr::null_mut() };
    // SAFETY: the caller's promise; the plugin copies the text.
    let make = || unsafe { (*callback_error)(code, message.as_ptr().cast(), message.len()) };
    guarded("PJRT_CallbackError", make)
}

#[cfg(test)]
mod tests;
