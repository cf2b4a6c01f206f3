//! Pre-sizing: makes the images of a folder smaller once and writes them into a few tar shards.
//!
//! Images are read in rounds, decoded by several threads, and written in order, so the shards do
//! not depend on the number of threads.
//!
//! Out of scope: the tar files (`fulmen-shards`), and caching decoded samples (`fulmen-cache`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pack::{MAX_JSON_BYTES, Progress, shards_info};
use fulmen_data::internal::panicked;
use fulmen_data::{Error, Fingerprint, Result, SampleRng, Source};
use fulmen_data::{internal::Purpose, internal::permutation};
use fulmen_data::{internal::cores, internal::in_parallel};
use fulmen_files as store;
use fulmen_files::Lock;
use fulmen_images::{Encoding, ImageFolder, ImagePipeline, encode_image};
use fulmen_shards::{TarShardWriter, WrittenShard};

/// The file next to the shards that records from what they were made.
const INPUTS_FILE: &str = "presize.json";
/// The lock file that prevents two runs at once.
const LOCK: &str = ".presize.lock";
/// The number of images in memory at a time, per thread.
const IMAGES_PER_THREAD: usize = 32;
/// A larger number of threads is certainly a mistake.
const MAX_THREADS: usize = 1024;

/// Options for making images smaller, and the folder for the shards.
///
/// ```no_run
/// use fulmen_images::ImageFolder;
/// use fulmen_cli::Presize;
///
/// let shards = Presize::new("imagenet-256").shorter_side(256).run(&ImageFolder::open("imagenet/train")?, &())?;
/// println!("{} shards", shards.len());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Presize {
    folder: PathBuf,
    side: usize,
    quality: u8,
    /// The pipeline that decodes the files.
    pipeline: ImagePipeline,
    seed: u64,
    max_samples: u64,
    max_bytes: u64,
    threads: Option<usize>,
    allow_bad: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PresizeInputs {
    options: String,
    images: String,
    /// The images that cannot be decoded, as indices in the order of the shards, with the reasons.
    left_out: Vec<(usize, String)>,
}

impl Presize {
    /// The default options: shards in this folder, a shorter side of 256 pixels, JPEGs of quality
    /// 95, and at most 1 GiB per shard.
    pub fn new(folder: impl Into<PathBuf>) -> Presize {
        Presize {
            folder: folder.into(),
            side: 256,
            quality: 95,
            pipeline: ImagePipeline::rgb(),
            seed: 0,
            max_samples: 100_000,
            max_bytes: 1 << 30,
            threads: None,
            allow_bad: 0,
        }
    }

    /// The shorter side of the images in pixels. Images whose shorter side is not longer than this
    /// are copied byte by byte.
    pub fn shorter_side(mut self, pixels: usize) -> Presize {
        self.side = pixels;
        self
    }

    /// The quality of the JPEGs, from 1 to 100.
    pub fn quality(mut self, quality: u8) -> Presize {
        self.quality = quality;
        self
    }

    /// Whether to apply the EXIF orientation to the images that are made smaller, which lose their
    /// EXIF data. Off unless set, so that a training run that ignores EXIF data sees the same
    /// images.
    pub fn exif_orientation(mut self, turn: bool) -> Presize {
        self.pipeline = self.pipeline.exif_orientation(turn);
        self
    }

    /// The maximum number of pixels of an image, see [`ImagePipeline::max_pixels`].
    pub fn max_pixels(mut self, pixels: u64) -> Presize {
        self.pipeline = self.pipeline.max_pixels(pixels);
        self
    }

    /// Accepts JPEGs with invalid data; the affected pixels are wrong. For those that are copied
    /// unchanged, training needs [`ImagePipeline::keep_damaged`].
    pub fn keep_damaged(mut self) -> Presize {
        self.pipeline = self.pipeline.keep_damaged();
        self
    }

    /// The seed for the order of the images. They are shuffled, so that each shard has images of
    /// all classes.
    pub fn seed(mut self, seed: u64) -> Presize {
        self.seed = seed;
        self
    }

    /// The maximum number of images per shard.
    pub fn max_samples(mut self, samples: u64) -> Presize {
        self.max_samples = samples;
        self
    }

