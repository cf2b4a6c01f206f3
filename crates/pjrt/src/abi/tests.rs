//! Compares our layouts with the header's own `_STRUCT_SIZE`s, as a C compiler computed them from
//! the header of 0.81.

use std::mem::offset_of;

use super::*;

const HEADER: &[(&str, usize)] = &[
    ("PJRT_Error_GetCode_Args", 28),
    ("PJRT_Plugin_Initialize_Args", 16),
    ("PJRT_Plugin_Attributes_Args", 32),
    ("PJRT_Event_Destroy_Args", 24),
    ("PJRT_Event_IsReady_Args", 25),
    ("PJRT_Event_Error_Args", 24),
    ("PJRT_Event_Await_Args", 24),
    ("PJRT_Event_OnReady_Args", 40),
    ("PJRT_Client_LookupAddressableDevice_Args", 40),
    ("PJRT_Client_AddressableMemories_Args", 40),
    ("PJRT_Device_IsAddressable_Args", 25),
    ("PJRT_Device_AddressableMemories_Args", 40),
    ("PJRT_Buffer_ElementType_Args", 28),
    ("PJRT_Buffer_Dimensions_Args", 40),
    ("PJRT_Buffer_Device_Args", 32),
    ("PJRT_Buffer_Delete_Args", 24),
    ("PJRT_Buffer_IsDeleted_Args", 25),
    ("PJRT_Buffer_CopyToMemory_Args", 40),
    // Later versions appended these.
    ("PJRT_Event_Create_Args", 24),
    ("PJRT_Event_Set_Args", 48),
    ("PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args", 40),
    ("PJRT_Client_Create_Args", 88),
    ("PJRT_Client_Destroy_Args", 24),
    ("PJRT_Client_PlatformName_Args", 40),
    ("PJRT_Client_PlatformVersion_Args", 40),
    ("PJRT_Client_ProcessIndex_Args", 28),
    ("PJRT_Client_Devices_Args", 40),
    ("PJRT_Client_AddressableDevices_Args", 40),
    ("PJRT_Client_Compile_Args", 56),
    ("PJRT_Client_BufferFromHostBuffer_Args", 120),
    ("PJRT_Client_TopologyDescription_Args", 32),
    ("PJRT_DeviceDescription_Id_Args", 28),
    ("PJRT_DeviceDescription_ProcessIndex_Args", 28),
    ("PJRT_DeviceDescription_Attributes_Args", 40),
    ("PJRT_DeviceDescription_Kind_Args", 40),
    ("PJRT_DeviceDescription_DebugString_Args", 40),
    ("PJRT_DeviceDescription_ToString_Args", 40),
    ("PJRT_Device_GetDescription_Args", 32),
    ("PJRT_Device_LocalHardwareId_Args", 28),
    ("PJRT_Device_MemoryStats_Args", 185),
    ("PJRT_Executable_Destroy_Args", 24),
    ("PJRT_Executable_Name_Args", 40),
    ("PJRT_Executable_NumReplicas_Args", 32),
    ("PJRT_Executable_NumPartitions_Args", 32),
    ("PJRT_Executable_NumOutputs_Args", 32),
    ("PJRT_Executable_GetCostAnalysis_Args", 40),
    ("PJRT_Executable_GetCompiledMemoryStats_Args", 112),
    ("PJRT_Executable_OptimizedProgram_Args", 32),
    ("PJRT_Executable_Fingerprint_Args", 40),
    ("PJRT_Executable_OutputElementTypes_Args", 40),
    ("PJRT_Executable_OutputDimensions_Args", 48),
    ("PJRT_Executable_Serialize_Args", 56),
    ("PJRT_Executable_DeserializeAndLoad_Args", 64),
    ("PJRT_LoadedExecutable_Destroy_Args", 24),
    ("PJRT_LoadedExecutable_GetExecutable_Args", 32),
    ("PJRT_LoadedExecutable_AddressableDevices_Args", 40),
    ("PJRT_LoadedExecutable_Execute_Args", 80),
    ("PJRT_Buffer_Destroy_Args", 24),
    ("PJRT_Buffer_OnDeviceSizeInBytes_Args", 32),
    ("PJRT_Buffer_CopyToDevice_Args", 40),
    ("PJRT_Buffer_ToHostBuffer_Args", 56),
    ("PJRT_Buffer_ReadyEvent_Args", 32),
    ("PJRT_Buffer_UnsafePointer_Args", 32),
    ("PJRT_TopologyDescription_Create_Args", 56),
    ("PJRT_TopologyDescription_Destroy_Args", 24),
    ("PJRT_TopologyDescription_PlatformName_Args", 40),
    ("PJRT_TopologyDescription_PlatformVersion_Args", 40),
    ("PJRT_TopologyDescription_GetDeviceDescriptions_Args", 40),
    ("PJRT_TopologyDescription_Serialize_Args", 56),
    ("PJRT_TopologyDescription_Attributes_Args", 40),
    ("PJRT_Compile_Args", 64),
    // 0.115 appended it.
    ("PJRT_TopologyDescription_Fingerprint_Args", 32),
];

