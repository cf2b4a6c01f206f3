//! The buffers that callers hold, and the functions for them. A result is a buffer at once, and the
//! CPU plugin's buffer follows when the launch has ended.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{Api, list, non_null};
use parking_lot::{Condvar, Mutex};

use crate::client::pod_of;
use crate::error::{Failure, PodError};
use crate::event::UnsetEvent;
use crate::inner::{Entry, forward};
use crate::live::Counted;
use crate::pod::{Pod, Raw};

/// A buffer of the CPU plugin.
pub(crate) struct RawBuffer {
    raw: Raw<PJRT_Buffer>,
    pod: Arc<Pod>,
    _counted: Counted,
}

impl RawBuffer {
    /// Takes ownership of a buffer of the CPU plugin.
    pub(crate) fn new(pod: &Arc<Pod>, raw: *mut PJRT_Buffer) -> Result<RawBuffer, PodError> {
        let raw = Raw(non_null(raw, "buffer")?.as_ptr());
        Ok(Self { raw, pod: pod.clone(), _counted: Counted::new() })
    }

    pub(crate) fn raw(&self) -> *mut PJRT_Buffer {
        self.raw.0
    }

    /// Where the elements are.
    pub(crate) fn address(&self) -> Result<usize, PodError> {
        let mut args = PJRT_Buffer_UnsafePointer_Args::new();
        args.buffer = self.raw();
        // SAFETY: the buffer is alive.
        unsafe { self.pod.inner.call(&mut args) }?;
        Ok(args.buffer_pointer)
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        let mut args = PJRT_Buffer_Destroy_Args::new();
        args.buffer = self.raw();
        // SAFETY: we own the buffer, and this is its last use.
        unsafe { self.pod.inner.destroy(&mut args) }
    }
}

/// One logical array: a result of a launch with its parts on all devices, or a value from the host
/// on one device.
pub(crate) struct Array {
    pod: Arc<Pod>,
    /// The devices of the parts.
    pub(crate) devices: Vec<Raw<PJRT_Device>>,
    /// The launch over several processes that computed it, and the number of the output. Every
    /// process has a copy of such an array.
    pub(crate) origin: OnceLock<(u64, u32)>,
    /// For a device that is broken on purpose: until then, reads get zeros.
    pub(crate) unwritten_until: OnceLock<Instant>,
    /// The number under which other processes keep a value from this host.
    pub(crate) sent: Mutex<Sent>,
    state: Mutex<State>,
    changed: Condvar,
    _counted: Counted,
}

/// The processes that have a value from this host.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) to: BTreeSet<usize>,
}

struct State {
    parts: Parts,
    /// The number of launches that are queued with this array.
    queued: usize,
}

type Waiter = Box<dyn FnOnce(Result<&[RawBuffer], &PodError>) + Send>;

enum Parts {
    Pending(Vec<Waiter>),
    Ready(Arc<[RawBuffer]>),
    Failed(PodError),
}

impl Array {
    fn new(pod: &Arc<Pod>, devices: Vec<Raw<PJRT_Device>>, parts: Parts) -> Arc<Array> {
        Arc::new(Self {
            pod: pod.clone(),
            devices,
            origin: OnceLock::new(),
            unwritten_until: OnceLock::new(),
            sent: Mutex::default(),
            state: Mutex::new(State { parts, queued: 0 }),
            changed: Condvar::new(),
            _counted: Counted::new(),
        })
    }

    /// An array that will be [resolved](Self::resolve).
    pub(crate) fn pending(pod: &Arc<Pod>, devices: Vec<Raw<PJRT_Device>>) -> Arc<Array> {
        Self::new(pod, devices, Parts::Pending(Vec::new()))
    }

    /// Sets the parts, and runs what waits for them.
    pub(crate) fn resolve(&self, outcome: Result<Vec<RawBuffer>, PodError>) {
        let parts = match outcome {
            Ok(parts) => Parts::Ready(parts.into()),
            Err(error) => Parts::Failed(error),
        };
        let result = parts.result();
        let before = mem::replace(&mut self.state.lock().parts, parts);
        self.changed.notify_all();
        let Parts::Pending(waiters) = before else { return };
        for waiter in waiters {
            waiter(result.as_deref());
        }
    }

    /// Runs `waiter` when the parts are known: now, or on the thread of launches.
    fn when_ready(&self, waiter: Waiter) {
        let mut state = self.state.lock();
        let result = match &mut state.parts {
            Parts::Pending(waiters) => {
                waiters.push(waiter);
                return;
            }
            parts => parts.result(),
        };
        drop(state);
        waiter(result.as_deref());
    }

