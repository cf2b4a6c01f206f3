//! The argument struct of each plugin function that this crate calls. The fields that the plugin
//! fills in come last.

use std::ffi::{c_char, c_int, c_void};

use super::*;

macro_rules! functions {
    ($($function:ident($args:ident) { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            sized_struct! {
                #[doc = concat!("The arguments of `", stringify!($function), "`.")]
                $args { $($field: $type,)* }
            }

            // SAFETY: the table below pairs each function with its own arguments, as the header
            // does.
            unsafe impl Args for $args {
                const SLOT: Slot = Slot::$function;
                const SIZE: usize = $args::STRUCT_SIZE;
            }
        )*

        /// Name and `STRUCT_SIZE` of every argument struct, for the test against the header.
        #[cfg(test)]
        pub const SIZES: &[(&str, usize)] = &[$((stringify!($args), $args::STRUCT_SIZE)),*];
    };
}

// These two functions return nothing, so they do not implement `Args`.
sized_struct! {
    /// The arguments of `PJRT_Error_Destroy`.
    PJRT_Error_Destroy_Args { error: *mut PJRT_Error }
}
sized_struct! {
    /// The arguments of `PJRT_Error_Message`.
    PJRT_Error_Message_Args { error: *const PJRT_Error, message: *const c_char, message_size: usize }
}

/// The plugin calls this when an event is ready. The callback owns the error.
pub type PJRT_Event_OnReadyCallback =
    unsafe extern "C" fn(error: *mut PJRT_Error, user_arg: *mut c_void);

functions! {
    PJRT_Error_GetCode(PJRT_Error_GetCode_Args) { error: *const PJRT_Error, code: c_int }
    PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args) {}
    PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args) { attributes: *const PJRT_NamedValue, num_attributes: usize }

    PJRT_Event_Destroy(PJRT_Event_Destroy_Args) { event: *mut PJRT_Event }
    PJRT_Event_IsReady(PJRT_Event_IsReady_Args) { event: *mut PJRT_Event, is_ready: bool }
    PJRT_Event_Error(PJRT_Event_Error_Args) { event: *mut PJRT_Event }
    PJRT_Event_Await(PJRT_Event_Await_Args) { event: *mut PJRT_Event }
    PJRT_Event_OnReady(PJRT_Event_OnReady_Args) {
        event: *mut PJRT_Event,
        callback: Option<PJRT_Event_OnReadyCallback>,
        user_arg: *mut c_void,
    }

    PJRT_Event_Create(PJRT_Event_Create_Args) { event: *mut PJRT_Event }
    PJRT_Event_Set(PJRT_Event_Set_Args) {
        event: *mut PJRT_Event,
        error_code: PJRT_Error_Code,
        error_message: *const c_char,
        error_message_size: usize,
    }

    PJRT_Client_Create(PJRT_Client_Create_Args) {
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        kv_get_callback: Option<PJRT_KeyValueGetCallback>,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<PJRT_KeyValuePutCallback>,
        kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client,
        kv_try_get_callback: Option<PJRT_KeyValueTryGetCallback>,
        kv_try_get_user_arg: *mut c_void,
    }
    PJRT_Client_Destroy(PJRT_Client_Destroy_Args) { client: *mut PJRT_Client }
    PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args) {
        client: *mut PJRT_Client,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args) {
        client: *mut PJRT_Client,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args) { client: *mut PJRT_Client, process_index: c_int }
    PJRT_Client_Devices(PJRT_Client_Devices_Args) {
        client: *mut PJRT_Client,
        devices: *const *mut PJRT_Device,
        num_devices: usize,
    }
    PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args) {
        client: *mut PJRT_Client,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args) {
        client: *mut PJRT_Client,
        local_hardware_id: c_int,
        addressable_device: *mut PJRT_Device,
    }
    PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args) {
        client: *mut PJRT_Client,
        addressable_memories: *const *mut PJRT_Memory,
        num_addressable_memories: usize,
    }
    PJRT_Client_Compile(PJRT_Client_Compile_Args) {
        client: *mut PJRT_Client,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut PJRT_LoadedExecutable,
    }
    PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args) {
        client: *mut PJRT_Client,
        data: *const c_void,
        kind: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut PJRT_Device,
        memory: *mut PJRT_Memory,
        device_layout: *mut PJRT_Buffer_MemoryLayout,
        done_with_host_buffer: *mut PJRT_Event,
        buffer: *mut PJRT_Buffer,
    }
    PJRT_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args) {
        client: *mut PJRT_Client,
        topology: *mut PJRT_TopologyDescription,
    }

    PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args) {
        device_description: *mut PJRT_DeviceDescription,
        id: c_int,
    }
    PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args) {
        device_description: *mut PJRT_DeviceDescription,
        process_index: c_int,
    }
    PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args) {
        device_description: *mut PJRT_DeviceDescription,
        num_attributes: usize,
        attributes: *const PJRT_NamedValue,
    }
    PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args) {
        device_description: *mut PJRT_DeviceDescription,
        device_kind: *const c_char,
        device_kind_size: usize,
    }
    PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args) {
        device_description: *mut PJRT_DeviceDescription,
        debug_string: *const c_char,
        debug_string_size: usize,
    }
    PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args) {
        device_description: *mut PJRT_DeviceDescription,
        to_string: *const c_char,
        to_string_size: usize,
    }

    PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args) {
        device: *mut PJRT_Device,
        device_description: *mut PJRT_DeviceDescription,
    }
    PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args) { device: *mut PJRT_Device, is_addressable: bool }
    PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args) {
        device: *mut PJRT_Device,
        memories: *const *mut PJRT_Memory,
        num_memories: usize,
    }
    PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args) {
        device: *mut PJRT_Device,
        local_hardware_id: c_int,
    }
    PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args) {
        device: *mut PJRT_Device,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        bytes_reserved: i64,
        bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool,
        pool_bytes: i64,
        pool_bytes_is_set: bool,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: bool,
    }

    PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args) { executable: *mut PJRT_Executable }
    PJRT_Executable_Name(PJRT_Executable_Name_Args) {
        executable: *mut PJRT_Executable,
        executable_name: *const c_char,
        executable_name_size: usize,
    }
    PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args) {
        executable: *mut PJRT_Executable,
        num_replicas: usize,
    }
    PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args) {
        executable: *mut PJRT_Executable,
        num_partitions: usize,
    }
    PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args) {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
    }
    PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args) {
        executable: *mut PJRT_Executable,
        num_properties: usize,
        properties: *const PJRT_NamedValue,
    }
    PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args) {
        executable: *mut PJRT_Executable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
    }
    PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args) {
        executable: *mut PJRT_Executable,
        program: *mut PJRT_Program,
    }
    PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args) {
        executable: *mut PJRT_Executable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }
    PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args) {
        executable: *mut PJRT_Executable,
        output_types: *const c_int,
        num_output_types: usize,
    }
    PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args) {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args) {
        executable: *const PJRT_Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<unsafe extern "C-unwind" fn(*mut PJRT_SerializedExecutable)>,
    }
    PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args) {
        client: *mut PJRT_Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
        overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize,
    }

    PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args) { executable: *mut PJRT_LoadedExecutable }
    PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args) {
        loaded_executable: *mut PJRT_LoadedExecutable,
        executable: *mut PJRT_Executable,
    }
    PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args) {
        executable: *mut PJRT_LoadedExecutable,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds(PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args) {
        executable: *mut PJRT_LoadedExecutable,
        addressable_device_logical_ids: *const PJRT_LogicalDeviceIds,
        num_addressable_device_logical_ids: usize,
    }
    PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args) {
        executable: *mut PJRT_LoadedExecutable,
        options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer,
        device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }

    PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args) { buffer: *mut PJRT_Buffer }
    PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args) { buffer: *mut PJRT_Buffer, kind: c_int }
    PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args) {
        buffer: *mut PJRT_Buffer,
        dims: *const i64,
        num_dims: usize,
    }
    PJRT_Buffer_Device(PJRT_Buffer_Device_Args) { buffer: *mut PJRT_Buffer, device: *mut PJRT_Device }
    PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args) { buffer: *mut PJRT_Buffer }
    PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args) { buffer: *mut PJRT_Buffer, is_deleted: bool }
    PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args) {
        buffer: *mut PJRT_Buffer,
        dst_memory: *mut PJRT_Memory,
        dst_buffer: *mut PJRT_Buffer,
    }
    PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args) {
        buffer: *mut PJRT_Buffer,
        on_device_size_in_bytes: usize,
    }
    PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args) {
        buffer: *mut PJRT_Buffer,
        dst_device: *mut PJRT_Device,
        dst_buffer: *mut PJRT_Buffer,
    }
    PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args) {
        src: *mut PJRT_Buffer,
        host_layout: *mut PJRT_Buffer_MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut PJRT_Event,
    }
    PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args) { buffer: *mut PJRT_Buffer, event: *mut PJRT_Event }
    PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args) { buffer: *mut PJRT_Buffer, buffer_pointer: usize }

    PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args) {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        topology: *mut PJRT_TopologyDescription,
    }
    PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args) {
        topology: *mut PJRT_TopologyDescription,
    }
    PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args) {
        topology: *const PJRT_TopologyDescription,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args) {
        topology: *mut PJRT_TopologyDescription,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args) {
        topology: *const PJRT_TopologyDescription,
        descriptions: *const *mut PJRT_DeviceDescription,
        num_descriptions: usize,
    }
    PJRT_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args) {
        topology: *mut PJRT_TopologyDescription,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_topology: *mut PJRT_SerializedTopology,
        serialized_topology_deleter: Option<unsafe extern "C-unwind" fn(*mut PJRT_SerializedTopology)>,
    }
    PJRT_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args) {
        topology: *mut PJRT_TopologyDescription,
        attributes: *const PJRT_NamedValue,
        num_attributes: usize,
    }
    PJRT_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args) {
        topology: *const PJRT_TopologyDescription,
        fingerprint: u64,
    }
    PJRT_Compile(PJRT_Compile_Args) {
        topology: *const PJRT_TopologyDescription,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
    }
}
