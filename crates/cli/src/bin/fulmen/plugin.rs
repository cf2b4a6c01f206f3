//! `fulmen plugin`: the PJRT plugins of this machine.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};

use clap::{Subcommand, ValueEnum};
use fulmen_data::{Error, Result};
use fulmen_pjrt::diagnosis::{diagnose, evidence};
use fulmen_pjrt::fetch;
use fulmen_pjrt::locate::{Platform, locate_installed};
use serde_json::Value;

use super::devices::{plugin_json, try_plugin};

/// Lists, installs and verifies PJRT plugins
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the plugins that would be used
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Downloads a plugin with pip and installs it into the cache folder
    Install {
        /// The plugin
        which: InstallablePlugin,
    },
    /// Compares the downloaded plugins with their published SHA-256, downloads damaged ones again, and
    /// lets each installed plugin compile and run a program in a process of its own
    Verify,
    /// Compiles and runs a program, for `verify`
    #[command(hide = true)]
    Try {
        /// The kind of device
        #[arg(value_parser = ["cpu", "cuda", "tpu"])]
        platform: String,
        /// The plugin's file
        path: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum InstallablePlugin {
    /// XLA's plugin for CPUs
    Cpu,
    /// libtpu, under Google's terms of service
    Tpu,
    /// XLA's plugin for NVIDIA GPUs with CUDA 12, whose libraries must be installed
    Cuda12,
    /// XLA's plugin for NVIDIA GPUs with CUDA 13, whose libraries must be installed
    Cuda13,
}

const PLATFORMS: [Platform; 3] = [Platform::Cpu, Platform::Cuda, Platform::Tpu];

pub(crate) fn run(command: &Command) -> Result<()> {
    let failed = |error: fulmen_pjrt::Error| Error::new(error.to_string());
    match *command {
        Command::List { json } => {
            let plugins = PLATFORMS.map(|platform| (platform, diagnose(platform).plugin));
            if json {
                let object = plugins
                    .iter()
                    .map(|(platform, plugin)| (platform.name().to_owned(), plugin_json(plugin)));
                outln!("{}", Value::Object(object.collect()));
                return Ok(());
            }
            for (platform, plugin) in plugins {
                outln!("{platform}: {plugin}");
            }
        }
        Command::Install { which } => {
            let path = match which {
                InstallablePlugin::Cpu => fetch::cpu_plugin(),
                InstallablePlugin::Tpu => fetch::libtpu(),
                InstallablePlugin::Cuda12 => fetch::cuda_plugin(12),
                InstallablePlugin::Cuda13 => fetch::cuda_plugin(13),
            };
            outln!("{}", path.map_err(failed)?.display());
        }
        Command::Verify => return verify_all(),
        Command::Try { ref platform, ref path } => {
            let platform = Platform::from_name(platform).unwrap_or(Platform::Cpu);
            outln!("{}", try_plugin(platform, path)?);
        }
    }
    Ok(())
}

fn verify_all() -> Result<()> {
    let mut unusable = Vec::new();
    for platform in platforms_to_verify() {
        match locate_installed(platform) {
            Ok(path) => match verify(platform, &path) {
                Ok(what) => outln!("{platform}: {}: {what}", path.display()),
                Err(error) => unusable.push(format!("{platform}: {error}")),
            },
            Err(error) if error.is_not_found() && !is_named(platform) => {
                outln!("{platform}: no plugin is installed");
            }
            Err(error) => unusable.push(format!("{platform}: {error}")),
        }
    }
    if unusable.is_empty() { Ok(()) } else { Err(Error::new(unusable.join("\n"))) }
}

/// All kinds of devices. A plugin that `FULMEN_PJRT_PLUGIN` names is used for every kind; it is
/// verified once, with the devices that the machine has.
fn platforms_to_verify() -> Vec<Platform> {
    if !is_set("FULMEN_PJRT_PLUGIN") {
        return PLATFORMS.to_vec();
    }
    let present = [Platform::Tpu, Platform::Cuda].into_iter().find(|&it| evidence(it).is_some());
    vec![present.unwrap_or(Platform::Cpu)]
}

/// Whether a variable names the plugin's file.
fn is_named(platform: Platform) -> bool {
    is_set("FULMEN_PJRT_PLUGIN") || (platform == Platform::Tpu && is_set("TPU_LIBRARY_PATH"))
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// Verifies a plugin, and describes it. It runs in a process of its own, because a plugin that is
/// damaged, or does not fit the machine, may end it.
fn verify(platform: Platform, path: &Path) -> Result<String> {
    let is_published = fetch::is_published(path);
    let repaired = fetch::repair(path).map_err(Error::new)?;
    let failed = |error| Error::new(format!("cannot run `fulmen plugin try`: {error}"));
    let output = Process::new(env::current_exe().map_err(failed)?)
        .args(["plugin", "try", platform.name()])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    let Output { status, stdout, stderr } = &output;
    if status.success() {
        let what = String::from_utf8_lossy(stdout);
        let repaired = if repaired { "was damaged and was fetched again; " } else { "" };
        return Ok(format!("{repaired}{}", what.trim()));
    }
    let said = String::from_utf8_lossy(stderr);
    let said = said.trim().trim_start_matches("error: ");
    let Some(signal) = status.signal() else { return Err(Error::new(said)) };
    let next = if is_published {
        "its SHA-256 is the published one, so it does not fit this machine; report this line, and set \
         FULMEN_PJRT_PLUGIN to another plugin"
    } else {
        "the file is damaged, or does not fit this machine; replace it"
    };
    Err(Error::new(
        format!(
            "{}: signal {signal} ended the process that tried it: {next}\n{said}",
            path.display()
        )
        .trim(),
    ))
}
