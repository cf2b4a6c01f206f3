//! Checks the names of environment variables `FULMEN_...`. A name that no part of Fulmen reads is
//! misspelled, or meant for another program.
//!
//! Variables that are read late, or only in some runs, are checked here too, so that a mistake in one
//! is wrong usage before any work. The code that reads a variable checks its value again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Once;

use fulmen_coordination::{Process, Timeouts};
use parking_lot::Mutex;

use crate::console::note;
use crate::options::lightning_names::replacement_for;
use crate::options::nearest_name::nearest_name;
use crate::process_group::file_timeout;
use crate::{Options, Result, TrainerArgs, error};

const PREFIX: &str = "FULMEN_";

/// The variables that Fulmen reads in addition to those of the Trainer's options.
const OTHERS: [&str; 23] = [
    "FULMEN_COMPILE_CACHE",
    "FULMEN_COMPILE_CACHE_MB",
    "FULMEN_COORDINATOR",
    "FULMEN_FILE_TIMEOUT",
    "FULMEN_HEARTBEAT_TIMEOUT",
    "FULMEN_HOSTS",
    "FULMEN_JOIN_TIMEOUT",
    "FULMEN_NUM_PROCESSES",
    "FULMEN_OFFLINE",
    "FULMEN_PASSES",
    "FULMEN_PJRT_PLUGIN",
    "FULMEN_PROCESS_ID",
    "FULMEN_PROGRESS_FILE",
    "FULMEN_RUN_ID",
    "FULMEN_RUN_TOKEN",
    "FULMEN_STORE_GIVE_UP_SECONDS",
    "FULMEN_VIRTUAL_POD",
    "FULMEN_VIRTUAL_POD_CPU_PLUGIN",
    "FULMEN_VIRTUAL_POD_DEVICE_KIND",
    "FULMEN_VIRTUAL_POD_FAULT",
    "FULMEN_VIRTUAL_POD_HOST",
    "FULMEN_VIRTUAL_POD_MISMATCH",
    "FULMEN_VIRTUAL_POD_PLATFORM",
];

/// Prefixes, after `FULMEN_`, of the variables of this project's tests and benchmarks.
const PRIVATE: [&str; 6] =
    ["TEST_", "FETCH_TEST_", "BENCH_", "FUZZ_", "PRETRAINED", "REQUIRE_LIBTPU"];

/// Rejects variables whose names are close to a known name, and invalid values of variables that
/// are read late.
pub(crate) fn check() -> Result<()> {
    check_values(|name| std::env::var_os(name))?;
    unread(std::env::vars_os()).map(drop)
}

/// Prints once which variables nothing reads. Of several processes that the environment describes,
/// only process 0 does.
pub(crate) fn note_unread() {
    static NOTED: Once = Once::new();
    let unread = unread(std::env::vars_os()).unwrap_or_default();
    let process = Process::from_fulmen_env(|name| std::env::var_os(name));
    if !unread.is_empty() && process.is_ok_and(|process| process.is_coordinator()) {
        let names = unread.join(", ");
        NOTED.call_once(|| note!("these environment variables have no effect on Fulmen: {names}"));
    }
}

/// Checks the values of the variables for several processes and for object stores.
fn check_values(env: impl Fn(&str) -> Option<OsString>) -> Result<()> {
    Timeouts::from_env(&env)?;
    file_timeout(&env)?;
    Process::from_fulmen_env(&env).map(drop)?;
    #[cfg(feature = "cloud")]
    fulmen_checkpoint::StoreOptions::check_variables().map_err(|e| error::option(e.to_string()))?;
    Ok(())
}

/// Prints once for each variable of an option that the program overrides it.
pub(crate) fn note_unused(args: &TrainerArgs) {
    static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for line in args.unused_env(|name| std::env::var_os(name)) {
        if NOTED.lock().insert(line.clone()) {
            note!("{line}");
        }
    }
}

/// The variables that nothing reads. An empty variable counts as unset, as for options.
///
/// # Errors
/// A variable has a name that is close to a known one.
fn unread(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<String>> {
    let table = Options::table();
    let known = || table.iter().map(|row| row.env).chain(OTHERS);
    let mut unread = Vec::new();
    for (name, value) in variables {
        let name = name.to_string_lossy();
        let upper = name.to_uppercase();
        let Some(bare) = upper.strip_prefix(PREFIX) else { continue };
        let private = PRIVATE.iter().any(|prefix| bare.starts_with(prefix));
        if private || value.is_empty() || known().any(|known| known == name) {
            continue;
        }
        if let Some(replacement) = replacement_for(bare) {
            return Err(error::option(format!(
                "there is no environment variable {name}: {replacement}"
            )));
        }
        // Compare without the prefix: a longer name allows more differences.
        let others = known().filter_map(|known| known.strip_prefix(PREFIX));
        if let Some(nearest) = nearest_name(bare, others) {
            return Err(error::option(format!(
                "there is no environment variable {name}; did you mean {PREFIX}{nearest}? Correct its name, or unset it"
            )));
        }
        unread.push(name.into_owned());
    }
    unread.sort();
    Ok(unread)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn with(names: &[&str], value: &str) -> Result<Vec<String>> {
        unread(names.iter().map(|name| (format!("{PREFIX}{name}").into(), value.into())))
    }

    #[test]
    fn a_misspelled_variable_is_an_error_with_the_correct_name() {
        for (misspelled, correct) in [
            ("MAX_EPOCH", "MAX_EPOCHS"),
            ("max_epochs", "MAX_EPOCHS"),
            ("DEVICE", "DEVICES"),
            ("NUM_PROCESS", "NUM_PROCESSES"),
            ("PJRT_PLUGINS", "PJRT_PLUGIN"),
        ] {
            let message = with(&["SEED", misspelled], "3").unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "there is no environment variable FULMEN_{misspelled}; did you mean FULMEN_{correct}? Correct its \
                     name, or unset it"
                )
            );
        }
        let message = with(&["TPU_CORES"], "8").unwrap_err().to_string();
        assert!(
            message.contains("FULMEN_TPU_CORES: set `accelerator` to tpu")
                && message.contains("from 0"),
            "{message}"
        );
        assert!(with(&["MAX_EPOCH"], "").unwrap().is_empty(), "an empty variable counts as unset");
        assert_eq!(
            with(&["SOMETHING_ELSE", "SEED", "TEST_CHILD"], "3").unwrap(),
            [format!("{PREFIX}SOMETHING_ELSE")]
        );
        let other = ("PATH_TO_FULMEN_MAX_EPOCH".into(), "x".into());
        assert!(unread(std::iter::once(other)).unwrap().is_empty());
    }

    /// Adds each literal `"FULMEN_..."` of the sources in a folder.
    fn add_literals(folder: &Path, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_literals(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let literals = text.split('"').filter(|literal| {
                    literal.strip_prefix(PREFIX).is_some_and(|rest| {
                        !rest.is_empty()
                            && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                    })
                });
                names.extend(literals.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_variable_that_a_crate_reads_is_known() {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
            let sources = entry.unwrap().path().join("src");
            if sources.is_dir() {
                add_literals(&sources, &mut names);
            }
        }
        assert!(names.len() > 20, "{names:?}");
        let variables = names.iter().map(|name| (name.into(), "x".into()));
        assert_eq!(unread(variables).unwrap(), [""; 0], "add them to the list in environment.rs");
    }
}
