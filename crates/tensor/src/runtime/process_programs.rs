//! Programs over the devices of several processes. All processes run the code of process 0, which
//! loads it from its disk or compiles it.
//!
//! If each process decided by itself, one could load a program that another compiles, or one from
//! another build. Collectives of programs that do not match wait forever.
//!
//! For each program, the processes first compare its text. The error of a difference names the
//! processes. Then process 0 announces the digest of its code. Processes that have the same code on
//! disk load that, and the others get the code through the store of the run. If a process cannot
//! load it, or there is no code because the plugin does not serialize programs, all compile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fulmen_pjrt::{CompileOptions, KeyValueError, LoadedExecutable};
use sha2::{Digest, Sha256};

use super::programs::CompileKey;
use super::{Peers, Runtime};
use crate::disk_cache::Slot;
use crate::lower::Lowered;
use crate::{Error, Function, Result};

/// The size of the parts in which code is shared. Stores limit the size of a value.
const PART_BYTES: usize = 8 << 20;

/// How long the processes wait for each other. The store ends the wait if a process is lost.
const NO_TIMEOUT: Duration = Duration::MAX;

/// The announcement of process 0 if all processes must compile the program.
const NO_CODE: &str = "none";

/// The code of a program in process 0.
struct Code {
    bytes: Vec<u8>,
    /// The compiler's time, if the program was compiled now.
    time: Option<Duration>,
}

/// The announcement of process 0.
struct Announced {
    digest: String,
    parts: usize,
    time: Option<Duration>,
}

impl Announced {
    fn new(code: &Code) -> Announced {
        let parts = code.bytes.len().div_ceil(PART_BYTES);
        Announced { digest: digest(&code.bytes), parts, time: code.time }
    }

    fn to_text(&self) -> String {
        let time = self.time.map_or(String::new(), |time| time.as_nanos().to_string());
        format!("{} {} {time}", self.digest, self.parts)
    }

    fn from_text(text: &str) -> Option<Announced> {
        let mut words = text.split(' ');
        let digest = words.next()?;
        let parts = words.next()?;
        let time = words.next()?;
        let time = match time {
            "" => None,
            nanos => Some(Duration::from_nanos(nanos.parse().ok()?)),
        };
        Some(Announced { digest: digest.to_owned(), parts: parts.parse().ok()?, time })
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The values under which the processes agree on one program.
struct Turn<'a> {
    peers: &'a Peers,
    key: String,
}

impl Turn<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.key)
    }

    fn put(&self, name: &str, value: impl AsRef<[u8]>) -> Result<(), KeyValueError> {
        self.peers.store.put(&self.key(name), value.as_ref())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, KeyValueError> {
        self.peers.store.get(&self.key(name), NO_TIMEOUT)
    }

    /// Whether `value` is true in any process. All processes must have these facts.
    fn any(
        &self,
        name: &str,
        value: bool,
        facts: &BTreeMap<String, String>,
    ) -> Result<bool, KeyValueError> {
        if value {
            self.put(name, "yes")?;
        }
        // After this, each process has put its value.
        self.peers.store.check_consistent("compile", facts)?;
        Ok(self.peers.store.try_get(&self.key(name))?.is_some())
    }

    fn share(&self, code: &[u8]) -> Result<(), KeyValueError> {
        for (i, part) in code.chunks(PART_BYTES).enumerate() {
            self.put(&i.to_string(), part)?;
        }
        Ok(())
    }

    /// The code that process 0 shared; `None` if it arrived damaged.
    fn receive(&self, announced: &Announced) -> Result<Option<Vec<u8>>, KeyValueError> {
        let mut code = Vec::new();
        for i in 0..announced.parts {
            code.extend(self.get(&i.to_string())?);
        }
        Ok((digest(&code) == announced.digest).then_some(code))
    }
}

/// A function to agree on.
struct Request<'a> {
    function: &'a Function,
    lowered: &'a Lowered,
    options: &'a CompileOptions,
    slot: Option<Slot<'a>>,
}

