//! The extension of plugins that can profile their devices (`profiler_c_api.h`,
//! `pjrt_c_api_profiler_extension.h`). Its functions have their own table and error type.

use std::ffi::{c_char, c_int, c_void};

use super::{PJRT_Extension_Base, PLUGIN_Profiler, PLUGIN_Profiler_Error};

pub const PJRT_EXTENSION_TYPE_PROFILER: c_int = 1;

/// The fields of the extension that we read.
#[repr(C)]
pub struct PJRT_Profiler_Extension {
    pub base: PJRT_Extension_Base,
    pub profiler_api: *const PLUGIN_Profiler_Api,
}

/// A function that takes one struct, and returns an error or null.
pub type PLUGIN_Profiler_Function<A> =
    Option<unsafe extern "C-unwind" fn(args: *mut A) -> *mut PLUGIN_Profiler_Error>;

/// The table of functions.
#[repr(C)]
pub struct PLUGIN_Profiler_Api {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error_destroy:
        Option<unsafe extern "C-unwind" fn(args: *mut PLUGIN_Profiler_Error_Destroy_Args)>,
    pub error_message:
        Option<unsafe extern "C-unwind" fn(args: *mut PLUGIN_Profiler_Error_Message_Args)>,
    pub error_get_code: *const c_void,
    pub create: PLUGIN_Profiler_Function<PLUGIN_Profiler_Create_Args>,
    pub destroy: PLUGIN_Profiler_Function<PLUGIN_Profiler_Profiler_Args>,
    pub start: PLUGIN_Profiler_Function<PLUGIN_Profiler_Profiler_Args>,
    pub stop: PLUGIN_Profiler_Function<PLUGIN_Profiler_Profiler_Args>,
    pub collect_data: PLUGIN_Profiler_Function<PLUGIN_Profiler_CollectData_Args>,
}

#[repr(C)]
pub struct PLUGIN_Profiler_Error_Destroy_Args {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: *mut PLUGIN_Profiler_Error,
}

/// The last two are outputs, which live as long as the error.
#[repr(C)]
pub struct PLUGIN_Profiler_Error_Message_Args {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: *const PLUGIN_Profiler_Error,
    pub message: *const c_char,
    pub message_size: usize,
}

/// The options are a serialized `tensorflow.ProfileOptions`; the last field is the output.
#[repr(C)]
pub struct PLUGIN_Profiler_Create_Args {
    pub struct_size: usize,
    pub options: *const c_char,
    pub options_size: usize,
    pub profiler: *mut PLUGIN_Profiler,
}

/// The header's `PLUGIN_Profiler_Destroy_Args`, `PLUGIN_Profiler_Start_Args` and
/// `PLUGIN_Profiler_Stop_Args`, which have the same layout.
#[repr(C)]
pub struct PLUGIN_Profiler_Profiler_Args {
    pub struct_size: usize,
    pub profiler: *mut PLUGIN_Profiler,
}

/// If the buffer is null, the plugin returns the size, and may return a buffer that it owns.
#[repr(C)]
pub struct PLUGIN_Profiler_CollectData_Args {
    pub struct_size: usize,
    pub profiler: *mut PLUGIN_Profiler,
    pub buffer: *mut u8,
    pub buffer_size_in_bytes: usize,
}
