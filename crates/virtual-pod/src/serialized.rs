//! Serialized programs: the CPU plugin's bytes, and the fingerprint of the program. The CPU plugin
//! gives another fingerprint to a program that it loads from bytes. Without this, a process that
//! loads a program and one that compiles it would seem to launch different programs.

use std::ffi::c_char;

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{guarded, list};

use crate::error::{Failure, PodError};
use crate::inner::{Entry, forward, inner};
use crate::live::Counted;

/// Changes with the format: this, the length of the fingerprint (4 bytes, little-endian), the
/// fingerprint, and the CPU plugin's bytes.
const MAGIC: &[u8; 8] = b"FULMENV1";
const START: usize = MAGIC.len() + 4;

/// The fingerprint and the CPU plugin's bytes in a serialized program.
pub(crate) fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), PodError> {
    let split = bytes.split_at_checked(START).and_then(|(start, rest)| {
        let length = start.strip_prefix(MAGIC)?.try_into().ok()?;
        rest.split_at_checked(u32::from_le_bytes(length) as usize)
    });
    split.ok_or_else(|| PodError::invalid("the bytes are not a serialized program of this plugin"))
}

fn join(fingerprint: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = (fingerprint.len() as u32).to_le_bytes();
    [MAGIC, &length[..], fingerprint, bytes].concat()
}

/// The object behind the bytes that a caller gets.
struct Serialized {
    bytes: Vec<u8>,
    _counted: Counted,
}

unsafe extern "C-unwind" fn delete(serialized: *mut PJRT_SerializedExecutable) {
    if !serialized.is_null() {
        // SAFETY: the caller gives up the object, which `run` made.
        drop(unsafe { Box::from_raw(serialized.cast::<Serialized>()) });
    }
}

/// The plugin's fingerprint of an executable.
///
/// # Safety
/// The executable must be alive.
pub(crate) unsafe fn fingerprint(executable: *mut PJRT_Executable) -> Result<Vec<u8>, PodError> {
    let mut args = PJRT_Executable_Fingerprint_Args::new();
    args.executable = executable;
    // SAFETY: the caller's promise; the text lives as long as the executable.
    unsafe {
        inner()?.call(&mut args)?;
        let start = args.executable_fingerprint.cast::<u8>();
        Ok(list(start, args.executable_fingerprint_size).to_vec())
    }
}

impl Entry for PJRT_Executable_Serialize_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        // SAFETY: the caller's executable.
        let fingerprint = unsafe { fingerprint(self.executable.cast_mut()) }?;
        // SAFETY: the caller's arguments.
        unsafe { forward(self) }?;
        // SAFETY: the plugin's bytes live until the deleter is called.
        let bytes = unsafe { list(self.serialized_bytes.cast::<u8>(), self.serialized_bytes_size) };
        let bytes = join(&fingerprint, bytes);
        if let Some(delete) = self.serialized_executable_deleter {
            let inner = self.serialized_executable;
            // SAFETY: the bytes are copied, and this is the only call.
            guarded("the deleter of serialized bytes", || unsafe { delete(inner) });
        }
        let serialized = Box::new(Serialized { bytes, _counted: Counted::new() });
        self.serialized_bytes = serialized.bytes.as_ptr().cast::<c_char>();
        self.serialized_bytes_size = serialized.bytes.len();
        self.serialized_executable = Box::into_raw(serialized).cast();
        self.serialized_executable_deleter = Some(delete);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_bytes_are_split() {
        let bytes = join(b"17", &[1, 2, 3]);
        assert_eq!(split(&bytes).unwrap(), (&b"17"[..], &[1, 2, 3][..]));
        for length in 0..START + 2 {
            assert!(split(&bytes[..length]).is_err(), "{length}");
        }
        assert!(split(&[b"FULMENV9", &bytes[8..]].concat()).is_err());
        assert!(split(&[&bytes[..8], &[255; 8]].concat()).is_err());
    }
}
