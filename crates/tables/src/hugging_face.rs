//! Folders of Hugging Face's `datasets`: folders written by `save_to_disk`, and downloads from the
//! hub.
//!
//! Out of scope: which files belong to which split (`hugging_face_files`), and downloading the
//! files.

use std::fmt;

use serde_json::Value;

use super::arrow_files;
use super::block_reader::BlockReader;
use super::features::HfFeatures;
use super::hugging_face_files::{Config, MAX_TEXT_BYTES, Splits, configs};
use super::source_file::ends_in;
use super::table::table_of_rows;
use fulmen_data::{Error, Result};
use fulmen_files::Location;

/// One split of a Hugging Face dataset: rows by index.
///
/// A `ClassLabel` column is a label with names ([`Table::label`](crate::Table::label)), an `Image`
/// or `Audio` column has encoded bytes ([`Row::media`](crate::Row::media)), an `Array2D` is an
/// array.
///
/// ```no_run
/// use fulmen_data::DType;
/// use fulmen_tables::{HfDataset, Table};
///
/// let digits = HfDataset::open_split("mnist", "train")?;
/// println!("{} digits with the columns {:?}", fulmen_data::Source::len(&digits), digits.column_names());
/// let labels = digits.label("label").build()?;
/// assert_eq!(labels.classes("label").map(<[String]>::len), Some(10));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct HfDataset {
    rows: BlockReader,
}

table_of_rows!(HfDataset, with stream);

impl HfDataset {
    /// Opens a folder with one split, such as one that `Dataset.save_to_disk` wrote.
    ///
    /// # Errors
    /// A folder with several splits (the error lists them), or without a known format.
    pub fn open(folder: impl Into<Location>) -> Result<HfDataset> {
        let folder = HfFolder::open(folder)?;
        match &folder.splits()[..] {
            [split] => folder.split(split),
            // This returns an error that asks to choose a configuration.
            [] => folder.split(""),
            splits => Err(Error::usage(format!(
                "{}: the dataset has the splits {}; choose one with `HfDataset::open_split`",
                folder.location,
                splits.join(", ")
            ))),
        }
    }

    /// Opens one split of a folder.
    pub fn open_split(folder: impl Into<Location>, split: &str) -> Result<HfDataset> {
        HfFolder::open(folder)?.split(split)
    }

    /// The metadata of `datasets` about the columns; empty if the files have none.
    pub fn features(&self) -> &HfFeatures {
        &self.rows.features
    }
}

/// A Hugging Face dataset: its configurations and their splits.
///
/// Supported are the folders of `DatasetDict.save_to_disk` and `Dataset.save_to_disk`, and
/// downloads from the hub: Parquet or Arrow files whose splits are listed in the card (`README.md`)
/// or given by the file names (`data/train-00000-of-00002.parquet`, `test/0.parquet`). If no name
/// gives a split, all files are `train`. As in `datasets`, the first of these rules that matches
/// any file applies, and other files are left out. Of the files listed in a card, only those of the
/// split that is read must exist.
/// that is read must exist.
pub struct HfFolder {
    location: Location,
    configs: Vec<Config>,
    /// `None` if there are several configurations and no default.
    selected: Option<usize>,
    saved: bool,
}

impl HfFolder {
    /// Inspects a folder. If it has several configurations, the default one is selected.
    pub fn open(folder: impl Into<Location>) -> Result<HfFolder> {
        let location = folder.into();
        let (configs, saved) = match saved_splits(&location)? {
            Some(splits) => (
                vec![Config { name: "default".to_owned(), default: true, patterns: false, splits }],
                true,
            ),
            None => (configs(&location)?, false),
        };
        let only = (configs.len() == 1).then_some(0);
        let selected = configs.iter().position(|config| config.default).or(only);
        Ok(HfFolder { location, configs, selected, saved })
    }

    /// The names of the configurations.
    pub fn configs(&self) -> Vec<&str> {
        self.configs.iter().map(|config| config.name.as_str()).collect()
    }

    /// Selects another configuration.
    pub fn config(mut self, name: &str) -> Result<HfFolder> {
        match self.configs.iter().position(|config| config.name == name) {
            Some(selected) => self.selected = Some(selected),
            None => {
                return Err(Error::usage(format!(
                    "{}: there is no configuration `{name}`; there are {}",
                    self.location,
                    self.configs().join(", ")
                )));
            }
        }
        Ok(self)
    }

    /// The names of the splits of this configuration. Empty if there are several configurations, no
    /// default, and no selection.
    pub fn splits(&self) -> Vec<&str> {
        let selected = self.selected.map(|selected| &self.configs[selected].splits);
        selected.into_iter().flatten().map(|(name, _)| name.as_str()).collect()
    }

