//! Transfers arrays between the host and devices, asynchronously where possible.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::api::non_null;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::device::Device;
use crate::element_type::{ArrayType, ElementType};
use crate::error::{self, Result};
use crate::event::Event;
use crate::host_buffer::HostBuffer;
use crate::raw_event::RawEvent;

impl Client {
    /// Copies `bytes` to a device. They are the elements of the array in row-major order, in the
    /// host's byte order. When this returns, the bytes have been copied.
    ///
    /// ```
    /// # use fulmen_pjrt::{Plugin, ElementType, locate::{Platform, locate}};
    /// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
    /// # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
    /// let bytes = [1.0_f32, 2.0].map(f32::to_ne_bytes).concat();
    /// let buffer = client.buffer_from_host(&bytes, ElementType::F32, &[2], &client.devices()[0])?;
    /// assert_eq!(buffer.array_type().to_string(), "f32[2]");
    /// assert_eq!(buffer.read()?.wait()?[..], bytes);
    /// # Ok::<(), fulmen_pjrt::Error>(())
    /// ```
    pub fn buffer_from_host(
        &self,
        bytes: &[u8],
        element_type: ElementType,
        dims: &[usize],
        device: &Device,
    ) -> Result<Buffer> {
        let array = ArrayType::new(element_type, dims);
        let size = array.size_in_bytes()?;
        if bytes.len() != size {
            return Err(error::invalid(format!(
                "{} bytes were given for {array}, which has {size}",
                bytes.len()
            )));
        }
        // SAFETY: the number of bytes is that of the array, and the plugin copies them before it
        // returns.
        let (buffer, _done) = unsafe {
            self.send(bytes.as_ptr(), array, device, PJRT_HOST_BUFFER_IMMUTABLE_ONLY_DURING_CALL)
        }?;
        Ok(buffer)
    }

    /// Lets a device read an array in place from `host`, starting at byte `offset`. A CPU does not
    /// copy it if the offset is a multiple of 64. Other devices copy it in the background.
    ///
    /// `host` is held until the plugin no longer needs it, so it cannot be freed or written to
    /// early.
    pub fn buffer_from_shared(
        &self,
        host: &Arc<HostBuffer>,
        offset: usize,
        element_type: ElementType,
        dims: &[usize],
        device: &Device,
    ) -> Result<Buffer> {
        let array = ArrayType::new(element_type, dims);
        let size = array.size_in_bytes()?;
        let Some(bytes) = offset.checked_add(size).and_then(|end| host.get(offset..end)) else {
            return Err(error::invalid(format!(
                "{array} has {size} bytes, which at offset {offset} do not fit into a host buffer of {} bytes",
                host.len()
            )));
        };
        let guard = LeakGuard(Some(host.clone()));
        // SAFETY: the number of bytes is that of the array, and `guard` holds them until `done` is
        // ready.
        let (buffer, done) = unsafe {
            self.send(bytes.as_ptr(), array, device, PJRT_HOST_BUFFER_IMMUTABLE_ZERO_COPY)
        }?;
        // If this fails, `guard` is dropped without a call, which leaks the memory: the plugin may
        // still read it.
        done.on_ready(Box::new(move |_| guard.release()))?;
        Ok(buffer)
    }

