//! Calls a plugin's functions: finds them in the table, calls them, and converts their errors. It
//! does not know what the functions do. Hidden like `abi`, and for the same crate.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io::{self, Write};

use crate::abi::*;
use crate::error::{self, Error, Fact, Result};

/// The functions of a loaded plugin. Plugins are never unloaded, so copies stay valid.
#[derive(Clone, Copy)]
pub struct Api {
    table: &'static PJRT_Api,
}

// SAFETY: the plugin writes the table once, before it returns it, and the API is thread-safe by
// contract.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// # Safety
    /// `table` must not be null, must come from a plugin's `GetPjrtApi`, and must live as long as
    /// the process.
    pub unsafe fn new(table: *const PJRT_Api) -> Api {
        // SAFETY: the caller's promise.
        Self { table: unsafe { &*table } }
    }

    /// The number of functions that fit in the plugin's table.
    pub fn function_count(self) -> usize {
        self.table.struct_size.saturating_sub(size_of::<PJRT_Api>()) / size_of::<*const c_void>()
    }

    /// The major and minor version of the header that the plugin was compiled with.
    pub fn version(self) -> (i32, i32) {
        (self.table.pjrt_api_version.major_version, self.table.pjrt_api_version.minor_version)
    }

    /// The plugin's extension of this kind. `None` if there is none, or if it is smaller than a
    /// `T`. `T` starts with the head of extensions.
    ///
    /// # Safety
    /// `T` must be the header's layout for this kind.
    pub unsafe fn extension<T>(self, kind: c_int) -> Option<&'static T> {
        let mut next = self.table.extension_start;
        // SAFETY: the plugin's list lives as long as its table.
        while let Some(base) = unsafe { next.as_ref() } {
            if base.kind == kind && base.struct_size >= size_of::<T>() {
                // SAFETY: it is large enough for a `T`; the rest is the caller's promise.
                return Some(unsafe { &*next.cast::<T>() });
            }
            next = base.next;
        }
        None
    }

    /// All functions, with null for those that the plugin lacks.
    pub fn functions(self) -> [*const c_void; Slot::COUNT] {
        let mut functions = [std::ptr::null(); Slot::COUNT];
        let known = self.function_count().min(Slot::COUNT);
        // SAFETY: the table's own size says that it has these entries.
        unsafe {
            let first = std::ptr::from_ref(self.table).cast::<u8>().add(size_of::<PJRT_Api>());
            first.cast::<*const c_void>().copy_to_nonoverlapping(functions.as_mut_ptr(), known);
        }
        functions
    }

    fn find(self, slot: Slot) -> Option<*const c_void> {
        if slot as usize >= self.function_count() {
            return None;
        }
        // SAFETY: the table's own size says that it has this entry.
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

    /// The function, or an error if the plugin lacks it.
    pub fn function(self, slot: Slot) -> Result<*const c_void> {
        self.find(slot).ok_or_else(|| {
            let (major, minor) = self.version();
            Error::of(
                Fact::Unsupported,
                format!(
                    "the plugin (PJRT API {major}.{minor}, {} functions) has no {slot:?}; use a newer plugin",
                    self.function_count()
                ),
            )
        })
    }

    /// Calls the function that takes `args`.
    ///
    /// # Safety
    /// Every pointer in `args` must be valid as the header requires.
    pub unsafe fn call<A: Args>(self, args: &mut A) -> Result<()> {
        let untyped = self.function(A::SLOT)?;
        // SAFETY: `Args` ties the table index to this argument type. All such functions return an
        // error.
        let function: unsafe extern "C-unwind" fn(*mut A) -> *mut PJRT_Error =
            unsafe { std::mem::transmute(untyped) };
        // SAFETY: the caller's promise.
        let error = guarded(A::SLOT, || unsafe { function(args) });
        // SAFETY: the plugin passed the error to us.
        unsafe { self.check(error) }.map_err(|error| error.context(format_args!("{:?}", A::SLOT)))
    }

    /// Calls a `..._Destroy`. A destructor cannot report a failure, so it is ignored.
    ///
    /// # Safety
    /// Those of [`Api::call`]. The object must not be used again.
    pub unsafe fn destroy<A: Args>(self, args: &mut A) {
        // SAFETY: the caller's promise.
        let _ = unsafe { self.call(args) };
    }

    /// Takes ownership of an error from the plugin. Null means success.
    ///
    /// # Safety
    /// `error` must be null, or an error of this plugin that we own.
    pub unsafe fn check(self, error: *mut PJRT_Error) -> Result<()> {
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
            let function: unsafe extern "C-unwind" fn(
                *mut PJRT_Error_GetCode_Args,
            ) -> *mut PJRT_Error = unsafe { std::mem::transmute(function) };
            // SAFETY: the error is alive.
            let second = guarded(Slot::PJRT_Error_GetCode, || unsafe { function(&mut code) });
            if second.is_null() {
                status = PJRT_Error_Code(code.code);
            } else {
                self.destroy_error(second);
            }
        }
        self.destroy_error(error);
        Err(error::plugin(status, format!("{}: {}", status.name(), text.trim_end())))
    }

    fn destroy_error(self, error: *mut PJRT_Error) {
        let mut args = PJRT_Error_Destroy_Args::new();
        args.error = error;
        if let Ok(function) = self.function(Slot::PJRT_Error_Destroy) {
            // SAFETY: this is the type of this function.
            let function: unsafe extern "C-unwind" fn(*mut PJRT_Error_Destroy_Args) =
                unsafe { std::mem::transmute(function) };
            // SAFETY: both callers own the error and do not use it afterwards.
            guarded(Slot::PJRT_Error_Destroy, || unsafe { function(&mut args) });
        }
    }
}

/// Ends the process when it is dropped, which happens only when a C++ exception of the plugin
/// unwinds through it.
struct AbortOnUnwind<'a>(&'a dyn fmt::Debug);

impl Drop for AbortOnUnwind<'_> {
    fn drop(&mut self) {
        // Unlike `eprintln!`, this cannot panic.
        let _ = writeln!(
            io::stderr(),
            "the PJRT plugin threw a C++ exception out of {:?}; this is a bug in the plugin, and the process cannot \
             continue safely: aborting",
            self.0
        );
        std::process::abort();
    }
}

/// Calls into a plugin. Some plugins throw exceptions instead of returning errors. An exception
/// must not unwind Rust frames that do not expect it, so this function ends the process with a
/// message.
pub fn guarded<R>(name: impl fmt::Debug, call: impl FnOnce() -> R) -> R {
    let abort_on_unwind = AbortOnUnwind(&name);
    let answer = call();
    std::mem::forget(abort_on_unwind);
    answer
}

/// A copy of a string that the plugin owns. Invalid UTF-8 is replaced.
///
/// # Safety
/// `start` must be null or point to `len` readable bytes.
pub unsafe fn text(start: *const c_char, len: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { list(start.cast::<u8>(), len) }).into_owned()
}

/// A list that the plugin owns. Null is the empty list.
///
/// # Safety
/// `start` must be null or point to `len` values that live for `'a`.
pub unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// The plugin's result, or an error if it is null.
pub fn non_null<T>(pointer: *mut T, what: &str) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(pointer).ok_or_else(|| {
        error::broken(format!(
            "the plugin reported success but returned no {what}; this is a bug in the plugin"
        ))
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
        // SAFETY: both are rejected before anything is called.
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
