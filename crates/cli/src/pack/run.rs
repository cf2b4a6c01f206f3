//! The choice between images and texts, and the check that the options fit.
//!
//! Out of scope: packing images (`plan`) and texts (`text`).

use fulmen_data::{Error, Result};
use fulmen_files::Location;

use super::entries::{is_archive, is_image};
use super::manifest::Manifest;
use super::options::Pack;
use super::plan::pack_images;
use super::progress::Progress;
use super::text::pack_texts;
use super::text_files::is_text;

impl Pack {
    /// Writes the missing shards and the manifest.
    ///
    /// An interrupted run can be continued with the same options and sources: finished shards are
    /// not written again. A shard gets its name when it is complete and on the disk. A file that
    /// this program did not write is never replaced.
    ///
    /// An image that does not start or end like a JPEG but has the name of one is kept unchanged
    /// and listed in the manifest's warnings.
    ///
    /// # Errors
    /// Sources of different kinds, or options of another kind; archives that are damaged, or have
    /// links or names that lead out of them; no images or no documents; an image without a class;
    /// labels without an image; two images with the same name; a folder that was started with other
    /// options or sources, has other shards, is in a source, or is in use by another run; a disk
    /// without enough space.
    pub fn run(&self, progress: &dyn Progress) -> Result<Manifest> {
        self.check()?;
        let mut kinds = Vec::new();
        for (_, source) in &self.sources {
            kinds.push((has_images(source)?, source));
        }
        let images = kinds.iter().find(|(images, _)| *images).map(|(_, source)| *source);
        let texts = kinds.iter().find(|(images, _)| !images).map(|(_, source)| *source);
        match (images, texts) {
            (None, None) => Err(Error::usage("there is nothing to pack; name a source")),
            (Some(images), Some(texts)) => Err(Error::usage(format!(
                "{images} has images, and {texts} has texts; pack them into different folders"
            ))),
            (Some(source), None) => {
                let set = [
                    ("field", self.field.is_some()),
                    ("lines", self.lines),
                    ("validation", self.validation.is_some()),
                    ("tokenizer", self.tokenizer.is_some()),
                    ("separator", self.separator.is_some()),
                ];
                refuse_options(source, "images", "texts", &set)?;
                pack_images(self, progress)
            }
            (None, Some(source)) => {
                let set = [("labels", !self.labels.is_empty()), ("flat", self.flat)];
                refuse_options(source, "texts", "images", &set)?;
                pack_texts(self, progress)
            }
        }
    }
}

fn refuse_options(
    source: &Location,
    has: &str,
    other: &str,
    options: &[(&str, bool)],
) -> Result<()> {
    match options.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((name, _)) => Err(Error::usage(format!(
            "the option `{name}` is for {other}, but {source} has {has}; leave it out"
        ))),
    }
}

/// Whether a source has images; otherwise it has texts.
fn has_images(source: &Location) -> Result<bool> {
    let name = source.name().to_lowercase();
    if source.local().is_some_and(|path| path.is_dir()) {
        let files = source.list()?;
        let mut names = files.iter().map(Location::name);
        return Ok(names.any(|name| is_image(&name)));
    }
    if is_archive(&name) {
        return match source.local() {
            Some(_) => Ok(true),
            None => Err(Error::usage(format!(
                "{source}: archives are read in random order, so they must be on a local disk; copy it there first"
            ))),
        };
    }
    let packed = [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"];
    if packed.iter().any(|end| name.ends_with(end)) {
        return Err(Error::usage(format!(
            "{source}: images are read from a tar in random order, which compression does not allow; decompress it first"
        )));
    }
    if is_image(&name) {
        return Err(Error::usage(format!("{source}: this is an image; name its folder instead")));
    }
    let Some(path) = source.local().filter(|_| !is_text(source)) else { return Ok(false) };
    if path.is_file() {
        return Err(Error::usage(format!(
            "{source}: its name has no known extension; sources are folders, .tar, .zip, .txt, .jsonl and .parquet"
        )));
    }
    match source.expand()?.as_slice() {
        [one] if one == source => Err(Error::missing(format!("{source}: no such file or folder"))),
        _ => Ok(false),
    }
}