impl Runtime {
    /// Agrees with the other processes on the program of a function. `kept` is the program of an
    /// earlier call. Returns the compiler's time if the program was compiled now, by any process.
    pub(super) fn agree_on_program(
        &self,
        peers: &Peers,
        function: &Function,
        lowered: &Lowered,
        key: CompileKey,
        kept: Option<Arc<LoadedExecutable>>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<(Arc<LoadedExecutable>, Option<Duration>)> {
        let failed = |error: KeyValueError| {
            let doing = format!("agreeing on `{}` with the other processes", function.name());
            Error::runtime(doing, Error::from(error))
        };
        let turn = peers.store.next_turn().map_err(failed)?;
        let turn = Turn { peers, key: format!("programs/{turn}") };
        let text = format!("`{}` {}", function.name(), &digest(lowered.key.as_bytes())[..16]);
        let facts = BTreeMap::from([("program".to_owned(), text)]);
        let is_missing = turn.any("missing", kept.is_none(), &facts).map_err(failed)?;
        if let Some(kept) = kept.filter(|_| !is_missing) {
            self.metrics.count("CachedCompile", 1);
            return Ok((kept, None));
        }
        let options = self.compile_options(&key);
        let slot = self.disk_cache.slot(self.client(), function, &lowered.key, &options);
        let request = Request { function, lowered, options: &options, slot };
        let (executable, time) = if peers.index == 0 {
            self.offer_program(&turn, &request, announce, failed)?
        } else {
            self.accept_program(&turn, &request, announce, failed)?
        };
        if time.is_none() {
            self.metrics.count("PersistentCacheHit", 1);
        }
        self.metrics.count("CreateCompileHandles", 1);
        let executable = Arc::new(executable);
        let dropped = self.compiled().insert(key, executable.clone());
        drop(dropped);
        Ok((executable, time))
    }

    /// In process 0: loads or compiles a program, and shares its code.
    fn offer_program(
        &self,
        turn: &Turn<'_>,
        request: &Request<'_>,
        announce: Option<impl FnOnce(Option<String>)>,
        failed: impl Fn(KeyValueError) -> Error,
    ) -> Result<(LoadedExecutable, Option<Duration>)> {
        let Request { function, lowered, options, slot } = request;
        let load = |code: &[u8]| Ok((self.client().load(code)?, code.to_vec()));
        let stored = slot.as_ref().and_then(|slot| slot.load_with(load));
        let (executable, code) = match stored {
            Some((executable, bytes)) => (executable, Code { bytes, time: None }),
            None => {
                if let Some(announce) = announce {
                    announce(slot.as_ref().and_then(Slot::nearest));
                }
                let compiled = self.compile_now(function, lowered, options, slot.is_some());
                let (executable, bytes, time) = match compiled {
                    Ok(compiled) => compiled,
                    // The others find the same error by themselves.
                    Err(error) => {
                        turn.put("code", NO_CODE).map_err(failed)?;
                        return Err(error);
                    }
                };
                let bytes = bytes.or_else(|| executable.serialize().ok());
                let Some(bytes) = bytes else {
                    turn.put("code", NO_CODE).map_err(failed)?;
                    return Ok((executable, Some(time)));
                };
                (executable, Code { bytes, time: Some(time) })
            }
        };
        turn.put("code", Announced::new(&code).to_text()).map_err(&failed)?;
        let none = BTreeMap::new();
        if turn.any("wanted", false, &none).map_err(&failed)? {
            turn.share(&code.bytes).map_err(&failed)?;
        }
        let is_refused = turn.any("refused", false, &none).map_err(&failed)?;
        match (code.time, slot) {
            (Some(time), Some(slot)) => slot.store_code(&code.bytes, time),
            (None, _) if is_refused => {
                let (executable, _, time) = self.compile_now(function, lowered, options, true)?;
                return Ok((executable, Some(time)));
            }
            _ => {}
        }
        Ok((executable, code.time))
    }

    /// In the other processes: loads the code of process 0.
    fn accept_program(
        &self,
        turn: &Turn<'_>,
        request: &Request<'_>,
        announce: Option<impl FnOnce(Option<String>)>,
        failed: impl Fn(KeyValueError) -> Error,
    ) -> Result<(LoadedExecutable, Option<Duration>)> {
        let Request { function, lowered, options, slot } = request;
        let text = String::from_utf8_lossy(&turn.get("code").map_err(&failed)?).into_owned();
        let announced = Announced::from_text(&text);
        let is_compiled = announced.as_ref().is_none_or(|announced| announced.time.is_some());
        if let Some(announce) = announce.filter(|_| is_compiled) {
            announce(slot.as_ref().and_then(Slot::nearest));
        }
        let compile = || {
            // Not from the folder of tests: process 0 may have compiled its own.
            let (executable, _, time) = self.compile_now(function, lowered, options, true)?;
            Ok((executable, Some(time)))
        };
        let Some(announced) = announced else { return compile() };
        let same = |code: &[u8]| Ok((digest(code) == announced.digest).then(|| code.to_vec()));
        let stored = slot.as_ref().and_then(|slot| slot.load_with(same)).flatten();
        let none = BTreeMap::new();
        let is_stored = stored.is_some();
        let is_wanted = turn.any("wanted", !is_stored, &none).map_err(&failed)?;
        let code = match stored {
            None if is_wanted => turn.receive(&announced).map_err(&failed)?,
            stored => stored,
        };
        let loaded = code.and_then(|code| Some((self.client().load(&code).ok()?, code)));
        let is_refused = turn.any("refused", loaded.is_none(), &none).map_err(&failed)?;
        let Some((executable, code)) = loaded.filter(|_| !is_refused) else { return compile() };
        if let Some(slot) = slot.as_ref().filter(|_| !is_stored) {
            slot.store_code(&code, announced.time.unwrap_or_default());
        }
        if let Some(time) = announced.time {
            self.count_compilation(time);
        }
        Ok((executable, announced.time))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Condvar, Mutex};

    use fulmen_pjrt::KeyValueStore;
    use fulmen_pjrt::compile_cache::CompileCache;
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::lower::lower;
    use crate::{Accelerator, DType, Devices, PeerStore, TensorType};

    /// How the code that process 0 shares arrives in a process.
    #[derive(Clone, Copy, PartialEq)]
    enum Arrival {
        Whole,
        /// With another byte.
        Damaged,
        /// As code that this plugin cannot load, such as that of another CPU.
        Foreign,
    }

    const FOREIGN: &[u8] = b"the code of another CPU";

    /// The number of processes.
    const COUNT: usize = 3;

    /// The store of all processes.
    struct Shared {
        values: Mutex<BTreeMap<String, Vec<u8>>>,
        changed: Condvar,
        arrived: Barrier,
    }

    /// The store as one process sees it.
    struct Store {
        shared: Arc<Shared>,
        arrival: Arrival,
    }

    impl KeyValueStore for Store {
        fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>, KeyValueError> {
            let mut values = self.shared.values.lock().unwrap();
            let mut value = loop {
                if let Some(value) = values.get(key) {
                    break value.clone();
                }
                values = self.shared.changed.wait(values).unwrap();
            };
            match (self.arrival, key.rsplit('/').next()) {
                (Arrival::Damaged, Some("0")) => *value.last_mut().unwrap() ^= 1,
                (Arrival::Foreign, Some("0")) => value = FOREIGN.to_vec(),
                (Arrival::Foreign, Some("code")) => {
                    let code = Code { bytes: FOREIGN.to_vec(), time: None };
                    value = Announced::new(&code).to_text().into_bytes();
                }
                _ => {}
            }
            Ok(value)
        }

        fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
            Ok(self.shared.values.lock().unwrap().get(key).cloned())
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
            self.shared.values.lock().unwrap().insert(key.to_owned(), value.to_vec());
            self.shared.changed.notify_all();
            Ok(())
        }
    }

