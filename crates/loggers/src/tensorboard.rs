//! [`TensorBoardLogger`]: event files for TensorBoard.

use std::io;
use std::path::Path;

use prost::Message;
use serde_json::{Map, Value as Json};

use crate::event::{
    Event, FILE_VERSION, HParam, HParams, HistogramProto, Image, Metadata, SessionEnd,
    SessionStart, Summary, Tensor, Value,
};
use crate::jsonl::unix_seconds;
use crate::record_file::RecordFile;
use crate::{Images, LogPoint, LoggedArray, Logger, Media, Status};

/// Writes an event file into the run's folder. `tensorboard --logdir runs` shows all runs: numbers,
/// images, histograms, texts, and the hyperparameters with the last values. A metric with one
/// number per class is shown as `NAME/0` and so on. A matrix, such as a confusion matrix, is shown
/// as an image, in which each row goes from black (0) to white (the largest number of the row).
///
/// ```
/// use fulmen_loggers::{LogPoint, Logger, TensorBoardLogger};
///
/// let folder = tempfile::tempdir()?;
/// let mut logger = TensorBoardLogger::new();
/// logger.start(folder.path())?;
/// logger.log(&LogPoint { metrics: vec![("train_loss".to_owned(), 0.25)], ..LogPoint::default() })?;
/// let name = std::fs::read_dir(folder.path())?.next().unwrap()?.file_name();
/// assert!(name.to_string_lossy().starts_with("events.out.tfevents."));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TensorBoardLogger {
    file: RecordFile,
    /// Whether there are hyperparameters. Their table also shows when the run ended.
    has_hparams: bool,
}

impl TensorBoardLogger {
    /// Creates a logger. The Trainer sets its folder.
    pub fn new() -> TensorBoardLogger {
        TensorBoardLogger::default()
    }

    fn write(&mut self, step: u64, value: Vec<Value>) -> io::Result<()> {
        if value.is_empty() {
            return Ok(());
        }
        let summary = Some(Summary { value });
        self.file.append(
            &Event { wall_time: unix_seconds(), step: step as i64, summary, ..Event::default() }
                .record(),
        )
    }

    fn write_hparams(&mut self, tag: &str, hparams: &HParams) -> io::Result<()> {
        let metadata = Some(Metadata::for_plugin("hparams", hparams.encode_to_vec()));
        self.write(0, vec![Value { tag: format!("_hparams_/{tag}"), metadata, ..Value::default() }])
    }
}

impl Logger for TensorBoardLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        let time = unix_seconds();
        let process = std::process::id();
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = Some(hostname.trim()).filter(|host| !host.is_empty()).unwrap_or("localhost");
        let name = format!("events.out.tfevents.{:010}.{host}.{process}", time as u64);
        self.file = RecordFile::new(run_dir.join(name))?;
        self.has_hparams = false;
        let file_version = Some(FILE_VERSION.to_owned());
        self.file.append(&Event { wall_time: time, file_version, ..Event::default() }.record())
    }

    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> io::Result<()> {
        let hparams =
            hyperparameters.iter().map(|(name, value)| (name.clone(), hparam(value))).collect();
        let session_start = SessionStart { hparams, start_time_secs: unix_seconds() };
        self.has_hparams = true;
        let start = HParams { session_start_info: Some(session_start), ..HParams::default() };
        self.write_hparams("session_start_info", &start)
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        let number = |(tag, x)| Value { tag, simple_value: Some(x as f32), ..Value::default() };
        let mut values: Vec<Value> = point.columns().into_iter().map(number).collect();
        for (name, value) in &point.arrays {
            if let LoggedArray::Matrix(rows) = value {
                values.extend(heat_map(rows).map(|images| image(name, &images)).transpose()?);
            }
        }
        for (name, media) in &point.media {
            values.push(match media {
                Media::Image(images) => image(name, images)?,
                Media::Text(texts) => {
                    let tensor = Some(Tensor::from_texts(texts));
                    let metadata = Some(Metadata::for_plugin("text", Vec::new()));
                    Value { tag: name.clone(), tensor, metadata, ..Value::default() }
                }
                Media::Histogram(histogram) => {
                    let histo = HistogramProto {
                        min: histogram.low,
                        max: histogram.high,
                        num: histogram.counts.iter().sum::<u64>() as f64,
                        sum: histogram.sum,
                        sum_squares: histogram.sum_squares,
                        bucket_limit: histogram.edges().split_off(1),
                        bucket: histogram.counts.iter().map(|&count| count as f64).collect(),
                    };
                    Value { tag: name.clone(), histo: Some(histo), ..Value::default() }
                }
            });
        }
        self.write(point.global_step, values)
    }

    fn finalize(&mut self, status: Status) -> io::Result<()> {
        if !self.has_hparams {
            return Ok(());
        }
        let status = if status == Status::Failed { 2 } else { 1 };
        let end = HParams {
            session_end_info: Some(SessionEnd { status, end_time_secs: unix_seconds() }),
            ..HParams::default()
        };
        self.write_hparams("session_end_info", &end)
    }
}

fn hparam(value: &Json) -> HParam {
    match value {
        Json::Bool(value) => HParam { bool_value: Some(*value), ..HParam::default() },
        Json::Number(number) => HParam { number_value: number.as_f64(), ..HParam::default() },
        Json::String(text) => HParam { string_value: Some(text.clone()), ..HParam::default() },
        value => HParam { string_value: Some(value.to_string()), ..HParam::default() },
    }
}

fn image(name: &str, images: &Images) -> io::Result<Value> {
    let encoded_image_string = images.png()?;
    // The width and height of a PNG are the first two numbers of its first chunk.
    let size = |offset: usize| {
        let bytes =
            encoded_image_string.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, i32::from_be_bytes)
    };
    let width = size(16);
    let height = size(20);
    let colorspace = images.shape[1] as i32;
    let image = Image { height, width, colorspace, encoded_image_string };
    Ok(Value { tag: name.to_owned(), image: Some(image), ..Value::default() })
}

/// Makes an image with one pixel per number. Black is 0, and white is the largest number of a row.
/// `None` for an empty matrix.
fn heat_map(rows: &[Vec<f64>]) -> Option<Images> {
    let width = rows.first().map_or(0, Vec::len);
    let row_pixels = |row: &Vec<f64>| {
        let largest = row.iter().copied().fold(0.0, f64::max);
        let pixel = |x: &f64| {
            if largest > 0.0 { (255.0 * x / largest).clamp(0.0, 255.0).round() as u8 } else { 0 }
        };
        row.iter().map(pixel).collect::<Vec<u8>>()
    };
    let pixels: Vec<u8> = rows.iter().flat_map(row_pixels).collect();
    let is_whole = !pixels.is_empty() && pixels.len() == rows.len() * width;
    is_whole.then_some(Images { shape: [1, 1, rows.len(), width], pixels })
}

#[cfg(test)]
mod tests;
