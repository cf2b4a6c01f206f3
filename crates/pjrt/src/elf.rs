//! Checks a shared object before the dynamic loader opens it. A file that is cut off can kill the
//! loader (SIGBUS), and the loader's error for another architecture is misleading. The content is
//! not checked.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{self, Error, Fact, Result};

/// Rejects a file that is not an ELF file for this process's architecture, or that is shorter than
/// its headers require.
pub(crate) fn check(path: &Path) -> Result<()> {
    let path_text = path.display();
    let refuse_with = |why: String, next: &str| {
        Error::of(
            Fact::NotAPlugin,
            format!("{path_text} is not a PJRT plugin: {why}; use the path of {next}"),
        )
    };
    let refuse = |why: String| refuse_with(why, "a plugin's shared object (.so)");
    // Checked before opening, which would wait for a writer if the file is a pipe.
    let metadata = path
        .metadata()
        .map_err(|error| error::io(format!("cannot read the metadata of {path_text}"), error))?;
    if !metadata.is_file() {
        return Err(refuse("it is not a regular file".to_owned()));
    }
    let mut file = File::open(path)
        .map_err(|error| error::io(format!("cannot open the PJRT plugin {path_text}"), error))?;
    let mut head = [0_u8; 64];
    if file.read_exact(&mut head).is_err() || head[..4] != *b"\x7fELF" {
        return Err(refuse("it is not a shared object".to_owned()));
    }
    // For a file of another architecture, the dynamic loader reports that it does not exist.
    let actual = architecture(&head);
    if actual != env::consts::ARCH {
        let why = format!("it is built for {actual}, and this program for {}", env::consts::ARCH);
        return Err(refuse_with(why, &format!("a plugin for {}", env::consts::ARCH)));
    }
    if head[4] != 2 || head[5] != 1 {
        return Err(refuse("it is not a 64-bit shared object".to_owned()));
    }
    let size = metadata.len();
    let cut =
        || refuse(format!("it is cut off: it has {size} bytes, fewer than its headers require"));
    let fits = |start: u64, length: u64| start.checked_add(length).is_some_and(|end| end <= size);
    // Linkers write the section table last, but a stripped file may have none.
    if !fits(long(&head, 40), short(&head, 58) * short(&head, 60)) {
        return Err(cut());
    }
    let start = long(&head, 32);
    let each = short(&head, 54);
    let count = short(&head, 56);
    if each < PROGRAM_HEADER as u64 || count == 0 {
        return Err(refuse("it has no program headers".to_owned()));
    }
    if !fits(start, each * count) {
        return Err(cut());
    }
    for number in 0..count {
        let mut header = [0_u8; PROGRAM_HEADER];
        file.read_exact_at(&mut header, start + number * each)
            .map_err(|error| error::io(format!("cannot read {path_text}"), error))?;
        if !fits(long(&header, 8), long(&header, 32)) {
            return Err(cut());
        }
    }
    Ok(())
}

/// The architecture in the first bytes of a file, with Rust's name if there is one.
fn architecture(head: &[u8; 64]) -> String {
    let machine = [head[18], head[19]];
    let machine =
        if head[5] == 2 { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
    let name = match machine {
        3 => "x86",
        21 => "powerpc64",
        22 => "s390x",
        40 => "arm",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        258 => "loongarch64",
        _ => return format!("another architecture (ELF machine {machine})"),
    };
    name.to_owned()
}

/// The size of a 64-bit program header, in bytes.
const PROGRAM_HEADER: usize = 56;

fn short(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..offset + 8].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