    impl PeerStore for Store {
        fn check_consistent(
            &self,
            _: &str,
            _: &BTreeMap<String, String>,
        ) -> Result<(), KeyValueError> {
            self.shared.arrived.wait();
            Ok(())
        }

        fn next_turn(&self) -> Result<u64, KeyValueError> {
            Ok(0)
        }
    }

    /// Whether each process has compiled the program, or used one that another compiled now. The code
    /// arrives whole in process 2, and in process 1 as `arrival` says.
    fn compiles(runtimes: &[Runtime; COUNT], arrival: Arrival) -> Vec<bool> {
        let shared = Arc::new(Shared {
            values: Mutex::default(),
            changed: Condvar::new(),
            arrived: Barrier::new(COUNT),
        });
        let agree = |index: usize| {
            let arrival = if index == 1 { arrival } else { Arrival::Whole };
            let store = Arc::new(Store { shared: shared.clone(), arrival });
            let peers = Peers { index, count: COUNT, local: (index, COUNT), store };
            let runtime = &runtimes[index];
            let ty = TensorType::new(DType::F32, [5]);
            let cube = Function::trace("cube", ty, |x| &x * &x * &x);
            let platform = Platform::from_name(runtime.client().platform_name());
            let lowered = lower(&cube, runtime.mesh(), platform).unwrap();
            let key = runtime.compile_key(&lowered);
            let announce = None::<fn(Option<String>)>;
            let (_, time) =
                runtime.agree_on_program(&peers, &cube, &lowered, key, None, announce).unwrap();
            time.is_some()
        };
        std::thread::scope(|scope| {
            let processes: Vec<_> =
                (0..COUNT).map(|index| scope.spawn(move || agree(index))).collect();
            processes.into_iter().map(|process| process.join().unwrap()).collect()
        })
    }

