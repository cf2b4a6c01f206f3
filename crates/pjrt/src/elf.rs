//! A glance at a shared object before it is handed to the dynamic loader, which can be killed (SIGBUS) by a file that was
//! cut off. It does not judge what is in the file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Refuses a file that is no 64-bit ELF shared object, or shorter than its own header says.
pub(crate) fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    let mut file =
        File::open(path).map_err(|error| Error::io(format!("cannot open the PJRT plugin {shown}"), error))?;
    let metadata = file.metadata().map_err(|error| Error::io(format!("cannot look at {shown}"), error))?;
    let refuse = |why: String| {
        Error::new(
            Kind::NotAPlugin,
            format!("{shown} is not a PJRT plugin: {why}; give the path of a plugin's shared object (.so)"),
        )
    };
    if !metadata.is_file() {
        return Err(refuse("it is not a regular file".to_owned()));
    }
    let mut head = [0_u8; 64];
    if file.read_exact(&mut head).is_err() || head[..4] != *b"\x7fELF" || head[4] != 2 || head[5] != 1 {
        return Err(refuse("it is not a 64-bit shared object".to_owned()));
    }
    let short = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    // The section table stands last in the files that linkers write.
    let end = short(58).checked_mul(short(60)).and_then(|size| size.checked_add(long(40)));
    match end {
        Some(end) if end <= metadata.len() => Ok(()),
        _ => Err(refuse(format!("it is cut off: it has {} bytes and should have more", metadata.len()))),
    }
}
