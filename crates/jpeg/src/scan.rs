//! The markers of a file that TurboJPEG tells nothing about: where its pixels begin, and its end.
//!
//! Out of scope: all else in a header, which libjpeg-turbo reads and checks.

/// What precedes the data of a file's first scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstScan {
    /// The number of blocks of 8 columns that are decoded together.
    pub(crate) blocks: usize,
    /// Whether an end marker follows.
    pub(crate) complete: bool,
}

impl FirstScan {
    /// `None` if the file ends before the data of a scan.
    pub(crate) fn find(file: &[u8]) -> Option<FirstScan> {
        let mut position = 2;
        let mut blocks = 1;
        loop {
            // Other bytes before a marker are skipped, and several bytes of 255 may begin it.
            position += file.get(position..)?.iter().position(|&byte| byte == 0xff)?;
            position += file.get(position..)?.iter().position(|&byte| byte != 0xff)?;
            let marker = file[position];
            position += 1;
            match marker {
                // These have no segment.
                0 | 0x01 | 0xd0..=0xd8 => continue,
                0xd9 => return None,
                _ => {}
            }
            let &[high, low] = file.get(position..)?.first_chunk()?;
            let end = position + usize::from(u16::from_be_bytes([high, low])).max(2);
            let segment = file.get(position..end)?;
            match marker {
                0xda => return Some(FirstScan { blocks, complete: has_end(&file[end..]) }),
                0xc4 | 0xc8 | 0xcc => {}
                0xc0..=0xcf => blocks = columns_of_blocks(segment),
                _ => {}
            }
            position = end;
        }
    }
}

/// The greatest horizontal sampling factor of a frame header. That of a single component has no meaning.
fn columns_of_blocks(frame: &[u8]) -> usize {
    let factors = frame.get(8..).unwrap_or_default().chunks_exact(3).map(|part| part[1] >> 4);
    match factors.len() {
        1 => 1,
        _ => factors.max().unwrap_or(1).max(1).into(),
    }
}

/// Whether the data has an end marker, which cannot occur inside a scan. The search starts at the end, where it
/// normally is.
fn has_end(data: &[u8]) -> bool {
    data.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}
