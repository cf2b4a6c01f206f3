//! Finding the plugin for a kind of device on this machine. It opens nothing: [`Plugin::load`](crate::Plugin::load) does.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Kind, Result};
use crate::fetch;

/// The variable that names a plugin, whatever the platform.
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
    /// The platform's name as its clients tell it: `cpu`, `cuda`, `tpu`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Tpu => "tpu",
        }
    }

    /// The platform of this name.
    ///
    /// ```
    /// use fulmen_pjrt::locate::Platform;
    /// assert_eq!(Platform::from_name("tpu"), Some(Platform::Tpu));
    /// assert_eq!(Platform::from_name("abacus"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Cpu, Self::Cuda, Self::Tpu].into_iter().find(|platform| platform.name() == name)
    }

    /// The variable that its own vendor uses for the plugin's path.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Tpu => Some("TPU_LIBRARY_PATH"),
            Self::Cpu | Self::Cuda => None,
        }
    }

    /// Where Python packages keep it.
    fn in_packages(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[],
            Self::Cuda => &["jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"],
            Self::Tpu => &["libtpu/libtpu.so"],
        }
    }

    /// The file that a user may put into the cache folder by hand.
    fn in_cache(self) -> &'static str {
        match self {
            Self::Cpu => "pjrt_c_api_cpu_plugin.so",
            Self::Cuda => "xla_cuda_plugin.so",
            Self::Tpu => "libtpu.so",
        }
    }

    /// What to do when it is nowhere.
    fn advice(self) -> &'static str {
        match self {
            Self::Cpu => "it is fetched when it is first used",
            Self::Cuda => {
                "install one with `pip install jax-cuda13-pjrt`, or fetch it: `fulmen plugin install cuda13` (in a program, \
                 fulmen_pjrt::fetch::cuda_plugin), or set FULMEN_PJRT_PLUGIN to its path"
            }
            Self::Tpu => {
                "install one with `pip install libtpu`, or fetch it: `--fetch-libtpu` (in a program, \
                 fulmen_pjrt::fetch::libtpu), or set TPU_LIBRARY_PATH to its path"
            }
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The path of the plugin for `platform`. The first of these that there is:
///
/// 1. `explicit`, or else the variable `FULMEN_PJRT_PLUGIN`;
/// 2. for a TPU the variable `TPU_LIBRARY_PATH`, then the Python package `libtpu`; for a GPU the Python packages
///    `jax_plugins.xla_cuda13` and `jax_plugins.xla_cuda12`;
/// 3. the file in the folder `$XDG_CACHE_HOME/fulmen/pjrt` (or `~/.cache/fulmen/pjrt`);
/// 4. for a CPU, what [`fetch::cpu_plugin`] fetches; for a TPU, what [`fetch::libtpu`] has fetched before, and for a GPU
///    [`fetch::cuda_plugin`]. Those are never fetched from here.
///
/// A path that was named but is not there is an error, never passed over. If nothing is found the error lists every place.
///
/// ```
/// use fulmen_pjrt::locate::{Platform, locate};
/// let error = locate(Platform::Cpu, Some("/no/such/plugin.so".as_ref())).unwrap_err();
/// assert!(error.is_not_found());
/// ```
pub fn locate(platform: Platform, explicit: Option<&Path>) -> Result<PathBuf> {
    match search(platform, explicit)? {
        Search::Found(path) => Ok(path),
        Search::Nowhere(looked) if platform == Platform::Cpu => {
            fetch::cpu_plugin().map_err(|error| error.followed_by(looked))
        }
        Search::Nowhere(looked) => Err(nowhere(platform, &looked)),
    }
}

/// As [`locate`], but nothing is fetched.
pub(crate) fn locate_installed(platform: Platform) -> Result<PathBuf> {
    match search(platform, None)? {
        Search::Found(path) => Ok(path),
        Search::Nowhere(looked) => Err(nowhere(platform, &looked)),
    }
}

enum Search {
    Found(PathBuf),
    /// Where it was looked for, to be put after a message.
    Nowhere(String),
}

fn nowhere(platform: Platform, looked: &str) -> Error {
    Error::new(Kind::NotFound, format!("no PJRT plugin for {platform} was found; {}{looked}", platform.advice()))
}

fn search(platform: Platform, explicit: Option<&Path>) -> Result<Search> {
    if let Some(path) = explicit {
        return named(path, "given in the program");
    }
    for variable in [Some(PLUGIN_VARIABLE), platform.variable()].into_iter().flatten() {
        if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
            return named(Path::new(&path), &format!("named by the environment variable {variable}"));
        }
    }
    let mut looked = vec![format!("the environment variable {PLUGIN_VARIABLE} (not set)")];
    looked.extend(platform.variable().map(|name| format!("the environment variable {name} (not set)")));
    if !platform.in_packages().is_empty() {
        match python_folders() {
            Ok(folders) => {
                for package in platform.in_packages() {
                    for folder in &folders {
                        let path = folder.join(package);
                        if path.is_file() {
                            return Ok(Search::Found(path));
                        }
                        looked.push(path.display().to_string());
                    }
                }
            }
            Err(why) => looked.push(format!("Python packages (could not look: {why})")),
        }
    }
    match fetch::cache_folder() {
        Ok(cache) => {
            let by_hand = cache.join("pjrt").join(platform.in_cache());
            for path in std::iter::once(by_hand).chain(fetch::fetched_in(&cache, platform)) {
                if path.is_file() {
                    return Ok(Search::Found(path));
                }
                looked.push(path.display().to_string());
            }
        }
        Err(error) => looked.push(format!("the cache folder ({error})")),
    }
    Ok(Search::Nowhere(format!(". Looked at:\n  {}", looked.join("\n  "))))
}

fn named(path: &Path, how: &str) -> Result<Search> {
    if path.is_file() {
        return Ok(Search::Found(path.to_owned()));
    }
    Err(Error::new(
        Kind::NotFound,
        format!("there is no PJRT plugin at {}, the path {how}; correct the path", path.display()),
    ))
}

/// The Python interpreter of the virtual environment that is active, or else the first on the path.
pub(crate) fn python() -> PathBuf {
    env::var_os("VIRTUAL_ENV")
        .map(|folder| Path::new(&folder).join("bin/python3"))
        .filter(|python| python.is_file())
        // It may be run in another folder than this.
        .map(|python| std::path::absolute(&python).unwrap_or(python))
        .unwrap_or_else(|| PathBuf::from("python3"))
}

/// The folders in which Python looks for packages. The interpreter is asked for them only; no package is imported.
fn python_folders() -> Result<Vec<PathBuf>, String> {
    const ASK: &str = "import os, site, sys\n\
        for folder in sys.path + [site.getusersitepackages()]:\n    \
        if folder: sys.stdout.buffer.write(os.fsencode(folder) + b'\\n')";
    let python = python();
    let answer = Command::new(&python)
        .args(["-c", ASK])
        .output()
        .map_err(|error| format!("{} cannot be run: {error}", python.display()))?;
    if !answer.status.success() {
        return Err(format!("{} failed: {}", python.display(), String::from_utf8_lossy(&answer.stderr).trim()));
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for line in answer.stdout.split(|&byte| byte == b'\n') {
        let folder = Path::new(OsStr::from_bytes(line));
        if folder.is_dir() && !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    Ok(folders)
}
