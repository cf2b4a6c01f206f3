//! Finds the devices of a kind on this machine, and explains why devices are missing. It reads
//! files and variables, and opens no device.

mod evidence;
mod files;
mod holders;
mod plugin;
#[cfg(test)]
mod tests;
mod variables;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use holders::{FilesInUse, Holder, Holders, files_in_use};
pub use plugin::PluginState;
pub use variables::ObsoleteVariable;

use crate::error::Error;
use crate::locate::Platform;

/// The result of [`diagnose`] for one kind of device, to be shown to a user.
///
/// ```
/// use fulmen_pjrt::diagnosis::diagnose;
/// use fulmen_pjrt::locate::Platform;
///
/// let diagnosis = diagnose(Platform::Tpu);
/// println!("{diagnosis}");
/// if diagnosis.device_files.is_empty() {
///     assert!(diagnosis.to_string().starts_with("No TPU devices were found. Looked at:\n"));
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The kind of device.
    pub platform: Platform,
    /// The device files: `/dev/accel0` or `/dev/vfio/0` for a TPU, `/dev/nvidia0` for a GPU. A CPU
    /// has none.
    pub device_files: Vec<DeviceFile>,
    /// The plugin that Fulmen would use.
    pub plugin: PluginState,
    /// Obsolete TPU variables in this process's environment, which no software reads any more.
    pub obsolete_variables: Vec<ObsoleteVariable>,
    /// Further remarks, one per line.
    notes: Vec<String>,
}

/// A device file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFile {
    /// The path.
    pub path: PathBuf,
    /// Whether this process may read and write it.
    pub allowed: bool,
    /// The processes that have it open. Only one process can have a TPU open at a time. For GPUs
    /// this is `None`.
    pub holders: Option<Holders>,
}

/// Examines everything that devices of this kind depend on. It runs `python3` to find packages, and
/// loads the plugin's file to read its version.
pub fn diagnose(platform: Platform) -> Diagnosis {
    let variable = |name: &str| env::var_os(name);
    Diagnosis::gather(platform, &Roots::default(), &variable, plugin::state_of(platform))
}

/// Prepends the result of [`diagnose`] to an error from finding a plugin or opening its devices,
/// and keeps the error's kind. Errors that are not about devices are returned unchanged, as are
/// errors about CPUs. `plugin` is the plugin's path, unless it is the one that
/// [`locate`](crate::locate::locate) finds.
///
/// ```
/// use fulmen_pjrt::{Plugin, diagnosis::explain, locate::{Platform, locate}};
/// let opened = locate(Platform::Tpu, None).and_then(Plugin::load).and_then(|plugin| plugin.create_client(&[]));
/// if let Err(error) = opened {
///     let error = explain(error, Platform::Tpu, None).to_string();
///     assert!(error.contains("TPU device") && error.contains("Looked at:"), "{error}");
/// }
/// ```
pub fn explain(error: Error, platform: Platform, plugin: Option<&Path>) -> Error {
    let of_devices = error.is_not_found() || error.is_not_a_plugin() || error.is_from_plugin();
    if platform == Platform::Cpu || !of_devices {
        return error;
    }
    let state = match plugin {
        Some(path) => PluginState::of_file(path.to_owned()),
        None => plugin::state_of(platform),
    };
    let variable = |name: &str| env::var_os(name);
    Diagnosis::gather(platform, &Roots::default(), &variable, state).prepend_to(error)
}

/// The existing device files of this kind. This is quick: nothing else is examined. A CPU has none.
pub fn device_files(platform: Platform) -> Vec<PathBuf> {
    files::device_files(platform, &Roots::default())
}

/// A sign that this machine has devices of this kind, even if they cannot be used: a device file,
/// or, for a TPU, a device that the kernel found or a variable of TPU machines. A CPU has none.
///
/// ```
/// use fulmen_pjrt::diagnosis::evidence;
/// use fulmen_pjrt::locate::Platform;
/// assert_eq!(evidence(Platform::Cpu), None);
/// ```
pub fn evidence(platform: Platform) -> Option<String> {
    evidence_under("/".as_ref(), platform, &|name| env::var_os(name))
}

