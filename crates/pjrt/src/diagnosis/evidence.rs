//! Signs that a machine has devices of a kind, whether or not a plugin can use them. Out of scope:
//! why they cannot be used.

use std::ffi::OsString;

use super::{Roots, files};
use crate::environment::TPU_DEFAULTS;
use crate::locate::Platform;

/// Variables that the software of a TPU machine sets, such as Kubernetes' device plugin, and that
/// users set for the chips of a process. `TPU_LIBRARY_PATH` is not one of them: libtpu also compiles
/// for TPUs that are elsewhere.
const TPU_VARIABLES: &[&str] = &[
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "TPU_TOPOLOGY",
    "TPU_HOST_BOUNDS",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_ADDRESSES_PATH",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
];

/// The first sign of devices of this kind.
pub(super) fn evidence(
    platform: Platform,
    roots: &Roots,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Option<String> {
    if let Some(path) = files::device_files(platform, roots).first() {
        return Some(format!("{} exists", path.display()));
    }
    if platform != Platform::Tpu {
        return None;
    }
    if let Some(address) = files::google_accelerator(&roots.sys) {
        return Some(format!("the PCI device {address} is a Google accelerator"));
    }
    let is_set = |name: &&&str| {
        variable(name).is_some_and(|value| !value.is_empty() && !is_default(name, &value))
    };
    let name = TPU_VARIABLES.iter().find(is_set)?;
    Some(format!("the environment variable {name} is set"))
}

/// Whether this library or libtpu sets the variable to this value on machines without a TPU.
/// Processes that it starts inherit it.
fn is_default(name: &str, value: &OsString) -> bool {
    // After libtpu has compiled for a TPU that is elsewhere, it is a warning instead of a number.
    let is_warning = || value.to_str().is_none_or(|value| value.parse::<u32>().is_err());
    TPU_DEFAULTS.iter().any(|(known, default)| *known == name && value == default)
        || (name == "TPU_WORKER_ID" && is_warning())
}
