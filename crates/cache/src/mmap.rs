//! A memory-mapped file.
//!
//! Out of scope: the meaning of the bytes, and their positions, which are checked earlier
//! (`arrow`).

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe because other processes can change the file"
)]

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap, MmapOptions};

/// The bytes at the beginning of a sample that [`MappedFile::prefetch`] loads.
const PREFETCH_BYTES: usize = 2048;

/// The bytes that a processor loads at once.
const CACHE_LINE: usize = 64;

/// A whole file, mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the first `length` bytes of a file, which must have at least that many. Mapping does
    /// not read them.
    pub(crate) fn new(file: &File, length: usize) -> io::Result<MappedFile> {
        if file.metadata()?.len() < length as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the bytes behind a `&[u8]` must not change. A part of a cache is written under a
        // temporary name, made read-only and renamed when it is complete; nothing in this crate
        // opens it for writing after that, and `clear` removes names, which leaves mapped pages
        // intact. Only another program can break this, by writing to a read-only file: then a
        // sample would have other values, of a type for which all values are valid (bytes).
        // Truncating the file would end the process with SIGBUS at the next access to the removed
        // bytes.
        let map = unsafe { MmapOptions::new().len(length).map(file) };
        map.map(MappedFile)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Lets the processor load `length` bytes from `start` on into its caches, while it does other
    /// work. After the first [`PREFETCH_BYTES`] bytes, the processor detects the sequential access
    /// by itself.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "Rust has no prefetch for it")
    )]
    pub(crate) fn prefetch(&self, start: usize, length: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in (start..start + length.min(PREFETCH_BYTES)).step_by(CACHE_LINE) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is a hint. It neither reads the bytes nor faults, whatever the
            // address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().wrapping_add(line).cast()) };
        }
    }

    /// Advises the system on the order in which the bytes will be read.
    pub(crate) fn advise(&self, access: Access) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.advise(match access {
            Access::Normal => Advice::Normal,
            Access::Sequential => Advice::Sequential,
            Access::Random => Advice::Random,
        })
    }

    /// Reads the whole file into memory, and maps its pages in this process.
    pub(crate) fn populate(&self) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if self.0.advise(Advice::PopulateRead).is_ok() {
            return Ok(());
        }
        // Linux before 5.14 and other systems: read ahead, and let the first access to each page do
        // the rest.
        self.0.advise(Advice::WillNeed)
    }
}

/// The order in which a cache is read, to advise the system's readahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// No advice: the system reads about 128 KiB around each miss. This is the default, and right
    /// for most cases.
    #[default]
    Normal,
    /// In sequence: the system reads further ahead and evicts pages earlier.
    Sequential,
    /// Small samples in random order on a disk with slow seeks: the system does not read ahead.
    Random,
}
