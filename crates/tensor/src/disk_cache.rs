//! Compiled programs on disk as a runtime uses them: what goes wrong when they are needed is a note, never an error.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey, SavedPrograms};
use fulmen_pjrt::{Client, CompileOptions, LoadedExecutable, Topology};

use crate::notes::note;
use crate::tensor::Kind;
use crate::{Function, Tensor};

/// A compile cache that turns itself off after the first failure, and a file of programs that the user named.
#[derive(Default)]
pub(crate) struct DiskCache {
    cache: Option<CompileCache>,
    saved: Option<SavedPrograms>,
    /// Programs cannot be stored any more; those that are there are still loaded.
    read_only: AtomicBool,
    off: AtomicBool,
}

impl DiskCache {
    pub(crate) fn new(cache: Option<CompileCache>, saved: Option<SavedPrograms>) -> Arc<DiskCache> {
        Arc::new(DiskCache { cache, saved, ..DiskCache::default() })
    }

    /// The same cache with another file of programs.
    pub(crate) fn with_saved(&self, saved: SavedPrograms) -> Arc<DiskCache> {
        DiskCache::new(self.cache.clone(), Some(saved))
    }

    pub(crate) fn saved(&self) -> Option<&SavedPrograms> {
        self.saved.as_ref()
    }

    /// The one that the environment asks for, for all runtimes of this process.
    pub(crate) fn of_process() -> Arc<DiskCache> {
        static CACHE: OnceLock<Arc<DiskCache>> = OnceLock::new();
        let open = || {
            let cache = CompileCache::from_env();
            let off = |error| note(&format!("compiled programs are not kept on disk: {error}"));
            DiskCache::new(cache.map_err(off).ok().flatten(), None)
        };
        CACHE.get_or_init(open).clone()
    }

    /// Begins what takes long, while the caller does other things.
    pub(crate) fn prepare(&self, client: &Client) {
        if let Some(cache) = self.cache(client) {
            cache.prepare(client);
        }
    }

    /// The place of a program, where something is used for the client. `text` is the program without locations.
    pub(crate) fn slot<'a>(
        &'a self,
        client: &'a Client,
        function: &'a Function,
        text: &'a str,
        options: &'a CompileOptions,
    ) -> Option<Slot<'a>> {
        let cache = self.cache(client);
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

    /// Whether a program of the function may be on disk. This is quick.
    pub(crate) fn may_have(&self, client: &Client, function: &Function) -> bool {
        self.saved.is_some() || self.cache(client).is_some_and(|cache| cache.has_program(function.name()))
    }

    /// The cache, where it can be used for a client. It is not used for several processes: each would decide by itself
    /// whether it compiles, and programs compiled at different times need not fit together. They may take one file of programs.
    fn cache(&self, client: &Client) -> Option<&CompileCache> {
        let alone = client.devices().iter().all(|device| device.process_index() == client.process_index());
        self.cache.as_ref().filter(|_| alone && !self.off.load(Ordering::Relaxed))
    }

    /// Sets a switch, and tells why the first time.
    fn turn_off(&self, switch: &AtomicBool, why: &str) {
        if !switch.swap(true, Ordering::Relaxed) {
            note(why);
        }
    }
}

/// Where a program is in the cache, if it is there.
pub(crate) struct Slot<'a> {
    owner: &'a DiskCache,
    cache: Option<&'a CompileCache>,
    client: &'a Client,
    function: &'a Function,
    text: &'a str,
    options: &'a CompileOptions,
    /// Made when it is needed, because it needs the hash of the plugin's file.
    key: OnceCell<Option<ProgramKey>>,
}

impl Slot<'_> {
    /// The stored program.
    pub(crate) fn load(&self) -> Option<LoadedExecutable> {
        if let Some(saved) = self.owner.saved() {
            match saved.load(self.client, self.key()?) {
                Ok(None) => {}
                Ok(program) => return program,
                Err(error) => note(&error.to_string()),
            }
        }
        match self.cache_of_program()?.load(self.client, self.key()?) {
            Ok(program) => program,
            Err(error) if error.is_corrupt() => {
                note(&error.to_string());
                None
            }
            Err(error) => {
                self.owner.turn_off(&self.owner.off, &format!("the compile cache is off: {error}"));
                None
            }
        }
    }

    /// The cache, where it has programs of that name. The key is not needed to know this.
    fn cache_of_program(&self) -> Option<&CompileCache> {
        self.cache.filter(|cache| cache.has_program(self.function.name()))
    }

    /// What the most similar stored program of that name has otherwise.
    pub(crate) fn nearest(&self) -> Option<String> {
        let saved = self.owner.saved().and_then(|saved| saved.nearest(self.key()?));
        let lines = saved.or_else(|| self.cache_of_program()?.nearest(self.key()?));
        Some(lines?.join("; "))
    }

    /// Keeps a program that took this long to compile.
    pub(crate) fn store(&self, program: &LoadedExecutable, time: Duration) {
        if self.owner.read_only.load(Ordering::Relaxed) {
            return;
        }
        let Some(cache) = self.cache else { return };
        let Some(Err(error)) = self.key().map(|key| cache.store(key, program, time)) else { return };
        let why = match error.is_unsupported() {
            true => "the plugin cannot store them".to_owned(),
            false => format!("{error}; FULMEN_COMPILE_CACHE names another folder, or turns the cache `off`"),
        };
        self.owner.turn_off(&self.owner.read_only, &format!("compiled programs are no longer kept on disk: {why}"));
    }

    fn key(&self) -> Option<&ProgramKey> {
        let make = || {
            let key = self.client.topology().and_then(|here| key_of(&here, self.function, self.text, self.options));
            key.map_err(|error| self.owner.turn_off(&self.owner.off, &format!("the compile cache is off: {error}")))
                .ok()
        };
        self.key.get_or_init(make).as_ref()
    }
}

/// What tells the program of a function apart from others; `text` is it without locations.
pub(crate) fn key_of(
    topology: &Topology,
    function: &Function,
    text: &str,
    options: &CompileOptions,
) -> fulmen_pjrt::Result<ProgramKey> {
    let input = |parameter: &Tensor| match &parameter.node.kind {
        Kind::Placeholder { name } => Some((name.clone(), parameter.ty().to_string())),
        _ => None,
    };
    ProgramKey::new(topology, function.name(), text, options, function.parameters().iter().filter_map(input))
}
