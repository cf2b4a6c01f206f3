//! Which files are where in a tar file, found by its headers alone.
//!
//! Not here: reading shards for training (`fulmen-shards`).

use super::section::Section;
use fulmen_data::Result;
use fulmen_shards::TarEntry;

/// Calls `each` with the files of a tar file in their order; folders and links are passed over. Offsets are those in the
/// section.
///
/// `what` names the archive in messages: `the archive`, or `entry n01440764.tar`. A tar file that was cut off is refused,
/// also where it is cut between two entries, since its end is marked by blocks of zeros.
pub(crate) fn for_each_entry(
    section: &Section,
    what: &str,
    mut each: impl FnMut(TarEntry) -> Result<()>,
) -> Result<()> {
    section.tar_entries(what).try_for_each(|entry| each(entry?))
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
        let of = |entry: &TarEntry| bytes[entry.offset as usize..(entry.offset + entry.size) as usize].to_vec();
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
            assert!(text.contains("a.tar: ") && (text.contains("cut short") || text.contains("is empty")), "{text}");
        }
    }

    #[test]
    fn what_is_no_tar_file_is_refused() {
        assert!(index(&[b'x'; 2048]).unwrap_err().to_string().contains("this is no tar file"));
    }
}
