//! The identity of a cache and its finished parts, in a JSON file next to the parts.
//!
//! Out of scope: the parts (`arrow`, `atomic_file`), and making the key (`key`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fulmen_tensor::DType;
use serde::{Deserialize, Serialize};

use super::arrow::{Frame, PartIdentity};
use super::atomic_file::write_whole;
use fulmen_data::internal::KeyPart;
use fulmen_data::{Error, Field, Result};
use fulmen_files::LOCK;

/// The name of the file.
pub(crate) const MANIFEST: &str = "cache.json";
/// How many digits of the key form the name of the cache's folder.
pub(crate) const FOLDER_DIGITS: usize = 16;
/// The version of the files' layout. It is part of the key, so a new layout makes a new cache.
pub(crate) const FORMAT: u32 = 1;
/// A manifest that declares more files is damaged.
pub(crate) const MAX_PARTS: usize = 10_000;
/// The manifest of a cache of a thousand terabytes is smaller than this.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// The information about a cache that is known without reading its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) key: String,
    pub(crate) version: String,
    pub(crate) samples: usize,
    pub(crate) variants: usize,
    pub(crate) seed: u64,
    pub(crate) fields: Vec<FieldEntry>,
    pub(crate) rows_per_part: usize,
    /// The finished parts, by their number.
    pub(crate) parts: Vec<PartEntry>,
    /// Samples that could not be read and were allowed to fail, by row.
    pub(crate) bad: Vec<BadRow>,
    /// The values that made up the key.
    pub(crate) key_parts: Vec<KeyPart>,
}

/// A field, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FieldEntry {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
}

/// A finished part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartEntry {
    pub(crate) number: usize,
    pub(crate) bytes: u64,
    /// The SHA-256 of the whole file.
    pub(crate) sha256: String,
}

/// A row that is empty because its sample could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BadRow {
    pub(crate) row: usize,
    pub(crate) message: String,
}

/// A validated manifest, whose numbers are consistent.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) manifest: Manifest,
    pub(crate) fields: Vec<Field>,
    /// Samples times variants.
    pub(crate) rows: usize,
}

impl Plan {
    /// Validates a manifest, or reports what is wrong with it.
    pub(crate) fn new(manifest: Manifest) -> Result<Plan, String> {
        let fields =
            manifest.fields.iter().map(FieldEntry::field).collect::<Result<Vec<_>, _>>()?;
        let row_bytes = fields
            .iter()
            .try_fold(0usize, |sum, field| sum.checked_add(field.sample_bytes().ok()?));
        let rows = manifest
            .samples
            .checked_mul(manifest.variants)
            .filter(|&rows| rows > 0 && rows < 1 << 60);
        let (Some(rows), Some(row_bytes)) = (rows, row_bytes) else {
            return Err(format!(
                "{} samples in {} variants cannot be counted",
                manifest.samples, manifest.variants
            ));
        };
        // The limit leaves space for the frame.
        if row_bytes.checked_mul(rows).is_none_or(|bytes| bytes > 1 << 60) {
            return Err(format!("{rows} rows of {row_bytes} bytes are more than a disk can hold"));
        }
        if manifest.rows_per_part == 0 || manifest.rows_per_part > rows {
            return Err(format!(
                "its parts have {} rows, expected 1 to {rows}",
                manifest.rows_per_part
            ));
        }
        let plan = Plan { fields, rows, manifest };
        if plan.num_parts() > MAX_PARTS {
            return Err(format!("it has {} parts, more than {MAX_PARTS}", plan.num_parts()));
        }
        let parts = &plan.manifest.parts;
        if parts.windows(2).any(|pair| pair[0].number >= pair[1].number)
            || parts.last().is_some_and(|last| last.number >= plan.num_parts())
        {
            return Err(format!(
                "its parts are not numbered 0 to {} in order",
                plan.num_parts() - 1
            ));
        }
        if parts
            .iter()
            .try_fold(0u64, |sum, part| sum.checked_add(part.bytes))
            .is_none_or(|bytes| bytes > 1 << 61)
        {
            return Err("its parts claim more bytes than a disk can hold".to_owned());
        }
        let bad = &plan.manifest.bad;
        if bad.windows(2).any(|pair| pair[0].row >= pair[1].row)
            || bad.last().is_some_and(|last| last.row >= rows)
        {
            return Err("its rows without a sample are not in order".to_owned());
        }
        Ok(plan)
    }

    /// The number of parts of the whole cache.
    pub(crate) fn num_parts(&self) -> usize {
        self.rows.div_ceil(self.manifest.rows_per_part)
    }

    pub(crate) fn rows_of(&self, part: usize) -> usize {
        let first = part * self.manifest.rows_per_part;
        (self.rows - first).min(self.manifest.rows_per_part)
    }

    /// The frame of a part.
    pub(crate) fn frame(&self, part: usize) -> Result<Frame> {
        let Manifest { key, samples, variants, version, rows_per_part, .. } = &self.manifest;
        let identity = PartIdentity {
            key: key.clone(),
            part,
            first_row: part * rows_per_part,
            samples: *samples,
            variants: *variants,
            version: version.clone(),
        };
        Frame::new(&self.fields, self.rows_of(part), &identity)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.manifest.parts.len() == self.num_parts()
    }

    pub(crate) fn is_finished(&self, part: usize) -> bool {
        self.manifest.parts.binary_search_by_key(&part, |entry| entry.number).is_ok()
    }

