//! Groups the files of a tar into samples.
//!
//! Out of scope: iterating over a tar file (`entries`), and over several tar files (`stream`).

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use super::entries::{Entry, TarEntries};
use fulmen_data::internal::LeftOut;
use fulmen_data::{Error, Result};
use fulmen_files::Location;

/// A sample of a WebDataset shard: files whose names are equal up to the first dot after the last
/// slash.
///
/// ```
/// use fulmen_shards::TarSample;
///
/// let mut sample = TarSample {
///     key: "train/0017".to_owned(),
///     files: [("jpg".to_owned(), vec![0xff, 0xd8]), ("cls".to_owned(), b"3".to_vec())].into(),
/// };
/// assert_eq!(sample.text("cls")?.parse::<i32>().map_err(fulmen_data::Error::new)?, 3);
/// assert_eq!(sample.take("jpg")?, [0xff, 0xd8]);
/// assert!(sample.take("png").unwrap_err().to_string().contains("has only `cls`"));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarSample {
    /// The common part of the names, with folders.
    pub key: String,
    /// The content of its files by extension. Extensions are in lower case and may contain dots
    /// (`seg.png`).
    pub files: BTreeMap<String, Vec<u8>>,
}

impl TarSample {
    /// Removes and returns the file with this extension.
    ///
    /// # Errors
    /// The file does not exist (the error lists the existing files).
    pub fn take(&mut self, extension: &str) -> Result<Vec<u8>> {
        self.files.remove(extension).ok_or_else(|| self.missing_error(extension))
    }

    /// Removes and returns the first existing file with one of these extensions.
    pub fn take_any(&mut self, extensions: &[&str]) -> Result<Vec<u8>> {
        let content = extensions.iter().find_map(|extension| self.files.remove(*extension));
        content.ok_or_else(|| self.missing_error(&extensions.join(", .")))
    }

    /// The file with this extension as trimmed text.
    pub fn text(&self, extension: &str) -> Result<&str> {
        let bytes = self.files.get(extension).ok_or_else(|| self.missing_error(extension))?;
        let text = std::str::from_utf8(bytes);
        text.map(str::trim).map_err(|reason| {
            Error::new(format!("the file .{extension} of `{}` is not text: {reason}", self.key))
        })
    }

    fn missing_error(&self, extension: &str) -> Error {
        let names: Vec<String> = self.files.keys().map(|name| format!("`{name}`")).collect();
        let has = if names.is_empty() {
            "nothing (more)".to_owned()
        } else {
            format!("only {}", names.join(", "))
        };
        Error::missing(format!("the sample `{}` has no file .{extension}; it has {has}", self.key))
    }
}

/// The key and the extension of a name. `None` for files that do not belong to a sample: files
/// without an extension, hidden files, and files with which the `webdataset` library describes a
/// shard (`__name__`).
pub fn split(name: &str) -> Option<(&str, &str)> {
    let first = name.split('/').next().unwrap_or_default();
    if first.len() >= 4 && first.starts_with("__") && first.ends_with("__") {
        return None;
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.')?;
    (dot > last).then(|| (&name[..dot], &name[dot + 1..]))
}

/// Whether a file that belongs to no sample has neither an extension nor a name of a tool's file.
fn has_no_extension(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    !last.contains('.') && !name.starts_with("__")
}

/// The files to read from a shard.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// Extensions in lower case; empty for all files.
    pub(super) extensions: Vec<String>,
    pub(super) max_sample_bytes: u64,
}

impl Selection {
    /// Selects only these extensions, in any case: `.JPG` is `jpg`.
    pub(super) fn new(extensions: &[&str], max_sample_bytes: u64) -> Selection {
        let extensions = extensions
            .iter()
            .map(|extension| extension.trim_start_matches('.').to_lowercase())
            .collect();
        Selection { extensions, max_sample_bytes }
    }

    /// Whether to read files with this extension, in lower case.
    pub(super) fn selects(&self, extension: &str) -> bool {
        self.extensions.is_empty() || self.extensions.iter().any(|selected| selected == extension)
    }
}

