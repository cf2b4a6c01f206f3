//! What is made into shards: samples by index, of which name and size are known beforehand.
//!
//! Not here: the sets themselves (`imagenet`, `coco`).

use super::manifest::Class;
use fulmen_data::Result;

/// The samples of a dataset in its archives.
pub(crate) trait SampleSet: Sync {
    /// The names of its splits.
    fn splits(&self) -> &'static [&'static str];

    /// How many samples a split has.
    fn len(&self, split: usize) -> usize;

    /// The sample's name in its shard, without a dot.
    fn key(&self, split: usize, index: usize) -> &str;

    /// How many bytes the sample's files take in a tar file, with their headers.
    fn tar_bytes(&self, split: usize, index: usize) -> u64;

    /// Reads a sample. It is called by several threads.
    fn read(&self, split: usize, index: usize) -> Result<SampleFiles>;

    /// The classes, in the order of their indices.
    fn classes(&self) -> Vec<Class>;
}

/// A sample as it stands in a shard.
pub(crate) struct SampleFiles {
    /// Extension and content of each file.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    /// What is strange about it.
    pub(crate) remark: Option<String>,
}

/// What is strange about the bytes of a JPEG file, by its first and last bytes; pixels are not decoded.
pub(crate) fn jpeg_remark(bytes: &[u8]) -> Option<String> {
    if bytes.starts_with(b"\x89PNG") {
        return Some("a PNG file under the name of a JPEG".to_owned());
    }
    if !bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        return Some("not a JPEG file".to_owned());
    }
    // Some programs write more behind the image; the mark of its end stands somewhere near.
    let tail = &bytes[bytes.len().saturating_sub(4096)..];
    if !tail.windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Some("a JPEG file without an end marker: probably cut short".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jpeg_files_are_known_by_their_ends() {
        let whole = [&[0xff, 0xd8, 0xff, 0xe0][..], &[1; 9000], &[0xff, 0xd9], &[0; 17]].concat();
        assert_eq!(jpeg_remark(&whole), None);
        assert!(jpeg_remark(&whole[..5000]).unwrap().contains("cut off"));
        assert!(jpeg_remark(b"\x89PNG\r\n").unwrap().contains("PNG"));
        assert!(jpeg_remark(b"").unwrap().contains("not a JPEG"));
    }
}
