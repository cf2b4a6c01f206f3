//! `fulmen cache`: makes caches of images before a training run, and maintains caches of any data.
//!
//! Out of scope: the caches themselves (`fulmen-cache`).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::compile_cache;
use crate::limits::Limits;
use crate::progress::Reporter;
use clap::{Args, Subcommand};
use fulmen_cache::{CacheEvent, CacheExt};
use fulmen_cache::{CacheInfo, cache_info, clear_cache, repair_cache, verify_cache};
use fulmen_cli::pack::Progress;
use fulmen_data::Dataset;
use fulmen_data::Result;
use fulmen_durable::messages::quantity;
use fulmen_images::{ImageFolder, ImagePipeline};

/// Makes, shows, verifies and clears cached datasets, and compiled programs
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Decodes and resizes the images of a folder by class once, and caches them for training runs
    #[command(
        long_about = "Decodes and resizes the images of a folder by class (FOLDER/class/image.jpg) once, and \
                            caches them as the fields image, u8[3, size, size], and label, i32. A training opens the \
                            cache by its path, or by the same pipeline with \
                            .cache(path).version(..).variants(..).seed(..). An interrupted run can be continued"
    )]
    Warm(Warm),
    /// Shows what the caches at a path contain, how large they are, and what is missing
    Info(CachePath),
    /// Verifies the checksums of the caches at a path
    Verify {
        #[command(flatten)]
        cache: CachePath,
        /// Remove damaged parts from the caches, so that making them again writes only those
        #[arg(long)]
        repair: bool,
    },
    /// Removes the caches at a path, and no other files
    Clear(CachePath),
    Compile(compile_cache::Arguments),
}
#[derive(Debug, Args)]
pub(crate) struct Warm {
    /// The folder of images, with a subfolder for each class
    #[arg(long, value_name = "FOLDER")]
    images: PathBuf,
    /// The folder of the cache; it may have caches of other images or options
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// A copy of the cache for other machines: gs://bucket/folder, s3://bucket/folder or a folder.
    /// If it is there, it is copied from there instead of being made
    #[arg(long, value_name = "PLACE")]
    store: Option<String>,
    /// The side of the images in pixels
    #[arg(long, default_value_t = 224, value_name = "PIXELS")]
    size: usize,
    /// Resize the shorter side to this many pixels first, then crop the middle
    #[arg(
        long,
        value_name = "PIXELS",
        default_value_t = 256,
        conflicts_with = "random_resized_crop"
    )]
    resize: usize,
    /// Crop a random part and resize it, as for training
    #[arg(long)]
    random_resized_crop: bool,
    /// Flip left and right with this probability
    #[arg(long, value_name = "PROBABILITY")]
    flip: Option<f64>,
    #[command(flatten)]
    limits: Limits,
    /// How many variants of each image to cache, each with another augmentation
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    variants: usize,
    /// The seed of the augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Your name for this version of the data; a new name makes a new cache
    #[arg(long, default_value = "", value_name = "NAME")]
    data_version: String,
    /// Threads that decode [default: one per core]
    #[arg(long, value_name = "NUMBER")]
    workers: Option<usize>,
    /// How many images may fail to decode; they also fail in a training run, which can skip them
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    allow_bad: usize,
    /// Fail if the folder has a cache of other samples, and list the differences
    #[arg(long)]
    refuse_others: bool,
    /// Only print the size of the cache
    #[arg(long)]
    dry_run: bool,
}
impl Warm {
    fn pipeline(&self) -> ImagePipeline {
        let pipeline = if self.random_resized_crop {
            ImagePipeline::rgb().random_resized_crop(self.size)
        } else {
            ImagePipeline::rgb().resize(self.resize).center_crop(self.size)
        };
        let pipeline = match self.flip {
            Some(probability) => pipeline.horizontal_flip(probability),
            None => pipeline,
        };
        let pipeline = match self.limits.max_pixels {
            Some(pixels) => pipeline.max_pixels(pixels),
            None => pipeline,
        };
        if self.limits.keep_damaged { pipeline.keep_damaged() } else { pipeline }
    }

