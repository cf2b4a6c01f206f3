//! Compiled programs on disk, for a runtime. A failure of the cache becomes a note, never an error.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey, SavedPrograms};
use fulmen_pjrt::{Client, CompileOptions, LoadedExecutable, Topology};

use crate::note;
use crate::tensor::Kind;
use crate::{Function, Tensor};

/// A compile cache that turns itself off after its first failure, and the file of programs that the
/// user named.
#[derive(Default)]
pub(crate) struct DiskCache {
    cache: Option<CompileCache>,
    saved: Option<SavedPrograms>,
    /// Storing a program failed: the cache only loads programs from now on.
    read_only: AtomicBool,
    off: AtomicBool,
}

impl DiskCache {
    pub(crate) fn new(cache: Option<CompileCache>, saved: Option<SavedPrograms>) -> Arc<DiskCache> {
        Arc::new(DiskCache { cache, saved, ..DiskCache::default() })
    }

    /// The same cache with a different file of programs.
    pub(crate) fn with_saved(&self, saved: SavedPrograms) -> Arc<DiskCache> {
        DiskCache::new(self.cache.clone(), Some(saved))
    }

    pub(crate) fn saved(&self) -> Option<&SavedPrograms> {
        self.saved.as_ref()
    }

    /// The cache that the environment selects, shared by all runtimes of this process.
    pub(crate) fn from_env() -> Arc<DiskCache> {
        static CACHE: OnceLock<Arc<DiskCache>> = OnceLock::new();
        let open = || {
            let cache = CompileCache::from_env();
            let off = |error| note!("compiled programs are not kept on disk: {error}");
            DiskCache::new(cache.map_err(off).ok().flatten(), None)
        };
        CACHE.get_or_init(open).clone()
    }

    /// Starts slow preparations in the background.
    pub(crate) fn prepare(&self, client: &Client) {
        if let Some(cache) = self.cache() {
            cache.prepare(client);
        }
    }

    /// The slot of a program; `None` if there is neither a cache nor a file of programs.
    /// `text` is the program without locations.
    pub(crate) fn slot<'a>(
        &'a self,
        client: &'a Client,
        function: &'a Function,
        text: &'a str,
        options: &'a CompileOptions,
    ) -> Option<Slot<'a>> {
        let cache = self.cache();
        (cache.is_some() || self.saved.is_some()).then(|| Slot {
            owner: self,
            cache,
            client,
            function,
            text,
            options,
            key: OnceCell::new(),
        })
    }

    /// Whether a program of the function may be on disk. A quick check by the function's name.
    pub(crate) fn may_have(&self, function: &Function) -> bool {
        self.saved.is_some() || self.cache().is_some_and(|cache| cache.has_program(function.name()))
    }

    /// The cache, unless it is off.
    fn cache(&self) -> Option<&CompileCache> {
        self.cache.as_ref().filter(|_| !self.off.load(Ordering::Relaxed))
    }

    /// Sets a switch. The first time, emits a note with the reason.
    fn turn_off(&self, switch: &AtomicBool, reason: &str) {
        if !switch.swap(true, Ordering::Relaxed) {
            note!("{reason}");
        }
    }
}

/// The slot of one program in the cache and in the file of programs; it may be empty.
pub(crate) struct Slot<'a> {
    owner: &'a DiskCache,
    cache: Option<&'a CompileCache>,
    client: &'a Client,
    function: &'a Function,
    text: &'a str,
    options: &'a CompileOptions,
    /// Computed on first use: it hashes the plugin's file.
    key: OnceCell<Option<ProgramKey>>,
}

impl Slot<'_> {
    /// The stored program, if there is one.
    pub(crate) fn load(&self) -> Option<LoadedExecutable> {
        self.load_with(|code| self.client.load(code))
    }

    /// Like [`Slot::load`], but `load` gets the stored code.
    pub(crate) fn load_with<T>(&self, load: impl Fn(&[u8]) -> fulmen_pjrt::Result<T>) -> Option<T> {
        if let Some(saved) = self.owner.saved() {
            match saved.load_with(self.key()?, &load) {
                Ok(None) => {}
                Ok(program) => return program,
                Err(error) => note!("{error}"),
            }
        }
        match self.cache_of_program()?.load_with(self.key()?, load) {
            Ok(program) => program,
            Err(error) if error.is_corrupt() => {
                note!("{error}");
                None
            }
            Err(error) => {
                self.owner.turn_off(&self.owner.off, &format!("the compile cache is off: {error}"));
                None
            }
        }
    }

    /// The cache, if it holds programs with the function's name. This does not need the key.
    fn cache_of_program(&self) -> Option<&CompileCache> {
        self.cache.filter(|cache| cache.has_program(self.function.name()))
    }

    /// How this program differs from the most similar stored program with the same name and
    /// variant.
    pub(crate) fn nearest(&self) -> Option<String> {
        let saved = self.owner.saved().and_then(|saved| saved.nearest(self.key()?));
        let lines = saved.or_else(|| self.cache_of_program()?.nearest(self.key()?));
        Some(lines?.join("; "))
    }

    /// Stores a program with its compile time.
    pub(crate) fn store(&self, program: &LoadedExecutable, time: Duration) {
        self.store_with(|cache, key| cache.store(key, program, time));
    }

    /// Stores the code of a program with its compile time.
    pub(crate) fn store_code(&self, code: &[u8], time: Duration) {
        let plugin = self.client.plugin();
        self.store_with(|cache, key| cache.store_serialized(key, plugin, code, time));
    }

    fn store_with(
        &self,
        store: impl FnOnce(&CompileCache, &ProgramKey) -> fulmen_pjrt::Result<()>,
    ) {
        if self.owner.read_only.load(Ordering::Relaxed) {
            return;
        }
        let Some(cache) = self.cache else { return };
        let Some(Err(error)) = self.key().map(|key| store(cache, key)) else {
            return;
        };
        let reason = if error.is_unsupported() {
            "the plugin cannot store them".to_owned()
        } else {
            format!("{error}; set FULMEN_COMPILE_CACHE to another folder, or to `off`")
        };
        self.owner.turn_off(
            &self.owner.read_only,
            &format!("compiled programs are no longer kept on disk: {reason}"),
        );
    }

    fn key(&self) -> Option<&ProgramKey> {
        let compute_key = || {
            let key = self.client.topology().and_then(|topology| {
                program_key(&topology, self.function, self.text, self.options)
            });
            key.map_err(|error| {
                self.owner.turn_off(&self.owner.off, &format!("the compile cache is off: {error}"))
            })
            .ok()
        };
        self.key.get_or_init(compute_key).as_ref()
    }
}

/// The key that identifies the program of a function; `text` is the program without locations.
pub(crate) fn program_key(
    topology: &Topology,
    function: &Function,
    text: &str,
    options: &CompileOptions,
) -> fulmen_pjrt::Result<ProgramKey> {
    let input = |parameter: &Tensor| match &parameter.node.kind {
        Kind::Placeholder { name } => Some((name.clone(), parameter.ty().to_string())),
        _ => None,
    };
    let key = ProgramKey::new(
        topology,
        function.name(),
        text,
        options,
        function.parameters().iter().filter_map(input),
    )?;
    Ok(key.with_variant(function.variant_name()))
}
