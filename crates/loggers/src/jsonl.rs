//! [`JsonlLogger`]: `metrics.jsonl`, with a line for each log point.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value as Json, json};

use crate::record_file::RecordFile;
use crate::{LogPoint, LoggedArray, Logger};

/// Writes `metrics.jsonl` into the run's folder, one object per line: `epoch` and `step` (counted
/// as in [`LogPoint`]), `time` (Unix seconds), `metrics` (names and numbers) and, if there are any,
/// `arrays`: metrics with several numbers, including matrices. Numbers that are not finite become
/// the strings `NaN`, `Infinity` and `-Infinity`.
///
/// ```
/// use fulmen_loggers::{JsonlLogger, LogPoint, Logger};
///
/// let folder = tempfile::tempdir()?;
/// let mut logger = JsonlLogger::new();
/// logger.start(folder.path())?;
/// let metrics = vec![("train_loss".to_owned(), 0.25)];
/// logger.log(&LogPoint { epoch: 1, global_step: 50, metrics, ..LogPoint::default() })?;
/// let line = std::fs::read_to_string(folder.path().join("metrics.jsonl"))?;
/// assert!(line.starts_with(r#"{"epoch":1,"metrics":{"train_loss":0.25},"step":50,"time":"#));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct JsonlLogger(RecordFile);

impl JsonlLogger {
    /// Creates a logger. The Trainer sets its folder.
    pub fn new() -> JsonlLogger {
        JsonlLogger::default()
    }
}

impl Logger for JsonlLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        self.0 = RecordFile::new(run_dir.join("metrics.jsonl"))?;
        Ok(())
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        let metrics: Map<String, Json> =
            point.metrics.iter().map(|(name, x)| (name.clone(), json_number(*x))).collect();
        let mut line = json!({ "epoch": point.epoch, "step": point.global_step, "time": unix_seconds(), "metrics": metrics });
        if !point.arrays.is_empty() {
            line["arrays"] =
                point.arrays.iter().map(|(name, value)| (name.clone(), array(value))).collect();
        }
        self.0.append(format!("{line}\n").as_bytes())
    }
}

fn array(value: &LoggedArray) -> Json {
    match value {
        LoggedArray::Vector(values) => values.iter().copied().map(json_number).collect(),
        LoggedArray::Matrix(rows) => {
            rows.iter().map(|row| row.iter().copied().map(json_number).collect::<Json>()).collect()
        }
    }
}

/// A number, or the string for it in protobuf's JSON format if it is not finite.
pub(crate) fn json_number(x: f64) -> Json {
    match x {
        _ if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => x.into(),
    }
}

/// The Unix time in seconds.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_exactly_and_arrays_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut logger = JsonlLogger::new();
        logger.start(folder.path()).unwrap();
        let metrics = [("a", 0.1), ("b", f64::NAN), ("c", f64::NEG_INFINITY)]
            .map(|(name, x)| (name.to_owned(), x));
        let matrix = LoggedArray::Matrix(vec![vec![1.0, 2.0], vec![3.0, f64::INFINITY]]);
        let arrays =
            vec![("m".to_owned(), matrix), ("v".to_owned(), LoggedArray::Vector(vec![0.5]))];
        logger.log(&LogPoint { metrics: metrics.to_vec(), arrays, ..LogPoint::default() }).unwrap();
        logger.log(&LogPoint { epoch: 1, global_step: 2, ..LogPoint::default() }).unwrap();
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        let lines: Vec<Json> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["metrics"], json!({ "a": 0.1, "b": "NaN", "c": "-Infinity" }));
        assert_eq!(lines[0]["arrays"], json!({ "m": [[1.0, 2.0], [3.0, "Infinity"]], "v": [0.5] }));
        assert_eq!(
            (&lines[1]["epoch"], &lines[1]["step"], lines[1].get("arrays")),
            (&json!(1), &json!(2), None)
        );
        assert!((unix_seconds() - lines[1]["time"].as_f64().unwrap()).abs() < 3600.0);
    }
}