    /// # Safety
    /// `data` must point to the array's bytes, which must stay unchanged for as long as `semantics`
    /// requires: until this returns or, for zero copy, until the event is ready.
    unsafe fn send(
        &self,
        data: *const u8,
        array: ArrayType,
        device: &Device,
        semantics: i32,
    ) -> Result<(Buffer, RawEvent)> {
        if !Arc::ptr_eq(device.client(), self.inner()) {
            return Err(error::invalid(format!(
                "a buffer cannot be copied to {device}: the device belongs to a different client; use one of this client's \
                 addressable_devices()"
            )));
        }
        if !device.is_addressable() {
            return Err(error::invalid(format!(
                "a buffer cannot be copied to {device}: it belongs to another host"
            )));
        }
        let dims = signed(&array.dims);
        let mut args = PJRT_Client_BufferFromHostBuffer_Args::new();
        args.client = self.inner().raw();
        args.data = data.cast();
        args.kind = array.element_type.to_raw();
        args.dims = dims.as_ptr();
        args.num_dims = dims.len();
        args.host_buffer_semantics = semantics;
        args.device = device.raw().as_ptr();
        // SAFETY: the client and the device are alive and belong together. The element type and the
        // dimensions are valid. Without strides the array is row-major. The caller vouches for the
        // bytes.
        unsafe { self.api().call(&mut args) }
            .map_err(|error| error.context(format_args!("copying {array} to {device}")))?;
        // If the buffer or the event is missing, the other is still taken over, so that it is
        // destroyed.
        let buffer = non_null(args.buffer, "buffer")
            .map(|raw| Buffer::new(raw, Arc::new(array), device.clone()));
        let event =
            non_null(args.done_with_host_buffer, "event").map(|raw| RawEvent::new(self.api(), raw));
        Ok((buffer?, event?))
    }
}

/// Host memory that is leaked instead of freed, unless the plugin has finished with it.
struct LeakGuard(Option<Arc<HostBuffer>>);

impl LeakGuard {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for LeakGuard {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

impl Buffer {
    /// Starts to copy the array to the host. It neither waits for the copy nor for the computation
    /// of the array.
    pub fn read(&self) -> Result<PendingRead> {
        let client = self.device().client();
        let mut host = HostBuffer::zeroed(self.array_type().size_in_bytes()?)?;
        // The device's order of dimensions may differ from row-major.
        let minor_to_major = (0..self.dims().len() as i64).rev().collect::<Vec<_>>();
        let mut layout = PJRT_Buffer_MemoryLayout::new();
        layout.kind = PJRT_MEMORY_LAYOUT_TILED;
        layout.tiled = PJRT_Buffer_MemoryLayout_Tiled::new();
        layout.tiled.minor_to_major = minor_to_major.as_ptr();
        layout.tiled.minor_to_major_size = minor_to_major.len();
        let mut args = PJRT_Buffer_ToHostBuffer_Args::new();
        args.src = self.raw();
        args.host_layout = &mut layout;
        args.dst = host.as_mut_ptr().cast();
        args.dst_size = host.len();
        // SAFETY: the buffer is alive, and the layout is only read during the call. The destination
        // has the reported size and lives in the `PendingRead`, which releases it only when the
        // copy has ended.
        let started = unsafe { client.api().call(&mut args) };
        started.map_err(|error| {
            error.context(format_args!("reading {} from {}", self.array_type(), self.device()))
        })?;
        let Some(event) = NonNull::new(args.event) else {
            std::mem::forget(host);
            return Err(error::broken("the plugin started to read a buffer but returned no event"));
        };
        Ok(PendingRead { host: Some(host), event: Event::new(client.clone(), event) })
    }
}

/// A running copy from the device. Dropping it waits for the copy, so that nothing is written to
/// freed memory.
#[derive(Debug)]
pub struct PendingRead {
    host: Option<HostBuffer>,
    event: Event,
}

impl PendingRead {
    /// Whether the bytes have arrived, so that [`wait`](Self::wait) would not block.
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// An event that is ready when the bytes have arrived.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Waits for the bytes, in row-major order.
    pub fn wait(mut self) -> Result<HostBuffer> {
        self.finish()?;
        self.host.take().ok_or_else(|| error::broken("the bytes of a read were taken twice"))
    }

    fn finish(&mut self) -> Result<()> {
        let outcome = self.event.wait();
        if outcome.is_err() && !self.event.is_ready().unwrap_or(false) {
            // The wait failed, so the plugin may still write.
            std::mem::forget(self.host.take());
        }
        outcome
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if self.host.is_some() {
            let _ = self.finish();
        }
    }
}

/// The dimensions as the API expects them. `ArrayType::size_in_bytes` has checked that they fit.
fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}
