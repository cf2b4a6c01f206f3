//! Writes the report of a fit to the folder of its run: `summary.json`, `report.html` and an image
//! of the first batch. The loggers' thread creates and writes them. `fulmen-report` has the content
//! of the page.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_data::{DeviceBatches, HostBatch};
use fulmen_report::{Run, SUMMARY, State, Summary};
use fulmen_tensor::DType;
use parking_lot::Mutex;

use super::Fit;
use crate::console::warning;
use crate::hooks::FitStart;
use crate::program::StepCost;
use crate::session::Session;
use crate::state::model_summary;
use crate::step_config::StepConfig;
use crate::{Error, FitSummary, Images, Media, TrainStart, TrainingModule, host_memory};

/// The shortest time between two reports, except before the last one.
const INTERVAL: Duration = Duration::from_secs(1);
/// The depth of the model's table.
const MODEL_DEPTH: usize = 3;
/// The number of samples of the first batch that are shown.
const SAMPLES: usize = 12;
/// The longest side of each sample, in pixels.
const SIDE: usize = 48;

/// The state that the reports of a fit share.
pub(super) struct Reports {
    /// The values that don't change.
    facts: Summary,
    /// Floating-point operations of a batch on each device.
    flops: Option<f64>,
    pub(super) temporaries: Option<u64>,
    written: Option<Instant>,
    writer: SharedWriter,
}

/// The writer, which runs on the loggers' thread.
type SharedWriter = Arc<Mutex<Writer>>;

/// Writes the files of the report.
#[derive(Default)]
struct Writer {
    /// The run, as read from the folder.
    run: Option<Run>,
    /// Whether a failure was reported.
    warned: bool,
}

impl Reports {
    pub(super) fn new(
        module: &dyn TrainingModule,
        config: &StepConfig,
        fit_start: &FitStart,
        start: &TrainStart<'_>,
    ) -> Reports {
        let model = model_summary(module, config, MODEL_DEPTH);
        let settings = [
            ("mesh", fit_start.mesh.clone()),
            ("precision", fit_start.precision.clone()),
            ("batch_size", fit_start.batch_size.to_string()),
            ("parameters", fit_start.num_parameters.to_string()),
        ];
        let facts = Summary {
            model: model.rows().to_vec(),
            model_total: model.total(),
            lines: start.cost().map(StepCost::most_expensive).unwrap_or_default(),
            peak_flops: start.peak_flops(),
            setting: settings.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Summary::default()
        };
        let flops = start.flops();
        let temporaries = start.temporary_bytes();
        Reports { facts, flops, temporaries, written: None, writer: SharedWriter::default() }
    }
}

impl Fit<'_> {
    /// Writes the report at the end of an epoch, unless the last one was written just before.
    pub(super) fn report_epoch(&mut self) {
        if self.reports.written.is_none_or(|written| written.elapsed() > INTERVAL) {
            self.report(State::Running, None);
            self.reports.written = Some(Instant::now());
        }
    }

    /// Writes the last report, with the end of the fit.
    pub(super) fn report_end(&mut self, error: Option<&Error>) {
        let FitSummary { interrupted, signal, stopped, .. } = &self.summary;
        let (state, reason) = match error {
            Some(error) => (State::Failed, Some(error.to_string())),
            None if *interrupted => (State::Interrupted, signal.map(|signal| signal.to_string())),
            None => (State::Finished, stopped.clone()),
        };
        self.report(state, reason);
    }

    fn report(&mut self, state: State, reason: Option<String>) {
        if !self.session.writes() {
            return;
        }
        let Some(run_dir) = self.session.record.run_dir.clone() else { return };
        let seconds = |time: Duration| time.as_secs_f64();
        let batches_per_second = self.times.steps_per_second();
        let loader = self.step.train.report();
        let fit_advice = self.advice(&loader);
        let bottleneck = loader.bottleneck();
        let summary = Summary {
            state,
            reason,
            epochs: self.step.position.epoch,
            global_step: self.step.position.global_step,
            time_to_first_step: seconds(self.summary.time_to_first_step),
            step_time_p50: seconds(self.times.median()),
            samples_per_second: self.samples_per_second(),
            data_wait_share: self.times.wait_share(),
            // The page shows the loader's own advice separately.
            advice: self
                .session
                .record
                .hints
                .iter()
                .chain(&fit_advice)
                .filter(|&advice| *advice != bottleneck)
                .cloned()
                .collect(),
            loader: Some(bottleneck),
            compilations: self.session.record.compilations.clone(),
            flops_per_second: self.reports.flops.map(|flops| flops * batches_per_second),
            step_times: self.times.distribution.clone(),
            memory: self.memory(),
            host_memory: host_memory::resident(),
            learning_rates: self.session.record.learning_rates.clone(),
            hosts: self.hosts.iter().map(|host| host.summary.clone()).collect(),
            ..self.reports.facts.clone()
        };
        let writer = Arc::clone(&self.reports.writer);
        self.session.loggers.run("report", move || writer.lock().write(&run_dir, &summary));
    }

    /// Writes an image of the first batch, if the batch has images.
    pub(super) fn show_first_batch(&self, batches: &mut DeviceBatches) {
        let (Some(run_dir), true) = (self.session.record.run_dir.clone(), self.session.writes())
        else {
            return;
        };
        let Some(batch) = batches.first_on_host() else { return };
        let writer = Arc::clone(&self.reports.writer);
        self.session.loggers.run("first batch", move || {
            let Some(images) = first_images(&batch) else { return };
            drop(batch);
            let folder = run_dir.join("media").join("first_batch");
            let images = Media::Image(images);
            let written = std::fs::create_dir_all(&folder).and_then(|()| {
                let (ending, bytes) = images.to_file()?;
                replace(&folder.join("0").with_extension(ending), &bytes)
            });
            writer.lock().warn_once(written);
        });
    }
}

