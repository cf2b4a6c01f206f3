//! Host memory that a device can read in place. Out of scope: shapes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::error::{Error, Fact, Result};

/// With a smaller alignment, CPU plugins copy instead of reading in place.
pub(crate) const ALIGNMENT: usize = 64;

/// A zeroed allocation of bytes at a 64-byte boundary.
///
/// Fill it, wrap it in an `Arc`, and pass it to
/// [`Client::buffer_from_shared`](crate::Client::buffer_from_shared). From then on nothing can
/// write to it, because the device may read it at any time.
///
/// ```
/// let mut bytes = fulmen_pjrt::HostBuffer::zeroed(8)?;
/// bytes[0] = 7;
/// assert_eq!(&bytes[..2], &[7, 0]);
/// assert_eq!(bytes.as_ptr() as usize % 64, 0);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the allocation is owned, and bytes are not tied to a thread.
unsafe impl Send for HostBuffer {}
// SAFETY: a shared reference only gives access to shared bytes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `len` zero bytes. A length that is too large is an error, never an abort.
    pub fn zeroed(len: usize) -> Result<HostBuffer> {
        let out_of_memory = || {
            Error::of(
                Fact::OutOfMemory,
                format!("the host does not have {len} bytes of free memory for a buffer"),
            )
        };
        let layout = Layout::from_size_align(len, ALIGNMENT).map_err(|_| out_of_memory())?;
        if len == 0 {
            // A layout of size zero must not be allocated; any aligned address works.
            return Ok(Self { start: NonNull::<Aligned>::dangling().cast(), len });
        }
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self { start, len }).ok_or_else(out_of_memory)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<HostBuffer> {
        let mut buffer = Self::zeroed(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }
}

#[repr(align(64))]
struct Aligned;

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `zeroed` checked this size and alignment and allocated with them.
            unsafe {
                dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.len, ALIGNMENT))
            }
        }
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialized bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access. While a device reads the
        // bytes, an `Arc` holds them, which gives out no `&mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 64, 65, 1 << 20] {
            let mut buffer = HostBuffer::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(9);
            assert!(buffer.iter().all(|&byte| byte == 9));
        }
    }

    #[test]
    fn too_large_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 63] {
            let error = HostBuffer::zeroed(len).unwrap_err();
            assert!(error.is_out_of_memory());
            assert!(error.to_string().contains(&len.to_string()));
        }
    }
}
