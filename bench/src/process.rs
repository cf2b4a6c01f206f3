//! The kernel's data about this process. The peers in Rust share this file.

use std::fs;

/// The peak memory of this process, in bytes.
pub(crate) fn peak_bytes() -> Option<u64> {
    status("VmHWM:")
}

/// The current memory of this process, in bytes.
pub(crate) fn rss_bytes() -> Option<u64> {
    status("VmRSS:")
}

fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// The time since the kernel started this process.
pub(crate) fn seconds_since_start() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Field 22. Counting starts after the command's name, which may contain spaces. Linux has 100
    // ticks per second.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 =
        fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    Some(uptime - ticks / 100.0)
}
