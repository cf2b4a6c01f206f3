//! Safe functions around the C code in `shim.c`. All of the crate's `unsafe` is in this file.
//!
//! Out of scope: which part of an image to decode, and the error messages.
#![allow(unsafe_code, reason = "the C half of this crate is called here")]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;

// This links the library, whose C functions the shim calls.
use turbojpeg_sys as _;

/// A libjpeg-turbo decoder with its memory.
pub(crate) struct Handle(NonNull<RawHandle>);

#[repr(C)]
struct RawHandle {
    _opaque: [u8; 0],
}

/// The header of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) components: u32,
    /// J_COLOR_SPACE.
    pub(crate) space: u32,
    pub(crate) precision: u32,
    pub(crate) progressive: u32,
    pub(crate) lossless: u32,
    /// The offset of the first scan's data.
    pub(crate) consumed: usize,
}

/// Why a call to the C code failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// libjpeg-turbo's message.
    Failed(String),
    CutShort,
    TooManyScans,
}

/// The columns and rows to decode, in pixels of the scaled image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) left: u32,
    pub(crate) width: u32,
    pub(crate) top: u32,
    pub(crate) rows: u32,
}

unsafe extern "C" {
    fn fulmen_jpeg_new() -> *mut RawHandle;
    fn fulmen_jpeg_free(handle: *mut RawHandle);
    fn fulmen_jpeg_message(handle: *const RawHandle) -> *const c_char;
    fn fulmen_jpeg_damaged(handle: *const RawHandle) -> c_int;
    fn fulmen_jpeg_header(
        handle: *mut RawHandle,
        data: *const u8,
        size: usize,
        header: *mut Header,
    ) -> c_int;
    #[allow(clippy::too_many_arguments)]
    fn fulmen_jpeg_decode(
        handle: *mut RawHandle,
        space: u32,
        eighths: u32,
        left: *mut u32,
        width: *mut u32,
        top: u32,
        rows: u32,
        into: *mut u8,
        stride: usize,
    ) -> c_int;
    fn fulmen_jpeg_end(handle: *mut RawHandle);
}

impl Handle {
    /// `None` if memory cannot be allocated.
    pub(crate) fn new() -> Option<Handle> {
        // SAFETY: it takes no arguments, and returns a new object or null.
        NonNull::new(unsafe { fulmen_jpeg_new() }).map(Handle)
    }

    /// Reads the header of a file. The file stays borrowed until its decoding ends.
    pub(crate) fn open<'a>(
        &'a mut self,
        data: &'a [u8],
    ) -> Result<(OpenFile<'a>, Header), Failure> {
        let mut header = Header::default();
        let open_file = OpenFile { handle: self, data: PhantomData };
        // SAFETY: the handle is live and not in use elsewhere; `data` outlives `open_file`, whose drop
        // makes the C code forget it, also on an error; `header` has the layout of the C struct.
        let status = unsafe {
            fulmen_jpeg_header(
                open_file.handle.0.as_ptr(),
                data.as_ptr(),
                data.len(),
                &raw mut header,
            )
        };
        open_file.handle.check(status)?;
        Ok((open_file, header))
    }

    fn check(&self, status: c_int) -> Result<(), Failure> {
        match status {
            0 => Ok(()),
            2 => Err(Failure::CutShort),
            3 => Err(Failure::TooManyScans),
            _ => Err(Failure::Failed(self.message())),
        }
    }

    /// libjpeg-turbo's message for the last error or warning.
    fn message(&self) -> String {
        // SAFETY: the handle is live. Its message is one of its arrays and always ends with a zero,
        // since formatting and the allocation write one, and nothing writes it while `self` is
        // borrowed.
        let message = unsafe { CStr::from_ptr(fulmen_jpeg_message(self.0.as_ptr())) };
        message.to_string_lossy().into_owned()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and not used after this.
        unsafe { fulmen_jpeg_free(self.0.as_ptr()) }
    }
}

/// A file whose header has been read.
pub(crate) struct OpenFile<'a> {
    handle: &'a mut Handle,
    data: PhantomData<&'a [u8]>,
}

impl OpenFile<'_> {
    /// Decodes a window. `space` is a J_COLOR_SPACE with `channels` values per pixel. On success,
    /// `into` holds `rows` rows of `stride` bytes, and the window says at which column they begin.
    pub(crate) fn decode(
        &mut self,
        space: u32,
        channels: usize,
        eighths: u32,
        window: Window,
        into: &mut Vec<u8>,
        stride: usize,
    ) -> Result<Window, Failure> {
        let bytes = stride.checked_mul(window.rows as usize).ok_or_else(|| no_memory(window))?;
        if into.len() < bytes {
            into.try_reserve(bytes - into.len()).map_err(|_| no_memory(window))?;
            into.resize(bytes, 0);
        }
        let Window { mut left, mut width, top, rows } = window;
        // SAFETY: the handle is live and open, and `self` borrows its data. The C code writes at
        // most `rows` rows of its output width, which it checks to be at most `stride`; `into` is
        // large enough for them.
        let status = unsafe {
            fulmen_jpeg_decode(
                self.handle.0.as_ptr(),
                space,
                eighths,
                &raw mut left,
                &raw mut width,
                top,
                rows,
                into.as_mut_ptr(),
                stride,
            )
        };
        self.handle.check(status)?;
        debug_assert!(width as usize * channels <= stride);
        Ok(Window { left, width, top, rows })
    }

    /// The warning, if some of the data decoded so far was invalid.
    pub(crate) fn damage(&self) -> Option<String> {
        // SAFETY: the handle is live.
        let damaged = unsafe { fulmen_jpeg_damaged(self.handle.0.as_ptr()) != 0 };
        damaged.then(|| self.handle.message())
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live. Afterwards it does not hold a pointer to the data.
        unsafe { fulmen_jpeg_end(self.handle.0.as_ptr()) }
    }
}

fn no_memory(Window { width, rows, .. }: Window) -> Failure {
    Failure::Failed(format!("not enough memory for {width} x {rows} pixels"))
}
