//! `fulmen plugin`: the PJRT plugins of this machine.

use std::path::Path;

use clap::{Subcommand, ValueEnum};
use fulmen_data::{Error, Result};
use fulmen_pjrt::diagnosis::{PluginState, diagnose};
use fulmen_pjrt::locate::Platform;
use fulmen_pjrt::{Plugin, fetch};
use serde_json::Value;

use super::devices::plugin_json;

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
    /// Loads the installed plugins, downloads damaged ones again, and prints each file's SHA-256
    Verify,
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
        Command::Verify => {
            let mut unusable = Vec::new();
            for platform in PLATFORMS {
                match diagnose(platform).plugin {
                    PluginState::Usable { path, .. } => match verify(&path) {
                        Ok(what) => outln!("{platform}: {}: {what}", path.display()),
                        Err(error) => unusable.push(format!("{platform}: {error}")),
                    },
                    PluginState::Missing(_) => outln!("{platform}: no plugin is installed"),
                    state => unusable.push(format!("{platform}: {state}")),
                }
            }
            if !unusable.is_empty() {
                return Err(Error::new(unusable.join("\n")));
            }
        }
    }
    Ok(())
}

/// Describes the file of a plugin that can be loaded.
fn verify(path: &Path) -> fulmen_pjrt::Result<String> {
    let repaired = if fetch::repair(path)? { "was damaged and was fetched again; " } else { "" };
    let plugin = Plugin::load(path)?;
    Ok(format!("{repaired}PJRT API {}, SHA-256 {}", plugin.api_version(), plugin.identity()?))
}
