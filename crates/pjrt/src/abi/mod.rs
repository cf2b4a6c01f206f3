//! The C interface of a plugin in Rust, with the header's own names. This module checks and calls
//! nothing.
//!
//! Layouts are those of API version 0.81. Later versions only append fields, and `struct_size`
//! tells the plugin how many of them we know. The layouts therefore work with every version from
//! 0.81 on.
//!
//! It is hidden because it is not a stable interface: `fulmen-virtual-pod`, which is a plugin itself,
//! uses the same layouts.
#![allow(non_camel_case_types, reason = "the names are those of the header, for comparison")]
#![allow(
    clippy::new_without_default,
    reason = "arguments with null pointers are no useful default"
)]

mod args;
mod key_value;
mod profiler;
mod slots;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};

pub use args::*;
pub use key_value::*;
pub use profiler::*;
pub use slots::Slot;

macro_rules! opaque {
    ($($name:ident)*) => {$(
        /// An opaque type of the plugin.
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )*};
}

opaque! {
    PJRT_Error PJRT_Event PJRT_Client PJRT_Device PJRT_Memory PJRT_DeviceDescription PJRT_TopologyDescription
    PJRT_Executable PJRT_LoadedExecutable PJRT_Buffer PJRT_ExecuteContext PJRT_SerializedExecutable
    PJRT_SerializedTopology PLUGIN_Profiler PLUGIN_Profiler_Error
}

/// Defines a `#[repr(C)]` struct that starts with `struct_size` and `extension_start`, and a
/// constructor that zeroes it.
macro_rules! sized_struct {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut $crate::abi::PJRT_Extension_Base,
            $(pub $field: $type,)*
        }

        impl $name {
            /// The header's `_STRUCT_SIZE`: it ends with the last field and excludes the padding.
            pub const STRUCT_SIZE: usize = {
                let end = std::mem::offset_of!(Self, extension_start) + size_of::<usize>();
                $(let end = {
                    let _ = end;
                    std::mem::offset_of!(Self, $field) + size_of::<$type>()
                };)*
                end
            };

            /// All zero except `struct_size`.
            pub fn new() -> Self {
                // SAFETY: every field is an integer, a bool, a raw pointer, an optional function,
                // or a union or struct of those. Zero bytes are a valid value of each.
                let mut value: Self = unsafe { std::mem::zeroed() };
                value.struct_size = Self::STRUCT_SIZE;
                value
            }
        }
    };
}
pub(crate) use sized_struct;

/// The head of an extension.
#[repr(C)]
pub struct PJRT_Extension_Base {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut PJRT_Extension_Base,
}

/// The version of the header that the plugin was compiled with.
#[repr(C)]
pub struct PJRT_Api_Version {
    pub struct_size: usize,
    pub extension_start: *mut PJRT_Extension_Base,
    pub major_version: c_int,
    pub minor_version: c_int,
}

/// The head of the table that `GetPjrtApi` returns. The functions follow it; `struct_size` gives
/// their number.
#[repr(C)]
pub struct PJRT_Api {
    pub struct_size: usize,
    pub extension_start: *mut PJRT_Extension_Base,
    pub pjrt_api_version: PJRT_Api_Version,
}

/// A status code, with Abseil's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PJRT_Error_Code(pub c_int);

impl PJRT_Error_Code {
    pub const UNKNOWN: Self = Self(2);
    pub const INVALID_ARGUMENT: Self = Self(3);
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    pub const NOT_FOUND: Self = Self(5);
    pub const ALREADY_EXISTS: Self = Self(6);
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const FAILED_PRECONDITION: Self = Self(9);
    pub const UNIMPLEMENTED: Self = Self(12);
    pub const INTERNAL: Self = Self(13);
    pub const UNAVAILABLE: Self = Self(14);

    pub fn name(self) -> &'static str {
        const NAMES: [&str; 17] = [
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        ];
        usize::try_from(self.0).ok().and_then(|code| NAMES.get(code).copied()).unwrap_or("UNKNOWN")
    }
}

pub const PJRT_NAMED_VALUE_STRING: c_int = 0;
pub const PJRT_NAMED_VALUE_INT64: c_int = 1;
pub const PJRT_NAMED_VALUE_INT64_LIST: c_int = 2;
pub const PJRT_NAMED_VALUE_FLOAT: c_int = 3;
pub const PJRT_NAMED_VALUE_BOOL: c_int = 4;

/// The value of a `PJRT_NamedValue`; its `kind` selects the member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union PJRT_NamedValue_Union {
    pub string_value: *const c_char,
    pub int64_value: i64,
    pub int64_array_value: *const i64,
    pub float_value: f32,
    pub bool_value: bool,
}

sized_struct! {
    /// A name and a value of one of five types.
    PJRT_NamedValue {
        name: *const c_char,
        name_size: usize,
        kind: c_int,
        value: PJRT_NamedValue_Union,
        value_size: usize,
    }
}

sized_struct! {
    /// A program in some format, as an input or an output.
    PJRT_Program {
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }
}

pub const PJRT_HOST_BUFFER_IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
pub const PJRT_HOST_BUFFER_IMMUTABLE_ZERO_COPY: c_int = 2;

pub const PJRT_MEMORY_LAYOUT_TILED: c_int = 0;

sized_struct! {
    /// A layout as an order of dimensions, and tiles.
    PJRT_Buffer_MemoryLayout_Tiled {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }
}

sized_struct! {
    /// A layout. The header has a union here. The tiled form is its larger member, and the only one
    /// that we use.
    PJRT_Buffer_MemoryLayout { tiled: PJRT_Buffer_MemoryLayout_Tiled, kind: c_int }
}

sized_struct! {
    /// The options of one execution.
    PJRT_ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut PJRT_ExecuteContext,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
}

/// The replica and the partition that a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PJRT_LogicalDeviceIds {
    pub replica: c_int,
    pub partition: c_int,
}

/// The arguments of one function of the table. The type names the function, so that the two cannot
/// be mixed up.
///
/// # Safety
/// `SLOT` must be the function whose arguments the type lays out, and that function must return a
/// `PJRT_Error *`.
pub unsafe trait Args {
    /// The function that takes these arguments.
    const SLOT: Slot;
    /// The size of the arguments, as in the header.
    const SIZE: usize;
}
