//! The orientation of the camera, from the EXIF data of a file.
//!
//! Out of scope: other EXIF data.

use super::geometry::Orientation;

/// The transformation of the pixels for the EXIF orientations 1 to 8.
fn orientation(value: u16) -> Orientation {
    let (transpose, flip_x, flip_y) = match value {
        2 => (false, true, false),
        3 => (false, true, true),
        4 => (false, false, true),
        5 => (true, false, false),
        6 => (true, true, false),
        7 => (true, true, true),
        8 => (true, false, true),
        _ => (false, false, false),
    };
    Orientation { transpose, flip_x, flip_y }
}

/// The orientation in EXIF data, which starts with a TIFF header. Invalid data has no orientation.
pub(crate) fn from_exif(exif: &[u8]) -> Orientation {
    find(exif).map(orientation).unwrap_or_default()
}

fn find(exif: &[u8]) -> Option<u16> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_little_endian = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let read_u16 = |offset: usize| {
        let bytes: [u8; 2] = exif.get(offset..offset.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little_endian { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let read_u32 = |offset: usize| {
        let bytes: [u8; 4] = exif.get(offset..offset.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little_endian { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = read_u32(4)? as usize;
    let entries = read_u16(directory)? as usize;
    // Entries of 12 bytes: tag, type, count, value. The orientation is tag 0x0112, of type 3 (16
    // bits).
    let mut offsets = (0..entries).map(|entry| directory + 2 + 12 * entry);
    let offset = offsets
        .find(|&offset| read_u16(offset) == Some(0x0112) && read_u16(offset + 2) == Some(3))?;
    read_u16(offset + 8)
}

/// The orientation of a JPEG file, from its APP1 segment.
pub(crate) fn from_jpeg(file: &[u8]) -> Orientation {
    let mut rest = file.get(2..).unwrap_or_default();
    while let [0xff, marker, tail @ ..] = rest {
        match marker {
            // Fill bytes may precede a marker.
            0xff => rest = &rest[1..],
            // The scan. APP1 segments come before it.
            0xda | 0xd9 => break,
            _ => {
                let [high, low, ..] = tail else { break };
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                let (Some(segment), Some(after)) = (tail.get(2..length), tail.get(length..)) else {
                    break;
                };
                if *marker == 0xe1 && segment.starts_with(b"Exif\0\0") {
                    return from_exif(segment);
                }
                rest = after;
            }
        }
    }
    Orientation::default()
}
