//! Where a file or a folder lies, and reading it there.
//!
//! Not here: how a store is spoken to (`remote`), and how the local disk is read (`local`).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::object_path::{ObjectPath, Scheme};
use super::pattern::{self, Wildcards};
use super::{StoreOptions, local, remote};
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Fingerprint, Result};

/// How much is read from the disk at a time.
const BUFFER: usize = 256 << 10;

/// How many threads ask a store at the same time.
pub const MOST_ASKING: usize = 16;

/// A file or a folder: a local path, `gs://bucket/path` or `s3://bucket/path`; or a file of a web server,
/// `https://host/path`, which is read only.
///
/// It is made from a path or a text; what is wrong with the text is told when it is first used. Names of local files need
/// not be UTF-8. Reading from a store tries again where the store is busy or the connection breaks, and goes on at the byte
/// where it broke; how long, and with which settings, [`StoreOptions`] says.
///
/// ```
/// use std::io::Read;
/// use fulmen_files::Location;
///
/// let folder = tempfile::tempdir()?;
/// for number in 0..3 {
///     std::fs::write(folder.path().join(format!("part-{number:02}.txt")), format!("part {number}"))?;
/// }
/// let folder = Location::from(folder.path());
/// assert_eq!(folder.join("part-{00..02}.txt").expand()?, folder.list()?);
/// assert_eq!(folder.join("*.txt").expand()?, folder.list()?);
///
/// let file = folder.join("part-01.txt");
/// assert_eq!((file.size()?, file.read_range(5..6)?), (6, b"1".to_vec()));
/// let mut text = String::new();
/// file.open()?.read_to_string(&mut text)?;
/// assert_eq!(text, "part 1");
///
/// let elsewhere = Location::from("gs://my-bucket/imagenet/train-{0000..1023}.tar");
/// assert_eq!(elsewhere.expand()?[1023].to_string(), "gs://my-bucket/imagenet/train-1023.tar");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Location {
    place: Place,
    options: StoreOptions,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Place {
    Local(PathBuf),
    Store(ObjectPath),
    /// A text that names no place, and why.
    Bad(String, String),
}

fn parse(text: &str) -> Place {
    let bad = |why: &str| Place::Bad(text.to_owned(), why.to_owned());
    let Some((scheme, rest)) = text.split_once("://") else { return Place::Local(PathBuf::from(text)) };
    // A slash before it: a local path that goes on strangely.
    if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte)) {
        return Place::Local(PathBuf::from(text));
    }
    let scheme = match scheme {
        "gs" => Scheme::Gs,
        "s3" => Scheme::S3,
        "file" if rest.starts_with('/') => return Place::Local(PathBuf::from(rest)),
        "file" => return bad("a file:// address goes on with the whole path, as in file:///data/train.tar"),
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return bad("expected a local path, gs://bucket/path, s3://bucket/path or https://host/path"),
    };
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(plain) {
        return bad("the name of its bucket may have letters, digits, dots, hyphens and underscores");
    }
    if matches!(scheme, Scheme::Http | Scheme::Https) && key.contains(['?', '#', '%']) {
        return bad("an address of a web server may not have `?`, `#` or `%`");
    }
    let key = key.trim_matches('/');
    if key.split('/').any(|part| part.is_empty() || part == "." || part == "..") && !key.is_empty() {
        return bad("the names between its slashes may not be empty, `.` or `..`");
    }
    Place::Store(ObjectPath { scheme, bucket: bucket.to_owned(), key: key.to_owned() })
}

impl Location {
    fn new(place: Place) -> Location {
        Location { place, options: StoreOptions::new() }
    }

    /// The same place with other options for its store.
    #[must_use]
    pub fn with_options(mut self, options: StoreOptions) -> Location {
        self.options = options;
        self
    }

    /// The same options elsewhere.
    fn at(&self, place: Place) -> Location {
        Location { place, options: self.options.clone() }
    }

