//! The options of a cache, and the steps from them to a finished cache.
//!
//! Out of scope: reading a cache (`dataset`), and filling its parts (`build`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::atomic_file::Disk;
use super::build::Build;
use super::dataset::CachedDataset;
use super::event::{CacheEstimate, CacheEvent};
use super::key::{Key, Options};
use super::maintenance;
use super::manifest::{self, CacheEntry, FORMAT, FieldEntry, MAX_PARTS, Manifest, Plan};
use super::store as copies;
use fulmen_data::internal::differences;
use fulmen_data::{Dataset, Error, Field, Result};
use fulmen_durable::messages::size;
use fulmen_files::{self as store, Location, Lock};

/// A larger number of threads is certainly a mistake.
const MAX_WORKERS: usize = 1024;
/// The approximate size of a file: an eighth of the cache within these bounds, so that a killed
/// process loses little work and there are few files.
const MIN_PART_BYTES: u64 = 64 << 20;
const MAX_PART_BYTES: u64 = 1 << 30;
/// The disk space to leave free.
const RESERVED_BYTES: u64 = 16 << 20;

type OnEvent = Box<dyn FnMut(CacheEvent) + Send>;

/// The options of a [`CachedDataset`]. Made by [`CacheExt::cache`](crate::CacheExt::cache) and
/// [`CachedDataset::builder`].
#[must_use]
pub struct CacheBuilder {
    dataset: Arc<dyn Dataset>,
    path: PathBuf,
    options: Options,
    workers: Option<usize>,
    allowed_bad: usize,
    refuse_others: bool,
    part_bytes: Option<u64>,
    store: Option<Location>,
    on_event: OnEvent,
    pub(crate) disk: Disk,
}

impl CacheBuilder {
    pub(crate) fn new(dataset: Arc<dyn Dataset>, path: PathBuf) -> CacheBuilder {
        CacheBuilder {
            dataset,
            path,
            options: Options { version: String::new(), variants: 1, seed: 0 },
            workers: None,
            allowed_bad: 0,
            refuse_others: false,
            part_bytes: None,
            store: None,
            on_event: Box::new(|_| {}),
            disk: Disk::default(),
        }
    }

    /// A version for what the fingerprint cannot detect, such as the code of a closure; a new
    /// version makes a new cache. It is required if the samples depend on a function
    /// ([`Source::map`](fulmen_data::Source::map),
    /// [`Source::into_dataset`](fulmen_data::Source::into_dataset), your own `TextInput`), because
    /// a change of the function would otherwise go unnoticed.
    pub fn version(mut self, version: impl Into<String>) -> CacheBuilder {
        self.options.version = version.into();
        self
    }

    /// How many variants of each sample are cached; one unless set. Variant `v` is the sample as
    /// epoch `v` reads it, with that epoch's augmentation. In training, epoch `e` reads variant `e
    /// mod variants`.
    pub fn variants(mut self, variants: usize) -> CacheBuilder {
        self.options.variants = variants;
        self
    }

    /// The seed of the cached augmentation; 0 unless set. With the seed of a loader, the variants
    /// are what this loader would read in its first epochs without a cache.
    pub fn seed(mut self, seed: u64) -> CacheBuilder {
        self.options.seed = seed;
        self
    }

    /// The number of threads that read samples while the cache is made; one per core unless set.
    /// With 0, the calling thread reads them. The files do not depend on this number.
    pub fn workers(mut self, threads: usize) -> CacheBuilder {
        self.workers = Some(threads);
        self
    }

    /// How many samples may fail to be read, counting each variant; none unless set. Their errors
    /// are stored. Reading such a sample from the cache returns the stored error, so that the
    /// loader can skip the sample.
    pub fn allow_bad_samples(mut self, most: usize) -> CacheBuilder {
        self.allowed_bad = most;
        self
    }

    /// Whether to return an error, which lists the differences, if the path has a cache of other
    /// samples. If this is off, the default, a new cache is made next to the other one.
    pub fn refuse_others(mut self, refuse: bool) -> CacheBuilder {
        self.refuse_others = refuse;
        self
    }

    /// The approximate size of a file in bytes. The default is an eighth of the cache, between 64
    /// MiB and 1 GiB. A partly made cache keeps its size.
    pub fn part_bytes(mut self, bytes: u64) -> CacheBuilder {
        self.part_bytes = Some(bytes);
        self
    }