    /// Opens one split.
    ///
    /// # Errors
    /// A split that does not exist (the error lists the splits); files that are truncated, or whose
    /// columns differ.
    pub fn split(&self, name: &str) -> Result<HfDataset> {
        let Some(selected) = self.selected else {
            return Err(Error::usage(format!(
                "{}: the dataset has the configurations {}; choose one with `HfFolder::config`",
                self.location,
                self.configs().join(", ")
            )));
        };
        let Config { splits, patterns, .. } = &self.configs[selected];
        let Some((_, files)) = splits.iter().find(|(split, _)| split == name) else {
            let splits = match &self.splits()[..] {
                [] => "this configuration has no files here".to_owned(),
                splits => format!("there are {}", splits.join(", ")),
            };
            return Err(Error::usage(format!(
                "{}: there is no split `{name}`; {splits}",
                self.location
            )));
        };
        let mut locations = Vec::new();
        for files in files {
            locations.extend(if *patterns { files.expand()? } else { vec![files.clone()] });
        }
        let mut rows = open_files(&locations, format!("{} ({name})", self.location))?;
        if rows.features.is_empty() && self.saved {
            self.add_features(&mut rows, name)?;
        }
        Ok(HfDataset { rows })
    }

    /// Adds the metadata in `dataset_info.json`, if the files do not have metadata.
    fn add_features(&self, rows: &mut BlockReader, split: &str) -> Result<()> {
        for folder in [self.location.join(split), self.location.clone()] {
            let info = folder.join("dataset_info.json");
            if info.exists()? {
                let text =
                    String::from_utf8_lossy(&info.read_at_most(MAX_TEXT_BYTES)?).into_owned();
                rows.features = HfFeatures::parse(&text)
                    .map_err(|error| info.error(format!("not JSON: {error}")))?;
                for column in &mut rows.columns {
                    column.classes = rows.features.classes(&column.name);
                }
                return Ok(());
            }
        }
        Ok(())
    }
}

impl fmt::Debug for HfFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HfFolder")
            .field("location", &self.location)
            .field("configs", &self.configs())
            .field("splits", &self.splits())
            .finish_non_exhaustive()
    }
}

/// The splits of a folder written by `save_to_disk`; `None` for other folders.
fn saved_splits(location: &Location) -> Result<Option<Splits>> {
    let dict = location.join("dataset_dict.json");
    if dict.exists()? {
        let content = json(&dict)?;
        let names = content
            .get("splits")
            .and_then(Value::as_array)
            .and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<&str>>>())
            .ok_or_else(|| dict.error("the file should have a list of `splits`"))?;
        let split = |name: &str| {
            let folder =
                location.join_inside(name).map_err(|error| dict.error(error.to_string()))?;
            Ok((name.to_owned(), saved_files(&folder)?))
        };
        return names.into_iter().map(split).collect::<Result<_>>().map(Some);
    }
    if location.join("state.json").exists()? {
        let content = json(&location.join("state.json"))?;
        let name = content.get("_split").and_then(Value::as_str).unwrap_or("train").to_owned();
        Ok(Some(vec![(name, saved_files(location)?)]))
    } else {
        Ok(None)
    }
}

/// The files listed in `state.json`.
fn saved_files(folder: &Location) -> Result<Vec<Location>> {
    let path = folder.join("state.json");
    let state = json(&path)?;
    if state
        .get("_indices_data_files")
        .and_then(Value::as_array)
        .is_some_and(|files| !files.is_empty())
    {
        return Err(path.error(
            "the dataset is a selection of rows, kept by their indices; save it again after \
             `dataset.flatten_indices()`",
        ));
    }
    let names = state
        .get("_data_files")
        .and_then(Value::as_array)
        .and_then(|files| {
            files
                .iter()
                .map(|file| file.get("filename").and_then(Value::as_str))
                .collect::<Option<Vec<&str>>>()
        })
        .ok_or_else(|| {
            path.error("the file should have a list of `_data_files` with a `filename` each")
        })?;
    // `save_to_disk` never writes a name outside the folder.
    let inside = |name| {
        folder.join_inside(name).map_err(|error| path.error(format!("a data file: {error}")))
    };
    names.into_iter().map(inside).collect()
}

fn json(file: &Location) -> Result<Value> {
    serde_json::from_slice(&file.read_at_most(MAX_TEXT_BYTES)?)
        .map_err(|error| file.error(format!("not JSON: {error}")))
}

/// The files of a split, all in one format.
fn open_files(files: &[Location], name: String) -> Result<BlockReader> {
    if let Some(other) =
        files.iter().find(|file| !ends_in(file, &super::hugging_face_files::EXTENSIONS))
    {
        return Err(other.error(
            "a split is read from Parquet or Arrow files; read this one by `Csv` or `JsonLines`",
        ));
    }
    let parquet = files.iter().filter(|file| ends_in(file, &[".parquet"])).count();
    match (parquet, files.len() - parquet) {
        (0, _) => arrow_files::open(files, name),
        (_, 0) => open_parquet(files, name),
        _ => Err(Error::usage(format!(
            "{name}: a split has both Parquet and Arrow files; keep one kind"
        ))),
    }
}

#[cfg(feature = "parquet")]
fn open_parquet(files: &[Location], name: String) -> Result<BlockReader> {
    super::parquet::open(files, name)
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(_files: &[Location], name: String) -> Result<BlockReader> {
    Err(Error::usage(format!(
        "{name}: these are Parquet files; build fulmen with its feature `parquet`"
    )))
}
