//! The common parts of tar shards and TFRecord files: lists of files that are read in sequence, and
//! random access to local files.
//!
//! Out of scope: the content of a file.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fulmen_data::internal::{Purpose, permutation};
use fulmen_data::{Error, Fingerprint, Items, Result, StreamItem};
use fulmen_files::{Location, fingerprint_all};

/// Files that are read in sequence.
#[derive(Clone, Debug)]
pub(crate) struct FileList {
    pub(crate) files: Arc<[Location]>,
    /// The seed for the order of the files in each epoch. If it is not set, the files are read in
    /// the order of the list.
    pub(crate) seed: Option<u64>,
    /// The number of items in all files, if it is known.
    pub(crate) len: Option<usize>,
}

/// An item read from a file.
pub(crate) struct FileItem<T> {
    /// Its number in the file.
    pub(crate) number: u64,
    /// The position of the record in the file, for messages.
    pub(crate) position: String,
    pub(crate) item: T,
}

/// The items of a file. After an error, the items that are still readable follow.
pub(crate) type FileItems<T> = Box<dyn Iterator<Item = Result<FileItem<T>>> + Send>;

impl FileList {
    /// Makes a list of files. `noun` names the files in the error for an empty list.
    pub(crate) fn new(
        files: impl IntoIterator<Item = impl Into<Location>>,
        noun: &str,
    ) -> Result<FileList> {
        let files: Arc<[Location]> = files.into_iter().map(Into::into).collect();
        if files.is_empty() {
            return Err(Error::usage(format!("there are no {noun}")));
        }
        Ok(FileList { files, seed: None, len: None })
    }

    /// The items of an epoch. Each file is opened when it is its turn.
    pub(crate) fn items<T: Send + 'static>(
        &self,
        epoch: u64,
        open: impl Fn(&Location) -> Result<FileItems<T>> + Send + 'static,
    ) -> Items<T> {
        let order = match self.seed {
            Some(seed) => permutation(Purpose::ShardOrder, seed, epoch, self.files.len()),
            None => (0..self.files.len()).collect(),
        };
        let files = Arc::clone(&self.files);
        Box::new(order.into_iter().flat_map(move |file| {
            let location = files[file].clone();
            let items =
                open(&location).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))));
            items.map(move |result| {
                let FileItem { number, position, item } = result?;
                let index = ((file as u64) << 32).wrapping_add(number);
                Ok(StreamItem { index, origin: format!("{location}, {position}"), item })
            })
        }))
    }

    pub(crate) fn fingerprint(
        &self,
        kind: &str,
        description: String,
        fingerprint: &mut Fingerprint,
    ) -> Result<()> {
        fingerprint.add(kind, description);
        fingerprint_all(&self.files, fingerprint)
    }

    /// Describes everything that the order depends on. `only` describes which parts of the files
    /// are read.
    pub(crate) fn describe(&self, name: &str, only: &str) -> String {
        let order = self.seed.map_or(String::new(), |seed| format!(", shuffled with seed {seed}"));
        format!("{name}({} from {}{only}{order})", self.files.len(), self.files[0].name())
    }
}

/// Opens a local file of `items` for random access, and returns its size. `reader` names the type
/// that reads other files, for the error.
pub(crate) fn open_local(location: &Location, items: &str, reader: &str) -> Result<(File, u64)> {
    let Some(path) = location.local() else {
        return Err(location.error(format!(
            "{items} can be read by index only from a local disk; to read in order, use {reader}"
        )));
    };
    let open = |source| Error::io(path, "cannot open the file", source);
    let file = fulmen_durable::open_regular(path).map_err(open)?;
    let size = file.metadata().map_err(open)?.len();
    Ok((file, size))
}

/// Reads a part of an indexed local file. `position` is for messages.
pub(crate) fn read_part(
    location: &Location,
    file: &File,
    part: Range<u64>,
    position: impl Fn() -> String,
) -> Result<Vec<u8>> {
    let refused = |reason: &str| location.error(format!("{}: {reason}", position()));
    let mut bytes = Vec::new();
    let size =
        usize::try_from(part.end - part.start).map_err(|_| refused("it does not fit in memory"))?;
    bytes
        .try_reserve_exact(size)
        .map_err(|_| refused(&format!("not enough memory for its {size} bytes")))?;
    bytes.resize(size, 0);
    file.read_exact_at(&mut bytes, part.start).map_err(|source| {
        match (source.kind(), location.local()) {
            (ErrorKind::UnexpectedEof, _) => refused("the file is shorter than when it was opened"),
            (_, Some(path)) => {
                Error::io(path, &format!("{}: cannot read the file", position()), source)
            }
            (_, None) => location.read_error(source),
        }
    })?;
    Ok(bytes)
}
