//! The callbacks, called in the way of a plugin.
use std::collections::HashMap;
use std::sync::{Mutex, Weak};

use super::*;

/// A store that records its calls.
#[derive(Default)]
struct Store {
    values: Mutex<HashMap<String, Vec<u8>>>,
    timeouts: Mutex<Vec<Duration>>,
}

impl KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.timeouts.lock().unwrap().push(timeout);
        if key == "panic" {
            panic!("as a user's store might");
        }
        self.try_get(key)?.ok_or_else(|| KeyValueError::timed_out("process 3 has not come"))
    }
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
        if key == "unreachable" {
            return Err(KeyValueError::unavailable("no route"));
        }
        Ok(self.values.lock().unwrap().get(key).cloned())
    }
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        if key == "odd" {
            return Err("something else".into());
        }
        match self.values.lock().unwrap().insert(key.to_owned(), value.to_owned()) {
            None => Ok(()),
            Some(_) => Err(KeyValueError::already_exists("there before")),
        }
    }
}

/// The errors of the simulated plugin.
struct MadeError {
    code: PJRT_Error_Code,
    message: String,
}

unsafe extern "C-unwind" fn make_error(
    code: PJRT_Error_Code,
    message: *const c_char,
    size: usize,
) -> *mut PJRT_Error {
    // SAFETY: the caller's text is readable during the call.
    let message = unsafe { crate::api::text(message, size) };
    Box::into_raw(Box::new(MadeError { code, message })).cast()
}

const MAKE_ERROR: PJRT_CallbackError = make_error;

/// The plugin's side of a store.
struct Caller {
    args: PJRT_Client_Create_Args,
    store: SharedStore,
}

type Outcome<T> = std::result::Result<T, (PJRT_Error_Code, String)>;

impl Caller {
    fn new(store: Arc<dyn KeyValueStore>) -> Caller {
        let store = SharedStore::new(store);
        let mut args = PJRT_Client_Create_Args::new();
        store.set_callbacks(&mut args);
        Self { args, store }
    }

    fn outcome(error: *mut PJRT_Error) -> Outcome<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: `make_error` created it, and it is taken once.
        let MadeError { code, message } = *unsafe { Box::from_raw(error.cast::<MadeError>()) };
        Err((code, message))
    }

    fn taken(
        start: *mut c_char,
        size: usize,
        deleter: Option<PJRT_KeyValueGetCallback_ValueDeleter>,
    ) -> Vec<u8> {
        assert!(!start.is_null());
        // SAFETY: the callback returned this many bytes; the deleter frees them once.
        unsafe {
            let value = list(start.cast::<u8>(), size).to_vec();
            deleter.unwrap()(start);
            value
        }
    }

    fn get(&self, key: &[u8], timeout_in_ms: i32) -> Outcome<Vec<u8>> {
        let mut args = PJRT_KeyValueGetCallback_Args::new();
        // Plugins leave it uninitialized.
        args.struct_size = usize::MAX;
        (args.key, args.key_size, args.timeout_in_ms) =
            (key.as_ptr().cast(), key.len(), timeout_in_ms);
        (args.callback_error, args.user_arg) = (&MAKE_ERROR, self.args.kv_get_user_arg);
        // SAFETY: the arguments are those that the header requires.
        Self::outcome(unsafe { self.args.kv_get_callback.unwrap()(&mut args) })?;
        Ok(Self::taken(args.value, args.value_size, args.value_deleter_callback))
    }

    fn try_get(&self, key: &[u8]) -> Outcome<Vec<u8>> {
        let mut args = PJRT_KeyValueTryGetCallback_Args::new();
        (args.key, args.key_size) = (key.as_ptr().cast(), key.len());
        (args.callback_error, args.user_arg) = (&MAKE_ERROR, self.args.kv_try_get_user_arg);
        // SAFETY: as above.
        Self::outcome(unsafe { self.args.kv_try_get_callback.unwrap()(&mut args) })?;
        Ok(Self::taken(args.value, args.value_size, args.value_deleter_callback))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()> {
        let mut args = PJRT_KeyValuePutCallback_Args::new();
        (args.key, args.key_size) = (key.as_ptr().cast(), key.len());
        (args.value, args.value_size) = (value.as_ptr().cast(), value.len());
        (args.callback_error, args.user_arg) = (&MAKE_ERROR, self.args.kv_put_user_arg);
        // SAFETY: as above.
        Self::outcome(unsafe { self.args.kv_put_callback.unwrap()(&mut args) })
    }
}

