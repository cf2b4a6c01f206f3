//! How long processes wait for each other.

use std::ffi::OsString;
use std::time::Duration;

use crate::{Result, error};

/// The longest wait, even if a longer one was requested.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long to wait for a process to join, and how long a process may be silent.
///
/// ```
/// use std::time::Duration;
/// use fulmen_coordination::Timeouts;
///
/// let timeouts = Timeouts { join: Duration::from_secs(60), ..Timeouts::default() };
/// assert_eq!(timeouts.heartbeat, Duration::from_secs(10));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a process waits for all others to join. Default: 300 s.
    pub join: Duration,
    /// How long a process may be silent before it counts as lost. The value of process 0 applies to
    /// all. Default: 10 s.
    pub heartbeat: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { join: Duration::from_secs(300), heartbeat: Duration::from_secs(10) }
    }
}

impl Timeouts {
    /// The defaults, except where `FULMEN_JOIN_TIMEOUT` or `FULMEN_HEARTBEAT_TIMEOUT` give seconds.
    ///
    /// # Errors
    /// A variable is not a number of seconds above 0.
    pub fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Timeouts> {
        let default = Timeouts::default();
        Ok(Timeouts {
            join: seconds(&env, "FULMEN_JOIN_TIMEOUT")?.unwrap_or(default.join),
            heartbeat: seconds(&env, "FULMEN_HEARTBEAT_TIMEOUT")?.unwrap_or(default.heartbeat),
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        // Below 0.1 s, an ordinary pause of the scheduler would count as a lost process.
        if self.heartbeat < Duration::from_millis(100) {
            return Err(error::usage(format!(
                "the heartbeat time-out is {:?}; set at least 100 ms",
                self.heartbeat
            )));
        }
        if self.join.is_zero() {
            return Err(error::usage(
                "the join time-out is 0; set at least the time that the slowest host needs to start",
            ));
        }
        Ok(())
    }
}

/// Limits a duration to what a clock can represent.
pub(crate) fn bounded(timeout: Duration) -> Duration {
    timeout.min(MAX_TIMEOUT)
}

/// Converts a timeout to milliseconds, rounded up, for a message.
pub(crate) fn millis(timeout: Duration) -> u64 {
    u64::try_from(bounded(timeout).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn seconds(env: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<Duration>> {
    let Some(text) = env(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.trim().parse::<f64>() {
        Ok(s) if s > 0.0 && s.is_finite() => {
            Ok(Some(bounded(Duration::try_from_secs_f64(s).unwrap_or(MAX_TIMEOUT))))
        }
        _ => Err(error::usage(format!(
            "the environment variable {name} is `{text}`; expected a number of seconds above 0"
        ))),
    }
}
