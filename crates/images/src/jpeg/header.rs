//! The markers of a JPEG file, up to its first scan.
//!
//! Out of scope: EXIF data (`exif`), and the data of the scans (`pure`).

use super::chroma::Halved;
use crate::geometry::ImageSize;
use fulmen_data::{Error, Result};

/// The offset from Adobe's name to the byte that specifies the color transform.
pub(super) const ADOBE: usize = 11;

/// The fields of the frame header and of Adobe's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) size: ImageSize,
    /// Channels as stored: 1, 3 or 4.
    pub(super) components: usize,
    pub(super) is_progressive: bool,
    /// Whether the components are named `R`, `G` and `B`.
    pub(super) is_named_rgb: bool,
    /// Whether the chroma has half the rows and all columns.
    pub(super) is_vertical: bool,
    /// Which of three components have half the resolution.
    pub(super) halved: [Halved; 3],
    /// The pixels of a block of all components.
    pub(super) block: ImageSize,
    /// The position of the color transform in Adobe's segment, if there is one.
    pub(super) transform: Option<usize>,
    /// The start of the data of the first scan.
    pub(super) scan: usize,
}

/// The next marker, and the position of its second byte. Bytes before the marker are skipped.
pub(super) fn next_marker(file: &[u8], from: usize) -> Option<(u8, usize)> {
    let mut position = from;
    loop {
        position += file.get(position..)?.iter().position(|&byte| byte == 0xff)? + 1;
        // Several bytes of 255 may precede a marker.
        position += file.get(position..)?.iter().position(|&byte| byte != 0xff)?;
        match file[position] {
            // An escaped 255 in the data of a scan.
            0 => position += 1,
            marker => return Some((marker, position)),
        }
    }
}

/// Reads the markers before the first scan.
pub(super) fn read(file: &[u8]) -> Result<Header> {
    let cut_short = || refuse("the file ends before its pixels begin; copy or download it again");
    let mut frame = None;
    let mut transform = None;
    let mut position = 2;
    loop {
        let (marker, marker_position) = next_marker(file, position).ok_or_else(cut_short)?;
        position = marker_position + 1;
        match marker {
            // These markers have no segment.
            0x01 | 0xd0..=0xd8 => continue,
            0xd9 => return Err(cut_short()),
            _ => {}
        }
        let &[high, low] = file
            .get(position..position + 2)
            .and_then(|bytes| bytes.first_chunk())
            .ok_or_else(cut_short)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let segment = file.get(position + 2..position + length.max(2)).ok_or_else(cut_short)?;
        match marker {
            0xc4 | 0xc8 | 0xcc => {}
            0xc0..=0xcf => frame = Some(read_frame(marker, segment)?),
            0xee if segment.starts_with(b"Adobe") && segment.len() > ADOBE => {
                transform = Some(position + 2 + ADOBE)
            }
            0xda => {
                let header =
                    frame.ok_or_else(|| refuse("its pixels begin before its frame header"))?;
                return Ok(Header { transform, scan: position + length.max(2), ..header });
            }
            _ => {}
        }
        position += length.max(2);
    }
}

/// Reads a frame header.
fn read_frame(marker: u8, segment: &[u8]) -> Result<Header> {
    let &[precision, height_high, height_low, width_high, width_low, components, ref names @ ..] =
        segment
    else {
        return Err(refuse("its frame header is too short"));
    };
    let columns = |factors: u8| usize::from(factors >> 4);
    let rows = |factors: u8| usize::from(factors & 15);
    let max_factor =
        |part: fn(u8) -> usize| names.chunks_exact(3).map(|name| part(name[1])).max().unwrap_or(0);
    let max_columns = max_factor(columns);
    let max_rows = max_factor(rows);
    let mut halved = [Halved::default(); 3];
    if components == 3 {
        for (halved, name) in halved.iter_mut().zip(names.chunks_exact(3)) {
            let columns = columns(name[1]);
            let rows = rows(name[1]);
            // Other resolutions are not interpolated.
            let is_interpolated = matches!(max_columns, n if n == columns || n == 2 * columns)
                && matches!(max_rows, n if n == rows || n == 2 * rows);
            halved.columns = is_interpolated && max_columns == 2 * columns;
            halved.rows = is_interpolated && max_rows == 2 * rows;
        }
    }
    let side = |high, low| usize::from(u16::from_be_bytes([high, low]));
    match marker {
        0xc3 | 0xc5..=0xc7 | 0xcb | 0xcd..=0xcf => {
            return Err(refuse("it is a lossless or hierarchical JPEG; convert it to PNG"));
        }
        0xc9 | 0xca => {
            return Err(refuse(
                "it is arithmetic-coded, which only libjpeg-turbo decodes; build fulmen with its feature `turbojpeg`, \
                 or convert the file",
            ));
        }
        _ => {}
    }
    if precision != 8 {
        return Err(refuse(&format!("it has {precision} bits per value; only 8 are supported")));
    }
    if !matches!(components, 1 | 3 | 4) {
        return Err(refuse(&format!(
            "it has {components} channels; only 1, 3 and 4 are supported"
        )));
    }
    Ok(Header {
        size: ImageSize {
            height: side(height_high, height_low),
            width: side(width_high, width_low),
        },
        components: usize::from(components),
        is_progressive: marker == 0xc2,
        is_vertical: components == 3 && max_columns == 1 && max_rows == 2,
        halved,
        block: ImageSize { height: 8 * max_rows, width: 8 * max_columns },
        is_named_rgb: components == 3 && names.chunks_exact(3).map(|name| name[0]).eq(*b"RGB"),
        transform: None,
        scan: 0,
    })
}

/// The error for a file that cannot be decoded.
pub(super) fn refuse(reason: &str) -> Error {
    Error::content(format!("cannot decode this JPEG: {reason}"))
}
