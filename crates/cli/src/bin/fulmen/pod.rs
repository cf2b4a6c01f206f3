//! What `fulmen pod` gets from clouds and plugins.
//!
//! Out of scope: running programs on hosts (`fulmen-pods`), and what the plugin of a virtual pod does
//! (`fulmen-virtual-pod`).

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen_pods::{Error, Providers, Result, VirtualPodPlugins};
use serde_json::Value;

pub(crate) const PROVIDERS: Providers = Providers {
    tpu_hosts: |tpu| fulmen_gcloud::hosts(tpu.name, tpu.zone, tpu.project),
    tpu_hosts_command: |tpu| fulmen_gcloud::hosts_command(tpu.name, tpu.zone, tpu.project),
    libtpu: fulmen_pjrt::fetch::libtpu,
    virtual_pod: virtual_pod_plugins,
};

/// Finds the plugins of a virtual pod. Builds and downloads those that are missing.
///
/// # Errors
/// A plugin can be neither found nor built or downloaded.
fn virtual_pod_plugins(out: &mut dyn Write) -> Result<VirtualPodPlugins> {
    let plugin = match fulmen_virtual_pod::library() {
        Ok(path) => path,
        Err(_) => {
            let cache = fulmen_pjrt::fetch::cache_folder()
                .map_err(|e| Error::new(format!("the virtual pod's plugin: {e}")))?;
            build(fulmen_virtual_pod::source(), &cache.join("virtual-pod"), out)?
        }
    };
    let cpu_plugin = fulmen_virtual_pod::cpu_plugin()
        .map_err(|e| Error::new(format!("the CPU plugin of the virtual pod: {e}")))?;
    Ok(VirtualPodPlugins { plugin, cpu_plugin })
}

/// Builds the plugin from its source. Cargo does nothing if it is up to date.
///
/// # Errors
/// The source is gone; Cargo is missing or fails.
fn build(source: &Path, target: &Path, out: &mut dyn Write) -> Result<PathBuf> {
    let manifest = source.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(Error::new(format!(
            "the virtual pod's plugin is not next to `fulmen`, and cannot be built: its source is no longer in {}. Install \
             `fulmen` again",
            source.display()
        )));
    }
    // The work continues if the output is closed.
    let _ = writeln!(
        out,
        "[pod] building the virtual pod's plugin with cargo, if it is not up to date"
    );
    let _ = out.flush();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let mut target_folder = OsString::from("--target-dir=");
    target_folder.push(target);
    cargo
        .args(["build", "--release", "--quiet", "--message-format=json-render-diagnostics"])
        .arg(target_folder)
        .arg("--manifest-path")
        .arg(&manifest)
        // Where rustup reads which toolchain to use.
        .current_dir(source)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let failed = |reason: String| {
        Error::new(format!(
            "cargo cannot build the virtual pod's plugin in {}: {reason}",
            source.display()
        ))
    };
    let output = cargo.output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}; its own messages are above", output.status)));
    }
    let messages = output.stdout.split(|&byte| byte == b'\n');
    let files = messages.filter_map(|line| {
        let message: Value = serde_json::from_slice(line).ok()?;
        Some(message["filenames"].as_array()?.clone())
    });
    let plugin = files.flatten().find_map(|file| {
        let path = Path::new(file.as_str()?);
        let is_plugin = path.file_name().is_some_and(|name| name == fulmen_virtual_pod::FILE);
        is_plugin.then(|| path.to_owned())
    });
    plugin.ok_or_else(|| failed("it built no plugin".into()))
}
