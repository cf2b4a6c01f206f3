//! The one door to a plugin's functions: finds them in the table, calls them, turns their errors into ours.
//! It knows nothing of what they mean.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io::{self, Write};

use crate::abi::*;
use crate::error::{Error, Kind, Result};

/// The functions of a loaded plugin. Plugins are never unloaded, so this may be copied about freely.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    table: &'static PJRT_Api,
}

// SAFETY: the table is written once by the plugin, before it is handed out, and the API is thread-safe by contract.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// # Safety
    /// `table` must have come from a plugin's `GetPjrtApi`, be not null, and stay for the life of the process.
    pub(crate) unsafe fn new(table: *const PJRT_Api) -> Self {
        // SAFETY: the caller's promise.
        Self { table: unsafe { &*table } }
    }

    /// The address of the table, which is within the plugin.
    pub(crate) fn address(self) -> *const c_void {
        std::ptr::from_ref(self.table).cast()
    }

    /// How many functions the plugin's table has room for.
    pub(crate) fn function_count(self) -> usize {
        self.table.struct_size.saturating_sub(size_of::<PJRT_Api>()) / size_of::<*const c_void>()
    }

    /// Major and minor version of the header that the plugin was compiled with.
    pub(crate) fn version(self) -> (i32, i32) {
        (self.table.pjrt_api_version.major_version, self.table.pjrt_api_version.minor_version)
    }

    /// The plugin's extension of this kind, if it has one that is as large as a `T`, which begins with the head of extensions.
    ///
    /// # Safety
    /// `T` must be what the header lays out for this kind.
    pub(crate) unsafe fn extension<T>(self, kind: c_int) -> Option<&'static T> {
        let mut next = self.table.extension_start;
        // SAFETY: the plugin's list stays as long as its table.
        while let Some(base) = unsafe { next.as_ref() } {
            if base.kind == kind && base.struct_size >= size_of::<T>() {
                // SAFETY: it has room for a `T`; the rest is the caller's promise.
                return Some(unsafe { &*next.cast::<T>() });
            }
            next = base.next;
        }
        None
    }

    fn find(self, slot: Slot) -> Option<*const c_void> {
        if slot as usize >= self.function_count() {
            return None;
        }
        // SAFETY: the table says itself that it is long enough for this place.
        let function = unsafe {
            std::ptr::from_ref(self.table)
                .cast::<u8>()
                .add(size_of::<PJRT_Api>())
                .cast::<*const c_void>()
                .add(slot as usize)
                .read()
        };
        (!function.is_null()).then_some(function)
    }

    /// The function, or an error that says that the plugin lacks it.
    fn function(self, slot: Slot) -> Result<*const c_void> {
        self.find(slot).ok_or_else(|| {
            let (major, minor) = self.version();
            Error::new(
                Kind::Unsupported,
                format!(
                    "the plugin (PJRT API {major}.{minor}, {} functions) has no {slot:?}; a newer plugin is needed for this",
                    self.function_count()
                ),
            )
        })
    }

    /// Calls the function that takes `args`.
    ///
    /// # Safety
    /// Every pointer in `args` must be what the header asks of it.
    pub(crate) unsafe fn call<A: Args>(self, args: &mut A) -> Result<()> {
        let function = self.function(A::SLOT)?;
        // SAFETY: `Args` ties the place in the table to this argument type; all such functions return an error.
        let function: unsafe extern "C-unwind" fn(*mut A) -> *mut PJRT_Error = unsafe { std::mem::transmute(function) };
        // SAFETY: the caller's promise.
        let error = guarded(A::SLOT, || unsafe { function(args) });
        // SAFETY: the plugin gave the error to us.
        unsafe { self.check(error) }.map_err(|error| error.during(format_args!("{:?}", A::SLOT)))
    }

    /// Calls a `..._Destroy`. There is nothing to be done about a failure in a destructor.
    ///
    /// # Safety
    /// As for [`Api::call`]; and the object must not be used again.
    pub(crate) unsafe fn destroy<A: Args>(self, args: &mut A) {
        // SAFETY: the caller's promise.
        let _ = unsafe { self.call(args) };
    }

    /// Takes an error that the plugin handed out; null is success.
    ///
    /// # Safety
    /// `error` must be null or an error of this plugin's that is ours to destroy.
    pub(crate) unsafe fn check(self, error: *mut PJRT_Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = PJRT_Error_Message_Args::new();
        message.error = error;
        if let Ok(function) = self.function(Slot::PJRT_Error_Message) {
            // SAFETY: this is the type of this function.
            let function: unsafe extern "C-unwind" fn(*mut PJRT_Error_Message_Args) =
                unsafe { std::mem::transmute(function) };
            // SAFETY: the error is alive.
            guarded(Slot::PJRT_Error_Message, || unsafe { function(&mut message) });
        }
        // SAFETY: the message lives as long as the error.
        let text = unsafe { text(message.message, message.message_size) };

        let mut code = PJRT_Error_GetCode_Args::new();
        code.error = error;
        let mut status = PJRT_Error_Code::UNKNOWN;
        if let Ok(function) = self.function(Slot::PJRT_Error_GetCode) {
            // SAFETY: this is the type of this function.
            let function: unsafe extern "C-unwind" fn(*mut PJRT_Error_GetCode_Args) -> *mut PJRT_Error =
                unsafe { std::mem::transmute(function) };
            // SAFETY: the error is alive.
            let second = guarded(Slot::PJRT_Error_GetCode, || unsafe { function(&mut code) });
            if second.is_null() {
                status = PJRT_Error_Code(code.code);
            } else {
                self.destroy_error(second);
            }
        }
        self.destroy_error(error);
        Err(Error::new(Kind::Plugin(status), format!("{}: {}", status.name(), text.trim_end())))
    }

    fn destroy_error(self, error: *mut PJRT_Error) {
        let mut args = PJRT_Error_Destroy_Args::new();
        args.error = error;
        if let Ok(function) = self.function(Slot::PJRT_Error_Destroy) {
            // SAFETY: this is the type of this function.
            let function: unsafe extern "C-unwind" fn(*mut PJRT_Error_Destroy_Args) =
                unsafe { std::mem::transmute(function) };
            // SAFETY: both callers own the error and do not use it after this.
            guarded(Slot::PJRT_Error_Destroy, || unsafe { function(&mut args) });
        }
    }
}

