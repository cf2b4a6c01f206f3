//! Finds the plugin for a kind of device on this machine. Out of scope: loading it
//! ([`Plugin::load`](crate::Plugin::load)).

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Fact, Result};
use crate::fetch;

/// The variable with the path of a plugin, for any platform.
const PLUGIN_VARIABLE: &str = "FULMEN_PJRT_PLUGIN";

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// The processors of this machine.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Google's TPUs.
    Tpu,
}

impl Platform {
    /// The platform's name, as clients report it: `cpu`, `cuda`, `tpu`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Tpu => "tpu",
        }
    }

    /// The platform with this name.
    ///
    /// ```
    /// use fulmen_pjrt::locate::Platform;
    /// assert_eq!(Platform::from_name("tpu"), Some(Platform::Tpu));
    /// assert_eq!(Platform::from_name("abacus"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Platform> {
        [Self::Cpu, Self::Cuda, Self::Tpu].into_iter().find(|platform| platform.name() == name)
    }

    /// The variable with the plugin's path that the vendor defines.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Tpu => Some("TPU_LIBRARY_PATH"),
            Self::Cpu | Self::Cuda => None,
        }
    }

    /// The paths of the plugin in Python packages.
    fn package_paths(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[],
            Self::Cuda => &[
                "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
                "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
            ],
            Self::Tpu => &["libtpu/libtpu.so"],
        }
    }

    /// The name of a file that a user may put into the cache folder.
    fn cache_file_name(self) -> &'static str {
        match self {
            Self::Cpu => "pjrt_c_api_cpu_plugin.so",
            Self::Cuda => "xla_cuda_plugin.so",
            Self::Tpu => "libtpu.so",
        }
    }

    /// Where the images of TPU VMs have the plugin.
    fn system_paths(self) -> &'static [&'static str] {
        match self {
            Self::Cpu | Self::Cuda => &[],
            Self::Tpu => &["lib/libtpu.so", "usr/lib/libtpu.so"],
        }
    }

    /// What to do if there is no plugin.
    fn advice(self) -> &'static str {
        match self {
            Self::Cpu => "Fulmen downloads it when it is first used",
            Self::Cuda => {
                "install one with `pip install jax-cuda13-pjrt`, or download it: `fulmen plugin install cuda13` (in a \
                 program, fulmen::low_level::pjrt::fetch::cuda_plugin), or set FULMEN_PJRT_PLUGIN to its path"
            }
            Self::Tpu => {
                "install one with `pip install libtpu`, or download it: `fulmen plugin install tpu` or `preflight \
                 --fetch-libtpu` (in a program, fulmen::low_level::pjrt::fetch::libtpu), or set TPU_LIBRARY_PATH to its \
                 path"
            }
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The path of the plugin for `platform`. It is the first of these that exists:
///
/// 1. `explicit`, or else the variable `FULMEN_PJRT_PLUGIN`;
/// 2. for a TPU the variable `TPU_LIBRARY_PATH`, then the Python package `libtpu`; for a GPU the
///    Python packages `jax_plugins.xla_cuda13` and `jax_plugins.xla_cuda12`;
/// 3. the file in the folder `$XDG_CACHE_HOME/fulmen/pjrt` (or `~/.cache/fulmen/pjrt`);
/// 4. for a CPU, the download of [`fetch::cpu_plugin`]; for a TPU, an earlier download of
///    [`fetch::libtpu`], and for a GPU, one of [`fetch::cuda_plugin`]. This function does not start
///    those two downloads;
/// 5. for a TPU, `/lib/libtpu.so` and `/usr/lib/libtpu.so`, where images of TPU VMs have one.
///
/// A given path that does not exist is an error and is never skipped. If nothing is found, the
/// error lists every place.
///
/// ```
/// use fulmen_pjrt::locate::{Platform, locate};
/// let error = locate(Platform::Cpu, Some("/no/such/plugin.so".as_ref())).unwrap_err();
/// assert!(error.is_not_found());
/// ```
pub fn locate(platform: Platform, explicit: Option<&Path>) -> Result<PathBuf> {
    match search(platform, explicit)? {
        Search::Found(path) => Ok(path),
        Search::Nowhere(searched) if platform == Platform::Cpu => {
            fetch::cpu_plugin().map_err(|error| error.note(searched))
        }
        Search::Nowhere(searched) => Err(nowhere(platform, &searched)),
    }
}

/// The CPU plugin, even if `FULMEN_PJRT_PLUGIN` names another plugin: `fulmen-virtual-pod` is such
/// a plugin, and computes with this one.
#[doc(hidden)]
pub fn cpu_plugin_behind_another() -> Result<PathBuf> {
    let by_hand = fetch::cache_folder()?.join("pjrt").join(Platform::Cpu.cache_file_name());
    if by_hand.is_file() { Ok(by_hand) } else { fetch::cpu_plugin() }
}

/// Like [`locate`], but downloads nothing.
///
/// # Errors
/// Those of [`locate`]. A CPU plugin that would be downloaded is
/// [not found](crate::Error::is_not_found).
pub fn locate_installed(platform: Platform) -> Result<PathBuf> {
    match search(platform, None)? {
        Search::Found(path) => Ok(path),
        Search::Nowhere(searched) => Err(nowhere(platform, &searched)),
    }
}

/// Checks `FULMEN_PJRT_PLUGIN`, if it is set.
pub(crate) fn check_plugin_variable() -> Result<()> {
    let Some(path) = env::var_os(PLUGIN_VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let origin = format!("named by the environment variable {PLUGIN_VARIABLE}");
    given_path(Path::new(&path), &origin).map(drop)
}

enum Search {
    Found(PathBuf),
    /// The searched places, to append to a message.
    Nowhere(String),
}

fn nowhere(platform: Platform, searched: &str) -> Error {
    Error::of(
        Fact::NotFound,
        format!("no PJRT plugin for {platform} was found; {}{searched}", platform.advice()),
    )
}

fn search(platform: Platform, explicit: Option<&Path>) -> Result<Search> {
    if let Some(path) = explicit {
        return given_path(path, "given in the code");
    }
    for variable in [Some(PLUGIN_VARIABLE), platform.variable()].into_iter().flatten() {
        if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
            return given_path(
                Path::new(&path),
                &format!("named by the environment variable {variable}"),
            );
        }
    }
    let mut searched = vec![format!("the environment variable {PLUGIN_VARIABLE} (not set)")];
    searched.extend(
        platform.variable().map(|name| format!("the environment variable {name} (not set)")),
    );
    if !platform.package_paths().is_empty() {
        match python_folders() {
            Ok(folders) => {
                for package in platform.package_paths() {
                    for folder in &folders {
                        let path = folder.join(package);
                        if path.is_file() {
                            return Ok(Search::Found(path));
                        }
                        searched.push(path.display().to_string());
                    }
                }
            }
            Err(why) => searched.push(format!("Python packages (cannot search: {why})")),
        }
    }
    match fetch::cache_folder() {
        Ok(cache) => {
            let by_hand = cache.join("pjrt").join(platform.cache_file_name());
            for path in std::iter::once(by_hand).chain(fetch::fetched_in(&cache, platform)) {
                if path.is_file() {
                    return Ok(Search::Found(path));
                }
                searched.push(path.display().to_string());
            }
        }
        Err(error) => searched.push(format!("the cache folder ({error})")),
    }
    if let Some(path) = find_in_system(platform, Path::new("/"), &mut searched) {
        return Ok(Search::Found(path));
    }
    Ok(Search::Nowhere(format!(". Looked at:\n  {}", searched.join("\n  "))))
}

/// The plugin of the system whose files are under `root`. Adds the searched places.
fn find_in_system(platform: Platform, root: &Path, searched: &mut Vec<String>) -> Option<PathBuf> {
    for path in platform.system_paths() {
        let path = root.join(path);
        if path.is_file() {
            return Some(path);
        }
        searched.push(path.display().to_string());
    }
    None
}

fn given_path(path: &Path, how: &str) -> Result<Search> {
    if path.is_file() {
        return Ok(Search::Found(path.to_owned()));
    }
    Err(Error::of(
        Fact::NotFound,
        format!("there is no PJRT plugin at {}, the path {how}; correct the path", path.display()),
    ))
}

/// The Python interpreter of the active virtual environment, otherwise the first one on the path.
pub(crate) fn python() -> PathBuf {
    env::var_os("VIRTUAL_ENV")
        .map(|folder| Path::new(&folder).join("bin/python3"))
        .filter(|python| python.is_file())
        // The interpreter may be run from another folder.
        .map(|python| std::path::absolute(&python).unwrap_or(python))
        .unwrap_or_else(|| PathBuf::from("python3"))
}

/// The folders in which Python searches for packages. The interpreter only lists them; no package
/// is imported.
fn python_folders() -> Result<Vec<PathBuf>, String> {
    const LIST_FOLDERS: &str = "import os, site, sys\n\
        for folder in sys.path + [site.getusersitepackages()]:\n    \
        if folder: sys.stdout.buffer.write(os.fsencode(folder) + b'\\n')";
    let python = python();
    let answer = Command::new(&python)
        .args(["-c", LIST_FOLDERS])
        // With `-c`, Python would import modules of the user's current folder.
        .current_dir("/")
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", python.display()))?;
    if !answer.status.success() {
        return Err(format!(
            "{} failed: {}",
            python.display(),
            String::from_utf8_lossy(&answer.stderr).trim()
        ));
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for line in answer.stdout.split(|&byte| byte == b'\n') {
        let folder = Path::new(OsStr::from_bytes(line));
        // A relative folder depends on the current one, whose files may be someone else's.
        if folder.is_absolute() && folder.is_dir() && !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_of_a_tpu_vm_has_a_plugin() {
        let folder = tempfile::tempdir().unwrap();
        let usr = folder.path().join("usr/lib/libtpu.so");
        let mut searched = Vec::new();
        assert_eq!(find_in_system(Platform::Tpu, folder.path(), &mut searched), None);
        assert_eq!(searched.len(), 2);
        std::fs::create_dir_all(folder.path().join("usr/lib")).unwrap();
        std::fs::write(&usr, "").unwrap();
        assert_eq!(find_in_system(Platform::Tpu, folder.path(), &mut searched), Some(usr));
        assert_eq!(find_in_system(Platform::Cuda, folder.path(), &mut searched), None);
    }
}
