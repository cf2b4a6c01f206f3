//! A file as memory. Outside `fulmen-pjrt`, this and `fulmen-jpeg`'s `ffi.rs` are the places that need `unsafe`.
//!
//! Not here: what the bytes mean, and where in them anything lies; that is checked before (`arrow`).

#![expect(unsafe_code, reason = "mapping a file is unsafe because other processes can change the file")]

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap, MmapOptions};

/// A whole file, mapped to be read.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

impl Mapped {
    /// Maps the first `length` bytes of a file, which must have so many. None of them is read yet.
    pub(crate) fn new(file: &File, length: usize) -> io::Result<Mapped> {
        if file.metadata()?.len() < length as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the bytes behind a `&[u8]` must not change. A part of a cache is written under a temporary name, made
        // read-only and renamed into place when it is whole; nothing in this crate opens it for writing after that, and
        // `clear` removes names, which leaves mapped pages as they are. Only someone else can break this, by writing
        // into a read-only file: then a sample would have other values than before, of a type for which all values are
        // valid (bytes). Cutting the file short would end the process with SIGBUS at the next look at what was cut off.
        let map = unsafe { MmapOptions::new().len(length).map(file) };
        map.map(Mapped)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells the system in which order the bytes will be read.
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

    /// Reads the whole file into memory, and makes its pages known to this process.
    pub(crate) fn populate(&self) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if self.0.advise(Advice::PopulateRead).is_ok() {
            return Ok(());
        }
        // Linux before 5.14, and others: read ahead, and let the first look at each page do the rest.
        self.0.advise(Advice::WillNeed)
    }
}

/// The order in which a cache is read, for the system's reading ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing is said: the system reads some 128 KiB around what it misses. Right for most, and the default.
    #[default]
    Normal,
    /// From the beginning to the end: the system reads further ahead, and forgets sooner.
    Sequential,
    /// Small samples in random order on a disk that is slow to seek: nothing is read ahead.
    Random,
}