    /// The maximum size of a shard in bytes. A single larger image gets its own shard.
    pub fn max_bytes(mut self, bytes: u64) -> Presize {
        self.max_bytes = bytes;
        self
    }

    /// The number of threads that decode images; one per core unless set.
    pub fn threads(mut self, threads: usize) -> Presize {
        self.threads = Some(threads);
        self
    }

    /// How many images may be left out because they cannot be decoded; none unless set. A file that
    /// cannot be read still ends the run, because the next run may be able to read it.
    pub fn allow_bad(mut self, images: usize) -> Presize {
        self.allow_bad = images;
        self
    }

    /// Writes the shards. A sample has an image (`.jpg`, or its original extension), its class
    /// number (`.cls`), and its class and its path within the folder (`.json`). Images without
    /// classes ([`ImageFolder::open_flat`]) have no `.cls`, and only the path in the `.json`. An
    /// interrupted run continues after the last complete shard.
    ///
    /// # Errors
    /// Invalid options; a folder that has shards of other images or options, or is in use by
    /// another run; a file that cannot be read; an image that cannot be decoded; a full disk.
    pub fn run(&self, images: &ImageFolder, progress: &dyn Progress) -> Result<Vec<WrittenShard>> {
        if self.side == 0 || !(1..=100).contains(&self.quality) {
            return Err(Error::usage(format!(
                "expected a shorter side of at least 1 pixel and a quality from 1 to 100, got {} and {}",
                self.side, self.quality
            )));
        }
        let threads = self.threads.unwrap_or_else(cores);
        if threads > MAX_THREADS {
            return Err(Error::usage(format!(
                "{threads} threads; more than {MAX_THREADS} cannot help; the number of CPU cores is a good choice"
            )));
        }
        let _lock = Lock::take(&self.folder, LOCK)?;
        let mut inputs = self.inputs(images)?;
        let (skip, mut shards) = self.resume(&mut inputs)?;
        store::remove_leftovers(&self.folder)?;
        let order = permutation(Purpose::Split, self.seed, 0, images.len());
        // Shards do not contain the images that were left out.
        let bad = |index: &usize| inputs.left_out.iter().any(|(left_out, _)| left_out == index);
        let rest: Vec<usize> = order.into_iter().filter(|index| !bad(index)).skip(skip).collect();
        let mut writer = TarShardWriter::builder(&self.folder)
            .max_samples(self.max_samples)
            .max_bytes(self.max_bytes)
            .first_shard(shards.len() as u64)
            .build()?;
        let bytes = rest
            .iter()
            .filter_map(|&index| images.path(index).metadata().ok())
            .map(|file| file.len())
            .sum();
        progress.begin("pre-sizing", bytes);
        for round in rest.chunks(IMAGES_PER_THREAD * threads.max(1)) {
            let done = in_parallel(round, threads, |&index| {
                let with_sample =
                    |error: Error| error.at_sample(index as u64, Some(images.origin(index)));
                let file = images.get(index).map_err(with_sample)?.bytes;
                let small = catch_unwind(AssertUnwindSafe(|| self.shrink(file))).unwrap_or_else(
                    |payload| Err(panicked("decoding the image panicked", payload)),
                );
                Ok(small.map_err(with_sample))
            })?;
            for (&index, done) in round.iter().zip(done) {
                match done {
                    Ok(ResizedImage { extension, bytes, original_bytes }) => {
                        write(&mut writer, images, index, extension, &bytes)?;
                        progress.advance(original_bytes);
                    }
                    Err(error) => {
                        if inputs.left_out.len() >= self.allow_bad {
                            return Err(error);
                        }
                        progress.note(&error.to_string());
                        inputs.left_out.push((index, error.to_string()));
                        self.save(&inputs)?;
                    }
                }
            }
        }
        shards.extend(writer.finish()?);
        Ok(shards)
    }

    fn inputs(&self, images: &ImageFolder) -> Result<PresizeInputs> {
        let mut fingerprint = Fingerprint::new();
        images.fingerprint(&mut fingerprint)?;
        let Presize { side, quality, seed, max_samples, max_bytes, .. } = self;
        let decoding = self.pipeline.to_string();
        let decoder = fulmen_images::jpeg_decoder();
        let options = format!(
            "shorter side {side}, quality {quality}, decoded by {decoding} with {decoder}, seed {seed}, at most \
             {max_samples} samples and {max_bytes} bytes a shard"
        );
        Ok(PresizeInputs { options, images: fingerprint.to_string(), left_out: Vec::new() })
    }