#[test]
fn argument_sizes_are_those_of_the_header() {
    assert_eq!(SIZES.len(), HEADER.len());
    for (name, size) in SIZES {
        let expected = HEADER.iter().find(|(header, _)| header == name).unwrap();
        assert_eq!((name, size), (&expected.0, &expected.1));
    }
}

#[test]
fn other_sizes_are_those_of_the_header() {
    assert_eq!(PJRT_Error_Destroy_Args::STRUCT_SIZE, 24);
    assert_eq!(PJRT_Error_Message_Args::STRUCT_SIZE, 40);
    assert_eq!(PJRT_NamedValue::STRUCT_SIZE, 56);
    assert_eq!(PJRT_Program::STRUCT_SIZE, 48);
    assert_eq!(PJRT_Buffer_MemoryLayout_Tiled::STRUCT_SIZE, 56);
    assert_eq!(PJRT_Buffer_MemoryLayout::STRUCT_SIZE, 76);
    assert_eq!(PJRT_ExecuteOptions::STRUCT_SIZE, 112);
    assert_eq!(PJRT_KeyValueGetCallback_Args::STRUCT_SIZE, 80);
    assert_eq!(PJRT_KeyValueTryGetCallback_Args::STRUCT_SIZE, 72);
    assert_eq!(PJRT_KeyValuePutCallback_Args::STRUCT_SIZE, 64);
    assert_eq!(size_of::<PJRT_Extension_Base>(), 24);
    assert_eq!(size_of::<PJRT_Api_Version>(), 24);
}

#[test]
fn the_table_has_the_slots_and_size_of_its_version() {
    const POINTER: usize = size_of::<usize>();
    assert_eq!(offset_of!(PJRT_Api, pjrt_api_version), 16);
    assert_eq!(Slot::COUNT, 138);
    assert_eq!(
        size_of::<PJRT_Api>() + Slot::COUNT * POINTER,
        1144,
        "the size that plugins of 0.115 report"
    );
    let last_of_81 = Slot::PJRT_LoadedExecutable_GetDeviceAssignment as usize;
    assert_eq!(
        size_of::<PJRT_Api>() + (last_of_81 + 1) * POINTER,
        984,
        "the size that plugins of 0.81 report"
    );
    // Offsets from a C compiler, for functions in the middle of the header's table.
    let offset = |slot: Slot| size_of::<PJRT_Api>() + slot as usize * POINTER;
    assert_eq!(offset(Slot::PJRT_Error_Destroy), 40);
    assert_eq!(offset(Slot::PJRT_Client_BufferFromHostBuffer), 216);
    assert_eq!(offset(Slot::PJRT_LoadedExecutable_Execute), 480);
    assert_eq!(offset(Slot::PJRT_Buffer_ToHostBuffer), 600);
    assert_eq!(offset(Slot::PJRT_Compile), 752);
    assert_eq!(offset(Slot::PJRT_Executable_GetCompiledMemoryStats), 808);
}

#[test]
fn a_new_struct_is_zero_except_its_size() {
    let args = PJRT_Client_BufferFromHostBuffer_Args::new();
    assert_eq!(args.struct_size, 120);
    assert!(args.client.is_null() && args.data.is_null() && args.done_with_host_buffer.is_null());
    assert_eq!((args.kind, args.num_dims, args.host_buffer_semantics), (0, 0, 0));
}
