//! [`Run`]: the contents of a run's folder. An update reads only what is new.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use fulmen_durable::{open_regular, read_regular};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::curve::Curve;
use crate::summary::{SUMMARY, Summary};

/// The maximum number of metrics. A run that logs more has a bug.
const MAX_METRICS: usize = 2000;
/// The size limit of a text file.
const MAX_TEXT: u64 = 24 << 10;
/// The maximum number of images in a page, and their maximum total size in bytes.
const MAX_IMAGES: usize = 12;
const MAX_IMAGE_BYTES: usize = 96 << 10;
/// The size limits of a JSON file, and of a line of `metrics.jsonl`.
const MAX_JSON_BYTES: u64 = 64 << 20;
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The contents of a run's folder. A missing file is not an error; the page then lacks its content.
///
/// ```
/// let folder = std::env::temp_dir().join(format!("fulmen-report-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("metrics.jsonl"), "{\"step\":10,\"metrics\":{\"train_loss\":0.5}}\n")?;
///
/// let run = fulmen_report::Run::open(&folder)?;
/// assert_eq!(run.curves()["train_loss"].last(), Some((10, 0.5)));
/// std::fs::write(folder.join("report.html"), fulmen_report::report(&[run]))?;
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Run {
    folder: PathBuf,
    pub(crate) name: String,
    curves: BTreeMap<String, Curve>,
    pub(crate) arrays: BTreeMap<String, Array>,
    pub(crate) summary: Option<Summary>,
    pub(crate) goodput: Vec<Goodput>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) config: Option<String>,
    pub(crate) images: Vec<Image>,
    /// The number of log points read, and of lines that could not be read.
    pub(crate) log_points: u64,
    pub(crate) bad_lines: u64,
    /// The offset up to which `metrics.jsonl` was read.
    offset: u64,
}

/// The last value of a metric with several numbers.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) step: u64,
    pub(crate) rows: Rows,
}

#[derive(Clone, Debug)]
pub(crate) enum Rows {
    Vector(Vec<f64>),
    Matrix(Vec<Vec<f64>>),
}

/// The seconds of one start of the run, by category.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Goodput {
    pub(crate) seconds: BTreeMap<String, f64>,
    /// Those of each process, if there were several.
    pub(crate) hosts: Vec<BTreeMap<String, f64>>,
}

/// An image in the run's folder.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) step: u64,
    pub(crate) png: Vec<u8>,
}

/// A line of `metrics.jsonl`.
#[derive(Deserialize)]
struct Line {
    step: u64,
    #[serde(default)]
    metrics: BTreeMap<String, Json>,
    #[serde(default)]
    arrays: BTreeMap<String, Vec<Json>>,
}

/// Converts a value to a number. The strings that represent NaN and infinity become NaN, because
/// JSON has no such numbers.
fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

impl From<Vec<Json>> for Rows {
    fn from(values: Vec<Json>) -> Rows {
        match values.first() {
            Some(Json::Array(_)) => {
                let row = |row: &Json| row.as_array().into_iter().flatten().map(number).collect();
                Rows::Matrix(values.iter().map(row).collect())
            }
            _ => Rows::Vector(values.iter().map(number).collect()),
        }
    }
}

impl Run {
    /// Reads the folder of a run.
    ///
    /// # Errors
    /// The folder does not exist; a file in it cannot be read or is not valid JSON.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Run> {
        let folder = folder.into();
        if !folder.is_dir() {
            let why = format!(
                "{}: no such folder; pass the folder of a run, such as runs/version_0",
                folder.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        let mut run = Run { folder, name, ..Run::default() };
        run.refresh()?;
        Ok(run)
    }

    /// Reads the changes: the new lines of `metrics.jsonl`, and all small files. If there is no
    /// `metrics.jsonl`, this reads `metrics.csv`, which has no matrices.
    ///
    /// # Errors
    /// Those of [`Run::open`].
    pub fn refresh(&mut self) -> io::Result<()> {
        let path = self.folder.join("metrics.jsonl");
        let csv = self.folder.join("metrics.csv");
        self.read_metrics(&path).map_err(|e| with_path(&path, e))?;
        if self.offset == 0 && csv.is_file() {
            self.read_csv(&csv).map_err(|e| with_path(&csv, e))?;
        }
        self.summary = self.json(SUMMARY)?;
        self.goodput = self.json::<GoodputFile>("goodput.json")?.unwrap_or_default().runs;
        self.environment = self
            .json::<serde_json::Map<String, Json>>("environment.json")?
            .map_or(Vec::new(), |all| {
                all.into_iter().flat_map(|(name, value)| flatten(name, value)).collect()
            });
        self.config = self.text("config.toml")?;
        self.read_images();
        Ok(())
    }

    /// The metrics over the steps, by name.
    pub fn curves(&self) -> &BTreeMap<String, Curve> {
        &self.curves
    }

    /// The name of the program that trained, if it is known, and of the run: `mnist version_3`.
    pub fn title(&self) -> String {
        self.program()
            .map_or_else(|| self.name.clone(), |program| format!("{program} {}", self.name))
    }

    /// The name of the program that trained.
    pub(crate) fn program(&self) -> Option<&str> {
        let (_, path) = self.environment.iter().find(|(name, _)| name == "program")?;
        Path::new(path).file_name()?.to_str()
    }

    /// The fit's summary, if `summary.json` exists.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Reads the new lines. An incomplete line is left for the next call.
    fn read_metrics(&mut self, path: &Path) -> io::Result<()> {
        let mut file = match open_regular(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        if file.metadata()?.len() < self.offset {
            // The file was replaced.
            self.restart();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        let mut next =
            |line: &mut Vec<u8>| reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line);
        while next(&mut line)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            match serde_json::from_slice::<Line>(&line) {
                Ok(line) => self.add(line),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => self.bad_lines += 1,
            }
            line.clear();
        }
        Ok(())
    }

    fn add(&mut self, line: Line) {
        self.log_points += 1;
        for (name, value) in &line.metrics {
            self.push(name, line.step, number(value));
        }
        for (name, rows) in line.arrays {
            self.arrays.insert(name, Array { step: line.step, rows: rows.into() });
        }
    }

    fn push(&mut self, name: &str, step: u64, value: f64) {
        if let Some(curve) = self.curves.get_mut(name) {
            curve.push(step, value);
        } else if self.curves.len() < MAX_METRICS {
            self.curves.entry(name.to_owned()).or_default().push(step, value);
        }
    }

    /// Reads `metrics.csv` instead. A new metric rewrites this file, so it is always read from the
    /// start.
    fn read_csv(&mut self, path: &Path) -> io::Result<()> {
        let mut reader = csv::Reader::from_reader(open_regular(path)?);
        let header = reader.headers()?.clone();
        let Some(step) = header.iter().position(|name| name == "step") else { return Ok(()) };
        self.restart();
        for row in reader.records() {
            let Some((row, step)) =
                row.ok().and_then(|row| Some((row.clone(), row.get(step)?.parse().ok()?)))
            else {
                self.bad_lines += 1;
                continue;
            };
            self.log_points += 1;
            let values =
                header.iter().zip(&row).filter(|(name, _)| !matches!(*name, "step" | "epoch"));
            for (name, value) in values.filter(|(_, value)| !value.is_empty()) {
                self.push(name, step, value.parse().unwrap_or(f64::NAN));
            }
        }
        Ok(())
    }

    fn restart(&mut self) {
        (self.offset, self.log_points, self.bad_lines) = (0, 0, 0);
        (self.curves, self.arrays) = (BTreeMap::new(), BTreeMap::new());
    }

    /// Reads a text file, and truncates it if it is very long.
    fn text(&self, name: &str) -> io::Result<Option<String>> {
        let path = self.folder.join(name);
        let mut bytes = Vec::new();
        match open_regular(&path).and_then(|file| file.take(MAX_TEXT).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(with_path(&path, e)),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let path = self.folder.join(name);
        match read_regular(&path, MAX_JSON_BYTES) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|e| with_path(&path, e.into()))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(with_path(&path, e)),
        }
    }

