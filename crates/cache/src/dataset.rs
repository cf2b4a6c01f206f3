//! A finished cache as a dataset: each field of a sample is copied from a memory-mapped file.
//!
//! Out of scope: making the cache (`builder`, `build`), and maintenance without reading samples
//! (`maintenance`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::builder::CacheBuilder;
use super::maintenance;
use super::manifest::{self, BadRow, CacheEntry, Plan, part_name};
use super::mmap::{Access, MappedFile};
use fulmen_data::{Dataset, Error, Field, Fingerprint, Result, Sample};
use fulmen_files::zeros;

/// Samples that were read once and stored decoded and resized, in a few large memory-mapped files.
///
/// The files are Arrow IPC files with a column per field, which other programs can read too
/// (`pyarrow.ipc.open_file`). The cache is identified by what its samples depend on: the dataset's
/// [fingerprint](Dataset::fingerprint), its fields, the [version](CacheBuilder::version), the
/// [variants](CacheBuilder::variants) and their seed. `path` is a folder for any number of caches,
/// each in a subfolder.
///
/// The files are mapped. Do not truncate or overwrite a file that is in use: accessing removed
/// bytes ends the process (SIGBUS). [`clear_cache`](crate::clear_cache) is safe: a mapped file
/// stays until it is no longer used.
///
/// ```
/// use fulmen_cache::CacheExt;
/// use fulmen_data::{DType, DataLoader, Dataset, Field, Fingerprint, Result, Sample};
///
/// struct Slow;
///
/// impl Dataset for Slow {
///     fn len(&self) -> usize {
///         100
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::new("x", DType::F32, [2])]
///     }
///     fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
///         let noise = sample.random().uniform(0.0, 0.5) as f32;
///         sample.write_slice(0, &[index as f32, index as f32 + noise])
///     }
///     fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
///         fingerprint.add("slow", "pairs");
///         Ok(())
///     }
/// }
///
/// let folder = tempfile::tempdir()?;
/// let cached = Slow.cache(folder.path()).variants(3).open()?;
/// assert_eq!((cached.len(), cached.variants()), (100, 3));
///
/// // Epoch 4 has what epoch 1 had: variant 1 of 3.
/// let loader = DataLoader::builder(cached).batch_size(10).build()?;
/// let first = |epoch| loader.epoch(epoch).next().ok_or("no batch")?.map_err(Box::<dyn std::error::Error>::from);
/// assert_eq!(first(4)?.values::<f32>(0)?, first(1)?.values::<f32>(0)?);
/// assert_ne!(first(4)?.values::<f32>(0)?, first(0)?.values::<f32>(0)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CachedDataset(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    fields: Vec<Field>,
    key: String,
    samples: usize,
    variants: usize,
    rows_per_part: usize,
    parts: Vec<Part>,
    bad: Vec<BadRow>,
}

#[derive(Debug)]
struct Part {
    map: MappedFile,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    start: usize,
    sample_bytes: usize,
}

impl CachedDataset {
    /// Starts a cache of a dataset in a folder, like [`CacheExt::cache`](crate::CacheExt::cache).
    pub fn builder(dataset: impl Dataset, path: impl AsRef<Path>) -> CacheBuilder {
        CacheBuilder::new(Arc::new(dataset), path.as_ref().to_owned())
    }

