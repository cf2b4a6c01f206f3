//! What all processes must have in common before they run a program together: the facts that they compare.

use std::collections::BTreeMap;

use fulmen_data::DataLoader;
use fulmen_tensor::{Function, Runtime};

use crate::{Options, Result};

/// RunFingerprint by name.
pub(crate) type RunFingerprint = BTreeMap<String, String>;

/// Options that say nothing about the programs: where files go and what is shown. Devices are a fact of the mesh, and a
/// checkpoint and a file of programs are compared by what is in them.
const OWN: [&str; 11] = [
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

/// What every run has.
pub(crate) fn of_run(options: &Options, runtime: &Runtime) -> Result<RunFingerprint> {
    let client = runtime.client();
    let plugin = client.plugin().api_version();
    let mut facts = RunFingerprint::from([
        ("fulmen".into(), env!("CARGO_PKG_VERSION").into()),
        ("platform".into(), client.platform_name().into()),
        ("plugin".into(), format!("{} (PJRT {}.{})", client.platform_version(), plugin.major, plugin.minor)),
        ("mesh".into(), runtime.mesh().to_string()),
        ("compiled programs".into(), runtime.saved_programs_digest().unwrap_or("none").into()),
    ]);
    let options = options.values().into_iter().filter(|(name, _)| !OWN.contains(name));
    facts.extend(options.map(|(name, value)| (format!("option {name}"), value.unwrap_or_default())));
    Ok(facts)
}

/// Adds a program, for each shape of the batches that it runs on, and those.
pub(crate) fn add_program(
    facts: &mut RunFingerprint,
    name: &str,
    functions: &[Function],
    loader: &DataLoader,
    runtime: &Runtime,
) -> Result<()> {
    let of_shapes = functions.iter().map(|function| Ok(function.fingerprint(runtime.mesh())?));
    facts.insert(format!("{name} program"), of_shapes.collect::<Result<Vec<_>>>()?.join(" "));
    facts.insert(format!("{name} data"), loader.description());
    Ok(())
}
