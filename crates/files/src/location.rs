//! The location of a file or a folder, and reading it.
//!
//! Out of scope: parsing a location (`parsed_location`), requests to stores (`remote`), and the
//! local disk (`local`).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::object_path::ObjectPath;
use super::parsed_location::{ParsedLocation, parse};
use super::pattern::{self, Wildcards};
use super::{StoreOptions, local, remote};
use crate::in_parallel;
use crate::{Error, Fingerprint, Result};

/// How much to read from the disk at a time.
const BUFFER: usize = 256 << 10;

/// How many threads query a store at the same time.
pub const MAX_CONCURRENT_REQUESTS: usize = 16;

/// A file or a folder: a local path, `gs://bucket/path` or `s3://bucket/path`. Also a read-only
/// file of a web server, `https://host/path`.
///
/// A location is made from a path or a string; errors in the string are reported on first use.
/// Names of local files need not be UTF-8. If a store is busy or the connection breaks, a read is
/// retried and continues at the byte where it stopped. [`StoreOptions`] sets how long to retry, and
/// the settings of the store.
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
    parsed: ParsedLocation,
    options: StoreOptions,
}

impl Location {
    fn new(parsed: ParsedLocation) -> Location {
        Location { parsed, options: StoreOptions::new() }
    }

    /// The same location with other options for its store.
    #[must_use]
    pub fn with_options(mut self, options: StoreOptions) -> Location {
        self.options = options;
        self
    }

    /// Another location with the same options.
    fn with_parsed(&self, parsed: ParsedLocation) -> Location {
        Location { parsed, options: self.options.clone() }
    }