/// An iterator over the samples of a shard. `T` is the information that is kept about a file.
pub(super) struct Groups<R, T> {
    location: Location,
    entries: TarEntries<R>,
    selection: Arc<Selection>,
    /// The first file of the next sample, which ended the previous one.
    next_group: Option<Group<T>>,
    /// An error to return after a complete sample.
    failed: Option<Error>,
    left_out: LeftOut,
}

/// A sample: its key, and the information about its files by extension.
pub(super) struct Group<T> {
    pub(super) key: String,
    pub(super) files: BTreeMap<String, T>,
    bytes: u64,
}

impl<R: Read, T> Groups<R, T> {
    pub(super) fn new(
        location: &Location,
        entries: TarEntries<R>,
        selection: &Arc<Selection>,
    ) -> Groups<R, T> {
        Groups {
            location: location.clone(),
            entries,
            selection: selection.clone(),
            next_group: None,
            failed: None,
            left_out: LeftOut::default(),
        }
    }

    /// Notes the files of the shard that belong to no sample.
    fn note_left_out(&mut self) {
        let mut left_out = std::mem::take(&mut self.left_out);
        (0..std::mem::take(&mut self.entries.links)).for_each(|_| left_out.add("links"));
        left_out.note(&self.location, "files of samples are named `key.extension`, and no links");
    }

    /// Returns the next sample. `keep` reads the information about a file, when the entries are
    /// positioned at its content.
    pub(super) fn next(
        &mut self,
        mut keep: impl FnMut(&mut TarEntries<R>, Entry) -> Result<T>,
    ) -> Result<Option<Group<T>>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            let Some(entry) = self.entries.next()? else {
                self.note_left_out();
                return Ok(self.next_group.take().filter(|group| !group.files.is_empty()));
            };
            let Some((key, extension)) = split(&entry.name) else {
                if has_no_extension(&entry.name) {
                    self.left_out.add("without an extension");
                }
                continue;
            };
            let extension = extension.to_lowercase();
            let completed = match &self.next_group {
                Some(group) if group.key == key => None,
                _ => {
                    let group = Group { key: key.to_owned(), files: BTreeMap::new(), bytes: 0 };
                    // A sample without selected files is skipped.
                    self.next_group.replace(group).filter(|group| !group.files.is_empty())
                }
            };
            let added = self.add(entry, extension, &mut keep);
            let Some(completed) = completed else {
                added?;
                continue;
            };
            self.failed = added.err();
            return Ok(Some(completed));
        }
    }

    /// Adds a file to the current sample.
    fn add(
        &mut self,
        entry: Entry,
        extension: String,
        keep: &mut impl FnMut(&mut TarEntries<R>, Entry) -> Result<T>,
    ) -> Result<()> {
        let Some(group) = &mut self.next_group else { return Ok(()) };
        let refuse = |reason: String| {
            Err(self
                .location
                .error(format!("entry {}, at byte {}: {reason}", entry.name, entry.offset)))
        };
        if group.files.contains_key(&extension) {
            return refuse(format!(
                "the sample `{}` has a file with the extension `{extension}` already",
                group.key
            ));
        }
        if !self.selection.selects(&extension) {
            return Ok(());
        }
        group.bytes = group.bytes.saturating_add(entry.size);
        let limit = self.selection.max_sample_bytes;
        if group.bytes > limit {
            return refuse(format!(
                "with its {} bytes the sample would have {}, over the limit of {limit}; if that is right, raise the \
                 limit with max_sample_bytes",
                entry.size, group.bytes
            ));
        }
        let content = keep(&mut self.entries, entry)?;
        group.files.insert(extension, content);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    /// The expected values are the result of `webdataset.tariterators` (1.0.2), except for hidden
    /// files in folders, which it groups by the folder's name.
    #[test]
    fn names_are_split_at_the_first_dot_after_the_last_slash() {
        assert_eq!(split("a.jpg"), Some(("a", "jpg")));
        assert_eq!(split("./a.b/c.seg.png"), Some(("./a.b/c", "seg.png")));
        assert_eq!(split("a."), Some(("a", "")));
        assert_eq!(split("a"), None);
        assert_eq!(split(".a"), None);
        assert_eq!(split("b/._a.jpg"), None);
        assert_eq!(split("__meta__/a.jpg"), None);
        assert_eq!(split("__a__.jpg"), Some(("__a__", "jpg")));
        assert_eq!(split(""), None);
    }
}
