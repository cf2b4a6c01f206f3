//! The facts that processes compare before they run a program together.

use std::collections::BTreeMap;

use fulmen_data::DataLoader;
use fulmen_tensor::{Function, Runtime};

use crate::{Options, Result};

/// Facts about a run, by name.
pub(crate) type RunFingerprint = BTreeMap<String, String>;

/// Options in which processes may differ, because they don't affect the programs, such as folders
/// and output. Devices are compared by the mesh, and checkpoints and files of programs by their
/// content.
const PROCESS_OPTIONS: [&str; 11] = [
    "accelerator",
    "aot",
    "devices",
    "default_root_dir",
    "ckpt_path",
    "resume",
    "grace",
    "enable_progress_bar",
    "metrics_port",
    "profiler",
    "dump_dir",
];

/// The facts that all runs have.
pub(crate) fn run_fingerprint(options: &Options, runtime: &Runtime) -> Result<RunFingerprint> {
    let client = runtime.client();
    let plugin = client.plugin().api_version();
    let mut facts = RunFingerprint::from([
        ("fulmen".into(), env!("CARGO_PKG_VERSION").into()),
        ("platform".into(), client.platform_name().into()),
        (
            "plugin".into(),
            format!("{} (PJRT {}.{})", client.platform_version(), plugin.major, plugin.minor),
        ),
        ("mesh".into(), runtime.mesh().to_string()),
        ("compiled programs".into(), runtime.saved_programs_digest().unwrap_or("none").into()),
    ]);
    let options = options.values().into_iter().filter(|(name, _)| !PROCESS_OPTIONS.contains(name));
    facts
        .extend(options.map(|(name, value)| (format!("option {name}"), value.unwrap_or_default())));
    Ok(facts)
}

/// Adds a program, with a function for each shape of its batches, and the description of the
/// loader.
pub(crate) fn add_program(
    facts: &mut RunFingerprint,
    name: &str,
    functions: &[Function],
    loader: &DataLoader,
    runtime: &Runtime,
) -> Result<()> {
    let fingerprints = functions.iter().map(|function| function.fingerprint(runtime.mesh()));
    facts.insert(format!("{name} program"), fingerprints.collect::<Result<Vec<_>>>()?.join(" "));
    facts.insert(format!("{name} data"), loader.description());
    Ok(())
}
