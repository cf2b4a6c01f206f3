//! What the process must look like before a plugin is loaded: the variables that plugins read.

use std::env;
use std::sync::Once;

use crate::diagnosis;
use crate::error::{Error, Result};
use crate::locate::Platform;

/// Readies the process, once, before the first plugin is loaded.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut wanted = vec![("TF_CPP_MIN_LOG_LEVEL", "3")];
        if diagnosis::device_files(Platform::Tpu).is_empty() {
            // Without these libtpu asks a metadata server that is not there for ten minutes, keeps other processes out
            // with a lock file and writes logs. They change nothing where there is no TPU.
            wanted.extend([
                ("TPU_SKIP_MDS_QUERY", "1"),
                ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
                ("TPU_WORKER_HOSTNAMES", "localhost"),
                ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
                ("TPU_LOG_DIR", "disabled"),
                // Without this the log files go to the temporary folder instead.
                ("TPU_MIN_LOG_LEVEL", "3"),
            ]);
        }
        for (name, value) in wanted {
            if env::var_os(name).is_none() {
                // SAFETY: std's lock keeps Rust code out, `Once` keeps out a second call, and no plugin's threads exist
                // yet, because every load comes through here first. What remains is foreign code in the same process
                // that reads the environment through C from another thread at this very moment; such a program must
                // load its plugin before it starts those threads, which `Plugin::load` documents.
                unsafe { env::set_var(name, value) }
            }
        }
    });
}

/// Refuses an inherited `XLA_FLAGS`: one flag that the plugin does not know ends the process, and which flags it knows
/// cannot be asked.
pub(crate) fn refuse_xla_flags() -> Result<()> {
    match env::var_os("XLA_FLAGS") {
        // Even a blank is not let through: it would be taken for the name of a file of flags.
        Some(flags) if !flags.is_empty() => Err(Error::invalid(format!(
            "the environment variable XLA_FLAGS is set (to {:?}), and a flag in it that the plugin does not know would \
             end the process; unset it, and pass each flag with CompileOptions::override_flag, which answers an \
             unknown one with an error",
            flags.to_string_lossy()
        ))),
        _ => Ok(()),
    }
}
