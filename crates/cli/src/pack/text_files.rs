//! Text files of several kinds, as a sequence of documents.
//!
//! Out of scope: reading the kinds of files (`fulmen-tables`).

use serde_json::{Map, Value};

use super::options::Pack;
use fulmen_data::internal::LeftOut;
use fulmen_data::{Error, Items, Result, Source, Stream, StreamItem};
use fulmen_files::Location;
use fulmen_tables::{JsonLines, TextFile, TextFolder};

/// The kind of a file, which its name determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    CompressedText,
    JsonLines,
    Parquet,
}

/// The kinds by file extension. If an extension ends with another one, it comes before it.
const KINDS: &[(&str, Kind)] = &[
    (".txt.gz", Kind::CompressedText),
    (".txt.zst", Kind::CompressedText),
    (".txt", Kind::Text),
    (".jsonl", Kind::JsonLines),
    (".jsonl.gz", Kind::JsonLines),
    (".jsonl.zst", Kind::JsonLines),
    (".ndjson", Kind::JsonLines),
    (".ndjson.gz", Kind::JsonLines),
    (".ndjson.zst", Kind::JsonLines),
    (".parquet", Kind::Parquet),
];

/// One file of texts.
pub(crate) struct TextInput {
    /// The index of its split.
    pub(crate) split: usize,
    pub(crate) location: Location,
    pub(crate) bytes: u64,
    kind: Kind,
}

impl TextInput {
    /// Expands files, patterns and folders. In a folder, all files of a known kind are used, sorted
    /// by name. `splits` has the names of the splits.
    pub(crate) fn find(
        patterns: &[(String, Location)],
        splits: &[String],
    ) -> Result<Vec<TextInput>> {
        let mut inputs = Vec::new();
        for (name, pattern) in patterns {
            let split = splits.iter().position(|split| split == name).unwrap_or_default();
            let whole_folder = pattern.local().is_some_and(|path| path.is_dir());
            let locations = if whole_folder { pattern.list()? } else { pattern.expand()? };
            // In a store, a name that is not a file may be a prefix.
            let locations = match locations.as_slice() {
                [one] if one.local().is_none() && kind_of(one).is_none() => one.list()?,
                _ => locations,
            };
            let previous_len = inputs.len();
            let mut left_out = LeftOut::default();
            for location in locations {
                match kind_of(&location) {
                    Some(kind) => {
                        let bytes = location.size()?;
                        inputs.push(TextInput { split, bytes, location, kind })
                    }
                    None if whole_folder => left_out.add_file(&location.name()),
                    None => return Err(unknown(&location, "its name has no known extension")),
                }
            }
            let names: Vec<&str> = KINDS.iter().map(|(end, _)| *end).collect();
            left_out.note(pattern, &format!("text files are {}", names.join(", ")));
            if inputs.len() == previous_len {
                return Err(unknown(pattern, "it has no text files"));
            }
        }
        Ok(inputs)
    }

    /// The documents in the file, in order.
    pub(crate) fn documents(&self, options: &Pack) -> Result<Items<String>> {
        let location = self.location.clone();
        match self.kind {
            Kind::Text if !options.lines => Ok(whole_file(TextFolder::open(location)?)),
            Kind::Text => TextFile::stream(location)?.items(0),
            Kind::CompressedText if options.lines => TextFile::stream(location)?.items(0),
            Kind::CompressedText => Err(unknown(
                &self.location,
                "a compressed text file can only be read by lines; set lines as documents, or decompress it",
            )),
            Kind::JsonLines => {
                let field = options.text_field().to_owned();
                let lines = JsonLines::stream(location)?.typed::<Map<String, Value>>().items(0)?;
                Ok(extract_texts(lines, move |mut line| match line.remove(&field) {
                    Some(Value::String(text)) => Ok(text),
                    Some(_) => Err(format!("the field {field:?} is not text")),
                    None => {
                        let names: Vec<&str> = line.keys().map(String::as_str).collect();
                        Err(format!("there is no field {field:?}; the line has {names:?}"))
                    }
                }))
            }
            Kind::Parquet => {
                let field = options.text_field().to_owned();
                let rows = fulmen_tables::Parquet::open(location)?
                    .select([field.as_str()])?
                    .stream()
                    .items(0)?;
                Ok(extract_texts(rows, move |row| {
                    row.str(&field).map(str::to_owned).map_err(|error| error.to_string())
                }))
            }
        }
    }
}

/// Each file of a list as one document.
fn whole_file(files: TextFolder) -> Items<String> {
    let document = move |index: usize| {
        Ok(StreamItem { index: index as u64, origin: files.origin(index), item: files.get(index)? })
    };
    Box::new((0..1).map(document))
}

/// Extracts the text of each item. An error includes the item's origin.
fn extract_texts<T: 'static>(
    items: Items<T>,
    mut extract: impl FnMut(T) -> Result<String, String> + Send + 'static,
) -> Items<String> {
    Box::new(items.map(move |item| {
        let StreamItem { index, origin, item } = item?;
        let item = extract(item).map_err(|message| {
            if message.contains(&origin) {
                Error::new(message)
            } else {
                Error::new(format!("{origin}: {message}"))
            }
        })?;
        Ok(StreamItem { index, origin, item })
    }))
}

/// Whether a file has texts, by its name.
pub(crate) fn is_text(location: &Location) -> bool {
    kind_of(location).is_some()
}

fn kind_of(location: &Location) -> Option<Kind> {
    let name = location.to_string().to_lowercase();
    KINDS.iter().find(|(end, _)| name.ends_with(end)).map(|&(_, kind)| kind)
}

fn unknown(location: &Location, message: &str) -> Error {
    let ends: Vec<&str> = KINDS.iter().map(|(end, _)| *end).collect();
    Error::usage(format!("{location}: {message}; text files are {}", ends.join(", ")))
}
