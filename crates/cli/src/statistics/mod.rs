//! The statistics of a data set: for each field the missing values, and what its values are like.
//!
//! Samples are read one at a time, so memory does not grow with the data set. Images are decoded by
//! all cores.
//!
//! Out of scope: reading samples for training.

mod fields;
mod images;
mod numbers;
mod sources;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use fulmen_data::Result;
use fulmen_durable::messages::quantity;
use serde::Serialize;

pub use fields::FieldStatistics;
pub use images::ImageStatistics;
pub use numbers::NumberStatistics;

use fields::Fields;
use numbers::digits;

/// How many values are printed with their counts.
const PRINTED_VALUES: usize = 20;

/// The statistics of a data set. `Display` prints them for a user.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DatasetStatistics {
    /// The number of samples, rows or documents.
    pub samples: u64,
    /// The fields, in the order of their first appearance.
    pub fields: Vec<FieldStatistics>,
}

/// Reads files and folders, and computes the statistics of their samples together.
///
/// A file is a tar shard of WebDataset, a table (CSV, JSON lines, Parquet, Arrow), or a token file.
/// A folder has such files, or images, with a folder for each class. Fields of JSON have the names
/// of all objects around them.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("wind.csv");
/// std::fs::write(&path, "place,speed\nKiel,3.5\nBremen,\nKiel,6.5\n")?;
///
/// let found = fulmen_cli::statistics::statistics(&[&path])?;
/// let [place, speed] = &found.fields[..] else { panic!("{found}") };
/// assert_eq!((found.samples, speed.missing), (3, 1));
/// let numbers = speed.numbers.unwrap();
/// assert_eq!((numbers.mean, numbers.standard_deviation), (5.0, 1.5));
/// assert_eq!(place.values.as_ref().unwrap()["Kiel"], 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A file that does not exist, is damaged, or is of another kind; more than 1000 fields.
pub fn statistics(paths: &[impl AsRef<Path>]) -> Result<DatasetStatistics> {
    let mut fields = Fields::default();
    for path in paths {
        sources::add_path(path.as_ref(), &mut fields)?;
    }
    Ok(DatasetStatistics { samples: fields.samples, fields: fields.finish()? })
}

impl fmt::Display for DatasetStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", quantity(self.samples, "sample"))?;
        self.fields.iter().try_for_each(|field| write!(f, "\n{field}"))
    }
}

impl fmt::Display for FieldStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {} missing", self.name, quantity(self.count, "value"), self.missing)?;
        for (what, numbers) in [
            ("numbers", &self.numbers),
            ("characters", &self.characters),
            ("lengths", &self.lengths),
            ("bytes", &self.bytes),
        ] {
            if let Some(numbers) = numbers {
                write!(f, "\n  {what}: {numbers}")?;
            }
        }
        if let Some(images) = &self.images {
            write!(f, "\n{images}")?;
        }
        // Counts of texts that are all different say nothing.
        let values =
            self.values.as_ref().filter(|values| (values.len() as u64) < self.count.max(2));
        values.map_or(Ok(()), |values| write_values(f, values))
    }
}

fn write_values(f: &mut fmt::Formatter<'_>, values: &BTreeMap<String, u64>) -> fmt::Result {
    if values.len() <= PRINTED_VALUES {
        let counts: Vec<String> =
            values.iter().map(|(value, count)| format!("{value}: {count}")).collect();
        return write!(f, "\n  values: {}", counts.join(", "));
    }
    let fewest = values.values().min().unwrap_or(&0);
    let most = values.values().max().unwrap_or(&0);
    write!(
        f,
        "\n  values: {} different ones, with {fewest} to {} each",
        values.len(),
        quantity(most, "sample")
    )
}

impl fmt::Display for NumberStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} to {}, mean {}, standard deviation {}",
            digits(self.minimum),
            digits(self.maximum),
            digits(self.mean),
            digits(self.standard_deviation)
        )?;
        if self.infinite > 0 {
            write!(f, "; {} infinite, left out", self.infinite)?;
        }
        Ok(())
    }
}

impl fmt::Display for ImageStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  height: {}", self.height)?;
        writeln!(f, "  width: {}", self.width)?;
        let channels: Vec<String> = self
            .channels
            .iter()
            .map(|(channels, images)| {
                format!("{} in {}", quantity(channels, "channel"), quantity(images, "image"))
            })
            .collect();
        writeln!(f, "  {}", channels.join(", "))?;
        let list =
            |numbers: &[f64]| numbers.iter().map(|n| digits(*n)).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "  pixels from 0 to 1: mean {}; standard deviation {}",
            list(&self.mean),
            list(&self.standard_deviation)
        )
    }
}
