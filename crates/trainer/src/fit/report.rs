//! What a fit tells of itself in the folder of its run: `summary.json`, `report.html` and a picture of the first batch.
//! They are made and written on the loggers' thread. What a page shows is not here but in `fulmen-report`.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_data::{DeviceBatches, HostBatch};
use fulmen_report::{DeviceMemory, Run, SUMMARY, State, Summary};
use fulmen_tensor::DType;
use parking_lot::Mutex;

use super::Fit;
use crate::console::note;
use crate::hooks::FitStart;
use crate::program::StepCost;
use crate::run::session::Session;
use crate::state::model_summary;
use crate::step_config::StepConfig;
use crate::{Error, FitSummary, Media, Picture, TrainStart, TrainingModule, host_memory};

/// A page is written again after this time at the earliest, except the last one.
const BETWEEN: Duration = Duration::from_secs(1);
/// How deep the table of the model goes.
const MODEL_DEPTH: usize = 3;
/// Samples of the first batch that are shown, and the longest side in pixels.
const SAMPLES: usize = 12;
const SIDE: usize = 48;

/// What the reports of a fit have in common.
pub(super) struct Reports {
    /// What does not change.
    facts: Summary,
    /// Arithmetic operations of a batch on each device.
    flops: Option<f64>,
    temporaries: Option<u64>,
    written: Option<Instant>,
    writer: Writer,
}

/// What writes on the loggers' thread.
type Writer = Arc<Mutex<Written>>;

/// What was read of the folder, and whether a failure was told.
#[derive(Default)]
struct Written {
    run: Option<Run>,
    told: bool,
}

impl Reports {
    pub(super) fn new(
        module: &dyn TrainingModule,
        setting: &StepConfig,
        of_fit: &FitStart,
        start: &TrainStart<'_>,
    ) -> Reports {
        let model = model_summary(module, setting, MODEL_DEPTH);
        let told = [
            ("mesh", of_fit.mesh.clone()),
            ("precision", of_fit.precision.clone()),
            ("batch_size", of_fit.batch_size.to_string()),
            ("parameters", of_fit.num_parameters.to_string()),
        ];
        let facts = Summary {
            model: model.rows().to_vec(),
            model_total: model.total(),
            lines: start.cost().map(StepCost::most_expensive).unwrap_or_default(),
            peak_flops: start.peak_flops(),
            setting: told.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Summary::default()
        };
        let (flops, temporaries) = (start.flops(), start.temporary_bytes());
        Reports { facts, flops, temporaries, written: None, writer: Writer::default() }
    }
}

impl Fit<'_> {
    /// Writes the report at the end of an epoch, if the last one is not just written.
    pub(super) fn report_epoch(&mut self) {
        if self.reports.written.is_none_or(|written| written.elapsed() > BETWEEN) {
            self.report(State::Running, None);
            self.reports.written = Some(Instant::now());
        }
    }

    /// Writes how the fit ended.
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
        let measured = self.measure(&loader);
        let loader = loader.bottleneck();
        let state_bytes = self.summary.state_bytes.iter().map(|&bytes| bytes as u64);
        let memory = self.session.runtime.local_devices().zip(state_bytes).map(|(device, state)| {
            let stats = device.memory_stats().ok();
            DeviceMemory {
                device: device.to_string(),
                state,
                temporaries: self.reports.temporaries,
                peak: stats.as_ref().and_then(|stats| Some(stats.peak_bytes_in_use? as u64)),
                limit: stats.as_ref().and_then(|stats| Some(stats.bytes_limit? as u64)),
            }
        });
        let summary = Summary {
            state,
            reason,
            epochs: self.step.position.epoch,
            global_step: self.step.position.global_step,
            time_to_first_step: seconds(self.summary.time_to_first_step),
            step_time_p50: seconds(self.times.median()),
            samples_per_second: self.samples_per_second(),
            data_wait_share: self.times.wait_share(),
            // What the loader says is shown without it.
            advice: self
                .session
                .record
                .hints
                .iter()
                .chain(&measured)
                .filter(|&advice| *advice != loader)
                .cloned()
                .collect(),
            loader: Some(loader),
            compilations: self.session.record.compilations.clone(),
            flops_per_second: self.reports.flops.map(|flops| flops * batches_per_second),
            step_times: self.times.distribution.clone(),
            memory: memory.collect(),
            host_memory: host_memory::resident(),
            ..self.reports.facts.clone()
        };
        let writer = Arc::clone(&self.reports.writer);
        self.session.loggers.run("report", move || writer.lock().write(&run_dir, &summary));
    }

    /// Writes a picture of the first batch, if it has pictures.
    pub(super) fn show_first_batch(&self, batches: &mut DeviceBatches) {
        let (Some(run_dir), true) = (self.session.record.run_dir.clone(), self.session.writes()) else { return };
        let Some(batch) = batches.first_on_host() else { return };
        let writer = Arc::clone(&self.reports.writer);
        self.session.loggers.run("first batch", move || {
            let Some(picture) = pictures(&batch) else { return };
            drop(batch);
            let (folder, picture) = (run_dir.join("media").join("first_batch"), Media::Image(picture));
            let written = std::fs::create_dir_all(&folder).and_then(|()| {
                let (ending, bytes) = picture.to_file()?;
                replace(&folder.join("0").with_extension(ending), &bytes)
            });
            writer.lock().tell(written);
        });
    }
}

