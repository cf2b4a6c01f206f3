//! The environment variables `FULMEN_...`: a name that no part of Fulmen reads is misspelled, or not meant for it.
//!
//! Not here: what the variables say. Whatever reads one checks its value.

use std::ffi::OsString;
use std::sync::Once;

use crate::console::note;
use crate::options::nearest::nearest;
use crate::options::old_names::instead;
use crate::{Error, Options, Result};

const PREFIX: &str = "FULMEN_";

/// What is read besides the variables of the Trainer's options.
const OTHERS: [&str; 13] = [
    "FULMEN_COMPILE_CACHE",
    "FULMEN_COMPILE_CACHE_MB",
    "FULMEN_COORDINATOR",
    "FULMEN_PROCESS_ID",
    "FULMEN_NUM_PROCESSES",
    "FULMEN_RUN_ID",
    "FULMEN_RUN_TOKEN",
    "FULMEN_JOIN_TIMEOUT",
    "FULMEN_HEARTBEAT_TIMEOUT",
    "FULMEN_OFFLINE",
    "FULMEN_PJRT_PLUGIN",
    "FULMEN_PROGRESS_FILE",
    "FULMEN_STORE_GIVE_UP_SECONDS",
];

/// Variables of this project's tests and benchmarks begin so, after the prefix.
const PRIVATE: [&str; 6] = ["TEST_", "FETCH_TEST_", "BENCH_", "FUZZ_", "PRETRAINED", "REQUIRE_LIBTPU"];

/// Refuses a variable whose name is nearly that of a known one, and mentions others that nothing reads.
pub(crate) fn check() -> Result<()> {
    static MENTIONED: Once = Once::new();
    let unread = unread(std::env::vars_os())?;
    if !unread.is_empty() {
        let names = unread.join(", ");
        MENTIONED.call_once(|| note(&format!("note: these environment variables have no effect on Fulmen: {names}")));
    }
    Ok(())
}

/// The variables that nothing reads. An empty one counts as unset, as it does for options.
///
/// # Errors
/// A variable whose name is nearly that of a known one.
fn unread(set: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<String>> {
    let table = Options::table();
    let known = || table.iter().map(|row| row.env).chain(OTHERS);
    let mut unread = vec![];
    for (name, value) in set {
        let name = name.to_string_lossy();
        let upper = name.to_uppercase();
        let Some(bare) = upper.strip_prefix(PREFIX) else { continue };
        let private = PRIVATE.iter().any(|prefix| bare.starts_with(prefix));
        if private || value.is_empty() || known().any(|known| known == name) {
            continue;
        }
        if let Some(instead) = instead(bare) {
            return Err(Error::option(format!("there is no environment variable {name}: {instead}")));
        }
        // The prefix, which all have, must not make names longer than they are.
        let others = known().filter_map(|known| known.strip_prefix(PREFIX));
        if let Some(near) = nearest(bare, others) {
            return Err(Error::option(format!(
                "there is no environment variable {name}; did you mean {PREFIX}{near}? Correct its name, or unset it"
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
    fn a_misspelled_variable_is_refused_with_the_name_that_is_meant() {
        for (wrong, meant) in [
            ("MAX_EPOCH", "MAX_EPOCHS"),
            ("max_epochs", "MAX_EPOCHS"),
            ("DEVICE", "DEVICES"),
            ("NUM_PROCESS", "NUM_PROCESSES"),
            ("PJRT_PLUGINS", "PJRT_PLUGIN"),
        ] {
            let message = with(&["SEED", wrong], "3").unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "there is no environment variable FULMEN_{wrong}; did you mean FULMEN_{meant}? Correct its name, or \
                     unset it"
                )
            );
        }
        let message = with(&["TPU_CORES"], "8").unwrap_err().to_string();
        assert!(message.contains("FULMEN_TPU_CORES: give accelerator tpu") && message.contains("from 0"), "{message}");
        assert!(with(&["MAX_EPOCH"], "").unwrap().is_empty(), "an empty variable is an unset one");
        assert_eq!(with(&["SOMETHING_ELSE", "SEED", "TEST_CHILD"], "3").unwrap(), [format!("{PREFIX}SOMETHING_ELSE")]);
        let other = ("PATH_TO_FULMEN_MAX_EPOCH".into(), "x".into());
        assert!(unread(std::iter::once(other)).unwrap().is_empty());
    }

    /// Every literal `"FULMEN_..."` of the crates' sources.
    fn read_by(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_by(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let literals = text.split('"').filter(|literal| {
                    literal.strip_prefix(PREFIX).is_some_and(|rest| {
                        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                    })
                });
                found.extend(literals.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_variable_that_a_crate_reads_is_known() {
        let mut found = vec![];
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
            let sources = entry.unwrap().path().join("src");
            if sources.is_dir() {
                read_by(&sources, &mut found);
            }
        }
        assert!(found.len() > 20, "{found:?}");
        let set = found.iter().map(|name| (name.into(), "x".into()));
        assert_eq!(unread(set).unwrap(), [""; 0], "add them to the list in environment.rs");
    }
}