    /// The bytes of all parts, and of those that are not finished.
    pub(crate) fn bytes(&self) -> Result<(u64, u64)> {
        let mut total = 0u64;
        let mut missing = 0u64;
        // Parts with the same number of rows have nearly the same size; the numbers in their
        // metadata differ in length.
        for part in 0..self.num_parts() {
            let bytes = self.frame(part)?.file_bytes();
            total = total.saturating_add(bytes);
            missing = missing.saturating_add(if self.is_finished(part) { 0 } else { bytes });
        }
        Ok((total, missing))
    }
}

impl FieldEntry {
    pub(crate) fn new(field: &Field) -> FieldEntry {
        FieldEntry {
            name: field.name.clone(),
            dtype: field.dtype.name().to_owned(),
            shape: field.shape.clone(),
        }
    }

    fn field(&self) -> Result<Field, String> {
        let dtype = DType::all().find(|dtype| dtype.name() == self.dtype).ok_or_else(|| {
            format!(
                "its field `{}` has the dtype `{}`, which does not exist",
                self.name, self.dtype
            )
        })?;
        let field = Field::new(&self.name, dtype, self.shape.clone());
        field.sample_bytes().map_err(|error| error.to_string())?;
        Ok(field)
    }
}

/// The name of a part's file.
pub(crate) fn part_name(part: usize) -> String {
    format!("part-{part:05}.arrow")
}

/// The reason why a manifest cannot be used.
#[derive(Debug)]
pub(crate) enum ManifestError {
    /// It cannot be read.
    Io(Error),
    /// Another release made it, and may still read it.
    OtherFormat(Error),
    /// Its content is invalid.
    Damaged(Error),
}

impl From<ManifestError> for Error {
    fn from(error: ManifestError) -> Error {
        match error {
            ManifestError::Io(error)
            | ManifestError::OtherFormat(error)
            | ManifestError::Damaged(error) => error,
        }
    }
}

/// The format number, in a manifest of any format.
#[derive(Deserialize)]
struct FormatNumber {
    format: u32,
}

/// Parses a manifest.
pub(crate) fn parse(bytes: &[u8]) -> Result<Plan, String> {
    let manifest: Manifest = serde_json::from_slice(bytes)
        .map_err(|error| format!("it is not a manifest of a cache: {error}"))?;
    Plan::new(manifest)
}

/// The manifest in the folder of a cache; `None` if there is none.
pub(crate) fn load(dir: &Path) -> Result<Option<Plan>, ManifestError> {
    let path = dir.join(MANIFEST);
    let io =
        |source| ManifestError::Io(Error::io(&path, "cannot read the cache's manifest", source));
    let damaged = |message| ManifestError::Damaged(Error::file(&path, message));
    let bytes = match fulmen_durable::read_regular(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) if source.kind() == ErrorKind::InvalidInput => {
            return Err(damaged(format!("{source}; it is not the manifest of a cache")));
        }
        Err(source) => return Err(io(source)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(FormatNumber { format }) if format != FORMAT => {
            Err(ManifestError::OtherFormat(Error::file(
                &path,
                format!(
                    "it has the format {format}, this release reads {FORMAT}; make the cache again, and clear this one if \
                 no other release needs it"
                ),
            )))
        }
        _ => parse(&bytes).map(Some).map_err(|message| {
            damaged(format!("{message}; the cache cannot be used, clear it and warm it again"))
        }),
    }
}

/// Writes the manifest of the cache in a folder atomically.
pub(crate) fn save(dir: &Path, manifest: &Manifest) -> Result<()> {
    let path = dir.join(MANIFEST);
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|error| Error::runtime("writing the cache's manifest", error))?;
    write_whole(&path, &text)
}

/// The folder of a cache, and its plan. `Ok(None)` if the cache has just been started, or its
/// removal was interrupted.
pub(crate) struct CacheEntry {
    pub(crate) dir: PathBuf,
    pub(crate) plan: Result<Option<Plan>, ManifestError>,
}

impl CacheEntry {
    /// The cache in a folder: a folder with the manifest of a cache, or with a cache's name and
    /// lock. A file with the manifest's name may belong to another program.
    fn read(dir: PathBuf) -> Option<CacheEntry> {
        let plan = load(&dir);
        let is_cache = matches!(plan, Ok(Some(_))) || is_key(&dir) && dir.join(LOCK).is_file();
        is_cache.then_some(CacheEntry { dir, plan })
    }
}

/// Whether a folder has the name of a cache.
fn is_key(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == FOLDER_DIGITS && name.iter().all(u8::is_ascii_hexdigit)
}

/// The caches at `path`, sorted: the one in this folder, or those in its subfolders.
pub(crate) fn find(path: &Path) -> Result<Vec<CacheEntry>> {
    if let Some(entry) = CacheEntry::read(path.to_owned()) {
        return Ok(vec![entry]);
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::io(path, "cannot list the caches", source)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Error::io(path, "cannot list the caches", source))?;
        all.extend(CacheEntry::read(entry.path()));
    }
    all.sort_by(|a, b| a.dir.cmp(&b.dir));
    if all.is_empty() {
        // If there is no other cache, the error in this manifest is worth reporting.
        Ok(load(path).map(|_| all)?)
    } else {
        Ok(all)
    }
}
