//! Reads the samples of files and folders, one at a time.

use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use fulmen_data::{Error, Result, Source, Stream};
use fulmen_images::ImageFolder;
use fulmen_shards::{TarSample, TarShards};
use fulmen_tables::{ArrowFiles, Csv, JsonLines, Parquet, Row, RowStream};
use fulmen_text::{TokenFile, TokenStore};
use serde_json::Value as Json;

use super::fields::{Fields, Value};
use super::images::is_image;

/// How deep the fields of JSON may be nested; what is deeper is counted by its size.
const MAX_DEPTH: usize = 8;
/// The largest image file that is read.
const MAX_IMAGE_BYTES: u64 = 1 << 30;
/// How many tokens are read at a time.
const TOKENS: usize = 1 << 16;

/// The kinds of files, by the end of their names.
#[derive(Clone, Copy)]
enum Kind {
    Tar,
    Csv,
    Tsv,
    JsonLines,
    Parquet,
    Arrow,
    Tokens,
}

const KINDS: [(&str, Kind); 9] = [
    (".tar", Kind::Tar),
    (".tar.gz", Kind::Tar),
    (".csv", Kind::Csv),
    (".tsv", Kind::Tsv),
    (".jsonl", Kind::JsonLines),
    (".ndjson", Kind::JsonLines),
    (".parquet", Kind::Parquet),
    (".arrow", Kind::Arrow),
    (".tokens", Kind::Tokens),
];

fn kind_of(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    KINDS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| *kind)
}

fn kinds() -> String {
    KINDS.map(|(end, _)| end).join(", ")
}

/// Adds the samples of a file, of the files of a folder, or of a folder of images.
pub(super) fn add_path(path: &Path, fields: &mut Fields) -> Result<()> {
    if path.is_dir() {
        let files = known_files(path)?;
        if files.is_empty() {
            return add_images(path, fields);
        }
        return files.iter().try_for_each(|file| add_file(file, fields));
    }
    add_file(path, fields)
}

