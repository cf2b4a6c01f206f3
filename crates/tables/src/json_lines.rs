//! JSON lines: one JSON value per line, by index or in sequence.
//!
//! Out of scope: parsing JSON, which `serde_json` does.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::block_reader::BlockReader;
use super::lines::{self, LineStream};
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_files::Location;

/// The values of JSON lines files by index, as [`serde_json::Value`]s or as your own type
/// ([`typed`](JsonLines::typed)). Blank lines are skipped. `NaN`, which Python writes for a missing
/// number, is read as `null`.
///
/// ```
/// use fulmen_tables::JsonLines;
/// use fulmen_data::Source;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Review {
///     text: String,
///     stars: u8,
/// }
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("reviews.jsonl");
/// std::fs::write(&path, "{\"text\": \"good\", \"stars\": 5}\n\n{\"text\": \"bad\", \"stars\": \"one\"}\n")?;
///
/// let reviews = JsonLines::open(&path)?;
/// assert_eq!(reviews.get(1)?["stars"], "one");
///
/// let reviews = reviews.typed::<Review>();
/// let review = reviews.get(0)?;
/// assert_eq!((review.text.as_str(), review.stars), ("good", 5));
/// let error = reviews.get(1).err().ok_or("a text is not a number")?;
/// assert!(error.to_string().contains("reviews.jsonl: line 3: "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JsonLines<T = Value> {
    lines: BlockReader,
    item: PhantomData<fn() -> T>,
}

impl JsonLines {
    /// Opens a file, the files that match a pattern, or all `.jsonl` and `.ndjson` files in a
    /// folder.
    ///
    /// # Errors
    /// Files that do not exist or are compressed; read compressed files with
    /// [`stream`](JsonLines::stream).
    pub fn open(location: impl Into<Location>) -> Result<JsonLines> {
        let lines =
            lines::index(&location.into(), &[".jsonl", ".ndjson"], false, "`JsonLines::stream`")?;
        Ok(JsonLines { lines, item: PhantomData })
    }

    /// The values in sequence, from files that may be compressed with gzip or zstd.
    pub fn stream(location: impl Into<Location>) -> Result<LineStream<Value>> {
        const EXTENSIONS: [&str; 6] =
            [".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"];
        LineStream::open(&location.into(), &EXTENSIONS, false, parse, fingerprint_entry::<Value>())
    }
}

/// The type of the values as an entry of a fingerprint.
fn fingerprint_entry<T>() -> (&'static str, &'static str) {
    ("JSON lines", std::any::type_name::<T>())
}

impl<T> JsonLines<T> {
    /// Parses the same lines as a different type.
    pub fn typed<U: DeserializeOwned + Send + 'static>(self) -> JsonLines<U> {
        JsonLines { lines: self.lines, item: PhantomData }
    }
}

impl<T> fmt::Debug for JsonLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines").field("values", &self.lines.len()).finish_non_exhaustive()
    }
}

/// Replaces `NaN` by `null`, except in texts. Returns the line, and where it was replaced.
fn nan_to_null(line: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let mut replaced = Vec::with_capacity(line.len() + 8);
    let mut positions = Vec::new();
    let mut rest = line;
    let mut in_text = false;
    let mut is_escaped = false;
    while let [byte, after @ ..] = rest {
        if !in_text && rest.starts_with(b"NaN") {
            positions.push(replaced.len());
            replaced.extend_from_slice(b"null");
            rest = &rest[3..];
            continue;
        }
        in_text ^= *byte == b'"' && !is_escaped;
        is_escaped = in_text && *byte == b'\\' && !is_escaped;
        replaced.push(*byte);
        rest = after;
    }
    (replaced, positions)
}

fn parse<T: DeserializeOwned>(line: &[u8], failed: &dyn Fn(String) -> Error) -> Result<T> {
    let mut replaced = Vec::new();
    let parsed = serde_json::from_slice(line).or_else(|error| {
        // Few lines have it, so the others are parsed only once.
        if !line.windows(3).any(|bytes| bytes == b"NaN") {
            return Err(error);
        }
        let (line, positions) = nan_to_null(line);
        replaced = positions;
        serde_json::from_slice(&line)
    });
    parsed.map_err(|error| {
        // `null` is one character longer than `NaN`.
        let before = replaced.iter().filter(|position| **position + 4 <= error.column()).count();
        let column = error.column() - before;
        let message = error.to_string();
        // Each line is parsed separately, so `at line 1` would be misleading.
        let reason = message.split(" at line ").next().unwrap_or_default();
        let problem =
            if error.is_data() { "the value has an unexpected form" } else { "this is not JSON" };
        failed(format!("{problem} at character {column}: {reason}"))
    })
}

impl<T: DeserializeOwned + Send + 'static> Source for JsonLines<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        lines::get(&self.lines, index, parse)
    }

    fn origin(&self, index: usize) -> String {
        self.lines.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        let (key, ty) = fingerprint_entry::<T>();
        fingerprint.add(key, ty);
        self.lines.fingerprint(fingerprint)
    }
}

impl LineStream<Value> {
    /// Parses the same lines as a different type.
    pub fn typed<U: DeserializeOwned + Send + 'static>(self) -> LineStream<U> {
        self.with_parser(parse, fingerprint_entry::<U>())
    }
}
