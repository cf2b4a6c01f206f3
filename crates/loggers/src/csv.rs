//! [`CsvLogger`]: `metrics.csv`, with a row for each log point and a column for each metric.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Logger;
use crate::{LogPoint, Media};

/// Writes `metrics.csv` into the run's folder: `epoch`, `step` (both counted as in [`LogPoint`])
/// and a column for each metric, empty if a log point does not have it. A metric with one number
/// per class has a column for each class, `NAME/0` and so on; matrices are left out. Numbers are
/// written so that reading them back gives the same value.
///
/// Images, texts and histograms become files `media/NAME/STEP.png`, `.txt` and `.csv`. Characters
/// of a name other than letters, digits, `-` and `_` become `_`.
#[derive(Debug, Default)]
pub struct CsvLogger {
    path: PathBuf,
    columns: Vec<String>,
    rows: Vec<LogPoint>,
    file: Option<File>,
}

impl CsvLogger {
    /// A logger; the Trainer gives it the folder.
    pub fn new() -> CsvLogger {
        CsvLogger::default()
    }

    fn header(&self) -> Vec<String> {
        ["epoch", "step"].into_iter().map(str::to_owned).chain(self.columns.iter().cloned()).collect()
    }

    fn row(&self, point: &LogPoint) -> Vec<String> {
        let values = self.columns.iter().map(|c| point.get(c).map_or(String::new(), |v| v.to_string()));
        [point.epoch.to_string(), point.global_step.to_string()].into_iter().chain(values).collect()
    }

    /// Writes images, texts or a histogram to a file.
    fn write_media(&self, name: &str, step: u64, media: &Media) -> io::Result<()> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let folder = self.path.with_file_name("media").join(name.chars().map(plain).collect::<String>());
        std::fs::create_dir_all(&folder)?;
        let (ending, bytes) = media.to_file()?;
        let path = folder.join(format!("{step}.{ending}"));
        fulmen_durable::write(&path, Some(bytes.len() as u64), |file| file.write_all(&bytes))
    }

    /// Rewrites all rows, for a new column.
    fn rewrite(&mut self) -> io::Result<()> {
        let rows = std::iter::once(self.header()).chain(self.rows.iter().map(|row| self.row(row)));
        let text = lines(rows)?;
        fulmen_durable::write(&self.path, Some(text.len() as u64), |file| file.write_all(&text))?;
        self.file = Some(OpenOptions::new().append(true).open(&self.path)?);
        Ok(())
    }
}

fn lines(rows: impl Iterator<Item = Vec<String>>) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(vec![]);
    for row in rows {
        writer.write_record(row).map_err(io::Error::other)?;
    }
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}

impl Logger for CsvLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        let path = run_dir.join("metrics.csv");
        if path != self.path {
            *self = CsvLogger { path, ..CsvLogger::default() };
        }
        Ok(())
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        let new: Vec<String> =
            point.columns().into_iter().map(|m| m.0).filter(|name| !self.columns.contains(name)).collect();
        self.rows.push(LogPoint { media: vec![], ..point.clone() });
        self.columns.extend(new.iter().cloned());
        let line = lines(std::iter::once(self.row(point)))?;
        let written = match &mut self.file {
            Some(file) if new.is_empty() => file.write_all(&line),
            _ => self.rewrite(),
        };
        if written.is_err() {
            // The file may end with half a line: the next log point rewrites it.
            self.file = None;
        }
        written?;
        point.media.iter().try_for_each(|(name, media)| self.write_media(name, point.global_step, media))
    }
}
