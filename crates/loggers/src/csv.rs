//! [`CsvLogger`]: `metrics.csv`, with a row for each log point and a column for each metric.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::Logger;
use crate::record_file::RecordFile;
use crate::{LogPoint, Media};

/// Writes `metrics.csv` into the run's folder: `epoch`, `step` (both counted as in [`LogPoint`])
/// and a column for each metric, which is empty if a log point does not have the metric. A metric
/// with one number per class has a column for each class, `NAME/0` and so on; matrices are left
/// out. Numbers are written so that reading them back gives the same value.
///
/// Images, texts and histograms are written to the files `media/NAME/STEP.png`, `.txt` and `.csv`.
/// Characters of a name other than letters, digits, `-` and `_` become `_`.
#[derive(Debug, Default)]
pub struct CsvLogger {
    path: PathBuf,
    columns: Vec<String>,
    /// Empty until the first log point.
    file: RecordFile,
}

impl CsvLogger {
    /// Creates a logger. The Trainer sets its folder.
    pub fn new() -> CsvLogger {
        CsvLogger::default()
    }

    fn row(&self, point: &LogPoint) -> Vec<String> {
        let values =
            self.columns.iter().map(|c| point.get(c).map_or(String::new(), |v| v.to_string()));
        [point.epoch.to_string(), point.global_step.to_string()].into_iter().chain(values).collect()
    }

    /// Writes images, texts or a histogram to a file.
    fn write_media(&self, name: &str, step: u64, media: &Media) -> io::Result<()> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let folder =
            self.path.with_file_name("media").join(name.chars().map(plain).collect::<String>());
        std::fs::create_dir_all(&folder)?;
        let (ending, bytes) = media.to_file()?;
        let path = folder.join(format!("{step}.{ending}"));
        fulmen_durable::write(&path, Some(bytes.len() as u64), |file| file.write_all(&bytes))
    }

    /// Rewrites the file with more columns, which are empty in the earlier rows. The rows are read
    /// from the file, so that they do not take memory.
    fn add_columns(&mut self, new: Vec<String>) -> io::Result<()> {
        let columns = [self.columns.clone(), new].concat();
        let mut length = 0;
        fulmen_durable::write(&self.path, None, |file| {
            let mut writer = csv::Writer::from_writer(&mut *file);
            writer.write_record(
                ["epoch", "step"].into_iter().chain(columns.iter().map(String::as_str)),
            )?;
            if self.file.length() > 0 {
                let mut rows =
                    csv::Reader::from_reader(File::open(&self.path)?.take(self.file.length()));
                for row in rows.byte_records() {
                    let mut row = row?;
                    (self.columns.len()..columns.len()).for_each(|_| row.push_field(b""));
                    writer.write_byte_record(&row)?;
                }
            }
            writer.flush()?;
            drop(writer);
            file.flush()?;
            length = file.get_ref().metadata()?.len();
            Ok(())
        })?;
        self.columns = columns;
        self.file = RecordFile::open(self.path.clone(), length);
        Ok(())
    }
}

impl Logger for CsvLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        let path = run_dir.join("metrics.csv");
        if path != self.path {
            *self =
                CsvLogger { file: RecordFile::open(path.clone(), 0), path, columns: Vec::new() };
        }
        Ok(())
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        let new: Vec<String> = point
            .columns()
            .into_iter()
            .map(|m| m.0)
            .filter(|name| !self.columns.contains(name))
            .collect();
        if !new.is_empty() || self.file.length() == 0 {
            self.add_columns(new)?;
        }
        let mut line = csv::Writer::from_writer(Vec::new());
        line.write_record(self.row(point))?;
        self.file.append(&line.into_inner().map_err(|e| io::Error::other(e.to_string()))?)?;
        point
            .media
            .iter()
            .try_for_each(|(name, media)| self.write_media(name, point.global_step, media))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: u64, metrics: &[(&str, f64)]) -> LogPoint {
        let metrics = metrics.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        LogPoint { global_step: step, metrics, ..LogPoint::default() }
    }

    #[test]
    fn earlier_rows_lack_a_column_that_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut logger = CsvLogger::new();
        logger.start(folder.path()).unwrap();
        let text = || std::fs::read_to_string(folder.path().join("metrics.csv")).unwrap();
        logger.log(&point(0, &[])).unwrap();
        assert_eq!(text(), "epoch,step\n0,0\n");
        logger.log(&point(1, &[("a", 0.1), ("b,\n", f64::NAN)])).unwrap();
        logger.log(&point(2, &[("a", 0.2)])).unwrap();
        logger.log(&point(3, &[("c", -1e300), ("d", 4.0), ("a", 0.3)])).unwrap();
        logger.log(&point(4, &[("d", 5.0)])).unwrap();
        let rows = "0,0,,,,\n0,1,0.1,NaN,,\n0,2,0.2,,,\n0,3,0.3,,-1";
        assert_eq!(
            text(),
            format!("epoch,step,a,\"b,\n\",c,d\n{rows}{},4\n0,4,,,,5\n", "0".repeat(300))
        );
    }

    #[test]
    fn a_row_that_could_not_be_written_leaves_the_table_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut logger = CsvLogger::new();
        logger.start(folder.path()).unwrap();
        // A file cannot replace a folder, so writing fails.
        std::fs::create_dir(&path).unwrap();
        assert!(logger.log(&point(1, &[("a", 0.1)])).is_err());
        std::fs::remove_dir(&path).unwrap();
        logger.log(&point(2, &[("a", 0.2)])).unwrap();
        logger.log(&point(3, &[("b", 0.3)])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "epoch,step,a,b\n0,2,0.2,\n0,3,,0.3\n");
    }
}