    /// A file or a folder in this one. The name may have several parts, with slashes between.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Location {
        let name = name.as_ref();
        let place = match &self.place {
            // Below the folder, even if the name begins with a slash.
            Place::Local(path) => Place::Local(path.join(name.strip_prefix("/").unwrap_or(name))),
            Place::Store(object) => match name.to_str() {
                Some(name) => {
                    parse(&format!("{}/{}", object.to_string().trim_end_matches('/'), name.trim_matches('/')))
                }
                None => Place::Bad(
                    format!("{object}/{}", name.display()),
                    "names in a store are UTF-8; rename the file".to_owned(),
                ),
            },
            bad => bad.clone(),
        };
        self.at(place)
    }

    /// The path, where the place is a local one. Opening it by other means than these is then allowed too.
    pub fn local(&self) -> Option<&Path> {
        match &self.place {
            Place::Local(path) => Some(path),
            _ => None,
        }
    }

    /// The last part of the name, for messages and for telling kinds of files apart; what of it is not UTF-8 is replaced.
    pub fn name(&self) -> String {
        match &self.place {
            Place::Local(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Place::Store(object) => object.key.rsplit('/').next().unwrap_or_default().to_owned(),
            Place::Bad(text, _) => text.clone(),
        }
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> Result<u64> {
        match self.place()? {
            Target::Local(path) => local::size(path),
            Target::Store(object) => remote::size(object, &self.options),
        }
    }

    /// Whether there is a file here. A folder is none.
    ///
    /// # Errors
    /// A store that does not answer, or that may not be asked.
    pub fn exists(&self) -> Result<bool> {
        if let Target::Local(path) = self.place()? {
            return Ok(path.is_file());
        }
        match self.size() {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The whole file.
    pub fn read(&self) -> Result<Vec<u8>> {
        if let Target::Local(path) = self.place()? {
            local::size(path)?;
            return std::fs::read(path).map_err(|source| Error::io(path, "cannot read the file", source));
        }
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes).map_err(|error| self.read_error(error))?;
        Ok(bytes)
    }

    /// The bytes of a part of the file.
    ///
    /// # Errors
    /// A part that reaches beyond the file's end; no memory is taken for it.
    pub fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        match self.place()? {
            Target::Local(path) => {
                let size = local::size(path)?;
                let length = usize::try_from(range.end - range.start).ok().filter(|_| range.end <= size);
                let Some(length) = length else { return Err(self.beyond(&range, size)) };
                local::read_at(path, range.start, length)
            }
            Target::Store(object) => match remote::read_range(object, &self.options, range.clone())? {
                Ok(bytes) => Ok(bytes),
                Err(size) => Err(self.beyond(&range, size)),
            },
        }
    }

    fn beyond(&self, range: &Range<u64>, size: u64) -> Error {
        self.error(format!("bytes {} to {} were asked for, but the file has {size}", range.start, range.end))
    }

    /// A reader from the beginning to the end, with a buffer. From a store it reads ahead by itself
    /// ([`StoreOptions::read_ahead`]).
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match self.place()? {
            Target::Local(path) => Ok(Box::new(BufReader::with_capacity(BUFFER, local::open(path)?))),
            Target::Store(object) => remote::open(object, &self.options),
        }
    }

    /// All files below this folder, sorted by the bytes of their paths. Links to folders are followed. A store has no
    /// folders: there they are the objects whose names go on after this one and a slash.
    ///
    /// # Errors
    /// A local folder that is not there; a name in a store below which there is nothing.
    pub fn list(&self) -> Result<Vec<Location>> {
        match self.place()? {
            Target::Local(path) => Ok(local::list(path)?.into_iter().map(|path| self.at(Place::Local(path))).collect()),
            Target::Store(object) => {
                let found = remote::list(object, &self.options)?;
                if found.is_empty() {
                    return Err(Error::missing(format!("{self}: there is nothing below this name")));
                }
                Ok(found.into_iter().map(|key| self.at(Place::Store(ObjectPath { key, ..object.clone() }))).collect())
            }
        }
    }

    /// The places that a pattern stands for; a place without a pattern is itself.
    ///
    /// Braces come first, as in a shell: `train-{000..999}.tar` and `{train,val}.csv` are these names, in this order,
    /// whether there are such files or not. Then wildcards: `*` any characters, `?` one, `[a-z]` one of these, and `**`
    /// between slashes any number of folders; they stand for what there is, sorted. A local file that has such a name is
    /// itself.
    ///
    /// # Errors
    /// Wildcards for which there is nothing; braces that stand for more than a million names.
    pub fn expand(&self) -> Result<Vec<Location>> {
        let text = match self.place()? {
            Target::Local(path) if std::fs::symlink_metadata(path).is_ok() => return Ok(vec![self.clone()]),
            Target::Local(path) => path.as_os_str().as_bytes(),
            Target::Store(object) => object.key.as_bytes(),
        };
        let mut found = Vec::new();
        for name in pattern::braces(text).map_err(|why| Error::usage(format!("{self}: {why}")))? {
            let wild = pattern::has_wildcard(&name);
            let place = match self.place()? {
                Target::Local(_) => Place::Local(local::path(name)),
                // Braces are ASCII: what was UTF-8 still is.
                Target::Store(object) => {
                    Place::Store(ObjectPath { key: String::from_utf8_lossy(&name).into_owned(), ..object.clone() })
                }
            };
            let one = self.at(place);
            match wild {
                true => found.extend(one.matching()?),
                false => found.push(one),
            }
        }
        Ok(found)
    }

    /// What fits wildcards.
    fn matching(&self) -> Result<Vec<Location>> {
        let found: Vec<Location> = match self.place()? {
            Target::Local(path) => local::matching(path)?.into_iter().map(|path| self.at(Place::Local(path))).collect(),
            Target::Store(object) => {
                let literal = object.key.split('/').take_while(|part| !pattern::has_wildcard(part.as_bytes()));
                let below = ObjectPath { key: literal.collect::<Vec<_>>().join("/"), ..object.clone() };
                let wildcards = Wildcards::new(object.key.as_bytes());
                let keys = remote::list(&below, &self.options)?.into_iter().filter(|key| wildcards.fit(key));
                keys.map(|key| self.at(Place::Store(ObjectPath { key, ..object.clone() }))).collect()
            }
        };
        match found.is_empty() {
            true => Err(Error::missing(format!("{self}: no file fits this pattern"))),
            false => Ok(found),
        }
    }

    /// Copies a local file here. `progress` is told how many bytes have been copied or handed to the store so far. Readers
    /// find the whole file, or what was there before: a local copy is renamed when it is complete, and a store shows an
    /// object only then. A file larger than a chunk ([`StoreOptions::read_ahead`], but 5 MiB at least) goes in parts, several
    /// at a time.
    pub fn upload(&self, from: &Path, progress: &dyn Fn(u64)) -> Result<()> {
        match self.place()? {
            Target::Local(path) => local::copy(from, path, progress),
            Target::Store(object) => remote::upload(object, &self.options, from, progress),
        }
    }

    /// Begins an object of about `size` bytes in a store.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn object_writer(&self, size: u64) -> Result<remote::ObjectWriter> {
        remote::ObjectWriter::new(self.object()?, &self.options, size)
    }

    /// What is directly below this name of a store: objects with their sizes, and folders.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn entries(&self) -> Result<Vec<(String, Option<u64>)>> {
        remote::entries(self.object()?, &self.options)
    }

    /// Removes an object of a store, if it is there.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn remove_object(&self) -> Result<()> {
        remote::remove(self.object()?, &self.options)
    }

    #[cfg(feature = "cloud")]
    fn object(&self) -> Result<&ObjectPath> {
        match self.place()? {
            Target::Store(object) => Ok(object),
            Target::Local(_) => Err(Error::usage(format!("{self}: expected gs://bucket/path or s3://bucket/path"))),
        }
    }

    /// Adds the file by its name, its size, and its time of change or what a store says of its content; it is not read.
    pub fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        match self.place()? {
            Target::Local(path) => fingerprint.add_file(path),
            Target::Store(object) => {
                let (size, version) = remote::version(object, &self.options)?;
                fingerprint.add("object", object.to_string());
                fingerprint.add("size", size.to_le_bytes());
                fingerprint.add("version", version);
                Ok(())
            }
        }
    }

    fn place(&self) -> Result<Target<'_>> {
        match &self.place {
            Place::Local(path) if path.as_os_str().is_empty() => Err(Error::usage("the path is empty")),
            Place::Local(path) => Ok(Target::Local(path)),
            Place::Store(object) => Ok(Target::Store(object)),
            Place::Bad(text, why) => Err(Error::usage(format!("{text}: {why}"))),
        }
    }

    /// An error about this file: `file: message`.
    #[doc(hidden)]
    pub fn error(&self, message: impl Into<String>) -> Error {
        match self.local() {
            Some(path) => Error::file(path, message),
            None => Error::file(Path::new(&self.to_string()), message),
        }
    }

    /// What became of reading from [`open`](Location::open): what a store said stands in the error itself.
    #[doc(hidden)]
    pub fn read_error(&self, error: io::Error) -> Error {
        match (error.downcast::<Error>(), self.local()) {
            (Ok(error), _) => error,
            (Err(error), Some(path)) => Error::io(path, "cannot read the file", error),
            (Err(error), None) => Error::io(Path::new(&self.to_string()), "cannot read the object", error),
        }
    }
}

