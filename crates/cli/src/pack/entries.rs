//! The images in archives and folders: their names, their classes by folder, and access to their
//! bytes from any thread.
//!
//! Out of scope: labels from files, and the numbers of classes (`images`).

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::file_slice::FileSlice;
use super::manifest::SourceFile;
use super::zip_index::ZipIndex;
use fulmen_data::internal::LeftOut;
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_files::Location;
use fulmen_images::ImageFolder;

/// File extensions of images, and the extensions in the shards.
const EXTENSIONS: [(&str, &str); 5] =
    [("jpg", "jpg"), ("jpeg", "jpg"), ("jpe", "jpg"), ("png", "png"), ("webp", "webp")];

/// An image in a source.
pub(crate) struct Entry {
    /// Its path in the source, with slashes. The name of an inner tar file is a folder here.
    pub(crate) path: String,
    /// The class by the inner tar file or the folder.
    pub(crate) class: Option<Arc<str>>,
    pub(crate) extension: &'static str,
    pub(crate) content: Content,
}

/// The bytes of an image.
pub(crate) enum Content {
    Tar(FileSlice),
    Zip(Arc<ZipIndex>, usize),
    File { root: Arc<Path>, bytes: u64 },
}

impl Entry {
    pub(crate) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Tar(slice) => slice.len(),
            Content::Zip(zip, index) => zip.entries[*index].size,
            Content::File { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        match &self.content {
            Content::Tar(slice) => slice.read_all().map_err(|source| {
                let reading = format!("reading entry {} (has the archive changed?)", self.path);
                Error::io(slice.path(), &reading, source)
            }),
            Content::Zip(zip, index) => zip.read(&zip.entries[*index]),
            Content::File { root, bytes } => {
                let path = root.join(&self.path);
                fulmen_durable::read_regular(&path, *bytes)
                    .map_err(|source| Error::io(&path, "reading the image", source))
            }
        }
    }

    /// The error about this image.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        let in_archive = format!("entry {}: {message}", self.path);
        match &self.content {
            Content::Tar(slice) => Error::file(slice.path(), in_archive),
            Content::Zip(zip, _) => Error::file(zip.path(), in_archive),
            Content::File { root, .. } => Error::file(&root.join(&self.path), message.to_string()),
        }
    }
}

/// Whether a file is an archive, by its name.
pub(crate) fn is_archive(name: &str) -> bool {
    [".tar", ".zip"].iter().any(|end| name.to_lowercase().ends_with(end))
}

/// Whether a file is a visible image, by its name.
pub(crate) fn is_image(name: &str) -> bool {
    extension_of(name).is_some() && !name.starts_with('.')
}

fn extension_of(name: &str) -> Option<&'static str> {
    let extension = name.rsplit('/').next()?.rsplit_once('.')?.1.to_lowercase();
    EXTENSIONS.iter().find(|(it, _)| *it == extension).map(|(_, in_shard)| *in_shard)
}

/// The images of a source, in the order of the source. Folders are classes, unless it is `flat`.
pub(crate) fn find_images(
    split: &str,
    source: &Location,
    flat: bool,
) -> Result<(SourceFile, Vec<Entry>)> {
    let Some(path) = source.local() else {
        return Err(Error::usage(format!("{source}: images are read from a local disk")));
    };
    if path.is_dir() {
        return images_of_folder(split, path, flat);
    }
    let mut found = FoundImages { flat, entries: Vec::new(), left_out: LeftOut::default() };
    let slice = FileSlice::open(path)?;
    if source.name().to_lowercase().ends_with(".zip") {
        found.add_zip(slice)?;
    } else {
        found.add_tar(&slice)?;
    }
    let ends: Vec<&str> = EXTENSIONS.iter().map(|(name, _)| *name).collect();
    found.left_out.note(source, &format!("images are {}", ends.join(", ")));
    if found.entries.is_empty() {
        let message = format!("there are no images in it: no file ends in {}", ends.join(", "));
        return Err(Error::file(path, message));
    }
    Ok((SourceFile::new(split, source)?, found.entries))
}

struct FoundImages {
    flat: bool,
    entries: Vec<Entry>,
    left_out: LeftOut,
}

