//! Formats sizes, amounts and times in readable units.

/// Formats a size in bytes, in GiB or MiB.
pub fn memory(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 0.1 * 1024f64.powi(3) => format!("{:.2} GiB", b / 1024f64.powi(3)),
        b => format!("{:.2} MiB", b / 1024f64.powi(2)),
    }
}

/// Formats an amount with an SI prefix.
pub fn amount(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P", "E"];
    let mut scaled = value;
    let mut i = 0;
    while scaled >= 1000.0 && i + 1 < prefixes.len() {
        scaled /= 1000.0;
        i += 1;
    }
    format!("{scaled:.2} {}{unit}", prefixes[i])
}

/// Formats a time in seconds, in a suitable unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 7200.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 120.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.2} µs", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_readable_units() {
        assert_eq!(
            (memory(16_909_332_480), memory(3 << 20)),
            ("15.75 GiB".into(), "3.00 MiB".into())
        );
        assert_eq!(
            (amount(3.2e9, "FLOP"), amount(7.0, "B")),
            ("3.20 GFLOP".into(), "7.00 B".into())
        );
        let cases = [
            (8000.0, "2.2 h"),
            (130.0, "2.2 min"),
            (1.5, "1.50 s"),
            (2.5e-3, "2.500 ms"),
            (9e-6, "9.00 µs"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}