    #[test]
    fn if_one_process_cannot_load_the_code_all_compile() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
        let cache = CompileCache::new(folder.path(), 1 << 30);
        let runtimes = [Some(cache), None, None].map(|cache| open().with_compile_cache(cache));
        // Process 0 compiles the program, and keeps it on its disk.
        assert_eq!(compiles(&runtimes, Arrival::Whole), [true; COUNT]);
        assert_eq!(compiles(&runtimes, Arrival::Whole), [false; COUNT]);
        assert_eq!(compiles(&runtimes, Arrival::Damaged), [true; COUNT]);
        assert_eq!(compiles(&runtimes, Arrival::Foreign), [true; COUNT]);
        assert_eq!(compiles(&runtimes, Arrival::Whole), [false; COUNT]);
    }

    #[test]
    fn code_that_arrives_damaged_is_not_loaded() {
        let code = Code { bytes: vec![7; PART_BYTES + 1], time: None };
        let announced = Announced::new(&code);
        for (arrival, expected) in
            [(Arrival::Whole, Some(code.bytes.clone())), (Arrival::Damaged, None)]
        {
            let shared = Arc::new(Shared {
                values: Mutex::default(),
                changed: Condvar::new(),
                arrived: Barrier::new(1),
            });
            let store = Arc::new(Store { shared, arrival });
            let peers = Peers { index: 1, count: 2, local: (1, 2), store };
            let turn = Turn { peers: &peers, key: "program".into() };
            turn.share(&code.bytes).unwrap();
            assert!(turn.receive(&announced).unwrap() == expected);
        }
    }

    #[test]
    fn an_announcement_is_read_as_it_was_written() {
        for time in [None, Some(Duration::from_millis(1234))] {
            let code = Code { bytes: vec![7; PART_BYTES + 1], time };
            let read = Announced::from_text(&Announced::new(&code).to_text()).unwrap();
            let expected = (digest(&code.bytes), 2, time);
            assert_eq!((read.digest, read.parts, read.time), expected);
            assert_eq!(expected.0.len(), 64);
        }
        assert!(Announced::from_text(NO_CODE).is_none());
    }
}