    /// Waits for the parts.
    pub(crate) fn wait(&self) -> Result<Arc<[RawBuffer]>, PodError> {
        let mut state = self.state.lock();
        while matches!(state.parts, Parts::Pending(_)) {
            self.changed.wait(&mut state);
        }
        state.parts.result()
    }

    /// Marks the array as an argument of a launch that has not started.
    pub(crate) fn enqueue(&self) {
        self.state.lock().queued += 1;
    }

    /// Ends [`enqueue`](Self::enqueue): the launch has started, or never will.
    pub(crate) fn dequeue(&self) {
        self.state.lock().queued -= 1;
        self.changed.notify_all();
    }

    /// Waits until no launch is queued that may still take the array's memory.
    fn wait_for_launches(&self) {
        let mut state = self.state.lock();
        while state.queued > 0 {
            self.changed.wait(&mut state);
        }
    }
}

impl Parts {
    /// The outcome of parts that are not pending.
    fn result(&self) -> Result<Arc<[RawBuffer]>, PodError> {
        match self {
            Self::Ready(parts) => Ok(parts.clone()),
            Self::Failed(error) => Err(error.clone()),
            Self::Pending(_) => {
                Err(PodError::new(PJRT_Error_Code::INTERNAL, "the array is not computed yet"))
            }
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let sent = mem::take(self.sent.get_mut());
        self.pod.forget(sent.id, sent.to);
    }
}

/// A part of an array.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) array: Arc<Array>,
    pub(crate) index: usize,
}

impl Shard {
    /// Waits for the CPU plugin's buffer. It lives as long as the array.
    pub(crate) fn wait(&self) -> Result<*mut PJRT_Buffer, PodError> {
        Ok(self.array.wait()?[self.index].raw())
    }

    pub(crate) fn device(&self) -> *mut PJRT_Device {
        self.array.devices[self.index].0
    }

    /// Starts work on the CPU plugin's buffer, now or when it exists. The outcome is a new array on
    /// `device`.
    fn derive(
        &self,
        device: *mut PJRT_Device,
        work: impl FnOnce(*mut PJRT_Buffer) -> Result<*mut PJRT_Buffer, PodError> + Send + 'static,
    ) -> Shard {
        let pod = self.array.pod.clone();
        let derived = Array::pending(&pod, vec![Raw(device)]);
        let index = self.index;
        let array = derived.clone();
        self.array.when_ready(Box::new(move |parts| {
            let outcome = parts.map_err(PodError::clone).and_then(|parts| work(parts[index].raw()));
            array.resolve(outcome.and_then(|raw| Ok(vec![RawBuffer::new(&pod, raw)?])));
        }));
        Shard { array: derived, index: 0 }
    }
}

/// The object that callers hold as a `PJRT_Buffer`.
pub(crate) struct Handle {
    shard: Shard,
    _counted: Counted,
}

impl Handle {
    /// Gives a buffer to the caller, who destroys it.
    pub(crate) fn give(shard: Shard) -> *mut PJRT_Buffer {
        Box::into_raw(Box::new(Self { shard, _counted: Counted::new() })).cast()
    }

    /// # Safety
    /// `raw` must be null, or a buffer of this plugin that lives for `'a`.
    pub(crate) unsafe fn of<'a>(raw: *mut PJRT_Buffer) -> Result<&'a Handle, PodError> {
        // SAFETY: the caller's promise.
        unsafe { raw.cast::<Handle>().as_ref() }
            .ok_or_else(|| PodError::invalid("the buffer is null"))
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }
}

impl Entry for PJRT_Client_BufferFromHostBuffer_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let pod = pod_of(self.client)?;
        if !self.memory.is_null() {
            pod.check_memory(self.memory)?;
        } else if !self.device.is_null() {
            pod.check_device(self.device)?;
        }
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }?;
        let raw = RawBuffer::new(&pod, mem::replace(&mut self.buffer, std::ptr::null_mut()))?;
        let mut device = PJRT_Buffer_Device_Args::new();
        device.buffer = raw.raw();
        // SAFETY: the buffer is alive.
        unsafe { pod.inner.call(&mut device) }?;
        let array = Array::new(&pod, vec![Raw(device.device)], Parts::Ready([raw].into()));
        self.buffer = Handle::give(Shard { array, index: 0 });
        Ok(())
    }
}

impl Entry for PJRT_Buffer_Destroy_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        if !self.buffer.is_null() {
            // SAFETY: the caller owns the buffer, which `Handle::give` made, and gives it up.
            drop(unsafe { Box::from_raw(self.buffer.cast::<Handle>()) });
        }
        Ok(())
    }
}

