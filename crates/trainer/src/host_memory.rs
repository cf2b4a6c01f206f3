//! Memory sizes of this machine and this process. They come from files under `/proc`, which only
//! Linux has.

/// The bytes of a line `NAME: 123 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that programs can still allocate without swapping.
pub(crate) fn available() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Resident memory of this process, in bytes.
pub fn resident() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_by_name() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2 kB\nHugePages_Total:       0\n";
        assert_eq!((kilobytes(text, "MemAvailable"), kilobytes(text, "Mem")), (Some(2048), None));
        assert_eq!(kilobytes(text, "HugePages_Total"), None);
    }
}
