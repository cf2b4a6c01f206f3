//! The compile cache as a runtime uses it: what goes wrong with it is a note, never an error.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey};
use fulmen_pjrt::{Client, CompileOptions, LoadedExecutable};

use crate::notes::note;
use crate::tensor::Kind;
use crate::{Function, Tensor};

/// A compile cache that turns itself off after the first failure.
#[derive(Default)]
pub(crate) struct DiskCache {
    cache: Option<CompileCache>,
    /// Programs cannot be stored any more; those that are there are still loaded.
    read_only: AtomicBool,
    off: AtomicBool,
}

impl DiskCache {
    pub(crate) fn new(cache: Option<CompileCache>) -> Arc<DiskCache> {
        Arc::new(DiskCache { cache, ..DiskCache::default() })
    }

    /// The one that the environment asks for, for all runtimes of this process.
    pub(crate) fn of_process() -> Arc<DiskCache> {
        static CACHE: OnceLock<Arc<DiskCache>> = OnceLock::new();
        let open = || {
            let cache = CompileCache::from_env();
            DiskCache::new(cache.unwrap_or_else(|error| {
                note(&format!("compiled programs are not kept on disk: {error}"));
                None
            }))
        };
        CACHE.get_or_init(open).clone()
    }

    /// Begins what takes long, while the caller does other things.
    pub(crate) fn prepare(&self, client: &Client) {
        if let Some(cache) = self.cache(client) {
            cache.prepare(client);
        }
    }

    /// The place of a program, where the cache is used for the client. `text` is the program without locations.
    pub(crate) fn slot<'a>(
        &'a self,
        client: &'a Client,
        function: &'a Function,
        text: &'a str,
        options: &'a CompileOptions,
    ) -> Option<Slot<'a>> {
        let cache = self.cache(client)?;
        Some(Slot { owner: self, cache, client, function, text, options, key: OnceCell::new() })
    }

    /// The cache, where it can be used for a client. It is not used for several processes: each would decide by itself
    /// whether it compiles, and programs compiled at different times need not fit together.
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
    cache: &'a CompileCache,
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
        if !self.cache.has_program(self.function.name()) {
            return None;
        }
        match self.cache.load(self.client, self.key()?) {
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

    /// What the most similar stored program of that name has otherwise.
    pub(crate) fn nearest(&self) -> Option<String> {
        if !self.cache.has_program(self.function.name()) {
            return None;
        }
        Some(self.cache.nearest(self.key()?)?.join("; "))
    }

    /// Keeps a program that took this long to compile.
    pub(crate) fn store(&self, program: &LoadedExecutable, time: Duration) {
        if self.owner.read_only.load(Ordering::Relaxed) {
            return;
        }
        let Some(Err(error)) = self.key().map(|key| self.cache.store(key, program, time)) else { return };
        let why = match error.is_unsupported() {
            true => "the plugin cannot store them".to_owned(),
            false => format!("{error}; FULMEN_COMPILE_CACHE names another folder, or turns the cache `off`"),
        };
        self.owner.turn_off(&self.owner.read_only, &format!("compiled programs are no longer kept on disk: {why}"));
    }

    fn key(&self) -> Option<&ProgramKey> {
        let input = |parameter: &Tensor| match &parameter.node.kind {
            Kind::Placeholder { name } => Some((name.clone(), parameter.ty().to_string())),
            _ => None,
        };
        let make = || {
            let (name, inputs) = (self.function.name(), self.function.parameters().iter().filter_map(input));
            match ProgramKey::new(self.client, name, self.text, self.options, inputs) {
                Ok(key) => Some(key),
                Err(error) => {
                    self.owner.turn_off(&self.owner.off, &format!("the compile cache is off: {error}"));
                    None
                }
            }
        };
        self.key.get_or_init(make).as_ref()
    }
}
