//! Folders of images by class, like ImageNet: `root/class/file`.
//!
//! Out of scope: decoding (`encoded`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use fulmen_data::internal::{LeftOut, quantity};
use walkdir::{DirEntry, WalkDir};

use crate::{EncodedImage, ImageDataset, ImagePipeline};
use fulmen_data::{Error, Fingerprint, Result, Source};

/// The file extensions of images, in any case. The content of a file determines its format.
const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "jpe", "png", "webp"];

/// The maximum size of a file, far above that of any image that can be decoded.
const MAX_BYTES: u64 = 1 << 30;

/// The images in a folder with one subfolder per class, like torchvision's `ImageFolder`.
///
/// Classes are numbered in the byte order of their names, and the files of a class are sorted in
/// the same way. Files may be in subfolders of their class. Names may contain any bytes that the
/// system allows. Symbolic links are followed. Files and folders whose names start with a dot are
/// skipped. Files with extensions other than jpg, jpeg, jpe, png and webp (in any case), and images
/// outside of the class folders, are left out; a note on standard error counts them
/// ([`left_out`](ImageFolder::left_out)).
///
/// ```no_run
/// use fulmen_images::{ImageFolder, ImagePipeline};
/// use fulmen_data::Source;
///
/// let folder = ImageFolder::open("imagenet/val")?;
/// println!("{} images of {} classes", folder.len(), folder.classes().len());
/// let eval = folder.decode(ImagePipeline::rgb().resize(256).center_crop(224))?;
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    /// The path of each file relative to the root, and its class.
    files: Vec<(PathBuf, i32)>,
    left_out: LeftOut,
}

/// The files that were found.
#[derive(Default)]
struct FoundFiles {
    files: Vec<(PathBuf, i32)>,
    left_out: LeftOut,
}

impl FoundFiles {
    /// Adds the images below a folder, relative to the root.
    fn add_below(&mut self, folder: &Path, root: &Path, class: i32) -> Result<()> {
        for file in walk(folder, usize::MAX) {
            let file = file?;
            if file.file_type().is_dir() {
                continue;
            }
            if is_image(file.path()) {
                let path = file.path().strip_prefix(root).unwrap_or(file.path());
                self.files.push((path.to_owned(), class));
            } else {
                self.left_out.add_file(&file.file_name().to_string_lossy());
            }
        }
        Ok(())
    }
}

impl ImageFolder {
    /// Lists the images in a folder.
    ///
    /// # Errors
    /// A folder that cannot be listed, or that has no subfolders or no images; a class without
    /// images.
    pub fn open(root: impl AsRef<Path>) -> Result<ImageFolder> {
        ImageFolder::list(root.as_ref(), false)
    }

    /// Like [`open`](ImageFolder::open), but classes may be empty. An empty class keeps its number.
    ///
    /// # Errors
    /// Those of [`open`](ImageFolder::open), except for empty classes.
    pub fn open_allowing_empty(root: impl AsRef<Path>) -> Result<ImageFolder> {
        ImageFolder::list(root.as_ref(), true)
    }

    /// The images in a folder and its subfolders, without classes: [`classes`](ImageFolder::classes)
    /// is empty, and every label is 0.
    ///
    /// # Errors
    /// A folder that cannot be listed, or that has no images.
    pub fn open_flat(root: impl AsRef<Path>) -> Result<ImageFolder> {
        let root = root.as_ref();
        let mut found = FoundFiles::default();
        found.add_below(root, root, 0)?;
        if found.files.is_empty() {
            return Err(Error::file(
                root,
                format!("there are no images in it: no file ends in {}", EXTENSIONS.join(", ")),
            ));
        }
        Ok(ImageFolder::new(root, Vec::new(), found))
    }