// SAFETY: the callbacks and the store may be used from any thread. The tests use no other field
// from several threads.
unsafe impl Sync for Caller {}

#[test]
fn values_survive_a_round_trip() {
    let caller = Caller::new(Arc::new(Store::default()));
    let large = (0..100_000).map(|i| i as u8).collect::<Vec<_>>();
    for (key, value) in
        [("text", &b"value"[..]), ("empty", b""), ("nul", b"\0a\0"), ("large", &large), ("", b"x")]
    {
        caller.put(key.as_bytes(), value).unwrap();
        assert_eq!(caller.get(key.as_bytes(), 10).unwrap(), value);
        assert_eq!(caller.try_get(key.as_bytes()).unwrap(), value);
    }
}

#[test]
fn each_failure_has_its_code_and_message() {
    let caller = Caller::new(Arc::new(Store::default()));
    let error = |code, message: &str| Some((code, message.to_owned()));
    caller.put(b"key", b"1").unwrap();
    assert_eq!(
        caller.put(b"key", b"2").err(),
        error(PJRT_Error_Code::ALREADY_EXISTS, "there before")
    );
    assert_eq!(caller.put(b"odd", b"2").err(), error(PJRT_Error_Code::INTERNAL, "something else"));
    let late = error(PJRT_Error_Code::DEADLINE_EXCEEDED, "process 3 has not come");
    assert_eq!(caller.get(b"missing", 1).err(), late);
    assert_eq!(
        caller.try_get(b"missing").err(),
        error(PJRT_Error_Code::NOT_FOUND, "the key missing is not set")
    );
    assert_eq!(
        caller.try_get(b"unreachable").err(),
        error(PJRT_Error_Code::UNAVAILABLE, "no route")
    );
    let (code, message) = caller.get(b"\xff", 1).unwrap_err();
    assert_eq!(code, PJRT_Error_Code::INVALID_ARGUMENT);
    assert!(message.contains("is not UTF-8"), "{message}");
}

#[test]
fn a_panic_becomes_an_error() {
    let caller = Caller::new(Arc::new(Store::default()));
    let expected = (PJRT_Error_Code::INTERNAL, "the key-value store panicked".to_owned());
    assert_eq!(caller.get(b"panic", 1).unwrap_err(), expected);
    assert!(!callback::is_inside());
    caller.put(b"after", b"1").unwrap();
}

#[test]
fn a_negative_timeout_means_no_limit() {
    let store = Arc::new(Store::default());
    let caller = Caller::new(store.clone());
    for timeout in [0, 1500, -1, i32::MIN] {
        caller.get(b"missing", timeout).unwrap_err();
    }
    let long = Duration::from_millis(i32::MAX as u64);
    let expected = [Duration::ZERO, Duration::from_millis(1500), long, long];
    assert_eq!(*store.timeouts.lock().unwrap(), expected);
    assert!(std::time::Instant::now().checked_add(long).is_some());
}

#[test]
fn threads_ask_at_once() {
    let caller = Caller::new(Arc::new(Store::default()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let caller = &caller;
            scope.spawn(move || {
                for i in 0..200 {
                    let key = format!("{thread}/{i}");
                    caller.put(key.as_bytes(), key.as_bytes()).unwrap();
                    assert_eq!(caller.get(key.as_bytes(), 0).unwrap(), key.as_bytes());
                }
            });
        }
    });
}

#[test]
fn the_store_is_released_with_its_client() {
    let store = Arc::new(Store::default());
    let watch: Weak<Store> = Arc::downgrade(&store);
    let caller = Caller::new(store);
    caller.put(b"key", b"value").unwrap();
    assert!(watch.upgrade().is_some());
    drop(caller.store);
    assert!(watch.upgrade().is_none());
}