/// The files of a folder whose kind is known, by name.
fn known_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = |source| Error::io(folder, "listing the folder", source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(listing)? {
        let path = entry.map_err(listing)?.path();
        // A hidden file is still being written.
        let is_hidden =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.is_file() && kind_of(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn add_file(path: &Path, fields: &mut Fields) -> Result<()> {
    let Some(kind) = kind_of(path) else {
        return Err(Error::usage(format!(
            "{}: statistics are for folders, and for files that end in {}",
            path.display(),
            kinds()
        )));
    };
    match kind {
        Kind::Tar => add_shard(path, fields),
        Kind::Csv => add_rows(&Csv::stream(path)?, true, fields),
        Kind::Tsv => add_rows(&Csv::options().delimiter(b'\t').stream(path)?, true, fields),
        Kind::JsonLines => add_json_lines(path, fields),
        Kind::Parquet => add_rows(&Parquet::open(path)?.stream(), false, fields),
        Kind::Arrow => add_rows(&ArrowFiles::open(path)?.stream(), false, fields),
        Kind::Tokens => add_tokens(path, fields),
    }
}

fn add_shard(path: &Path, fields: &mut Fields) -> Result<()> {
    for item in TarShards::from_list([path])?.items(0)? {
        let TarSample { key, files } = item?.item;
        fields.samples += 1;
        for (extension, content) in files {
            let origin = || format!("{}: {key}.{extension}", path.display());
            match extension.rsplit('.').next().unwrap_or_default() {
                "jpg" | "jpeg" | "png" | "webp" => {
                    fields.add_image(&extension, origin(), content)?;
                }
                "cls" => fields.add(&extension, &Value::Class(text(&content, origin)?.trim()))?,
                "txt" | "text" => {
                    fields.add(&extension, &Value::Text(text(&content, origin)?))?;
                }
                "json" => {
                    let value: Json = serde_json::from_slice(&content)
                        .map_err(|error| Error::content(format!("{}: {error}", origin())))?;
                    add_json(&extension, &value, 0, fields)?;
                }
                _ => fields.add(&extension, &Value::Bytes(content.len()))?,
            }
        }
    }
    Ok(())
}

fn text(content: &[u8], origin: impl Fn() -> String) -> Result<&str> {
    std::str::from_utf8(content)
        .map_err(|error| Error::content(format!("{}: it is not text: {error}", origin())))
}

fn add_json_lines(path: &Path, fields: &mut Fields) -> Result<()> {
    for item in JsonLines::stream(path)?.items(0)? {
        let value = item?.item;
        fields.samples += 1;
        match &value {
            Json::Object(entries) => {
                for (name, value) in entries {
                    add_json(name, value, 1, fields)?;
                }
            }
            value => add_json("value", value, 0, fields)?,
        }
    }
    Ok(())
}

/// Adds a value of JSON. The fields of an object are named after the way to them.
fn add_json(name: &str, value: &Json, depth: usize, fields: &mut Fields) -> Result<()> {
    match value {
        Json::Null => fields.add(name, &Value::Missing),
        Json::Bool(truth) => fields.add(name, &Value::Truth(*truth)),
        Json::Number(number) => {
            fields.add(name, &Value::Number(number.as_f64().unwrap_or(f64::INFINITY)))
        }
        Json::String(text) => fields.add(name, &Value::Text(text)),
        Json::Array(values) => fields.add(name, &Value::List(values.len())),
        Json::Object(_) if depth == MAX_DEPTH => {
            fields.add(name, &Value::Bytes(value.to_string().len()))
        }
        Json::Object(entries) => entries.iter().try_for_each(|(part, value)| {
            add_json(&format!("{name}.{part}"), value, depth + 1, fields)
        }),
    }
}

/// Adds the rows of a table. In CSV, values have no types.
fn add_rows(rows: &RowStream, is_untyped: bool, fields: &mut Fields) -> Result<()> {
    for item in rows.items(0)? {
        let row = item?.item;
        fields.samples += 1;
        add_row("", &row, is_untyped, fields)?;
    }
    Ok(())
}

fn add_row(prefix: &str, row: &Row, is_untyped: bool, fields: &mut Fields) -> Result<()> {
    for (position, column) in row.columns().into_iter().enumerate() {
        let name = format!("{prefix}{column}");
        if row.is_missing(position)? {
            fields.add(&name, &Value::Missing)?;
            continue;
        }
        let (array, index) = row.array(position)?;
        match array.data_type() {
            _ if is_untyped => fields.add(&name, &Value::Untyped(row.str(position)?))?,
            DataType::Boolean => fields.add(&name, &Value::Truth(row.get(position)?))?,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                fields.add(&name, &Value::Text(row.str(position)?))?;
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                add_bytes(&name, row.bytes(position)?, row, fields)?;
            }
            // An image of Hugging Face's `datasets`.
            DataType::Struct(parts) if parts.find("bytes").is_some() => {
                add_bytes(&name, row.media(position)?, row, fields)?;
            }
            DataType::Struct(_) => {
                add_row(&format!("{name}."), &row.row(position)?, is_untyped, fields)?;
            }
            DataType::List(_) => {
                let length = array.as_list::<i32>().value_length(index);
                fields.add(&name, &Value::List(length as usize))?;
            }
            DataType::LargeList(_) => {
                let length = array.as_list::<i64>().value_length(index);
                fields.add(&name, &Value::List(length as usize))?;
            }
            DataType::FixedSizeList(_, length) => {
                fields.add(&name, &Value::List(*length as usize))?;
            }
            kind if kind.is_integer() || kind.is_floating() => {
                fields.add(&name, &Value::Number(row.get(position)?))?;
            }
            // Such as a time: only counted.
            _ => fields.add(&name, &Value::Other)?,
        }
    }
    Ok(())
}

fn add_bytes(name: &str, bytes: &[u8], row: &Row, fields: &mut Fields) -> Result<()> {
    if is_image(bytes) {
        let origin = format!("{}, column `{name}`", row.origin());
        return fields.add_image(name, origin, bytes.to_vec());
    }
    fields.add(name, &Value::Bytes(bytes.len()))
}

fn add_tokens(path: &Path, fields: &mut Fields) -> Result<()> {
    let file = TokenFile::open(path)?;
    let mut start = 0;
    for &end in file.document_ends() {
        fields.samples += 1;
        fields.add("tokens", &Value::List((end - start) as usize))?;
        start = end;
    }
    let mut buffer = vec![0; TOKENS];
    let mut read = 0;
    while read < file.num_tokens() {
        let length = TOKENS.min((file.num_tokens() - read) as usize);
        let tokens = &mut buffer[..length];
        file.read(read, tokens)?;
        fields.add_ids("tokens", tokens)?;
        read += length as u64;
    }
    Ok(())
}

/// Adds a folder of images, with a folder for each class or without classes.
fn add_images(path: &Path, fields: &mut Fields) -> Result<()> {
    let is_flat = ImageFolder::is_flat(path)?;
    let folder = if is_flat { ImageFolder::open_flat(path) } else { ImageFolder::open(path) };
    let folder = folder.map_err(|error| {
        Error::missing(format!(
            "{}: the folder has no files that end in {}, and it is not a folder of images: {error}",
            path.display(),
            kinds()
        ))
    })?;
    for index in 0..folder.len() {
        let file = folder.path(index);
        let content = fulmen_durable::read_regular(&file, MAX_IMAGE_BYTES)
            .map_err(|source| Error::io(&file, "reading the image", source))?;
        fields.samples += 1;
        fields.add_image("image", file.display().to_string(), content)?;
        if !is_flat {
            let class = &folder.classes()[folder.label(index) as usize];
            fields.add("class", &Value::Class(class))?;
        }
    }
    Ok(())
}