    /// Opens a finished cache without its original dataset, which may no longer exist. `path` is
    /// the folder given when the cache was made. If this folder has several caches, `path` must be
    /// the subfolder of one of them.
    ///
    /// Samples are not read, so the time does not depend on their number.
    ///
    /// # Errors
    /// No cache, several caches, or an unfinished one; files that do not match the manifest.
    pub fn open(path: impl AsRef<Path>) -> Result<CachedDataset> {
        let path = path.as_ref();
        let mut caches = manifest::find(path)?;
        // A folder without a manifest cannot be opened.
        caches.retain(|entry| !matches!(entry.plan, Ok(None)));
        match <[CacheEntry; 1]>::try_from(caches) {
            Ok([CacheEntry { dir, plan }]) => CachedDataset::from_plan(
                &dir,
                plan?.ok_or_else(|| maintenance::no_cache_error(path))?,
            ),
            Err(caches) if caches.is_empty() => Err(maintenance::no_cache_error(path)),
            Err(several) => Err(Error::usage(format!(
                "{} has {} caches; choose one of them: {}",
                path.display(),
                several.len(),
                several
                    .iter()
                    .map(|entry| entry.dir.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
        }
    }

    pub(crate) fn from_plan(dir: &Path, plan: Plan) -> Result<CachedDataset> {
        if !plan.is_complete() {
            return Err(Error::file(
                dir,
                format!(
                    "the cache has {} of {} parts; make it again with the same dataset, and it continues from there",
                    plan.manifest.parts.len(),
                    plan.num_parts()
                ),
            ));
        }
        let parts = (0..plan.num_parts())
            .map(|part| Part::open(dir, &plan, part))
            .collect::<Result<_>>()?;
        let manifest = plan.manifest;
        Ok(CachedDataset(Arc::new(Inner {
            dir: dir.to_owned(),
            fields: plan.fields,
            key: manifest.key,
            samples: manifest.samples,
            variants: manifest.variants,
            rows_per_part: manifest.rows_per_part,
            parts,
            bad: manifest.bad,
        })))
    }

    /// The folder of this cache.
    pub fn path(&self) -> &Path {
        &self.0.dir
    }

    /// How many variants of each sample are cached; epoch `e` reads variant `e mod variants`.
    pub fn variants(&self) -> usize {
        self.0.variants
    }

    /// The samples that could not be read when the cache was made, and why, counting each variant.
    pub fn bad_samples(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.bad.iter().map(|row| row.message.as_str())
    }

    /// Advises the system on the order in which samples will be read. This matters only for samples
    /// that are not in memory.
    pub fn advise(&self, access: Access) -> Result<()> {
        self.each_part("cannot tell the system the order of access", |part| part.map.advise(access))
    }

    /// Reads the whole cache into memory before the first epoch, as far as it fits.
    pub fn populate(&self) -> Result<()> {
        self.each_part("cannot read the cache ahead", |part| part.map.populate())
    }

    fn each_part(&self, doing: &str, act: impl Fn(&Part) -> io::Result<()>) -> Result<()> {
        let Inner { dir, parts, .. } = &*self.0;
        parts.iter().enumerate().try_for_each(|(number, part)| {
            act(part).map_err(|source| Error::io(&dir.join(part_name(number)), doing, source))
        })
    }

    /// The row of a sample in an epoch.
    fn row(&self, index: usize, epoch: u64) -> Result<usize> {
        let Inner { samples, variants, .. } = *self.0;
        if index < samples {
            Ok((epoch % variants as u64) as usize * samples + index)
        } else {
            Err(Error::usage(format!("there is no sample {index}; the cache has {samples}")))
        }
    }
}

impl Part {
    fn open(dir: &Path, plan: &Plan, part: usize) -> Result<Part> {
        let path = dir.join(part_name(part));
        let file = fulmen_durable::open_regular(&path)
            .map_err(|source| Error::io(&path, "cannot open a part of the cache", source))?;
        let bytes = file
            .metadata()
            .map_err(|source| Error::io(&path, "cannot read the file's metadata", source))?
            .len();
        let columns = maintenance::locate(&path, &file, bytes, plan, part)?;
        let length = usize::try_from(bytes).map_err(|_| {
            Error::file(&path, format!("it has {bytes} bytes, more than this machine can address"))
        })?;
        let map = MappedFile::new(&file, length)
            .map_err(|source| Error::io(&path, "cannot map the file into memory", source))?;
        let column = |(range, field): (std::ops::Range<u64>, &Field)| {
            // Both values fit in a usize, because the size of the whole file does.
            Ok(Column { start: range.start as usize, sample_bytes: field.sample_bytes()? })
        };
        let columns = columns.into_iter().zip(&plan.fields).map(column).collect::<Result<_>>()?;
        Ok(Part { map, columns })
    }
}

/// Reads bytes of a part.
pub(crate) fn read_at(path: &Path, file: &File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = zeros(path, length)?;
    file.read_exact_at(&mut bytes, offset)
        .map_err(|source| Error::io(path, "cannot read the file", source))?;
    Ok(bytes)
}

impl Dataset for CachedDataset {
    fn len(&self) -> usize {
        self.0.samples
    }

    fn fields(&self) -> Vec<Field> {
        self.0.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let row = self.row(index, sample.epoch())?;
        let Inner { rows_per_part, parts, bad, .. } = &*self.0;
        if !bad.is_empty()
            && let Ok(index) = bad.binary_search_by_key(&row, |bad| bad.row)
        {
            return Err(Error::new(format!(
                "it could not be read when the cache was made: {}",
                bad[index].message
            )));
        }
        let part = &parts[row / rows_per_part];
        let row = row % rows_per_part;
        let bytes = part.map.bytes();
        for (field, column) in part.columns.iter().enumerate() {
            let start = column.start + row * column.sample_bytes;
            sample.write(field, &bytes[start..start + column.sample_bytes])?;
        }
        Ok(())
    }

    fn prefetch(&self, index: usize, epoch: u64) {
        let Ok(row) = self.row(index, epoch) else { return };
        let part = &self.0.parts[row / self.0.rows_per_part];
        let row = row % self.0.rows_per_part;
        for column in &part.columns {
            part.map.prefetch(column.start + row * column.sample_bytes, column.sample_bytes);
        }
    }

    fn origin(&self, index: usize) -> Option<String> {
        let row = self.row(index, 0).ok()?;
        let Inner { dir, rows_per_part, .. } = &*self.0;
        Some(format!(
            "{}, row {}",
            dir.join(part_name(row / rows_per_part)).display(),
            row % rows_per_part
        ))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("cache", &self.0.key);
        Ok(())
    }
}