impl Entry for PJRT_Buffer_Device_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's buffer.
        self.device = unsafe { Handle::of(self.buffer) }?.shard.device();
        Ok(())
    }
}

impl Entry for PJRT_Buffer_Delete_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(self.buffer) }?.shard();
        let inner = shard.array.pod.inner;
        let index = shard.index;
        shard.array.when_ready(Box::new(move |parts| {
            let Ok(parts) = parts else { return };
            let mut args = PJRT_Buffer_Delete_Args::new();
            args.buffer = parts[index].raw();
            // SAFETY: the buffer is alive. A failure would leave its memory until it is destroyed.
            let _ = unsafe { inner.call(&mut args) };
        }));
        Ok(())
    }
}

impl Entry for PJRT_Buffer_IsDeleted_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let outer = self.buffer;
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(outer) }?.shard();
        // A launch that is queued may be about to take the buffer.
        shard.array.wait_for_launches();
        self.buffer = shard.wait()?;
        // SAFETY: the CPU plugin's buffer is alive.
        let outcome = unsafe { forward(self) };
        self.buffer = outer;
        outcome
    }
}

impl Entry for PJRT_Buffer_CopyToDevice_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(self.buffer) }?.shard();
        let inner = shard.array.pod.inner;
        shard.array.pod.check_device(self.dst_device)?;
        let device = Raw(self.dst_device);
        let copy = shard.derive(device.0, move |raw| {
            let mut args = PJRT_Buffer_CopyToDevice_Args::new();
            args.buffer = raw;
            args.dst_device = device.get();
            // SAFETY: the buffer and the device belong to one client, which is alive.
            unsafe { inner.call(&mut args) }?;
            Ok(args.dst_buffer)
        });
        self.dst_buffer = Handle::give(copy);
        Ok(())
    }
}

impl Entry for PJRT_Buffer_CopyToMemory_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(self.buffer) }?.shard();
        let inner = shard.array.pod.inner;
        shard.array.pod.check_memory(self.dst_memory)?;
        let memory = Raw(self.dst_memory);
        let copy = shard.derive(shard.device(), move |raw| {
            let mut args = PJRT_Buffer_CopyToMemory_Args::new();
            args.buffer = raw;
            args.dst_memory = memory.get();
            // SAFETY: the buffer and the memory belong to one client, which is alive.
            unsafe { inner.call(&mut args) }?;
            Ok(args.dst_buffer)
        });
        self.dst_buffer = Handle::give(copy);
        Ok(())
    }
}

impl Entry for PJRT_Buffer_ReadyEvent_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(self.buffer) }?.shard();
        let inner = shard.array.pod.inner;
        let event = UnsetEvent::new(inner)?;
        self.event = event.raw();
        let index = shard.index;
        shard.array.when_ready(Box::new(move |parts| {
            let ready = parts.map_err(PodError::clone).and_then(|parts| {
                let mut args = PJRT_Buffer_ReadyEvent_Args::new();
                args.buffer = parts[index].raw();
                // SAFETY: the buffer is alive.
                unsafe { inner.call(&mut args) }?;
                await_event(inner, args.event)
            });
            event.set(ready.err().as_ref());
        }));
        Ok(())
    }
}

/// Waits for an event of the CPU plugin, and destroys it.
pub(crate) fn await_event(inner: Api, event: *mut PJRT_Event) -> Result<(), PodError> {
    let event = non_null(event, "event")?.as_ptr();
    let mut args = PJRT_Event_Await_Args::new();
    args.event = event;
    // SAFETY: the event is ours and alive.
    let outcome = unsafe { inner.call(&mut args) };
    let mut args = PJRT_Event_Destroy_Args::new();
    args.event = event;
    // SAFETY: this is its last use.
    unsafe { inner.destroy(&mut args) };
    Ok(outcome?)
}

/// Copies a buffer to memory in row-major order, and waits for it.
///
/// # Safety
/// `dst` must have `len` writable bytes, the size that the CPU plugin requires.
unsafe fn read_into(
    inner: Api,
    raw: *mut PJRT_Buffer,
    minor_to_major: Option<&[i64]>,
    dst: *mut c_void,
    len: usize,
) -> Result<(), PodError> {
    let mut layout = PJRT_Buffer_MemoryLayout::new();
    layout.kind = PJRT_MEMORY_LAYOUT_TILED;
    layout.tiled = PJRT_Buffer_MemoryLayout_Tiled::new();
    let mut args = PJRT_Buffer_ToHostBuffer_Args::new();
    if let Some(order) = minor_to_major {
        layout.tiled.minor_to_major = order.as_ptr();
        layout.tiled.minor_to_major_size = order.len();
        args.host_layout = &mut layout;
    }
    args.src = raw;
    args.dst = dst;
    args.dst_size = len;
    // SAFETY: the buffer is alive; the layout outlives the call; the caller vouches for `dst`.
    unsafe { inner.call(&mut args) }?;
    await_event(inner, args.event)
}

