//! The table of functions: the CPU plugin's, with our own in place of those that depend on the
//! process. Out of scope: what our functions do.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use fulmen_pjrt::abi::*;

use crate::error::{self, Failure, PodError};
use crate::inner::{Entry, forward, forward_slot, inner};
use crate::named_values::NamedValues;
use crate::{buffer, event};

/// The function that callers get. A panic becomes an error, because it must not unwind into C.
unsafe extern "C" fn enter<A: Entry>(args: *mut A) -> *mut PJRT_Error {
    answer(|| {
        // SAFETY: every argument struct starts with its size.
        let size = if args.is_null() { 0 } else { unsafe { args.cast::<usize>().read() } };
        if size < A::SIZE {
            return Err(PodError::invalid(format!(
                "{:?}: the arguments have {size} bytes, expected at least {}",
                A::SLOT,
                A::SIZE
            ))
            .into());
        }
        // SAFETY: the caller passes the function's arguments, which are large enough.
        unsafe { (*args).run() }
    })
}

fn answer(body: impl FnOnce() -> Result<(), Failure>) -> *mut PJRT_Error {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Dropping the payload could panic again.
        std::mem::forget(payload);
        let message = "the virtual pod panicked; this is a bug in fulmen-virtual-pod";
        Err(PodError::new(PJRT_Error_Code::INTERNAL, message).into())
    });
    outcome.err().map_or(std::ptr::null_mut(), Failure::into_raw)
}

/// The start of the arguments of all functions that take one buffer.
#[repr(C)]
struct BufferFunctionArgs {
    struct_size: usize,
    extension_start: *mut PJRT_Extension_Base,
    buffer: *mut PJRT_Buffer,
}

/// A function of the table, with its place.
type Row<A> = (Slot, unsafe extern "C" fn(*mut A) -> *mut PJRT_Error);

macro_rules! rows {
    ($function:ident: $($slot:ident)*) => {
        &[$((Slot::$slot, $function::<{ Slot::$slot as usize }>)),*]
    };
}

/// Functions of one buffer. They wait until the buffer exists, and then ask the CPU plugin.
const OF_A_BUFFER: &[Row<BufferFunctionArgs>] = rows! { of_a_buffer:
    PJRT_Buffer_ElementType PJRT_Buffer_Dimensions PJRT_Buffer_UnpaddedDimensions
    PJRT_Buffer_DynamicDimensionIndices PJRT_Buffer_GetMemoryLayout
    PJRT_Buffer_OnDeviceSizeInBytes PJRT_Buffer_Memory PJRT_Buffer_IsOnCpu
    PJRT_Buffer_UnsafePointer PJRT_Buffer_IncreaseExternalReferenceCount
    PJRT_Buffer_DecreaseExternalReferenceCount PJRT_Buffer_OpaqueDeviceMemoryDataPointer
    PJRT_Buffer_CopyRawToHost
};

/// Functions that create or take buffers in ways that the pod does not follow.
const UNSUPPORTED: &[Row<c_void>] = rows! { unsupported:
    PJRT_Client_CreateViewOfDeviceBuffer PJRT_Client_CreateBuffersForAsyncHostToDevice
    PJRT_Client_CreateUninitializedBuffer PJRT_Client_CreateAliasBuffer
    PJRT_Client_FulfillAliasBuffer PJRT_Client_CreateErrorBuffer PJRT_Client_Load
    PJRT_Buffer_CopyRawToHostFuture PJRT_Buffer_DonateWithControlDependency PJRT_Buffer_Bitcast
};

unsafe extern "C" fn of_a_buffer<const SLOT: usize>(
    args: *mut BufferFunctionArgs,
) -> *mut PJRT_Error {
    answer(|| {
        let slot = named(OF_A_BUFFER, SLOT)?;
        // SAFETY: all these functions start with a buffer.
        let args = unsafe { &mut *args };
        let outer = args.buffer;
        // SAFETY: the caller passes a buffer of this plugin.
        args.buffer = unsafe { buffer::Handle::of(outer) }?.shard().wait()?;
        // SAFETY: the caller's arguments, with the buffer that the CPU plugin knows.
        let outcome = unsafe { forward_slot(slot, std::ptr::from_mut(args).cast()) };
        args.buffer = outer;
        outcome
    })
}

unsafe extern "C" fn unsupported<const SLOT: usize>(_args: *mut c_void) -> *mut PJRT_Error {
    answer(|| {
        let slot = named(UNSUPPORTED, SLOT)?;
        let message = format!("{slot:?} is not supported by a virtual pod");
        Err(PodError::new(PJRT_Error_Code::UNIMPLEMENTED, message).into())
    })
}

fn named<A>(rows: &[Row<A>], number: usize) -> Result<Slot, PodError> {
    let row = rows.iter().find(|(slot, _)| *slot as usize == number);
    row.map(|(slot, _)| *slot)
        .ok_or_else(|| PodError::invalid(format!("function {number} is not in the table")))
}

/// The table that `GetPjrtApi` returns.
#[repr(C)]
struct Table {
    head: PJRT_Api,
    functions: [*const c_void; Slot::COUNT],
}