    /// A place for a copy of the cache, which other machines can use: `gs://bucket/caches`,
    /// `s3://bucket/caches`, or another folder. If this machine has no such cache and the store has
    /// it, it is copied from there instead of being made. If the store does not have it, it is
    /// copied there. Each part is compared with its checksum.
    ///
    /// ```
    /// use fulmen_cache::CacheExt;
    /// use fulmen_data::{Dataset, TensorDataset};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let data = TensorDataset::builder().array("x", [3, 2], vec![0.5f32; 6]).build()?;
    /// let store = folder.path().join("shared"); // usually a bucket
    /// let first = data.clone().cache(folder.path().join("one machine")).store(&store).open()?;
    /// let second = data.cache(folder.path().join("another")).store(&store).open()?; // copied
    /// assert_eq!(first.len(), second.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn store(mut self, store: impl Into<Location>) -> CacheBuilder {
        self.store = Some(store.into());
        self
    }

    /// A callback for progress and other events ([`CacheEvent`]), called on the calling thread.
    pub fn on_event(mut self, on_event: impl FnMut(CacheEvent) + Send + 'static) -> CacheBuilder {
        self.on_event = Box::new(on_event);
        self
    }

    /// The size of the cache, and how much of it already exists. Nothing is written.
    ///
    /// # Errors
    /// Those errors of [`open`](CacheBuilder::open) that are known before anything is written.
    pub fn estimate(&self) -> Result<CacheEstimate> {
        let fields = self.check()?;
        let key = Key::new(&*self.dataset, &fields, &self.options)?;
        let plan = match manifest::load(&self.path.join(key.folder()))? {
            Some(plan) if plan.manifest.key == key.hash => plan,
            _ => self.plan(&fields, &key)?,
        };
        estimate(&plan)
    }

    /// Opens the cache. If it does not exist or is not finished, makes it first.
    ///
    /// If another process is making it, this process waits, and continues the work if the other one
    /// dies.
    ///
    /// # Errors
    /// A dataset without a fingerprint, or with a function but without a
    /// [`version`](CacheBuilder::version); files that changed while the cache was made; a disk with
    /// too little space, before anything is written (the error has the numbers); a sample that
    /// cannot be read; a [`store`](CacheBuilder::store) that cannot be read or written. Finished
    /// parts stay, and the next run continues from there.
    pub fn open(mut self) -> Result<CachedDataset> {
        let fields = self.check()?;
        let key = Key::new(&*self.dataset, &fields, &self.options)?;
        let dir = self.path.join(key.folder());
        if let Some(plan) = manifest::load(&dir)?
            && plan.manifest.key == key.hash
            && plan.is_complete()
        {
            self.copy_to_store(&key, &dir, &plan)?;
            return CachedDataset::from_plan(&dir, plan);
        }
        self.report_differences(&key, &dir)?;
        let on_event = &mut self.on_event;
        let mut waited = false;
        let lock = Lock::wait(&dir, &mut |holder| {
            waited = true;
            on_event(CacheEvent::Waiting { holder: holder.to_owned() });
        })?;
        if waited {
            let new_key = Key::new(&*self.dataset, &fields, &self.options)?;
            if new_key.hash != key.hash {
                return Err(Error::usage(format!(
                    "what the samples depend on changed while another process made the cache: {}; open the dataset \
                     again",
                    differences(&key.key_parts, &new_key.key_parts).join("; ")
                )));
            }
        }
        // The process that held the lock may have made parts of the cache, or all of it.
        let mut plan = match manifest::load(&dir)? {
            Some(plan) if plan.manifest.key == key.hash => plan,
            _ => self.plan(&fields, &key)?,
        };
        if !plan.is_complete()
            && let Some(copied) = self.copy_from_store(&key, &dir)?
        {
            plan = copied;
        }
        if !plan.is_complete() {
            self.fill(&dir, &mut plan)?;
            let key_now = Key::new(&*self.dataset, &fields, &self.options)?;
            if key_now.hash != key.hash {
                maintenance::remove_files(&dir)?;
                return Err(Error::usage(format!(
                    "what the samples depend on changed while the cache was made, so it mixes old and new samples: \
                     {}; it was removed; make it again",
                    differences(&key.key_parts, &key_now.key_parts).join("; ")
                )));
            }
        }
        self.copy_to_store(&key, &dir, &plan)?;
        drop(lock);
        CachedDataset::from_plan(&dir, plan)
    }

    /// Copies the cache from the store, if that has it.
    fn copy_from_store(&self, key: &Key, dir: &Path) -> Result<Option<Plan>> {
        let Some(store) = self.store.as_ref().map(|store| store.join(key.folder())) else {
            return Ok(None);
        };
        let Some(plan) = copies::find(&store, &key.hash)? else { return Ok(None) };
        store::remove_leftovers(dir)?;
        let missing_bytes = plan.bytes()?.0;
        let missing_parts = plan.num_parts();
        let expected = CacheEstimate { missing_bytes, missing_parts, ..estimate(&plan)? };
        self.check_free_space(dir, &expected)?;
        copies::download(&store, &plan, dir, &self.disk)?;
        Ok(Some(plan))
    }

    /// Copies the finished cache to the store, if that does not have it.
    fn copy_to_store(&self, key: &Key, dir: &Path, plan: &Plan) -> Result<()> {
        let Some(store) = self.store.as_ref().map(|store| store.join(key.folder())) else {
            return Ok(());
        };
        if copies::find(&store, &key.hash)?.is_some() {
            return Ok(());
        }
        copies::upload(&store, plan, dir)
    }

    fn fill(&mut self, dir: &Path, plan: &mut Plan) -> Result<()> {
        store::remove_leftovers(dir)?;
        let expected = estimate(plan)?;
        self.check_free_space(dir, &expected)?;
        manifest::save(dir, &plan.manifest)?;
        (self.on_event)(CacheEvent::Started(expected));
        let workers = self
            .workers
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let build = Build {
            dataset: &*self.dataset,
            dir,
            disk: &self.disk,
            workers,
            allowed_bad: self.allowed_bad,
        };
        build.run(plan, &mut self.on_event)?;
        (self.on_event)(CacheEvent::Finished(estimate(plan)?));
        Ok(())
    }

    /// The fields, if they and the options can be cached.
    fn check(&self) -> Result<Vec<Field>> {
        if self.options.variants == 0 {
            return Err(Error::usage("a cache needs at least 1 variant"));
        }
        if self.dataset.is_empty() {
            return Err(Error::usage("the dataset is empty; there is nothing to cache"));
        }
        match self.workers {
            Some(workers) if workers > MAX_WORKERS => Err(Error::usage(format!(
                "workers is {workers}; more than {MAX_WORKERS} threads cannot help; use about one per CPU core"
            ))),
            _ => Ok(self.dataset.fields()),
        }
    }

    /// The plan of a new cache.
    fn plan(&self, fields: &[Field], key: &Key) -> Result<Plan> {
        let samples = self.dataset.len();
        let variants = self.options.variants;
        let too_large = || {
            Error::usage(format!("{samples} samples in {variants} variants are too many to count"))
        };
        let rows = samples.checked_mul(variants).ok_or_else(too_large)?;
        let sample_bytes = sample_bytes(fields)?;
        let total = sample_bytes.checked_mul(rows as u64).ok_or_else(too_large)?;
        let part_bytes =
            self.part_bytes.unwrap_or((total / 8).clamp(MIN_PART_BYTES, MAX_PART_BYTES));
        let rows_per_part = usize::try_from(part_bytes / sample_bytes.max(1))
            .unwrap_or(usize::MAX)
            .max(rows.div_ceil(MAX_PARTS))
            .clamp(1, rows);
        let manifest = Manifest {
            format: FORMAT,
            key: key.hash.clone(),
            version: self.options.version.clone(),
            samples,
            variants,
            seed: self.options.seed,
            fields: fields.iter().map(FieldEntry::new).collect(),
            rows_per_part,
            parts: Vec::new(),
            bad: Vec::new(),
            key_parts: key.key_parts.clone(),
        };
        Plan::new(manifest)
            .map_err(|message| Error::usage(format!("this dataset cannot be cached: {message}")))
    }

    /// Reports how the caches at this path differ, if there are any and none has this key.
    fn report_differences(&mut self, key: &Key, dir: &Path) -> Result<()> {
        if dir.join(manifest::MANIFEST).exists() {
            return Ok(());
        }
        let mut nearest: Option<(PathBuf, Vec<String>)> = None;
        // Files at the path that are not caches do not matter.
        for CacheEntry { dir, plan } in manifest::find(&self.path).unwrap_or_default() {
            // An unreadable cache is skipped here: `verify` reports it.
            let Ok(Some(other)) = plan else { continue };
            let lines = differences(&other.manifest.key_parts, &key.key_parts);
            if nearest.as_ref().is_none_or(|(_, fewest)| lines.len() < fewest.len()) {
                nearest = Some((dir, lines));
            }
        }
        match nearest {
            Some((folder, lines)) if self.refuse_others => Err(Error::usage(format!(
                "{} is a cache of other samples: {}; clear it, choose another path, or create a new \
                 cache next to it with refuse_others(false)",
                folder.display(),
                lines.join("; ")
            ))),
            Some((_, differences)) => {
                (self.on_event)(CacheEvent::Differs { differences });
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn check_free_space(&self, dir: &Path, expected: &CacheEstimate) -> Result<()> {
        let free = self
            .disk
            .available(dir)
            .map_err(|source| Error::io(dir, "cannot query the free disk space", source))?;
        let needed =
            expected.missing_bytes.saturating_add(RESERVED_BYTES.min(expected.missing_bytes / 8));
        if needed <= free {
            return Ok(());
        }
        let message = format!(
            "not enough disk space for the cache: {expected}, but the disk has {} free; {} more are needed. Free some \
             space, put the cache on another disk, keep fewer variants, or make the samples smaller",
            size(free),
            size(needed - free)
        );
        Err(Error::io(dir, &message, std::io::ErrorKind::StorageFull.into()))
    }
}

fn sample_bytes(fields: &[Field]) -> Result<u64> {
    fields.iter().try_fold(0u64, |sum, field| {
        let bytes = field.sample_bytes()? as u64;
        sum.checked_add(bytes)
            .ok_or_else(|| Error::field("the fields of one sample are more than a disk can hold"))
    })
}

pub(crate) fn estimate(plan: &Plan) -> Result<CacheEstimate> {
    let (bytes, missing_bytes) = plan.bytes()?;
    let parts = plan.num_parts();
    Ok(CacheEstimate {
        samples: plan.manifest.samples,
        variants: plan.manifest.variants,
        sample_bytes: sample_bytes(&plan.fields)?,
        bytes,
        parts,
        missing_bytes,
        missing_parts: parts - plan.manifest.parts.len(),
    })
}
