//! What lies where in a tar file, found by its headers alone.
//!
//! Not here: reading shards for training (`tar_shards`).

use std::io;

use super::section::Section;
use fulmen_data::{Error, Result};

/// The unit of the format: headers and data begin at multiples of it.
const BLOCK: u64 = 512;

/// One file in a tar file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TarEntry {
    /// With its folders.
    pub(crate) name: String,
    /// Where its data begins in the section.
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// Calls `each` with the files of a tar file in their order; folders and links are passed over.
///
/// `what` names the archive in messages: `train.tar`, or `train.tar, entry n01440764.tar`. A tar file that was cut off
/// is refused, also where it is cut between two entries, since its end is marked by a block of zeros.
pub(crate) fn for_each_entry(
    section: &Section,
    what: &str,
    mut each: impl FnMut(TarEntry) -> Result<()>,
) -> Result<()> {
    let cut = |after: &str| {
        Error::file(
            section.path(),
            format!(
                "{what}: the tar file is cut off {after}: {} bytes are there and more were expected; download it again",
                section.len()
            ),
        )
    };
    let broken = |source: io::Error, after: &str| {
        Error::file(section.path(), format!("{what}: reading the header {after}: {source}; is this a tar file?"))
    };
    let mut archive = tar::Archive::new(section.clone());
    let mut after = "at its beginning".to_owned();
    let mut end = 0;
    for entry in archive.entries_with_seek().map_err(|source| broken(source, &after))? {
        let entry = entry.map_err(|source| broken(source, &after))?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(|source| {
            let name = String::from_utf8_lossy(source.as_bytes()).into_owned();
            Error::file(section.path(), format!("{what}: the name of entry {name} is not UTF-8"))
        })?;
        let (start, size) = (entry.raw_file_position(), entry.size());
        after = format!("in or after entry {name}");
        end = start
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(BLOCK))
            .filter(|&end| end <= section.len())
            .ok_or_else(|| cut(&after))?;
        if entry.header().entry_type().is_file() {
            each(TarEntry { name, start, size })?;
        }
    }
    if end + BLOCK > section.len() {
        return Err(cut(&after));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn index(bytes: &[u8]) -> Result<Vec<TarEntry>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        std::fs::write(&path, bytes).unwrap();
        let section = Section::open(&path)?;
        let mut entries = Vec::new();
        for_each_entry(&section, "a.tar", |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(entries)
    }

    #[test]
    fn entries_are_found_where_they_are() {
        let long = format!("{}/x.txt", "long".repeat(40));
        let bytes = tar_of(&[("a.txt", b"hello"), (&long, &[7; 1000]), ("empty", b"")]);
        let entries = index(&bytes).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a.txt", &long, "empty"]);
        let of = |entry: &TarEntry| bytes[entry.start as usize..(entry.start + entry.size) as usize].to_vec();
        assert_eq!(of(&entries[0]), b"hello");
        assert_eq!(of(&entries[1]), [7; 1000]);
    }

    #[test]
    fn a_cut_is_seen_wherever_it_is() {
        let bytes = tar_of(&[("a.txt", &[1; 700]), ("b.txt", &[2; 700])]);
        for length in (0..=3 * 1024 + 1024 / 2).step_by(64) {
            let Err(error) = index(&bytes[..length.min(bytes.len())]) else {
                assert!(length > 3 * 1024, "a tar file of {length} bytes was taken for whole");
                continue;
            };
            let text = error.to_string();
            assert!(text.contains("cut off") || text.contains("reading the header"), "{text}");
        }
    }

    #[test]
    fn what_is_no_tar_file_is_refused() {
        assert!(index(&[b'x'; 2048]).unwrap_err().to_string().contains("is this a tar file?"));
    }
}
