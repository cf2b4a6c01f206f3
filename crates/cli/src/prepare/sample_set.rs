//! Samples by index, whose names and sizes are known in advance.
//!
//! Out of scope: the sets themselves (`imagenet`, `coco`).

use super::manifest::Class;
use fulmen_data::Result;

/// The samples in the archives of a dataset.
pub(crate) trait SampleSet: Sync {
    /// The names of the splits.
    fn splits(&self) -> &'static [&'static str];

    /// The number of samples in a split.
    fn len(&self, split: usize) -> usize;

    /// The sample's name in its shard, without a dot.
    fn key(&self, split: usize, index: usize) -> &str;

    /// The size of the sample's files in a tar, with their headers.
    fn tar_bytes(&self, split: usize, index: usize) -> u64;

    /// Reads a sample. Several threads call it.
    fn read(&self, split: usize, index: usize) -> Result<SampleFiles>;

    /// The classes, in the order of their indices.
    fn classes(&self) -> Vec<Class>;
}

/// The files of a sample.
pub(crate) struct SampleFiles {
    /// Extension and content of each file.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    /// A warning about the sample.
    pub(crate) warning: Option<String>,
}

/// A warning about a JPEG file, from its first and last bytes; pixels are not decoded.
pub(crate) fn jpeg_warning(bytes: &[u8]) -> Option<String> {
    if bytes.starts_with(b"\x89PNG") {
        return Some("a PNG file under the name of a JPEG".to_owned());
    }
    if !bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        return Some("not a JPEG file".to_owned());
    }
    // Some programs append data to an image, so the end marker is searched in the last bytes.
    let tail = &bytes[bytes.len().saturating_sub(4096)..];
    if !tail.windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Some("a JPEG file without an end marker, probably truncated".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jpeg_files_are_recognized_by_their_first_and_last_bytes() {
        let whole = [&[0xff, 0xd8, 0xff, 0xe0][..], &[1; 9000], &[0xff, 0xd9], &[0; 17]].concat();
        assert_eq!(jpeg_warning(&whole), None);
        assert!(jpeg_warning(&whole[..5000]).unwrap().contains("truncated"));
        assert!(jpeg_warning(b"\x89PNG\r\n").unwrap().contains("PNG"));
        assert!(jpeg_warning(b"").unwrap().contains("not a JPEG"));
    }
}