    /// Reads the latest version of each image, unless it is too large. Images that cannot be read
    /// are left out.
    fn read_images(&mut self) {
        self.images.clear();
        let mut folders: Vec<PathBuf> = std::fs::read_dir(self.folder.join("media"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        folders.sort();
        let mut remaining_bytes = MAX_IMAGE_BYTES;
        for folder in folders {
            let files = std::fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            let images =
                files.filter(|file| file.extension().is_some_and(|ending| ending == "png"));
            let step = |file: &PathBuf| file.file_stem()?.to_str()?.parse::<u64>().ok();
            let Some((step, file)) = images.filter_map(|file| Some((step(&file)?, file))).max()
            else {
                continue;
            };
            if self.images.len() < MAX_IMAGES
                && let Ok(png) = read_regular(&file, remaining_bytes as u64)
            {
                remaining_bytes = remaining_bytes.saturating_sub(png.len());
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.images.push(Image { name, step, png });
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GoodputFile {
    runs: Vec<Goodput>,
}

/// Flattens an object to a list of names, whose parts are joined by dots, and values as people
/// write them: a command as in a shell, a time as a date.
fn flatten(name: String, value: Json) -> Vec<(String, String)> {
    match value {
        Json::Array(words) if name == "command" => {
            let words: Vec<String> = words.iter().map(shell_word).collect();
            vec![(name, words.join(" "))]
        }
        Json::Array(values) => {
            let texts: Vec<String> = values.iter().map(text).collect();
            vec![(name, texts.join(", "))]
        }
        Json::Number(seconds) if name == "started" => {
            vec![(name, date(seconds.as_f64().unwrap_or_default()))]
        }
        Json::Object(fields) => fields
            .into_iter()
            .flat_map(|(key, value)| flatten(format!("{name}.{key}"), value))
            .collect(),
        Json::Null => Vec::new(),
        value => vec![(name, text(&value))],
    }
}

fn text(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A word of a command, in quotes if a shell would split or change it.
fn shell_word(word: &Json) -> String {
    let word = text(word);
    let is_plain = |c: char| c.is_alphanumeric() || "-_=+./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The date and time, in UTC, of a number of seconds after the start of 1970.
fn date(seconds: f64) -> String {
    let minutes = (seconds / 60.0).floor() as i64;
    let mut days = minutes.div_euclid(1440);
    let minute = minutes.rem_euclid(1440);
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    let length = |year: i64| if is_leap(year) { 366 } else { 365 };
    while (0..10_000).contains(&year) && days >= length(year) {
        days -= length(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minute / 60, minute % 60)
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        let cases = [
            (0.0, "1970-01-01 00:00 UTC"),
            (951_827_696.0, "2000-02-29 12:34 UTC"),
            (1_767_225_599.9, "2025-12-31 23:59 UTC"),
            (1_795_871_580.0, "2026-11-28 13:13 UTC"),
        ];
        for (seconds, text) in cases {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn a_command_is_shown_as_in_a_shell() {
        let command = serde_json::json!(["./train", "--lr=0.1", "--name", "it's a test", ""]);
        let shown = "./train --lr=0.1 --name 'it'\\''s a test' ''";
        assert_eq!(flatten("command".into(), command), [("command".to_owned(), shown.to_owned())]);
    }
}
