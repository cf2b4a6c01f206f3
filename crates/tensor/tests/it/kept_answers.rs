//! The answers of compilers that take long, kept for the next run of the tests.
//!
//! libtpu cannot load a program without a TPU, so `test_programs.rs` cannot keep it. Here, the
//! plugin's answer about the program is kept instead, in the same folder. Its key is that of a
//! compile cache: text, options, plugin and machine.

use std::io::Write;
use std::path::PathBuf;
use std::{env, fs};

use fulmen_pjrt::compile_cache::ProgramKey;
use fulmen_pjrt::{CompileOptions, Topology};

/// What `ask` returns for this program. An error is not kept.
///
/// `question` names what is asked. Keep only what the plugin itself says: an answer that our code
/// computes from the program would hide a change of that code.
pub(crate) fn answer(
    question: &str,
    topology: &Topology,
    text: &str,
    options: &CompileOptions,
    ask: impl FnOnce() -> Result<String, String>,
) -> Result<String, String> {
    // As in `test_programs.rs`, `off` and the empty text are not absolute.
    let folder = env::var_os("FULMEN_TEST_PROGRAMS").map(PathBuf::from);
    let Some(folder) = folder.filter(|folder| folder.is_absolute()) else { return ask() };
    let key = ProgramKey::new(topology, question, text, options, []).unwrap();
    let path = folder.join(format!("{}.answer", key.digest()));
    if let Ok(kept) = fs::read_to_string(&path) {
        return Ok(kept);
    }
    let answer = ask()?;
    fs::create_dir_all(&folder).unwrap();
    let bytes = answer.as_bytes();
    fulmen_durable::write_unsynced(&path, None, |file| file.write_all(bytes)).unwrap();
    Ok(answer)
}
