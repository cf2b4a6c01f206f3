//! [`check_variables`]: all environment variables that plugins depend on. Out of scope: their meaning.

use crate::compile_cache::CompileCache;
use crate::error::Result;
use crate::{environment, locate};

/// Checks the environment variables that every plugin depends on: `FULMEN_PJRT_PLUGIN`,
/// `FULMEN_COMPILE_CACHE_MB` and `XLA_FLAGS`. Loading a plugin checks them too; this is for programs that report a
/// mistake of the user before they start.
///
/// # Errors
/// A variable has a value that is not valid.
///
/// ```
/// fulmen_pjrt::check_variables()?;
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub fn check_variables() -> Result<()> {
    environment::refuse_xla_flags()?;
    locate::check_plugin_variable()?;
    match CompileCache::from_env() {
        Err(error) if error.is_usage() => Err(error),
        _ => Ok(()),
    }
}
