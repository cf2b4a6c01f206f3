//! Checks of the PJRT plugins: which are installed, their API versions, and the age of libtpu.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_pjrt::diagnosis::evidence_under;
use fulmen_pjrt::fetch::libtpu_version;
use fulmen_pjrt::locate::Platform;
use serde::Deserialize;

use super::{Finding, Machine, Severity};
use crate::inventory::package;

/// The output of `fulmen plugin list --json`: plugins by the names of their platforms.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Plugins(BTreeMap<String, Plugin>);

#[derive(Debug, Default, Deserialize)]
struct Plugin {
    path: Option<PathBuf>,
    api_version: Option<String>,
    error: Option<String>,
}

impl Plugins {
    pub(super) fn ask(machine: &Machine) -> Result<Plugins, String> {
        let failed = |why: &dyn std::fmt::Display| format!("cannot list the plugins: {why}");
        let Some((program, arguments)) = machine.plugin_list.split_first() else {
            return Err(failed(&"no program"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(&machine.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed(&error))?;
        let start = Instant::now();
        let timeout = 2 * machine.timeout;
        // Read the output only at the end: it fits into a pipe.
        while child.try_wait().map_err(|error| failed(&error))?.is_none() {
            if start.elapsed() > timeout {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&format!(
                    "no answer within {} s; a plugin may hang, or the disk may be slow",
                    timeout.as_secs_f64()
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let status = child.wait().map_err(|error| failed(&error))?;
        let mut printed = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut printed).map_err(|error| failed(&error))?;
        }
        if !status.success() {
            return Err(failed(&format!("{status}; a plugin may have crashed")));
        }
        serde_json::from_str(&printed).map_err(|error| failed(&error))
    }
}

pub(super) fn plugins(machine: &Machine) -> Vec<Finding> {
    let plugins = match machine.plugins() {
        Ok(plugins) => plugins,
        Err(why) => {
            return vec![Finding::warning(
                why,
                "run `fulmen plugin verify`, which waits longer and says which plugin crashes",
            )];
        }
    };
    let named = |platform| match platform {
        Platform::Tpu => {
            machine.text("FULMEN_PJRT_PLUGIN").or_else(|| machine.text("TPU_LIBRARY_PATH"))
        }
        Platform::Cpu | Platform::Cuda => machine.text("FULMEN_PJRT_PLUGIN"),
    };
    let variable = |name: &str| machine.variable(name);
    let mut findings = Vec::new();
    for platform in [Platform::Cpu, Platform::Cuda, Platform::Tpu] {
        let Some(plugin) = plugins.0.get(platform.name()) else { continue };
        let has_device = platform == Platform::Cpu
            || evidence_under(&machine.root, platform, &variable).is_some();
        // The variable overrides the plugin of every platform.
        if !has_device && machine.variable("FULMEN_PJRT_PLUGIN").is_some() {
            continue;
        }
        let error = plugin.error.as_deref().unwrap_or("no answer");
        findings.push(match plugin {
            Plugin { path: Some(path), api_version: Some(version), .. } => {
                Finding::ok(format!("{platform}: {} speaks PJRT API {version}", path.display()))
            }
            Plugin { path: Some(_), .. } => Finding {
                severity: if has_device { Severity::Error } else { Severity::Warning },
                ..Finding::note(
                    format!("{platform}: {error}"),
                    replacement_remedy(platform, named(platform).is_some()),
                )
            },
            _ if named(platform).is_some() => {
                Finding::error(format!("{platform}: {error}"), replacement_remedy(platform, true))
            }
            _ if platform == Platform::Cpu => Finding::note(
                "cpu: no plugin is installed",
                "`fulmen plugin install cpu`; otherwise the first program downloads it",
            ),
            _ if has_device => Finding::error(
                format!(
                    "{platform}: there are devices, but no plugin; training with the accelerator `auto` is an error"
                ),
                replacement_remedy(platform, false),
            ),
            _ => continue,
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no device needs one"));
    }
    findings
}

/// How to replace the plugin of a platform.
fn replacement_remedy(platform: Platform, is_named: bool) -> String {
    let install = match platform {
        Platform::Cpu => "`fulmen plugin verify` replaces a damaged plugin",
        Platform::Cuda => "`pip install --upgrade jax-cuda13-pjrt`",
        Platform::Tpu => "`fulmen plugin install tpu`, or `pip install --upgrade libtpu`",
    };
    let variable = if platform == Platform::Tpu {
        "FULMEN_PJRT_PLUGIN or TPU_LIBRARY_PATH"
    } else {
        "FULMEN_PJRT_PLUGIN"
    };
    if is_named {
        format!("correct or unset {variable}; then {install}")
    } else {
        install.to_owned()
    }
}

pub(super) fn age_of_libtpu(machine: &Machine) -> Vec<Finding> {
    let Ok(plugins) = machine.plugins() else {
        return vec![Finding::ok("unknown, because the plugins could not be listed")];
    };
    let Some(Plugin { path: Some(path), api_version, .. }) = plugins.0.get("tpu") else {
        return vec![Finding::ok("no libtpu is installed")];
    };
    let remedy = "`pip install --upgrade libtpu`, or `fulmen plugin install tpu`, which installs the tested version";
    let shown = path.display();
    vec![match (package(path), libtpu_version()) {
        (Some((name, version)), _) if name != "libtpu" => Finding::warning(
            format!(
                "{name} {version} at {shown}: this package is no longer published; its successor is `libtpu`"
            ),
            format!("`pip uninstall {name}`, then {remedy}"),
        ),
        (Some((_, version)), Some(tested)) if numbers(&version) < numbers(tested) => {
            Finding::warning(
                format!(
                    "libtpu {version} at {shown} is older than {tested}, which this version of Fulmen was tested with"
                ),
                remedy,
            )
        }
        (Some((_, version)), _) => Finding::ok(format!("libtpu {version}")),
        (None, _) => Finding::ok(format!(
            "the version of {shown} is unknown; its PJRT API is {}",
            api_version.as_deref().unwrap_or("unknown")
        )),
    }]
}

/// The numbers of a version, for comparison.
fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}