/// Like [`evidence`], on a machine whose files are under `root`, with these environment variables.
///
/// ```
/// use fulmen_pjrt::diagnosis::evidence_under;
/// use fulmen_pjrt::locate::Platform;
/// let variable = |name: &str| (name == "TPU_WORKER_ID").then(|| "0".into());
/// let evidence = evidence_under("/no/such/folder".as_ref(), Platform::Tpu, &variable);
/// assert_eq!(evidence.unwrap(), "the environment variable TPU_WORKER_ID is set");
/// ```
pub fn evidence_under(
    root: &Path,
    platform: Platform,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Option<String> {
    evidence::evidence(platform, &Roots::under(root), variable)
}

/// The device files on a machine whose files are under `root`, and the processes that have them
/// open. A CPU has none.
///
/// ```
/// use fulmen_pjrt::diagnosis::device_files_under;
/// use fulmen_pjrt::locate::Platform;
/// assert!(device_files_under("/no/such/folder".as_ref(), Platform::Tpu).is_empty());
/// ```
pub fn device_files_under(root: &Path, platform: Platform) -> Vec<DeviceFile> {
    device_files_of(platform, &Roots::under(root))
}

fn device_files_of(platform: Platform, roots: &Roots) -> Vec<DeviceFile> {
    let paths = files::device_files(platform, roots);
    let holders: Vec<_> = match platform {
        Platform::Tpu => holders::holders(&paths, &roots.proc).into_iter().map(Some).collect(),
        Platform::Cpu | Platform::Cuda => vec![None; paths.len()],
    };
    let of_path = |(path, holders): (PathBuf, _)| DeviceFile {
        allowed: files::is_allowed(&path),
        path,
        holders,
    };
    paths.into_iter().zip(holders).map(of_path).collect()
}

/// The obsolete TPU variables in this environment, which no software reads any more.
///
/// ```
/// use fulmen_pjrt::diagnosis::obsolete_variables;
/// let found = obsolete_variables(&|name| (name == "XRT_TPU_CONFIG").then(|| "tpu_worker;0;10.0.0.2:8470".into()));
/// assert_eq!(found[0].name, "XRT_TPU_CONFIG");
/// ```
pub fn obsolete_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<ObsoleteVariable> {
    variables::obsolete(Platform::Tpu, variable)
}

/// The roots of the system's file trees. Tests use others.
#[derive(Clone, Debug)]
struct Roots {
    dev: PathBuf,
    proc: PathBuf,
    sys: PathBuf,
}

impl Roots {
    fn under(root: &Path) -> Roots {
        Self { dev: root.join("dev"), proc: root.join("proc"), sys: root.join("sys") }
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::under("/".as_ref())
    }
}

impl Diagnosis {
    fn gather(
        platform: Platform,
        roots: &Roots,
        variable: &dyn Fn(&str) -> Option<OsString>,
        plugin: PluginState,
    ) -> Diagnosis {
        let device_files = device_files_of(platform, roots);
        let mut notes = files::notes(platform, roots, &device_files);
        if platform == Platform::Cuda {
            notes.push(plugin::cuda_library());
        }
        notes.extend(variables::hiding(platform, variable));
        let obsolete_variables = variables::obsolete(platform, variable);
        Self { platform, device_files, plugin, obsolete_variables, notes }
    }

    /// Prepends the diagnosis to an error. If the error only repeats a part of the diagnosis, it is
    /// left out.
    fn prepend_to(&self, error: Error) -> Error {
        let is_repeated = match &self.plugin {
            PluginState::Missing(why) | PluginState::Unusable { why, .. } => {
                *why == error.to_string()
            }
            PluginState::Usable { .. } => false,
        };
        let suffix =
            if is_repeated { String::new() } else { format!("\n  then: {}", indented(&error)) };
        error.reworded(format!("{self}{suffix}"))
    }

    fn headline(&self) -> String {
        let name = match self.platform {
            Platform::Cpu => "CPU",
            Platform::Cuda => "CUDA",
            Platform::Tpu => "TPU",
        };
        let in_use = self.device_files.iter().filter(|file| file.is_held_by_others()).count();
        match (self.platform, self.device_files.len(), in_use) {
            (Platform::Cpu, ..) => "The CPU is always available".to_owned(),
            (_, 0, _) => format!("No {name} devices were found"),
            (_, 1, 0) => format!("One {name} device file was found"),
            (_, count, 0) => format!("{count} {name} device files were found"),
            (_, 1, _) => {
                format!("One {name} device file was found, and another process has it open")
            }
            (_, count, in_use) => {
                format!(
                    "{count} {name} device files were found, and other processes have {in_use} of them open"
                )
            }
        }
    }
}

impl DeviceFile {
    fn is_held_by_others(&self) -> bool {
        let this = std::process::id();
        self.holders
            .as_ref()
            .is_some_and(|holders| holders.processes.iter().any(|holder| holder.pid != this))
    }
}

impl fmt::Display for DeviceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found", self.path.display())?;
        if !self.allowed {
            f.write_str(", but this user may not read and write it")?;
        }
        match &self.holders {
            Some(holders) => write!(f, ", {holders}"),
            None => Ok(()),
        }
    }
}

/// The text may have several lines.
fn indented(text: &impl fmt::Display) -> String {
    text.to_string().replace('\n', "\n  ")
}

/// A headline, and one line for each result.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. Looked at:", self.headline())?;
        for file in &self.device_files {
            write!(f, "\n  {file}")?;
        }
        for note in &self.notes {
            write!(f, "\n  {note}")?;
        }
        write!(f, "\n  {}", indented(&self.plugin))?;
        for variable in &self.obsolete_variables {
            write!(f, "\n  {variable}")?;
        }
        Ok(())
    }
}
