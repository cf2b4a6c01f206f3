//! Whether there is a plugin that could be used. It is opened to see its version, not started.

use std::fmt;
use std::path::PathBuf;

use crate::locate::{self, Platform};
use crate::plugin::{ApiVersion, OLDEST_MINOR, loader_error, version_of};

/// What there is of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginState {
    /// It can be used.
    Usable {
        /// Where it is.
        path: PathBuf,
        /// What it speaks.
        version: ApiVersion,
    },
    /// There is a file, but it is too old, damaged, or no plugin; the message says which.
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why it cannot be used.
        why: String,
    },
    /// There is none; the message says where it was looked for, and how to get one.
    Missing(String),
}

impl PluginState {
    pub(super) fn of_file(path: PathBuf) -> Self {
        match version_of(&path) {
            Ok(version) => Self::Usable { path, version },
            Err(error) => Self::Unusable { path, why: error.to_string() },
        }
    }
}

/// Looks for the plugin, without fetching one.
pub(super) fn state_of(platform: Platform) -> PluginState {
    match locate::locate_installed(platform) {
        Ok(path) => PluginState::of_file(path),
        Err(error) => PluginState::Missing(error.to_string()),
    }
}

/// Whether the NVIDIA driver's library is there, which the CUDA plugin looks for when it opens the devices.
pub(super) fn cuda_library() -> String {
    // SAFETY: the name is a C string. The library is the driver's own; loading it starts nothing.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        return format!("libcuda.so.1, the NVIDIA driver's library: cannot be loaded ({})", loader_error());
    }
    // SAFETY: it was opened above, and nothing of it is kept.
    unsafe { libc::dlclose(library) };
    "libcuda.so.1, the NVIDIA driver's library: there".to_owned()
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