    /// A file or a folder in this folder. The name may have several parts separated by slashes.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Location {
        let name = name.as_ref();
        let parsed = match &self.parsed {
            // The name is relative to the folder even if it starts with a slash.
            ParsedLocation::Local(path) => {
                ParsedLocation::Local(path.join(name.strip_prefix("/").unwrap_or(name)))
            }
            ParsedLocation::Store(object) => match name.to_str() {
                Some(name) => parse(&format!(
                    "{}/{}",
                    object.to_string().trim_end_matches('/'),
                    name.trim_matches('/')
                )),
                None => ParsedLocation::Invalid(
                    format!("{object}/{}", name.display()),
                    "names in a store are UTF-8; rename the file".to_owned(),
                ),
            },
            bad => bad.clone(),
        };
        self.with_parsed(parsed)
    }

    /// The file or the pattern in this folder that another file names. Unlike [`join`], it rejects a
    /// name that leads out of the folder.
    ///
    /// [`join`]: Location::join
    ///
    /// # Errors
    /// A name that is absolute or has a part `..`, also after its braces are expanded.
    ///
    /// ```
    /// use fulmen_files::Location;
    ///
    /// let folder = Location::from("data");
    /// assert_eq!(folder.join_inside("en/*.parquet")?.to_string(), "data/en/*.parquet");
    /// assert!(folder.join_inside("../**/*.parquet").is_err());
    /// # Ok::<(), fulmen_files::Error>(())
    /// ```
    pub fn join_inside(&self, name: &str) -> Result<Location> {
        let refused = |reason: String| Error::usage(format!("{self}: `{name}`: {reason}"));
        for expanded in pattern::braces(name.as_bytes()).map_err(refused)? {
            let expanded = String::from_utf8_lossy(&expanded);
            fulmen_durable::inside(Path::new(""), &expanded)
                .map_err(|error| refused(error.to_string()))?;
        }
        Ok(self.join(name))
    }

    /// The path, if the location is local. Other libraries may then open it too.
    pub fn local(&self) -> Option<&Path> {
        match &self.parsed {
            ParsedLocation::Local(path) => Some(path),
            _ => None,
        }
    }

    /// The last part of the name, for messages and for detecting the kind of file. Bytes that are
    /// not UTF-8 are replaced.
    pub fn name(&self) -> String {
        match &self.parsed {
            ParsedLocation::Local(path) => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
            ParsedLocation::Store(object) => {
                object.key.rsplit('/').next().unwrap_or_default().to_owned()
            }
            ParsedLocation::Invalid(text, _) => text.clone(),
        }
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> Result<u64> {
        match self.target()? {
            Target::Local(path) => local::size(path),
            Target::Store(object) => remote::size(object, &self.options),
        }
    }

    /// Whether a file exists here. A folder is not a file.
    ///
    /// # Errors
    /// The store does not answer, or denies access.
    pub fn exists(&self) -> Result<bool> {
        if let Target::Local(path) = self.target()? {
            return Ok(path.is_file());
        }
        match self.size() {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the whole file.
    pub fn read(&self) -> Result<Vec<u8>> {
        self.read_at_most(u64::MAX)
    }

    /// Reads the whole file, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// The file is larger. No memory is allocated for it.
    pub fn read_at_most(&self, limit: u64) -> Result<Vec<u8>> {
        if let Target::Local(path) = self.target()? {
            return local::read(path, limit);
        }
        let too_large =
            |size: u64| self.error(format!("the file has {size} bytes, expected at most {limit}"));
        if limit < u64::MAX {
            let size = self.size()?;
            if size > limit {
                return Err(too_large(size));
            }
        }
        let mut bytes = Vec::new();
        self.open()?
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| self.read_error(error))?;
        match bytes.len() as u64 {
            size if size > limit => Err(too_large(size)),
            _ => Ok(bytes),
        }
    }

    /// Reads a part of the file.
    ///
    /// # Errors
    /// The part extends beyond the end of the file. No memory is allocated for it.
    pub fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        match self.target()? {
            Target::Local(path) => {
                let size = local::size(path)?;
                let length =
                    usize::try_from(range.end - range.start).ok().filter(|_| range.end <= size);
                let Some(length) = length else { return Err(self.range_error(&range, size)) };
                local::read_at(path, range.start, length)
            }
            Target::Store(object) => {
                match remote::read_range(object, &self.options, range.clone())? {
                    Ok(bytes) => Ok(bytes),
                    Err(size) => Err(self.range_error(&range, size)),
                }
            }
        }
    }

    fn range_error(&self, range: &Range<u64>, size: u64) -> Error {
        self.error(format!(
            "bytes {} to {} were requested, but the file has {size}",
            range.start, range.end
        ))
    }

    /// Opens a buffered reader of the whole file in sequence. In a store, it reads ahead
    /// ([`StoreOptions::read_ahead`]).
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match self.target()? {
            Target::Local(path) => {
                Ok(Box::new(BufReader::with_capacity(BUFFER, local::open(path)?)))
            }
            Target::Store(object) => remote::open(object, &self.options),
        }
    }

    /// All files in this folder and its subfolders, sorted by the bytes of their paths. Links to
    /// folders are followed. A store has no folders; there, these are the objects whose names start
    /// with the name of this location and a slash.
    ///
    /// # Errors
    /// A local folder that does not exist; a prefix in a store without objects.
    pub fn list(&self) -> Result<Vec<Location>> {
        match self.target()? {
            Target::Local(path) => Ok(local::list(path)?
                .into_iter()
                .map(|path| self.with_parsed(ParsedLocation::Local(path)))
                .collect()),
            Target::Store(object) => {
                let keys = remote::list(object, &self.options)?;
                if keys.is_empty() {
                    return Err(Error::missing(format!(
                        "{self}: there are no objects below this name"
                    )));
                }
                Ok(keys
                    .into_iter()
                    .map(|key| {
                        self.with_parsed(ParsedLocation::Store(ObjectPath {
                            key,
                            ..object.clone()
                        }))
                    })
                    .collect())
            }
        }
    }

    /// Expands a pattern. A location without a pattern is returned unchanged.
    ///
    /// Braces are expanded first, as in a shell: `train-{000..999}.tar` and `{train,val}.csv`
    /// expand to these names, in this order, whether or not such files exist. Wildcards are
    /// expanded next, to the sorted names of existing files: `*` matches any characters, `?` one
    /// character, `[a-z]` one of these characters, and `**` between slashes any number of folders.
    /// If a local file has exactly this name, the location is returned unchanged.
    ///
    /// # Errors
    /// Wildcards without a match; braces that expand to more than a million names.
    pub fn expand(&self) -> Result<Vec<Location>> {
        let text = match self.target()? {
            Target::Local(path) if std::fs::symlink_metadata(path).is_ok() => {
                return Ok(vec![self.clone()]);
            }
            Target::Local(path) => path.as_os_str().as_bytes(),
            Target::Store(object) => object.key.as_bytes(),
        };
        let mut locations = Vec::new();
        for name in
            pattern::braces(text).map_err(|error| Error::usage(format!("{self}: {error}")))?
        {
            let wild = pattern::has_wildcard(&name);
            let parsed = match self.target()? {
                Target::Local(_) => ParsedLocation::Local(local::path(name)),
                // Braces are ASCII, so the result is valid UTF-8 if the input was.
                Target::Store(object) => ParsedLocation::Store(ObjectPath {
                    key: String::from_utf8_lossy(&name).into_owned(),
                    ..object.clone()
                }),
            };
            let location = self.with_parsed(parsed);
            if wild { locations.extend(location.matching()?) } else { locations.push(location) }
        }
        Ok(locations)
    }

    /// The files that match wildcards.
    fn matching(&self) -> Result<Vec<Location>> {
        let locations: Vec<Location> = match self.target()? {
            Target::Local(path) => local::matching(path)?
                .into_iter()
                .map(|path| self.with_parsed(ParsedLocation::Local(path)))
                .collect(),
            Target::Store(object) => {
                let literal = object
                    .key
                    .split('/')
                    .take_while(|part| !pattern::has_wildcard(part.as_bytes()));
                let folder =
                    ObjectPath { key: literal.collect::<Vec<_>>().join("/"), ..object.clone() };
                let wildcards = Wildcards::new(object.key.as_bytes());
                let keys = remote::list(&folder, &self.options)?
                    .into_iter()
                    .filter(|key| wildcards.matches(key));
                keys.map(|key| {
                    self.with_parsed(ParsedLocation::Store(ObjectPath { key, ..object.clone() }))
                })
                .collect()
            }
        };
        if locations.is_empty() {
            Err(Error::missing(format!("{self}: no file matches this pattern")))
        } else {
            Ok(locations)
        }
    }

    /// Copies a local file to this location. `progress` gets the number of bytes that have been
    /// copied or sent so far. Readers find either the complete new file or the previous one: a
    /// local copy is renamed when it is complete, and a store shows an object only when it is
    /// complete. A file larger than a chunk ([`StoreOptions::read_ahead`], but at least 5 MiB) is
    /// sent in parts, several at a time.
    pub fn upload(&self, from: &Path, progress: &dyn Fn(u64)) -> Result<()> {
        match self.target()? {
            Target::Local(path) => local::copy(from, path, progress),
            Target::Store(object) => remote::upload(object, &self.options, from, progress),
        }
    }

    /// Starts writing an object of about `size` bytes in a store.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn object_writer(&self, size: u64) -> Result<remote::ObjectWriter> {
        remote::ObjectWriter::new(self.object()?, &self.options, size)
    }

    /// The objects directly below this prefix of a store, with their sizes, and the folders.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn entries(&self) -> Result<Vec<(String, Option<u64>)>> {
        remote::entries(self.object()?, &self.options)
    }

    /// Removes an object from a store if it exists.
    #[cfg(feature = "cloud")]
    #[doc(hidden)]
    pub fn remove_object(&self) -> Result<()> {
        remote::remove(self.object()?, &self.options)
    }

    #[cfg(feature = "cloud")]
    fn object(&self) -> Result<&ObjectPath> {
        match self.target()? {
            Target::Store(object) => Ok(object),
            Target::Local(_) => {
                Err(Error::usage(format!("{self}: expected gs://bucket/path or s3://bucket/path")))
            }
        }
    }

    /// Adds the file by its name, its size, and its modification time or the store's version. The
    /// content is not read.
    pub fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        match self.target()? {
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

    fn target(&self) -> Result<Target<'_>> {
        match &self.parsed {
            ParsedLocation::Local(path) if path.as_os_str().is_empty() => {
                Err(Error::usage("the path is empty"))
            }
            ParsedLocation::Local(path) => Ok(Target::Local(path)),
            ParsedLocation::Store(object) => Ok(Target::Store(object)),
            ParsedLocation::Invalid(text, reason) => Err(Error::usage(format!("{text}: {reason}"))),
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

    /// Converts an error of a reader from [`open`](Location::open). An error of a store already has
    /// a complete message.
    #[doc(hidden)]
    pub fn read_error(&self, error: io::Error) -> Error {
        match (error.downcast::<Error>(), self.local()) {
            (Ok(error), _) => error,
            (Err(error), Some(path)) => Error::io(path, "cannot read the file", error),
            (Err(error), None) => {
                Error::io(Path::new(&self.to_string()), "cannot read the object", error)
            }
        }
    }
}

/// Adds many files. Several threads query a store, because each response takes time.
pub fn fingerprint_all(files: &[Location], fingerprint: &mut Fingerprint) -> Result<()> {
    if files.len() < 2 || files.iter().all(|file| file.local().is_some()) {
        return files.iter().try_for_each(|file| file.fingerprint(fingerprint));
    }
    let fingerprints = in_parallel(files, MAX_CONCURRENT_REQUESTS, |file| {
        let mut fingerprint = Fingerprint::new();
        file.fingerprint(&mut fingerprint).map(|()| fingerprint)
    })?;
    fingerprints.iter().for_each(|version| fingerprint.add("file", version.to_string()));
    Ok(())
}

/// A location that is a path or an object, and not an invalid string.
enum Target<'a> {
    Local(&'a Path),
    Store(&'a ObjectPath),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.parsed {
            ParsedLocation::Local(path) => path.display().fmt(f),
            ParsedLocation::Store(object) => object.fmt(f),
            ParsedLocation::Invalid(text, _) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// Creates a location from a string or a path. A path such as `gs://...` is accepted too, because
/// command lines pass locations as paths.
impl<T: AsRef<OsStr> + ?Sized> From<&T> for Location {
    fn from(text: &T) -> Location {
        Location::new(match text.as_ref().to_str() {
            Some(text) => parse(text),
            None => ParsedLocation::Local(PathBuf::from(text.as_ref())),
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