/// Ends the process if it is dropped, which only happens when a plugin's C++ exception passes by.
struct Stop<'a>(&'a dyn fmt::Debug);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // Unlike `eprintln!` this cannot panic.
        let _ = writeln!(
            io::stderr(),
            "the PJRT plugin threw a C++ exception out of {:?}; this is a fault in the plugin, after which nothing can \
             be relied on: ending the process",
            self.0
        );
        std::process::abort();
    }
}

/// Calls into a plugin. Some throw exceptions where they should give errors; what unwinds must not pass Rust frames
/// that know nothing of it, so here it ends, with a message.
pub(crate) fn guarded<R>(name: impl fmt::Debug, call: impl FnOnce() -> R) -> R {
    let stop = Stop(&name);
    let answer = call();
    std::mem::forget(stop);
    answer
}

/// A copy of a string that the plugin owns. What is not UTF-8 is replaced.
///
/// # Safety
/// `start` must be null or point to `len` readable bytes.
pub(crate) unsafe fn text(start: *const c_char, len: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { list(start.cast::<u8>(), len) }).into_owned()
}

/// A list that the plugin owns; null is the empty one.
///
/// # Safety
/// `start` must be null or point to `len` values that stay for `'a`.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// What the plugin gave, or an error that it gave nothing.
pub(crate) fn non_null<T>(pointer: *mut T, what: &str) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(pointer).ok_or_else(|| {
        Error::broken(format!("the plugin reported success but gave no {what}; this is a fault in the plugin"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with room for four functions, all null.
    fn short_table() -> Api {
        #[repr(C)]
        struct Short {
            head: PJRT_Api,
            functions: [usize; 4],
        }
        let version = PJRT_Api_Version {
            struct_size: size_of::<PJRT_Api_Version>(),
            extension_start: std::ptr::null_mut(),
            major_version: 0,
            minor_version: 90,
        };
        let table = Box::leak(Box::new(Short {
            head: PJRT_Api {
                struct_size: size_of::<Short>(),
                extension_start: std::ptr::null_mut(),
                pjrt_api_version: version,
            },
            functions: [0; 4],
        }));
        assert_eq!(table.functions, [0; 4]);
        // SAFETY: the table was leaked and is laid out as one.
        unsafe { Api::new(std::ptr::from_ref(table).cast()) }
    }

    #[test]
    fn a_null_function_and_one_past_the_end_are_errors() {
        let api = short_table();
        assert_eq!(api.function_count(), 4);
        // SAFETY: both are refused before anything is called.
        let null = unsafe { api.call(&mut PJRT_Plugin_Initialize_Args::new()) }.unwrap_err();
        // SAFETY: as above.
        let past = unsafe { api.call(&mut PJRT_Compile_Args::new()) }.unwrap_err();
        for (error, name) in [(null, "PJRT_Plugin_Initialize"), (past, "PJRT_Compile")] {
            assert!(error.is_unsupported());
            let expected = format!("the plugin (PJRT API 0.90, 4 functions) has no {name}");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}
