//! The options of [`Pack`], and their check.
//!
//! Out of scope: packing (`run`).

use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_text::Tokenizer;

/// The maximum number of images in a shard, unless it is set.
const MAX_IMAGES: usize = 10_000;

/// Packs sources into shards: tar shards in WebDataset's format, or token files.
///
/// The kind of the sources decides:
///
/// - **Images**: `.tar` and `.zip` files, and folders with images, all local. A sample has the
///   image as it is (`.jpg`, `.png` or `.webp`), and the number of its class (`.cls`), the
///   position of the class's name in sorted order, as in torchvision. The class is the name of the
///   tar file in which the image lies inside another tar, or of the folder with the image.
///   [`labels`](Pack::labels) come from a file instead.
/// - **Texts**: `.txt` (a document per file or per line) and `.jsonl` (a document per line), both
///   optionally compressed with gzip or zstd, `.parquet` (a document per row), and folders of
///   them, local or in a store. With a [`tokenizer`](Pack::tokenizer), the shards have tokens
///   ([`TokenFile`](fulmen_text::TokenFile)), otherwise a `.txt` for each document. Documents
///   keep the order of the files. Documents with only whitespace or without tokens are left out.
///
/// ```
/// use fulmen_cli::pack::Pack;
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("words.jsonl");
/// std::fs::write(&file, "{\"text\": \"thunder\"}\n{\"text\": \"\"}\n{\"text\": \"lightning\"}\n")?;
/// let manifest = Pack::new(folder.path().join("shards")).source("train", file).run(&())?;
/// assert_eq!(manifest.splits[0].samples, 2);
/// assert_eq!(manifest.warnings[0].what, "1 document with only whitespace was left out");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Pack {
    pub(crate) to: Location,
    /// Splits and their sources.
    pub(crate) sources: Vec<(String, Location)>,
    /// Splits and their labels.
    pub(crate) labels: Vec<(String, Location)>,
    pub(crate) flat: bool,
    pub(crate) seed: u64,
    max_samples: Option<usize>,
    pub(crate) max_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) verify: bool,
    pub(crate) field: Option<String>,
    pub(crate) lines: bool,
    pub(crate) validation: Option<f64>,
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) separator: Option<String>,
}

impl Pack {
    /// Shards of at most 256 MiB in the folder `to`, which is local or in a store (`gs://`,
    /// `s3://`), in the order of seed 0, written by one thread per core.
    ///
    /// For a store, each shard is written to a folder in the system's folder for temporary files
    /// (`TMPDIR`), uploaded and removed, so that the disk needs space for one shard per thread.
    pub fn new(to: impl Into<Location>) -> Pack {
        Pack {
            to: to.into(),
            sources: Vec::new(),
            labels: Vec::new(),
            flat: false,
            seed: 0,
            max_samples: None,
            max_bytes: 256 << 20,
            threads: fulmen_data::internal::cores(),
            verify: true,
            field: None,
            lines: false,
            validation: None,
            tokenizer: None,
            separator: None,
        }
    }

    /// Adds an archive, a folder, a file of texts or a pattern to a split, such as `train`, whose
    /// name begins the names of its shards.
    pub fn source(mut self, split: &str, source: impl Into<Location>) -> Pack {
        self.sources.push((split.to_owned(), source.into()));
        self
    }

    /// Labels of a split's images, as CSV or JSON lines. `file_name` is the path of an image in
    /// its source, or the name of its file. `label`, if there is one, is its class. If there are
    /// more columns, the record becomes the sample's `.json`. Each image needs a record, and each
    /// record an image. Whole numbers are sorted by value, other names of classes by their bytes.
    pub fn labels(mut self, split: &str, file: impl Into<Location>) -> Pack {
        self.labels.push((split.to_owned(), file.into()));
        self
    }

    /// Whether folders and inner tar files are not classes, so that images without labels have no
    /// class.
    pub fn flat(mut self, flat: bool) -> Pack {
        self.flat = flat;
        self
    }

    /// The seed for the order of the images, and for the choice of documents for validation.
    pub fn seed(mut self, seed: u64) -> Pack {
        self.seed = seed;
        self
    }

    /// The maximum number of samples per shard: 10,000 images or any number of documents unless
    /// set.
    pub fn max_samples(mut self, samples: usize) -> Pack {
        self.max_samples = Some(samples);
        self
    }