impl FoundImages {
    fn add_tar(&mut self, archive: &FileSlice) -> Result<()> {
        // All names are read first, so that a truncated archive is an error with its last entry.
        let entries: Result<Vec<_>> = archive.tar_entries("the archive", false).collect();
        for entry in entries? {
            let name = inside(archive.path(), &entry.name)?;
            let part = |from: &FileSlice, start, len| {
                from.part(start, len).ok_or_else(|| Error::file(archive.path(), "it has changed"))
            };
            let slice = part(archive, entry.offset, entry.size)?;
            let Some(stem) = name.strip_suffix(".tar") else {
                let class = class_of_folder(&name);
                self.add(name, class, Content::Tar(slice));
                continue;
            };
            let class: Arc<str> = stem.rsplit('/').next().unwrap_or(stem).into();
            let entries: Result<Vec<_>> =
                slice.tar_entries(&format!("entry {name}"), false).collect();
            for inner in entries? {
                let inner_name = inside(archive.path(), &inner.name)?;
                if inner_name.ends_with(".tar") {
                    return Err(Error::file(
                        archive.path(),
                        format!(
                            "entry {name}: it has a tar file, {inner_name}, in a tar in a tar; unpack it first"
                        ),
                    ));
                }
                let content = Content::Tar(part(&slice, inner.offset, inner.size)?);
                self.add(format!("{stem}/{inner_name}"), Some(Arc::clone(&class)), content);
            }
        }
        Ok(())
    }

    fn add_zip(&mut self, archive: FileSlice) -> Result<()> {
        let zip = Arc::new(ZipIndex::open(archive)?);
        for (index, entry) in zip.entries.iter().enumerate() {
            let name = inside(zip.path(), &entry.name)?;
            let class = class_of_folder(&name);
            self.add(name, class, Content::Zip(Arc::clone(&zip), index));
        }
        Ok(())
    }

    fn add(&mut self, path: String, class: Option<Arc<str>>, content: Content) {
        if path.split('/').any(|part| part.starts_with('.')) {
            return;
        }
        match extension_of(&path) {
            None => self.left_out.add_file(&path),
            Some(extension) => {
                let class = class.filter(|_| !self.flat);
                self.entries.push(Entry { path, class, extension, content });
            }
        }
    }
}

fn images_of_folder(split: &str, root: &Path, flat: bool) -> Result<(SourceFile, Vec<Entry>)> {
    let images = if flat { ImageFolder::open_flat(root) } else { ImageFolder::open(root) }?;
    let shared: Arc<Path> = root.into();
    let classes: Vec<Arc<str>> = images.classes().iter().map(|name| name.as_str().into()).collect();
    let mut entries = Vec::with_capacity(images.len());
    let mut bytes = 0;
    for index in 0..images.len() {
        let path = images.path(index);
        let name = images.name(index).to_str().ok_or_else(|| {
            Error::file(&path, "its name is not UTF-8, which names in shards are; rename it")
        })?;
        let metadata =
            path.metadata().map_err(|source| Error::io(&path, "looking at the image", source))?;
        bytes += metadata.len();
        entries.push(Entry {
            path: name.to_owned(),
            class: usize::try_from(images.label(index))
                .ok()
                .and_then(|it| classes.get(it).cloned()),
            extension: extension_of(name).unwrap_or("jpg"),
            content: Content::File { root: Arc::clone(&shared), bytes: metadata.len() },
        });
    }
    let mut hash = Fingerprint::new();
    images.fingerprint(&mut hash)?;
    let name = root.canonicalize().unwrap_or_else(|_| PathBuf::from(root));
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((SourceFile { name, split: split.to_owned(), bytes, version: hash.to_string() }, entries))
}

/// The name of the folder of an archive's entry.
fn class_of_folder(name: &str) -> Option<Arc<str>> {
    let (folder, _) = name.rsplit_once('/')?;
    folder.rsplit('/').next().map(Arc::from)
}

/// The name of an archive's entry without `.` and empty parts. A name that leads out of the archive
/// is an error.
fn inside(archive: &Path, name: &str) -> Result<String> {
    let refused =
        |message: &str| Error::file(archive, format!("entry {}: {message}", name.escape_debug()));
    if name.contains('\\') {
        return Err(refused("its name has a backslash; pack the archive with slashes"));
    }
    fulmen_durable::inside(Path::new(""), name)
        .map_err(|_| refused("its name leads out of the archive, or is empty"))?;
    let parts = Path::new(name).components().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    Ok(parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_an_archive_are_refused() {
        let archive = Path::new("a.zip");
        assert_eq!(inside(archive, "./a//b.jpg").unwrap(), "a/b.jpg");
        for name in ["../b.jpg", "/b.jpg", "a/../../b.jpg", "", "a\\b.jpg", "b\0.jpg"] {
            let error = inside(archive, name).unwrap_err().to_string();
            assert!(error.contains("a.zip: entry "), "{error}");
        }
    }
}
