//! Sizes with units: `256MiB`, `1GB`, `1000`.
//!

/// Parses a number of bytes with or without a unit.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => {
            return Err(format!(
                "unknown unit {:?}; expected MB, MiB, GB, GiB or none",
                unit.trim()
            ));
        }
    };
    let number: u64 =
        number.parse().map_err(|_| "expected a whole number, as in 256MiB".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more bytes than 64 bits can count".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("1000"), Ok(1000));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("2 GB"), Ok(2_000_000_000));
        for wrong in ["", "MB", "-1", "1.5GB", "3 parsecs", "99999999999GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
