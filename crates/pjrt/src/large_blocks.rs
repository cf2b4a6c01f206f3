//! The pool of large blocks for a CPU plugin (`fulmen-cpu-pool`), which `FULMEN_CPU_POOL=1` turns on.

use std::env;

use crate::client::Client;
use crate::error::{self, Result};
use crate::locate::Platform;

const VARIABLE: &str = "FULMEN_CPU_POOL";

/// Whether the variable asks for the pool.
pub(crate) fn is_requested() -> Result<bool> {
    let value = env::var_os(VARIABLE).unwrap_or_default();
    match value.to_str() {
        Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        _ => Err(error::invalid(format!(
            "{VARIABLE} is {value:?}; set it to 1 to serve the CPU plugin's large blocks of memory from a pool, or to 0"
        ))),
    }
}

/// Lets the pool serve the plugin of a CPU client, if it was asked for. A plugin that it cannot serve
/// keeps its allocator, and one line says so.
pub(crate) fn serve_if_requested(client: &Client) -> Result<()> {
    // A virtual pod takes peers. It loads the plugin that computes, and asks for the pool itself.
    if !is_requested()? || client.plugin().takes_peers(Platform::Cpu)? {
        return Ok(());
    }
    if !serve(client)? {
        eprintln!(
            "{VARIABLE} has no effect: the calls of {} for memory cannot be redirected. It keeps its allocator",
            client.plugin().path().display()
        );
    }
    Ok(())
}

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
fn serve(client: &Client) -> Result<bool> {
    use std::thread;
    use std::time::{Duration, Instant};

    use fulmen_cpu_pool::{SMALLEST_BYTES, Trial};

    use crate::ElementType;

    /// A thread of the plugin may hold the buffer of the trial for a moment longer.
    const PATIENCE: Duration = Duration::from_secs(1);

    // SAFETY: the table of functions is part of the plugin, which is never unloaded.
    let Some(trial) = (unsafe { Trial::begin(client.api().address()) }) else { return Ok(true) };
    let bytes = vec![0; SMALLEST_BYTES];
    if let Some(device) = client.addressable_devices().first() {
        let dims = [SMALLEST_BYTES];
        let buffer = client.buffer_from_host(&bytes, ElementType::U8, &dims, device)?;
        drop(buffer.read()?.wait()?);
    }
    let start = Instant::now();
    while !trial.has_passed() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_micros(100));
    }
    Ok(trial.end())
}

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn serve(_: &Client) -> Result<bool> {
    Ok(false)
}