// SAFETY: the table is written once, before it is shared.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    fn set(&mut self, slot: Slot, function: *const c_void) {
        self.functions[slot as usize] = function;
    }

    fn replace<A: Entry>(&mut self) {
        self.set(A::SLOT, enter::<A> as *const c_void);
    }

    /// The CPU plugin's table with our functions. Without a CPU plugin, starting the plugin fails
    /// and says why.
    fn new() -> Table {
        let inner = inner();
        let (major, minor) = inner.as_ref().map_or((0, 115), |inner| inner.version());
        let known = inner.as_ref().map_or(Slot::COUNT, |inner| inner.function_count());
        let mut table = Table {
            head: PJRT_Api {
                // A newer plugin has functions that may take buffers, which are not the pod's.
                struct_size: size_of::<PJRT_Api>()
                    + known.min(Slot::COUNT) * size_of::<*const c_void>(),
                // Extensions have functions for buffers too.
                extension_start: std::ptr::null_mut(),
                pjrt_api_version: PJRT_Api_Version {
                    struct_size: size_of::<PJRT_Api_Version>(),
                    extension_start: std::ptr::null_mut(),
                    major_version: major as c_int,
                    minor_version: minor as c_int,
                },
            },
            functions: inner.map_or([std::ptr::null(); Slot::COUNT], |inner| inner.functions()),
        };
        table.set(Slot::PJRT_Error_Destroy, error::destroy as *const c_void);
        table.set(Slot::PJRT_Error_Message, error::message as *const c_void);
        table.set(Slot::PJRT_Error_GetCode, error::get_code as *const c_void);
        table.set(Slot::PJRT_Error_ForEachPayload, no_payload as *const c_void);
        for (slot, function) in OF_A_BUFFER {
            table.set(*slot, *function as *const c_void);
        }
        for (slot, function) in UNSUPPORTED {
            table.set(*slot, *function as *const c_void);
        }
        macro_rules! replace {
            ($($args:ident)*) => { $(table.replace::<$args>();)* };
        }
        replace! {
            PJRT_Plugin_Initialize_Args PJRT_Plugin_Attributes_Args
            PJRT_Event_Destroy_Args
            PJRT_Client_Create_Args PJRT_Client_Destroy_Args PJRT_Client_PlatformName_Args
            PJRT_Client_PlatformVersion_Args PJRT_Client_ProcessIndex_Args
            PJRT_Client_Devices_Args
            PJRT_Client_AddressableDevices_Args PJRT_Client_LookupAddressableDevice_Args
            PJRT_Client_AddressableMemories_Args PJRT_Client_Compile_Args
            PJRT_Client_BufferFromHostBuffer_Args
            PJRT_DeviceDescription_ProcessIndex_Args PJRT_DeviceDescription_Attributes_Args
            PJRT_DeviceDescription_Kind_Args
            PJRT_DeviceDescription_DebugString_Args PJRT_DeviceDescription_ToString_Args
            PJRT_Device_IsAddressable_Args PJRT_Device_LocalHardwareId_Args
            PJRT_Device_AddressableMemories_Args PJRT_TopologyDescription_PlatformName_Args
            PJRT_TopologyDescription_PlatformVersion_Args
            PJRT_Executable_Serialize_Args PJRT_Executable_DeserializeAndLoad_Args
            PJRT_LoadedExecutable_Destroy_Args
            PJRT_LoadedExecutable_AddressableDevices_Args
            PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args
            PJRT_LoadedExecutable_Execute_Args
            PJRT_Buffer_Destroy_Args PJRT_Buffer_Device_Args PJRT_Buffer_Delete_Args
            PJRT_Buffer_IsDeleted_Args PJRT_Buffer_CopyToDevice_Args PJRT_Buffer_CopyToMemory_Args
            PJRT_Buffer_ToHostBuffer_Args PJRT_Buffer_ReadyEvent_Args
        }
        table
    }
}

/// `PJRT_Error_ForEachPayload`: errors of the pod have none, and nothing depends on the CPU
/// plugin's.
unsafe extern "C" fn no_payload(_args: *mut c_void) -> *mut PJRT_Error {
    std::ptr::null_mut()
}

pub(crate) fn table() -> *const PJRT_Api {
    static TABLE: OnceLock<Table> = OnceLock::new();
    std::ptr::from_ref(TABLE.get_or_init(Table::new)).cast()
}

impl Entry for PJRT_Plugin_Initialize_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // Loading the CPU plugin has started it.
        let inner = inner()?;
        event::check(inner)?;
        Ok(())
    }
}

/// The attribute by which a program recognizes this plugin, whatever its platform is called.
pub(crate) const ATTRIBUTE: &str = "takes_node_id_and_store";

impl Entry for PJRT_Plugin_Attributes_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        static ATTRIBUTES: OnceLock<NamedValues> = OnceLock::new();

        // SAFETY: the caller's arguments.
        unsafe { forward(self) }?;
        let attributes = ATTRIBUTES.get_or_init(|| {
            // SAFETY: the CPU plugin's list, which lives as long as the process.
            let mut all = unsafe { NamedValues::copy(self.attributes, self.num_attributes) };
            all.push_true(ATTRIBUTE);
            all
        });
        self.attributes = attributes.0.as_ptr();
        self.num_attributes = attributes.0.len();
        Ok(())
    }
}