/// Writes the report of a fit that failed before its first step.
pub(super) fn report_failure(session: &Session, error: &Error) {
    let (Some(run_dir), true) = (session.record.run_dir.clone(), session.writes()) else { return };
    let compilations = session.record.compilations.clone();
    let summary = Summary {
        state: State::Failed,
        reason: Some(error.to_string()),
        compilations,
        ..Summary::default()
    };
    session.loggers.run("report", move || Writer::default().write(&run_dir, &summary));
}

/// Writes the page again after an evaluation outside of a fit, with its results.
pub(crate) fn report_evaluation(session: &Session) {
    let (Some(run_dir), true) = (session.record.run_dir.clone(), session.writes()) else { return };
    session.loggers.run("report", move || {
        let mut writer = Writer::default();
        let written = writer.write_page(&run_dir);
        writer.warn_once(written);
    });
}

impl Writer {
    fn write(&mut self, run_dir: &Path, summary: &Summary) {
        let written = self.try_write(run_dir, summary);
        self.warn_once(written);
    }

    fn try_write(&mut self, run_dir: &Path, summary: &Summary) -> io::Result<()> {
        replace(&run_dir.join(SUMMARY), &serde_json::to_vec_pretty(summary)?)?;
        self.write_page(run_dir)
    }

    fn write_page(&mut self, run_dir: &Path) -> io::Result<()> {
        let run = match &mut self.run {
            Some(run) => {
                run.refresh()?;
                run
            }
            None => self.run.insert(Run::open(run_dir)?),
        };
        replace(
            &run_dir.join("report.html"),
            fulmen_report::report(std::slice::from_ref(run)).as_bytes(),
        )
    }

    /// Warns about the first failure. A failure never ends the training.
    fn warn_once(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.warned, true)
        {
            warning!("cannot write the report of the run: {error}");
        }
    }
}

/// Replaces a file without waiting for the disk. The file is written again soon, so it need not
/// survive a power failure.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = fulmen_durable::write_unsynced(path, Some(bytes.len() as u64), |file| {
        file.write_all(bytes)
    });
    written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// An image of the first samples, from the first field that has the shape of images. Each sample is