/// Adds many files. Stores are asked by several threads, because each answer takes its time.
pub fn fingerprint_all(files: &[Location], fingerprint: &mut Fingerprint) -> Result<()> {
    if files.len() < 2 || files.iter().all(|file| file.local().is_some()) {
        return files.iter().try_for_each(|file| file.fingerprint(fingerprint));
    }
    let found = in_parallel(files, MOST_ASKING, |file| {
        let mut fingerprint = Fingerprint::new();
        file.fingerprint(&mut fingerprint).map(|()| fingerprint)
    })?;
    found.iter().for_each(|of| fingerprint.add("file", of.to_string()));
    Ok(())
}

/// A place that can be asked: a path or an object.
enum Target<'a> {
    Local(&'a Path),
    Store(&'a ObjectPath),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Local(path) => path.display().fmt(f),
            Place::Store(object) => object.fmt(f),
            Place::Bad(text, _) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// From a text or a path. A path that reads `gs://...` is one too: that is how a command line hands it over.
impl<T: AsRef<OsStr> + ?Sized> From<&T> for Location {
    fn from(text: &T) -> Location {
        Location::new(match text.as_ref().to_str() {
            Some(text) => parse(text),
            None => Place::Local(PathBuf::from(text.as_ref())),
        })
    }
}

impl From<String> for Location {
    fn from(text: String) -> Location {
        Location::from(&text)
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Location {
        Location::from(&path)
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Location {
        location.clone()
    }
}
