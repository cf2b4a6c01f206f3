//! [`Blocks`]: reads bytes that have a checksum for each MiB.

use std::ops::Range;

use crc32c::crc32c;

use crate::{Error, Result};

/// The size in bytes of a block, the unit of checksums.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The maximum number of blocks to read at once. Each read from an object store costs a round trip.
const MAX_BLOCKS: u64 = 16;

/// Bytes with the CRC-32C of each block of [`BLOCK_BYTES`]; the last block may be shorter. They are
/// read in blocks, and each block is compared with its checksum. Holds at most 16 blocks.
///
/// ```
/// use fulmen_checkpoint::{Blocks, Error};
///
/// let file = b"....weights";
/// let read = |start: u64, into: &mut [u8]| {
///     into.copy_from_slice(&file[4 + start as usize..][..into.len()]);
///     Ok(())
/// };
/// let damaged = |span| Error::usage(format!("bytes {span:?} are damaged"));
/// let mut found = [0; 3];
/// Blocks::new(7, &[crc32c::crc32c(b"weights")], read, damaged).copy(1, &mut found)?;
/// assert_eq!(&found, b"eig");
/// assert!(Blocks::new(7, &[0], read, damaged).copy(1, &mut found).is_err());
/// # Ok::<(), Error>(())
/// ```
pub struct Blocks<'a> {
    bytes: u64,
    crc32c: &'a [u32],
    /// Fills a slice with the bytes from an offset on.
    #[allow(clippy::type_complexity, reason = "a type alias would be used only once")]
    read: Box<dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a>,
    /// The error of a block at these offsets that does not match its checksum.
    damaged: Box<dyn Fn(Range<u64>) -> Error + 'a>,
    /// Consecutive blocks.
    window: Vec<u8>,
    /// The number of the first block in `window`.
    first_block: u64,
    /// Whether each block in `window` was verified.
    verified: Vec<bool>,
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'a> Blocks<'a> {
    /// `bytes` bytes with these checksums. `read` fills a slice with the bytes from an offset on, and
    /// `damaged` makes the error of a block at these offsets.
    pub fn new(
        bytes: u64,
        crc32c: &'a [u32],
        read: impl FnMut(u64, &mut [u8]) -> Result<()> + 'a,
        damaged: impl Fn(Range<u64>) -> Error + 'a,
    ) -> Blocks<'a> {
        Blocks {
            bytes,
            crc32c,
            read: Box::new(read),
            damaged: Box::new(damaged),
            window: Vec::new(),
            first_block: 0,
            verified: Vec::new(),
        }
    }

    /// Fills `into` with the bytes from `start` on.
    ///
    /// # Errors
    /// There are fewer bytes; they cannot be read, or do not match their checksum.
    pub fn copy(&mut self, mut start: u64, mut into: &mut [u8]) -> Result<()> {
        if start.checked_add(into.len() as u64).is_none_or(|end| end > self.bytes) {
            let wanted = into.len();
            return Err(Error::usage(format!(
                "{wanted} bytes from byte {start} on are more than the {} there are",
                self.bytes
            )));
        }
        while !into.is_empty() {
            let offset = (start % BLOCK_BYTES) as usize;
            let block = self
                .read(start / BLOCK_BYTES, ((offset + into.len()) as u64).div_ceil(BLOCK_BYTES))?;
            let count = into.len().min(block.len() - offset);
            let (chunk, rest) = into.split_at_mut(count);
            chunk.copy_from_slice(&block[offset..offset + count]);
            (start, into) = (start + count as u64, rest);
        }
        Ok(())
    }

    /// Reads block `number`. `expected` is the number of blocks, from this one on, that the caller
    /// will read.
    fn read(&mut self, number: u64, expected: u64) -> Result<&[u8]> {
        if number < self.first_block || number - self.first_block >= self.verified.len() as u64 {
            let start = number * BLOCK_BYTES;
            let count = expected.clamp(1, MAX_BLOCKS).min(self.count() - number);
            self.verified.clear();
            self.window.resize((self.bytes - start).min(count * BLOCK_BYTES) as usize, 0);
            (self.read)(start, &mut self.window)?;
            (self.first_block, self.verified) = (number, vec![false; count as usize]);
        }
        let index = (number - self.first_block) as usize;
        let from = index * BLOCK_BYTES as usize;
        let block = &self.window[from..self.window.len().min(from + BLOCK_BYTES as usize)];
        if !self.verified[index] {
            if self.crc32c.get(number as usize) != Some(&crc32c(block)) {
                let first = number * BLOCK_BYTES;
                return Err((self.damaged)(first..first + block.len() as u64));
            }
            self.verified[index] = true;
        }
        Ok(block)
    }

    /// Passes all blocks to `take` in order, until it fails.
    pub(crate) fn try_each(
        mut self,
        mut take: impl FnMut(Result<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        (0..self.count()).try_for_each(|number| take(self.read(number, MAX_BLOCKS)))
    }

    fn count(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES)
    }
}