    /// The maximum size of a shard in bytes. A larger sample gets its own shard.
    pub fn max_bytes(mut self, bytes: u64) -> Pack {
        self.max_bytes = bytes;
        self
    }

    /// How many shards of images are written, or documents tokenized, at a time. The content of the
    /// shards does not depend on it.
    pub fn threads(mut self, threads: usize) -> Pack {
        self.threads = threads;
        self
    }

    /// Whether to verify the SHA-256 checksums of shards that are in a local folder already. In a
    /// store, only their sizes are compared.
    pub fn verify(mut self, verify: bool) -> Pack {
        self.verify = verify;
        self
    }

    /// The field of JSON lines or the column of Parquet files with the text; `text` unless set.
    pub fn field(mut self, name: &str) -> Pack {
        self.field = Some(name.to_owned());
        self
    }

    /// Whether each line of a text file is a document, instead of the whole file.
    pub fn lines(mut self, lines: bool) -> Pack {
        self.lines = lines;
        self
    }

    /// The fraction of documents for the split `validation`, from 0 to below 1. The choice depends
    /// only on a hash of the text and the seed. The same text is therefore always in the same
    /// split, even if it occurs several times or other texts are added.
    pub fn validation(mut self, share: f64) -> Pack {
        self.validation = Some(share);
        self
    }

    /// Writes token files instead of texts.
    pub fn tokenizer(mut self, tokenizer: Tokenizer) -> Pack {
        self.tokenizer = Some(tokenizer);
        self
    }

    /// The token that is appended to each document, such as `<|endoftext|>`.
    pub fn separator(mut self, token: &str) -> Pack {
        self.separator = Some(token.to_owned());
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (is, name) in [
            (self.max_samples == Some(0), "samples of a shard"),
            (self.max_bytes == 0, "bytes of a shard"),
            (self.threads == 0, "number of threads"),
        ] {
            if is {
                return Err(Error::usage(format!("the {name} may not be 0")));
            }
        }
        let share = self.validation_share();
        if !(0.0..1.0).contains(&share) {
            return Err(Error::usage(format!(
                "the fraction of documents for validation must be at least 0 and less than 1, but it is {share}"
            )));
        }
        if self.separator.is_some() && self.tokenizer.is_none() {
            return Err(Error::usage("a token between documents needs a tokenizer"));
        }
        for (split, file) in self.sources.iter().chain(&self.labels) {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if split.is_empty() || !split.bytes().all(is_plain) {
                return Err(Error::usage(format!(
                    "{file}: the name of its split is {split:?}; expected letters, digits, - and _"
                )));
            }
        }
        if let Some((split, file)) =
            self.labels.iter().find(|(split, _)| !self.splits().contains(split))
        {
            return Err(Error::usage(format!(
                "{file}: these are labels of the split {split}, which has no source"
            )));
        }
        self.refuse_output_in_source()
    }

    /// Refuses an output folder in a source folder, where the next run would find the shards.
    fn refuse_output_in_source(&self) -> Result<()> {
        let Some(to) = self.to.local() else { return Ok(()) };
        let absolute = std::path::absolute(to)
            .map_err(|source| Error::io(to, "looking at the folder", source))?;
        // The folder may not exist yet.
        let existing = absolute.ancestors().find_map(|folder| folder.canonicalize().ok());
        for (_, source) in &self.sources {
            let folder = source.local().filter(|path| path.is_dir());
            let Some(folder) = folder.and_then(|path| path.canonicalize().ok()) else { continue };
            if existing.as_ref().is_some_and(|existing| existing.starts_with(&folder)) {
                return Err(Error::usage(format!(
                    "{}: the folder for the shards is in the source {source}; choose another one",
                    self.to
                )));
            }
        }
        Ok(())
    }

    /// The names of the splits that have sources, in the order of the sources.
    pub(crate) fn splits(&self) -> Vec<String> {
        let mut splits: Vec<String> = Vec::new();
        for (split, _) in &self.sources {
            if !splits.contains(split) {
                splits.push(split.clone());
            }
        }
        splits
    }

    pub(crate) fn max_images(&self) -> usize {
        self.max_samples.unwrap_or(MAX_IMAGES)
    }

    pub(crate) fn max_documents(&self) -> u64 {
        self.max_samples.map_or(u64::MAX, |samples| samples as u64)
    }

    pub(crate) fn validation_share(&self) -> f64 {
        self.validation.unwrap_or_default()
    }

    pub(crate) fn text_field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }
}