/// The type and the dimensions of a buffer of the CPU plugin.
pub(crate) fn array_type(buffer: &RawBuffer) -> Result<(i32, Vec<i64>), PodError> {
    let inner = buffer.pod.inner;
    let mut kind = PJRT_Buffer_ElementType_Args::new();
    kind.buffer = buffer.raw();
    let mut dims = PJRT_Buffer_Dimensions_Args::new();
    dims.buffer = buffer.raw();
    // SAFETY: the buffer is alive, and the dimensions live as long as it.
    unsafe {
        inner.call(&mut kind)?;
        inner.call(&mut dims)?;
        Ok((kind.kind, list(dims.dims, dims.num_dims).to_vec()))
    }
}

/// The size of a buffer in host memory.
pub(crate) fn byte_size(buffer: &RawBuffer) -> Result<usize, PodError> {
    let mut size = PJRT_Buffer_ToHostBuffer_Args::new();
    size.src = buffer.raw();
    // SAFETY: without a destination, this only returns the size.
    unsafe { buffer.pod.inner.call(&mut size) }?;
    Ok(size.dst_size)
}

/// Changes the elements of a buffer, which are in the memory of this process.
pub(crate) fn change_elements(buffer: &RawBuffer, change: fn(&mut [u8])) -> Result<(), PodError> {
    let len = byte_size(buffer)?;
    if len == 0 {
        return Ok(());
    }
    let address = buffer.address()?;
    // SAFETY: the CPU plugin keeps a buffer's elements in this process's memory, and has written
    // them. The launch has ended, and no caller has the buffer yet.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
    change(bytes);
    Ok(())
}

/// The bytes of a buffer, in row-major order.
pub(crate) fn read(buffer: &RawBuffer) -> Result<Vec<u8>, PodError> {
    let inner = buffer.pod.inner;
    let (_, dims) = array_type(buffer)?;
    let order = (0..dims.len() as i64).rev().collect::<Vec<_>>();
    let mut bytes = vec![0; byte_size(buffer)?];
    // SAFETY: the memory has the size that the plugin has reported.
    unsafe {
        read_into(inner, buffer.raw(), Some(&order), bytes.as_mut_ptr().cast(), bytes.len())
    }?;
    Ok(bytes)
}

impl Entry for PJRT_Buffer_ToHostBuffer_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let outer = self.src;
        // SAFETY: the caller's buffer.
        let shard = unsafe { Handle::of(outer) }?.shard();
        // SAFETY: the caller's layout, if there is one, is alive during the call.
        let order = unsafe { self.host_layout.as_ref() }.map(|layout| {
            let plain = layout.kind == PJRT_MEMORY_LAYOUT_TILED && layout.tiled.num_tiles == 0;
            // SAFETY: a layout of this kind has this list.
            plain.then(|| unsafe {
                list(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size).to_vec()
            })
        });
        if self.dst.is_null() || order == Some(None) {
            // The size, or a layout that is only valid during the call.
            self.src = shard.wait()?;
            // SAFETY: the caller's arguments, with the buffer that the CPU plugin knows.
            let outcome = unsafe { forward(self) };
            self.src = outer;
            return outcome;
        }
        let inner = shard.array.pod.inner;
        let event = UnsetEvent::new(inner)?;
        self.event = event.raw();
        let dst = Raw(self.dst);
        let len = self.dst_size;
        let index = shard.index;
        let array = shard.array.clone();
        shard.array.when_ready(Box::new(move |parts| {
            let outcome = parts.map_err(PodError::clone).and_then(|parts| {
                let order = order.as_ref().and_then(Option::as_deref);
                // SAFETY: the caller keeps the memory until the event is set. The plugin checks its
                // size.
                unsafe { read_into(inner, parts[index].raw(), order, dst.get(), len) }
            });
            if array.unwritten_until.get().is_some_and(|&end| Instant::now() < end) {
                // SAFETY: the caller's memory has this size.
                unsafe { dst.get().cast::<u8>().write_bytes(0, len) };
            }
            event.set(outcome.err().as_ref());
        }));
        Ok(())
    }
}