    fn run(self) -> Result<()> {
        let data = ImageFolder::open(&self.images)?.decode(self.pipeline())?;
        let mut builder = data
            .cache(&self.output)
            .version(self.data_version)
            .variants(self.variants)
            .seed(self.seed)
            .allow_bad_samples(self.allow_bad)
            .refuse_others(self.refuse_others);
        if let Some(workers) = self.workers {
            builder = builder.workers(workers);
        }
        if let Some(store) = self.store {
            builder = builder.store(store);
        }
        if self.dry_run {
            outln!("{}", builder.estimate()?);
            return Ok(());
        }
        let reporter = Arc::new(Reporter::new());
        let printer =
            Mutex::new(EventPrinter { reporter: Arc::clone(&reporter), done: 0, waiting: false });
        let cached = builder
            .on_event(move |event| {
                printer.lock().unwrap_or_else(PoisonError::into_inner).print(event)
            })
            .open()?;
        drop(reporter);
        outln!("{} in {}", quantity(cached.len(), "sample"), cached.path().display());
        for message in cached.bad_samples().take(20) {
            outln!("  bad: {message}");
        }
        Ok(())
    }
}

/// Prints events of a cache.
struct EventPrinter {
    reporter: Arc<Reporter>,
    /// The number of bytes of finished samples.
    done: u64,
    waiting: bool,
}
impl EventPrinter {
    fn print(&mut self, event: CacheEvent) {
        match event {
            CacheEvent::Differs { differences } => {
                self.reporter
                    .note("there is a cache of other samples; a new one is created next to it:");
                differences.iter().for_each(|line| self.reporter.note(&format!("  {line}")));
            }
            CacheEvent::Waiting { holder } if !self.waiting => {
                self.waiting = true;
                self.reporter
                    .begin(&format!("waiting for {holder}, which is making this cache"), 0);
            }
            CacheEvent::Started(estimate) => {
                self.reporter.note(&estimate.to_string());
                let samples = (estimate.samples as u64).saturating_mul(estimate.variants as u64);
                self.reporter.begin("caching", samples.saturating_mul(estimate.sample_bytes));
            }
            CacheEvent::Progress { done, sample_bytes, .. } => {
                let done = (done as u64).saturating_mul(sample_bytes);
                self.reporter.advance(done.saturating_sub(self.done));
                self.done = done;
            }
            // `Finished` is reported by the caller. Later versions may add other events.
            _ => {}
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CachePath {
    /// The folder that a cache was made with, or the subfolder of one cache
    path: PathBuf,
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Warm(warm) => warm.run(),
        Command::Info(CachePath { path }) => {
            cache_info(path)?.iter().for_each(show);
            Ok(())
        }
        Command::Verify { cache: CachePath { path }, repair: true } => {
            let removed = repair_cache(path)?;
            for file in &removed {
                outln!("removed {}", file.display());
            }
            match removed.len() {
                0 => outln!("everything is intact"),
                count => outln!(
                    "removed {}; make the cache again to write what is missing",
                    quantity(count, "file")
                ),
            }
            Ok(())
        }
        Command::Verify { cache: CachePath { path }, repair: false } => verify(path),
        Command::Clear(CachePath { path }) => {
            outln!("freed {}", quantity(clear_cache(path)?, "byte"));
            Ok(())
        }
        Command::Compile(arguments) => compile_cache::run(arguments),
    }
}

fn verify(path: PathBuf) -> Result<()> {
    let reporter = Reporter::new();
    let mut previous = None;
    let bytes = verify_cache(path, |read, total| {
        if previous.is_none() {
            reporter.begin("verifying", total);
        }
        reporter.advance(read - previous.replace(read).unwrap_or(0));
    })?;
    drop(reporter);
    outln!("all {bytes} bytes are intact");
    Ok(())
}

fn show(info: &CacheInfo) {
    outln!("{}", info.path.display());
    outln!("  {}", info.estimate);
    for field in &info.fields {
        outln!("  field {field}");
    }
    outln!("  key {}", info.key);
    for line in &info.depends_on {
        outln!("    {line}");
    }
    if info.bad_samples > 0 {
        outln!("  {} could not be read", quantity(info.bad_samples, "sample"));
    }
    match (&info.writer, info.is_complete()) {
        (Some(writer), _) => outln!("  being written by {writer}"),
        (None, false) => outln!("  not finished; make it again to continue"),
        (None, true) => {}
    }
}
