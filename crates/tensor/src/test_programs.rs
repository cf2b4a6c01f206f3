//! The programs of this workspace's own tests, which spend most of their time in XLA's compiler.
//!
//! `ci/test-runner` sets `FULMEN_TEST_PROGRAMS` to a folder. CPU programs are then compiled with few
//! optimizations, and kept in the folder for the next run of the tests. With the variable
//! `FULMEN_TEST_PROGRAMS_OPTIMIZED`, they are compiled as for users: for tests that train for long.
//!
//! This is not the compile cache: a program from the folder counts as compiled, and is announced, so
//! that a test sees the same in each run. The key has the whole text of the program with its
//! locations, so that no change is hidden.
//!
//! `ci/programs` sets `FULMEN_TEST_TEXTS` to a folder. The text of each program without locations is
//! then written there, to compare the programs of two commits.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey};
use fulmen_pjrt::{Client, CompileOptions, LoadedExecutable, Result};
use sha2::{Digest, Sha256};

use crate::note;

/// The size limit of the folder.
const MAX_BYTES: u64 = 2_000_000_000;

static FOLDER: LazyLock<Option<CompileCache>> = LazyLock::new(|| {
    let folder = env::var_os("FULMEN_TEST_PROGRAMS").map(PathBuf::from);
    // The runner's folder is absolute. `off` and the empty text, which turn this off, are not.
    folder.filter(|folder| folder.is_absolute()).map(|folder| CompileCache::new(folder, MAX_BYTES))
});

/// The folder of the texts.
static TEXTS: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os("FULMEN_TEST_TEXTS").map(PathBuf::from));

/// Keeps the text of a program, if the folder of the texts is set. The name of the file is the hash
/// of the text.
pub(crate) fn keep_text(text: &str) {
    let Some(folder) = &*TEXTS else { return };
    let digest = Sha256::digest(text);
    let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(name + ".mlir");
    if !path.exists()
        && let Err(error) = fs::write(&path, text)
    {
        // A text that is missing would look like a difference.
        note!("cannot keep the text of a program in {}: {error}", path.display());
    }
}

/// Whether programs are compiled with all optimizations.
fn is_optimized() -> bool {
    env::var_os("FULMEN_TEST_PROGRAMS_OPTIMIZED").is_some_and(|value| !value.is_empty())
}

/// Adds the flags for programs that compile quickly and run once. They halve the compiler's time.
pub(crate) fn with_flags(options: CompileOptions) -> CompileOptions {
    if FOLDER.is_none() || is_optimized() {
        return options;
    }
    options
        .override_flag("xla_backend_optimization_level", 0)
        .override_flag("xla_llvm_disable_expensive_passes", true)
        .override_flag("xla_cpu_parallel_codegen_split_count", 1)
}

/// Compiles a program, or takes it and its code from the folder.
pub(crate) fn compile(
    client: &Client,
    name: &str,
    text: &str,
    options: &CompileOptions,
) -> Result<(LoadedExecutable, Option<Vec<u8>>)> {
    let Some(cache) = &*FOLDER else {
        return Ok((client.compile(text, options)?, None));
    };
    let key = ProgramKey::new(&client.topology()?, name, text, options, [])?;
    let load = |code: &[u8]| Ok((client.load(code)?, Some(code.to_vec())));
    if let Ok(Some(program)) = cache.load_with(&key, load) {
        return Ok(program);
    }
    let _turn = Turn::wait(cache.folder().join(format!("{}.lock", key.digest())));
    if let Ok(Some(program)) = cache.load_with(&key, load) {
        return Ok(program);
    }
    let program = client.compile(text, options)?;
    // A test does not fail because of a full disk. The next run compiles again.
    let _ = cache.store(&key, &program, Duration::ZERO);
    Ok((program, None))
}

/// The turn to compile a program. The processes of a test need a program at the same time: the first
/// one compiles it, and the others wait and take it from the folder.
struct Turn {
    path: PathBuf,
    /// Locked until it is closed.
    _file: File,
}

impl Turn {
    /// Waits for the turn. `None` if there are no locks, or after a minute: the program is then
    /// compiled once more than necessary.
    fn wait(path: PathBuf) -> Option<Turn> {
        fs::create_dir_all(path.parent()?).ok()?;
        let file = File::create(&path).ok()?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if fulmen_durable::try_lock(&file).ok()? {
                return Some(Turn { path, _file: file });
            }
            thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Others have it open, or find the program.
        let _ = fs::remove_file(&self.path);
    }
}

/// Starts to hash the plugin's file, which the keys need.
pub(crate) fn prepare(client: &Client) {
    if let Some(cache) = &*FOLDER {
        cache.prepare(client);
    }
}