/// at most [`SIDE`] pixels wide and high; larger samples are reduced to every n-th pixel. Floats
/// are scaled to the range of their channel.
fn first_images(batch: &HostBatch) -> Option<Images> {
    let is_color = |channels: usize| matches!(channels, 1 | 3 | 4);
    let fields = batch.fields().iter().enumerate();
    // `size` has channels, height and width, and `strides` the distance of two neighbors along each
    // of them.
    let (field, dtype, size, strides) = fields.into_iter().find_map(|(i, field)| {
        let (size, strides) = match field.shape[..] {
            [c, h, w] if is_color(c) && h > 3 && w > 3 => ([c, h, w], [h * w, w, 1]),
            [h, w, c] if is_color(c) && h > 3 && w > 3 => ([c, h, w], [1, w * c, c]),
            [h, w] if h > 3 && w > 3 => ([1, h, w], [h * w, w, 1]),
            _ => return None,
        };
        matches!(field.dtype, DType::U8 | DType::F32).then_some((i, field.dtype, size, strides))
    })?;
    let [channels, height, width] = size;
    let rows = batch.valid().min(SAMPLES);
    let stride = height.max(width).div_ceil(SIDE);
    let high = height.div_ceil(stride);
    let wide = width.div_ceil(stride);
    let row = channels * height * width;
    let source_index = |n: usize, c: usize, y: usize, x: usize| {
        n * row + c * strides[0] + y * stride * strides[1] + x * stride * strides[2]
    };
    let values: Box<dyn Fn(usize) -> f32> = match dtype {
        DType::U8 => {
            let bytes = batch.values::<u8>(field).ok()?;
            Box::new(move |i| f32::from(bytes[i]))
        }
        _ => {
            let numbers = batch.values::<f32>(field).ok()?;
            Box::new(move |i| numbers[i])
        }
    };
    let mut pixels = vec![0; rows * channels * high * wide];
    // The index of each pixel of a channel in `pixels`, and in the batch.
    let indices = |c: usize| {
        (0..rows)
            .flat_map(move |n| (0..high).flat_map(move |y| (0..wide).map(move |x| (n, y, x))))
            .map(move |(n, y, x)| {
                (((n * channels + c) * high + y) * wide + x, source_index(n, c, y, x))
            })
    };
    for c in 0..channels {
        let finite = || indices(c).map(|(_, from)| values(from)).filter(|value| value.is_finite());
        let (low, high) = match dtype {
            DType::U8 => (0.0, 255.0),
            _ => finite().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            }),
        };
        let range = if high > low { high - low } else { 1.0 };
        for (to, from) in indices(c) {
            // NaN becomes black.
            pixels[to] = ((values(from) - low) / range * 255.0) as u8;
        }
    }
    (rows > 0).then_some(Images { shape: [rows, channels, high, wide], pixels })
}

#[cfg(test)]
mod tests {
    use fulmen_data::{DataLoader, TensorDataset};

    use super::*;

    #[test]
    fn images_may_have_channels_first_or_last_and_are_scaled_to_their_range() {
        let first = |dims: [usize; 4], values: Vec<f32>| {
            let data = TensorDataset::builder().array("x", dims, values).build().unwrap();
            let loader = DataLoader::builder(data).batch_size(2).build().unwrap();
            first_images(&loader.epoch(0).next().unwrap().unwrap())
        };
        // The same two images, with channels last and with channels first.
        let last: Vec<f32> = (0..2 * 4 * 5 * 3)
            .map(|i| (i / 3 % 20) as f32 * if i % 3 == 0 { 1.0 } else { -2.0 })
            .collect();
        let value = |n: usize, c: usize, pixel: usize| last[(n * 20 + pixel) * 3 + c];
        let channels_first: Vec<f32> = (0..2)
            .flat_map(|n| (0..3).flat_map(move |c| (0..20).map(move |pixel| (n, c, pixel))))
            .map(|(n, c, pixel)| value(n, c, pixel))
            .collect();
        let images = first([2, 4, 5, 3], last.clone()).unwrap();
        assert_eq!(images.shape, [2, 3, 4, 5]);
        assert_eq!(first([2, 3, 4, 5], channels_first), Some(images.clone()));
        // The first channel rises from 0 to 19, the others fall from 0 to -38.
        assert_eq!(
            (images.pixels[0], images.pixels[19], images.pixels[20], images.pixels[39]),
            (0, 255, 255, 0)
        );
        assert_eq!(images.pixels[1], (255.0 / 19.0) as u8);
        let large = first([2, 1, 100, 49], vec![0.5; 2 * 4900]).unwrap();
        assert_eq!(large.shape, [2, 1, 34, 17]);
        assert_eq!(first([2, 5, 4, 7], vec![0.0; 280]), None, "five channels are not an image");
    }
}
