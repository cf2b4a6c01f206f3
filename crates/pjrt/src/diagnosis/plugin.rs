//! Whether a usable plugin exists. It is opened to read its version, but not started.

use std::fmt;
use std::path::PathBuf;

use crate::locate::{self, Platform};
use crate::plugin::{ApiVersion, OLDEST_MINOR, loader_error, version_of};

/// The state of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginState {
    /// The plugin can be used.
    Usable {
        /// The path.
        path: PathBuf,
        /// The version of its API.
        version: ApiVersion,
    },
    /// The file is too old or damaged, or is not a plugin; the message says which.
    Unusable {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no plugin. The message lists the places that were searched, and how to get a
    /// plugin.
    Missing(String),
}

impl PluginState {
    pub(super) fn of_file(path: PathBuf) -> PluginState {
        match version_of(&path) {
            Ok(version) => Self::Usable { path, version },
            Err(error) => Self::Unusable { path, why: error.to_string() },
        }
    }
}

/// Finds the plugin without downloading one.
pub(super) fn state_of(platform: Platform) -> PluginState {
    match locate::locate_installed(platform) {
        Ok(path) => PluginState::of_file(path),
        Err(error) => PluginState::Missing(error.to_string()),
    }
}

/// Whether the NVIDIA driver's library exists. The CUDA plugin loads it when it opens the devices.
pub(super) fn cuda_library() -> String {
    // SAFETY: the name is a C string. The library is the driver's own; loading it starts nothing.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        return format!(
            "libcuda.so.1, the NVIDIA driver's library: cannot be loaded ({})",
            loader_error()
        );
    }
    // SAFETY: it was opened above, and nothing from it is kept.
    unsafe { libc::dlclose(library) };
    "libcuda.so.1, the NVIDIA driver's library: found".to_owned()
}

impl fmt::Display for PluginState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { path, version } => write!(
                f,
                "the plugin {}: speaks PJRT API {version} (0.{OLDEST_MINOR} or later 0.x is needed)",
                path.display()
            ),
            Self::Unusable { why, .. } | Self::Missing(why) => f.write_str(why),
        }
    }
}
