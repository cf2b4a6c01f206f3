//! Prepares the environment variables that plugins read before one is loaded.

use std::env;
use std::sync::{Once, OnceLock};

use crate::diagnosis;
use crate::error::{self, Result};
use crate::locate::Platform;

/// Variables for machines without a TPU. Without these, libtpu queries a metadata server that does
/// not exist for ten minutes, locks out other processes with a lock file, and writes logs.
pub(crate) const TPU_DEFAULTS: [(&str, &str); 6] = [
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    ("TPU_LOG_DIR", "disabled"),
    // Without this, the log files go to the temporary folder.
    ("TPU_MIN_LOG_LEVEL", "3"),
];

/// The variables that [`prepare`] set.
static SET_HERE: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Whether this crate set an environment variable of the process, because it was not set. Such a
/// variable says nothing about how the user started the program.
///
/// ```
/// assert!(!fulmen_pjrt::is_default_variable("PATH"));
/// ```
pub fn is_default_variable(name: &str) -> bool {
    SET_HERE.get().is_some_and(|names| names.contains(&name))
}

/// Prepares the process, once, before the first plugin is loaded.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut variables = vec![("TF_CPP_MIN_LOG_LEVEL", "3"), ("GRPC_VERBOSITY", "ERROR")];
        if diagnosis::device_files(Platform::Tpu).is_empty() {
            variables.extend(TPU_DEFAULTS);
        }
        variables.retain(|(name, _)| env::var_os(name).is_none());
        for &(name, value) in &variables {
            // SAFETY: std's lock keeps Rust code out, `Once` keeps out a second call, and no
            // plugin's threads exist yet, because every load comes through here first. The
            // remaining risk is foreign code that reads the environment through C from another
            // thread at this very moment. A process with such threads must load its plugin
            // before it starts them, which `Plugin::load` documents.
            unsafe { env::set_var(name, value) }
        }
        SET_HERE.get_or_init(|| variables.into_iter().map(|(name, _)| name).collect());
    });
}

/// The one value of `XLA_FLAGS` that is taken. XLA's CPU compiler then needs a fraction of its time,
/// and its programs may be slower: `ci/test-runner` sets it. Each plugin knows this flag, which an
/// option of one program cannot set.
const OLD_FUSION_EMITTERS: &str =
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true";

/// Rejects an inherited `XLA_FLAGS`. A flag that the plugin does not know ends the process, and the
/// plugin cannot list the flags that it knows.
pub(crate) fn refuse_xla_flags() -> Result<()> {
    match env::var_os("XLA_FLAGS") {
        Some(flags) if flags == OLD_FUSION_EMITTERS => Ok(()),
        // Even a blank value is rejected: the plugin would read it as the name of a file of flags.
        Some(flags) if !flags.is_empty() => Err(error::invalid(format!(
            "the environment variable XLA_FLAGS is set (to {:?}). A flag that the plugin does not know would end the \
             process; unset it, and pass each flag with CompileOptions::override_flag, which returns an error for an \
             unknown flag",
            flags.to_string_lossy()
        ))),
        _ => Ok(()),
    }
}
