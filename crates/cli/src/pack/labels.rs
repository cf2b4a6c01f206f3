//! Labels of images from a file: CSV or JSON lines.
//!
//! Out of scope: the images (`entries`), and the numbers of classes (`images`).

use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use fulmen_data::{Error, Result, Stream, StreamItem};
use fulmen_files::Location;
use fulmen_tables::{Csv, JsonLines, Row};

/// The column with the name of the image.
const FILE_NAME: &str = "file_name";

/// The column with the class.
const LABEL: &str = "label";

/// The labels of a split.
pub(crate) struct Labels {
    file: Location,
    labels: HashMap<String, Label>,
}

/// The label of an image.
#[derive(Clone)]
pub(crate) struct Label {
    pub(crate) class: Option<String>,
    /// The record, if it has further fields.
    pub(crate) json: Option<Box<str>>,
    is_used: bool,
}

impl Labels {
    pub(crate) fn read(file: &Location) -> Result<Labels> {
        let mut labels = Labels { file: file.clone(), labels: HashMap::new() };
        let name = file.name().to_lowercase();
        let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
        if name.ends_with(".csv") || name.ends_with(".tsv") {
            for row in Csv::stream(file.clone())?.items(0)? {
                let StreamItem { origin, item, .. } = row?;
                labels.add(&origin, label_of_row(&origin, &item)?)?;
            }
        } else if name.ends_with(".jsonl") || name.ends_with(".ndjson") {
            let lines = JsonLines::stream(file.clone())?.typed::<Box<RawValue>>();
            for line in lines.items(0)? {
                let StreamItem { origin, item, .. } = line?;
                labels.add(&origin, label_of_line(&origin, &item)?)?;
            }
        } else {
            return Err(Error::usage(format!("{file}: expected labels in a .csv or .jsonl file")));
        }
        let with_class = labels.labels.values().filter(|label| label.class.is_some()).count();
        if with_class == 0 || with_class == labels.labels.len() {
            return Ok(labels);
        }
        let without = labels.labels.iter().filter(|(_, label)| label.class.is_none());
        let first = without.map(|(name, _)| name.as_str()).min().unwrap_or_default();
        Err(file.error(format!("the image {first} has no {LABEL}, but others have one")))
    }

    fn add(&mut self, origin: &str, (name, label): (String, Label)) -> Result<()> {
        match self.labels.insert(name.clone(), label) {
            None => Ok(()),
            Some(_) => {
                Err(Error::new(format!("{origin}: there are two records of the image {name}")))
            }
        }
    }

    /// The label of an image, by its path in the source or by the name of its file. `None` if there
    /// is none.
    pub(crate) fn take(&mut self, path: &str) -> Result<Option<Label>> {
        let file = path.rsplit('/').next().unwrap_or(path);
        let name = if self.labels.contains_key(path) { path } else { file };
        let Some(label) = self.labels.get_mut(name) else { return Ok(None) };
        if std::mem::replace(&mut label.is_used, true) {
            let message =
                format!("two images have the {FILE_NAME} {name}; write their folders too");
            return Err(self.file.error(message));
        }
        Ok(Some(label.clone()))
    }

    /// Returns an error if a label was not taken.
    pub(crate) fn check_all_taken(&self) -> Result<()> {
        let unused = self.labels.iter().filter(|(_, label)| !label.is_used);
        match unused.map(|(name, _)| name).min() {
            None => Ok(()),
            Some(name) => Err(self.file.error(format!("there is no image {name} in the sources"))),
        }
    }
}

fn label_of_line(origin: &str, line: &RawValue) -> Result<(String, Label)> {
    let refused = |message: String| Error::new(format!("{origin}: {message}"));
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(line.get())
        .map_err(|_| refused("expected an object of JSON in each line".to_owned()))?;
    let value = |field: &str| {
        let value = fields.get(field).map(|raw| serde_json::from_str::<Value>(raw.get()));
        value.transpose().map_err(|error| refused(format!("the field {field}: {error}")))
    };
    let Some(Value::String(name)) = value(FILE_NAME)? else {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        return Err(refused(format!("there is no text {FILE_NAME:?}; the line has {names:?}")));
    };
    let class = match value(LABEL)? {
        None | Some(Value::Null) => None,
        Some(Value::String(class)) => Some(class),
        Some(Value::Number(class)) if class.is_u64() => Some(class.to_string()),
        Some(_) => {
            return Err(refused(format!("the field {LABEL} is neither text nor a whole number")));
        }
    };
    let more = fields.keys().any(|field| field != FILE_NAME && field != LABEL);
    let json = more.then(|| line.get().into());
    Ok((name, Label { class, json, is_used: false }))
}

fn label_of_row(origin: &str, row: &Row) -> Result<(String, Label)> {
    let mut fields = Map::new();
    for column in row.columns() {
        let is_missing = row.is_missing(column)?;
        let value = if is_missing { Value::Null } else { Value::from(row.str(column)?) };
        fields.insert(column.to_owned(), value);
    }
    let Some(name) = fields.get(FILE_NAME).and_then(Value::as_str).map(str::to_owned) else {
        let names: Vec<&str> = row.columns();
        let message = format!("{origin}: there is no {FILE_NAME:?}; the columns are {names:?}");
        return Err(Error::new(message));
    };
    let class = fields.get(LABEL).and_then(Value::as_str).map(str::to_owned);
    let more = fields.keys().any(|field| field != FILE_NAME && field != LABEL);
    let json = more.then(|| Value::Object(fields).to_string().into());
    Ok((name, Label { class, json, is_used: false }))
}