/// Writes that a fit has failed before its first step.
pub(super) fn report_failure(session: &Session, error: &Error) {
    let (Some(run_dir), true) = (session.record.run_dir.clone(), session.writes()) else { return };
    let compilations = session.record.compilations.clone();
    let summary = Summary { state: State::Failed, reason: Some(error.to_string()), compilations, ..Summary::default() };
    session.loggers.run("report", move || Written::default().write(&run_dir, &summary));
}

impl Written {
    fn write(&mut self, run_dir: &Path, summary: &Summary) {
        let written = self.try_write(run_dir, summary);
        self.tell(written);
    }

    fn try_write(&mut self, run_dir: &Path, summary: &Summary) -> io::Result<()> {
        replace(&run_dir.join(SUMMARY), &serde_json::to_vec_pretty(summary)?)?;
        let run = match &mut self.run {
            Some(run) => {
                run.refresh()?;
                run
            }
            None => self.run.insert(Run::open(run_dir)?),
        };
        replace(&run_dir.join("report.html"), fulmen_report::report(std::slice::from_ref(run)).as_bytes())
    }

    /// Tells of the first failure; training is worth more than its report.
    fn tell(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.told, true)
        {
            note(&format!("warning: the report of the run could not be written: {error}"));
        }
    }
}

/// Without waiting for the disk: what is written again soon need not survive a power cut.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = fulmen_durable::write_unsynced(path, Some(bytes.len() as u64), |file| file.write_all(bytes));
    written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The first rows of the first field that looks like pictures, at most [`SIDE`] pixels wide and high; of larger ones each
/// n-th pixel. Numbers other than bytes are spread over the range that they have in their channel.
fn pictures(batch: &HostBatch) -> Option<Picture> {
    let is_colour = |channels: usize| matches!(channels, 1 | 3 | 4);
    let fields = batch.fields().iter().enumerate();
    // Channels, height and width, and how far two neighbours along each are from each other.
    let (field, dtype, size, strides) = fields.into_iter().find_map(|(i, field)| {
        let (size, strides) = match field.shape[..] {
            [c, h, w] if is_colour(c) && h > 3 && w > 3 => ([c, h, w], [h * w, w, 1]),
            [h, w, c] if is_colour(c) && h > 3 && w > 3 => ([c, h, w], [1, w * c, c]),
            [h, w] if h > 3 && w > 3 => ([1, h, w], [h * w, w, 1]),
            _ => return None,
        };
        matches!(field.dtype, DType::U8 | DType::F32).then_some((i, field.dtype, size, strides))
    })?;
    let [channels, height, width] = size;
    let rows = batch.valid().min(SAMPLES);
    let stride = height.max(width).div_ceil(SIDE);
    let (high, wide) = (height.div_ceil(stride), width.div_ceil(stride));
    let row = channels * height * width;
    let at = |n: usize, c: usize, y: usize, x: usize| {
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
    let places = |c: usize| {
        (0..rows)
            .flat_map(move |n| (0..high).flat_map(move |y| (0..wide).map(move |x| (n, y, x))))
            .map(move |(n, y, x)| (((n * channels + c) * high + y) * wide + x, at(n, c, y, x)))
    };
    for c in 0..channels {
        let finite = || places(c).map(|(_, from)| values(from)).filter(|value| value.is_finite());
        let (low, high) = match dtype {
            DType::U8 => (0.0, 255.0),
            _ => finite()
                .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value))),
        };
        let range = if high > low { high - low } else { 1.0 };
        for (to, from) in places(c) {
            // A number that is not finite is black.
            pixels[to] = ((values(from) - low) / range * 255.0) as u8;
        }
    }
    (rows > 0).then_some(Picture { shape: [rows, channels, high, wide], pixels })
}

#[cfg(test)]
mod tests {
    use fulmen_data::{DataLoader, TensorDataset};

    use super::*;

    #[test]
    fn pictures_are_found_in_any_order_of_axes_and_spread_over_their_range() {
        let first = |dims: [usize; 4], values: Vec<f32>| {
            let data = TensorDataset::builder().array("x", dims, values).build().unwrap();
            let loader = DataLoader::builder(data).batch_size(2).build().unwrap();
            pictures(&loader.epoch(0).next().unwrap().unwrap())
        };
        // Two pictures of two pixels' kinds: channels last, and the same channels first.
        let last: Vec<f32> =
            (0..2 * 4 * 5 * 3).map(|i| (i / 3 % 20) as f32 * if i % 3 == 0 { 1.0 } else { -2.0 }).collect();
        let from = |n: usize, c: usize, at: usize| last[(n * 20 + at) * 3 + c];
        let channels_first: Vec<f32> = (0..2)
            .flat_map(|n| (0..3).flat_map(move |c| (0..20).map(move |at| (n, c, at))))
            .map(|(n, c, at)| from(n, c, at))
            .collect();
        let picture = first([2, 4, 5, 3], last.clone()).unwrap();
        assert_eq!(picture.shape, [2, 3, 4, 5]);
        assert_eq!(first([2, 3, 4, 5], channels_first), Some(picture.clone()));
        // The first channel rises from 0 to 19, the others fall from 0 to -38.
        assert_eq!((picture.pixels[0], picture.pixels[19], picture.pixels[20], picture.pixels[39]), (0, 255, 255, 0));
        assert_eq!(picture.pixels[1], (255.0 / 19.0) as u8);
        let large = first([2, 1, 100, 49], vec![0.5; 2 * 4900]).unwrap();
        assert_eq!(large.shape, [2, 1, 34, 17]);
        assert_eq!(first([2, 5, 4, 7], vec![0.0; 280]), None, "five channels are not an image");
    }
}