    fn save(&self, inputs: &PresizeInputs) -> Result<()> {
        let text = serde_json::to_vec_pretty(inputs)
            .map_err(|error| Error::runtime("writing presize.json", error))?;
        let path = self.folder.join(INPUTS_FILE);
        store::write_whole(&path, &text)
            .map_err(|source| Error::io(&path, "cannot write the file", source))
    }

    /// Returns the number of images in complete shards, and these shards.
    fn resume(&self, inputs: &mut PresizeInputs) -> Result<(usize, Vec<WrittenShard>)> {
        let path = self.folder.join(INPUTS_FILE);
        match fulmen_durable::read_regular(&path, MAX_JSON_BYTES) {
            Ok(text) => {
                let earlier: PresizeInputs = serde_json::from_slice(&text).map_err(|error| {
                    Error::file(&path, format!("it is damaged: {error}; remove the folder"))
                })?;
                if earlier.options != inputs.options || earlier.images != inputs.images {
                    let what = if earlier.options == inputs.options {
                        "their files have changed".to_owned()
                    } else {
                        format!("with {}, now it is {}", earlier.options, inputs.options)
                    };
                    return Err(Error::file(
                        &path,
                        format!(
                            "the folder has shards of other images: {what}; choose another folder"
                        ),
                    ));
                }
                inputs.left_out = earlier.left_out;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let first = self.shard(0);
                if first.exists() {
                    return Err(Error::file(
                        &first,
                        format!(
                            "a shard exists, but no {INPUTS_FILE} that describes it; choose another folder"
                        ),
                    ));
                }
                self.save(inputs)?;
            }
            Err(source) => return Err(Error::io(&path, "cannot read the file", source)),
        }
        let mut shards = Vec::new();
        loop {
            let path = self.shard(shards.len());
            if !path.exists() {
                break;
            }
            let info = shards_info(&[&path])?;
            shards.push(WrittenShard { path, samples: info.samples(), bytes: info.bytes() });
        }
        let samples: u64 = shards.iter().map(|shard| shard.samples).sum();
        Ok((samples as usize, shards))
    }

    fn shard(&self, number: usize) -> PathBuf {
        self.folder.join(format!("shard-{number:06}.tar"))
    }

    fn shrink(&self, file: Vec<u8>) -> Result<ResizedImage> {
        let original_bytes = file.len() as u64;
        let header = self.pipeline.header(&file)?;
        let extension = header.extension;
        let side = header.size.width.min(header.size.height);
        let pipeline = self.pipeline.clone();
        // The steps do not use random numbers.
        let mut random = SampleRng::new(0, 0, 0);
        if side <= self.side {
            // The image is decoded in any case, to detect damage now.
            pipeline.decode(&file, &mut random)?;
            return Ok(ResizedImage { extension, bytes: file, original_bytes });
        }
        let small = pipeline.resize(self.side).decode(&file, &mut random)?;
        let bytes = encode_image(&small, Encoding::Jpeg { quality: self.quality })?;
        Ok(ResizedImage { extension: "jpg", bytes, original_bytes })
    }
}

/// An image that has its final size.
struct ResizedImage {
    extension: &'static str,
    bytes: Vec<u8>,
    /// The size of the original file in bytes.
    original_bytes: u64,
}

fn write(
    writer: &mut TarShardWriter,
    images: &ImageFolder,
    index: usize,
    extension: &str,
    bytes: &[u8],
) -> Result<()> {
    let key = format!("{index:08}");
    let path = images.name(index).to_string_lossy();
    if images.classes().is_empty() {
        let json = serde_json::json!({ "path": path }).to_string();
        return writer.write(&key, &[(extension, bytes), ("json", json.as_bytes())]);
    }
    let label = images.label(index);
    let class = usize::try_from(label).ok().and_then(|label| images.classes().get(label));
    let json = serde_json::json!({ "class": class, "path": path }).to_string();
    let label = label.to_string();
    writer.write(&key, &[(extension, bytes), ("cls", label.as_bytes()), ("json", json.as_bytes())])
}
