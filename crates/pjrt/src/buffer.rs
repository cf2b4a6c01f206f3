//! An array on a device. Transfers are in `transfer`.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::api::non_null;
use crate::device::Device;
use crate::element_type::{ArrayType, ElementType};
use crate::error::{self, Result};
use crate::event::Event;

/// An array on a device. It is immutable, and it cannot be cloned, because its owner may donate its
/// memory.
///
/// Donation moves the buffer, so the compiler rejects further uses:
///
/// ```compile_fail,E0382
/// # fn f(step: fulmen_pjrt::LoadedExecutable, state: fulmen_pjrt::Buffer) -> fulmen_pjrt::Result<()> {
/// use fulmen_pjrt::Argument;
/// step.execute(vec![vec![Argument::Donate(state)]])?;
/// state.read()?; // borrow of moved value: `state`
/// # Ok(())
/// # }
/// ```
pub struct Buffer {
    raw: NonNull<PJRT_Buffer>,
    array: Arc<ArrayType>,
    // Holds the client; dropped after `raw` is destroyed.
    device: Device,
}

// SAFETY: buffers are thread-safe by the API's contract.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes ownership of a buffer from the plugin.
    pub(crate) fn new(raw: NonNull<PJRT_Buffer>, array: Arc<ArrayType>, device: Device) -> Buffer {
        Self { raw, array, device }
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw.as_ptr()
    }

    /// The element type and the dimensions.
    pub fn array_type(&self) -> &ArrayType {
        &self.array
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ElementType {
        self.array.element_type
    }

    /// The length of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.array.dims
    }

    /// The size of the array in host memory, in bytes.
    pub fn size_in_bytes(&self) -> usize {
        // The size was checked when the array was created.
        self.array.size_in_bytes().unwrap_or(usize::MAX)
    }

    /// The size of the array on the device in bytes, including padding.
    pub fn size_on_device(&self) -> Result<usize> {
        let mut args = PJRT_Buffer_OnDeviceSizeInBytes_Args::new();
        args.buffer = self.raw();
        // SAFETY: the buffer is alive.
        unsafe { self.device.client().api().call(&mut args) }?;
        Ok(args.on_device_size_in_bytes)
    }

    /// The device that holds the array.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// An event that is ready when the array has been computed or has arrived.
    pub fn ready(&self) -> Result<Event> {
        let client = self.device.client();
        let mut args = PJRT_Buffer_ReadyEvent_Args::new();
        args.buffer = self.raw();
        // SAFETY: the buffer is alive.
        unsafe { client.api().call(&mut args) }?;
        Ok(Event::new(client.clone(), non_null(args.event, "event")?))
    }

    /// The address of the array on the device, for tests of aliasing and for diagnosis. Not every
    /// plugin reports it.
    pub fn address(&self) -> Result<usize> {
        let mut args = PJRT_Buffer_UnsafePointer_Args::new();
        args.buffer = self.raw();
        // SAFETY: the buffer is alive, and an address as a number is harmless.
        unsafe { self.device.client().api().call(&mut args) }?;
        Ok(args.buffer_pointer)
    }

    /// Copies the array to another device of the same client.
    pub fn copy_to_device(&self, device: &Device) -> Result<Buffer> {
        let client = self.device.client();
        if !Arc::ptr_eq(client, device.client()) {
            return Err(error::invalid(format!(
                "a buffer cannot be copied from {} to {device}: the devices belong to different clients; read the \
                 buffer, and copy the bytes to {device}",
                self.device
            )));
        }
        if !device.is_addressable() {
            return Err(error::invalid(format!(
                "{device} belongs to another host; a buffer cannot be copied there"
            )));
        }
        let mut args = PJRT_Buffer_CopyToDevice_Args::new();
        args.buffer = self.raw();
        args.dst_device = device.raw().as_ptr();
        // SAFETY: the buffer and the device are alive and belong to one client.
        unsafe { client.api().call(&mut args) }
            .map_err(|error| error.context(format_args!("copying {} to {device}", self.array)))?;
        Ok(Self::new(non_null(args.dst_buffer, "buffer")?, self.array.clone(), device.clone()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = PJRT_Buffer_Destroy_Args::new();
        args.buffer = self.raw();
        // SAFETY: we own the buffer, and this is its last use. Running work on it holds its own
        // reference.
        unsafe { self.device.client().api().destroy(&mut args) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} on {})", self.array, self.device)
    }
}