    /// Whether a folder has images, but no folders, so that they have no classes.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn is_flat(root: impl AsRef<Path>) -> Result<bool> {
        let mut has_images = false;
        for entry in walk(root.as_ref(), 1) {
            let entry = entry?;
            if entry.file_type().is_dir() {
                return Ok(false);
            }
            has_images |= is_image(entry.path());
        }
        Ok(has_images)
    }

    fn new(root: &Path, classes: Vec<String>, found: FoundFiles) -> ImageFolder {
        let FoundFiles { files, left_out } = found;
        let reason = format!("images are {}", EXTENSIONS.join(", "));
        left_out.note(root.display(), &reason);
        ImageFolder { root: root.to_owned(), classes, files, left_out }
    }

    fn list(root: &Path, allow_empty: bool) -> Result<ImageFolder> {
        let mut classes = Vec::new();
        let mut found = FoundFiles::default();
        let mut empty = Vec::new();
        let mut loose_images = 0;
        for entry in walk(root, 1) {
            let entry = entry?;
            if !entry.file_type().is_dir() {
                if is_image(entry.path()) {
                    loose_images += 1;
                    found.left_out.add("outside of class folders");
                } else {
                    found.left_out.add_file(&entry.file_name().to_string_lossy());
                }
                continue;
            }
            let class = i32::try_from(classes.len())
                .map_err(|_| Error::file(root, "it has more classes than 32 bits can number"))?;
            let first_file = found.files.len();
            found.add_below(entry.path(), root, class)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if found.files.len() == first_file {
                empty.push(name.clone());
            }
            classes.push(name);
        }
        let files = &found.files;
        if files.is_empty() {
            let hint = match (classes.len(), loose_images) {
                (0, 0) => "it has no folders; each class needs one (root/class/image.jpg)".into(),
                (0, _) => format!(
                    "it has {} outside of class folders (root/class/image.jpg); for images without classes use \
                     ImageFolder::open_flat",
                    quantity(loose_images, "image")
                ),
                (count, _) => format!(
                    "no file in its {} ends in {}",
                    quantity(count, "folder"),
                    EXTENSIONS.join(", ")
                ),
            };
            return Err(Error::file(root, format!("there are no images in it: {hint}")));
        }
        if let Some(first) = empty.first().filter(|_| !allow_empty) {
            return Err(Error::file(
                root,
                format!(
                    "{} of {} classes have no images, the first of them {first:?}; fill or remove their folders, or \
                     keep them with ImageFolder::open_allowing_empty",
                    empty.len(),
                    classes.len()
                ),
            ));
        }
        Ok(ImageFolder::new(root, classes, found))
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The names of the classes; a label is an index into them. Bytes that are not UTF-8 are shown
    /// as replacement characters.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// How many files were left out, by extension (`.bmp`), except for hidden ones.
    pub fn left_out(&self) -> &BTreeMap<String, usize> {
        self.left_out.counts()
    }

    /// The class of image `index`, without reading the image. The index must be below
    /// [`len`](Source::len).
    pub fn label(&self, index: usize) -> i32 {
        self.files[index].1
    }

    /// The classes of all images.
    pub(crate) fn labels(&self) -> Vec<i32> {
        self.files.iter().map(|(_, label)| *label).collect()
    }

    /// The path of image `index`, which must be below [`len`](Source::len).
    pub fn path(&self, index: usize) -> PathBuf {
        self.root.join(&self.files[index].0)
    }

    /// The path of image `index` relative to the folder.
    pub fn name(&self, index: usize) -> &Path {
        &self.files[index].0
    }

    /// A dataset that passes the images through a pipeline, with the fields `image` and `label`.
    ///
    /// # Errors
    /// Those of [`ImagePipeline::field`].
    pub fn decode(self, pipeline: ImagePipeline) -> Result<ImageDataset<ImageFolder>> {
        ImageDataset::new(self, pipeline)
    }
}

impl Source for ImageFolder {
    type Item = EncodedImage;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<EncodedImage> {
        let path = self.path(index);
        let bytes =
            fulmen_durable::read_regular(&path, MAX_BYTES).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::NotFound => {
                        Error::io(&path, "the file was there when the folder was listed", source)
                    }
                    _ => Error::io(&path, "reading the image", source),
                }
            })?;
        Ok(EncodedImage { bytes, label: self.files[index].1 })
    }

    fn origin(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    /// Adds the relative path, size and modification time of each file, so that a folder that was
    /// moved has the same fingerprint.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.classes.iter().for_each(|class| fingerprint.add("class", class));
        (0..self.files.len()).try_for_each(|index| {
            fingerprint.add("label", self.files[index].1.to_le_bytes());
            let path = self.path(index);
            let metadata = path
                .metadata()
                .map_err(|source| Error::io(&path, "looking at the file", source))?;
            fingerprint.add_metadata(&self.files[index].0, &metadata);
            Ok(())
        })
    }
}

/// The names of the subfolders in byte order: the classes that [`ImageFolder`] finds there.
pub(crate) fn class_names(root: &Path) -> Result<Vec<String>> {
    let is_class =
        |entry: &Result<DirEntry>| entry.as_ref().map_or(true, |entry| entry.file_type().is_dir());
    let name = |entry: Result<DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    walk(root, 1).filter(is_class).map(name).collect()
}

/// The files in a folder and its subfolders, in byte order of the names. Symbolic links are
/// followed; names that start with a dot are skipped.
fn walk(folder: &Path, deepest: usize) -> impl Iterator<Item = Result<DirEntry>> {
    let entries = WalkDir::new(folder)
        .min_depth(1)
        .max_depth(deepest)
        .follow_links(true)
        .sort_by_file_name()
        .into_iter();
    let is_visible = |entry: &DirEntry| {
        entry.depth() == 0 || !entry.file_name().as_encoded_bytes().starts_with(b".")
    };
    let folder = folder.to_owned();
    entries.filter_entry(is_visible).map(move |entry| {
        entry.map_err(|error| {
            let path = error.path().unwrap_or(&folder).to_owned();
            match error.into_io_error() {
                Some(source) => Error::io(&path, "listing the folder", source),
                None => Error::file(
                    &path,
                    "a link leads back to this folder from within it; remove the link",
                ),
            }
        })
    })
}

fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        EXTENSIONS.iter().any(|supported| extension.eq_ignore_ascii_case(supported))
    })
}
