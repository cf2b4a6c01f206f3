//! Numbers with units in messages (counts, sizes, times, money), and command lines: quoted for a shell,
//! without secrets.

use std::fmt;

/// A number of things: `1 shard`, `2 shards`, `3 batches`. `noun` is one of them, with a regular
/// plural.
///
/// ```
/// use fulmen_durable::messages::quantity;
///
/// assert_eq!([quantity(0, "shard"), quantity(1, "shard")], ["0 shards", "1 shard"]);
/// assert_eq!([quantity(1, "batch"), quantity(2, "batch")], ["1 batch", "2 batches"]);
/// assert_eq!([quantity(1, "epoch"), quantity(2, "epoch")], ["1 epoch", "2 epochs"]);
/// ```
pub fn quantity(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let ending = match noun {
        _ if number == "1" => "",
        // Its `ch` is pronounced as a `k`.
        "epoch" => "s",
        _ if noun.ends_with("ch") || noun.ends_with("sh") || noun.ends_with(['s', 'x']) => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Formats the size of a file with the decimal units of disks: 1 GB is 10⁹ bytes.
///
/// ```
/// use fulmen_durable::messages::size;
///
/// assert_eq!([size(1), size(999), size(2_500_000)], ["1 byte", "999 bytes", "2.5 MB"]);
/// ```
pub fn size(bytes: u64) -> String {
    match scaled(bytes as f64, 1000.0, &["", "kB", "MB", "GB", "TB"], 1) {
        (_, "") => quantity(bytes, "byte"),
        (number, unit) => format!("{number} {unit}"),
    }
}

/// Formats a size in memory with the binary units of memory: 1 GiB is 2³⁰ bytes.
///
/// ```
/// use fulmen_durable::messages::memory;
///
/// assert_eq!([memory(12), memory(3 << 20), memory(3 << 29)], ["12 bytes", "3.00 MiB", "1.50 GiB"]);
/// ```
pub fn memory(bytes: u64) -> String {
    match scaled(bytes as f64, 1024.0, &["", "KiB", "MiB", "GiB"], 2) {
        (_, "") => quantity(bytes, "byte"),
        (number, unit) => format!("{number} {unit}"),
    }
}

/// Formats an amount with an SI prefix.
///
/// ```
/// use fulmen_durable::messages::amount;
///
/// assert_eq!([amount(3.2e9, "FLOP"), amount(7.0, "B")], ["3.20 GFLOP", "7 B"]);
/// ```
pub fn amount(value: f64, unit: &str) -> String {
    let (number, prefix) = scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"], 2);
    format!("{number} {prefix}{unit}")
}

/// A number in the largest of these units in which it is at least 1, and the unit. Each unit is
/// `step` times the one before it. A number of the first unit has no decimals.
fn scaled<'a>(value: f64, step: f64, units: &[&'a str], decimals: usize) -> (String, &'a str) {
    let mut value = value;
    let mut unit = 0;
    let text = |value: f64, unit: usize| {
        let decimals = if unit == 0 { 0 } else { decimals };
        format!("{value:.decimals$}")
    };
    // A rounded number counts: 999,960 bytes are 1.0 MB, not 1000.0 kB.
    while unit + 1 < units.len() && text(value, unit).parse().is_ok_and(|shown: f64| shown >= step)
    {
        value /= step;
        unit += 1;
    }
    (text(value, unit), units[unit])
}

/// Formats a time in seconds: three digits below a minute, two units above.
///
/// ```
/// use fulmen_durable::messages::duration;
///
/// assert_eq!([duration(9e-6), duration(0.412_855), duration(15.24)], ["9.00 µs", "413 ms", "15.2 s"]);
/// assert_eq!([duration(130.0), duration(7500.0), duration(2e5)], ["2 min 10 s", "2 h 5 min", "2 d 8 h"]);
/// ```
pub fn duration(seconds: f64) -> String {
    // Units and their seconds. The second of two units is rounded, so the limit between them is
    // where that shows a whole larger unit.
    match seconds {
        s if !s.is_finite() => format!("{s} s"),
        ..0.0 => format!("-{}", duration(-seconds)),
        0.0 => "0 s".to_owned(),
        86_370.0.. => two_units(seconds, (86_400, "d"), (3600, "h")),
        3599.5.. => two_units(seconds, (3600, "h"), (60, "min")),
        59.95.. => two_units(seconds, (60, "min"), (1, "s")),
        0.999_5.. => format!("{} s", three_digits(seconds)),
        0.000_999_5.. => format!("{} ms", three_digits(1e3 * seconds)),
        _ => format!("{} µs", three_digits(1e6 * seconds)),
    }
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A time in a unit and a smaller one, whose part is left out if it is 0.
fn two_units(seconds: f64, large: (u64, &str), small: (u64, &str)) -> String {
    let rounded = (seconds / small.0 as f64).round() as u64;
    let ratio = large.0 / small.0;
    match (rounded / ratio, rounded % ratio) {
        (whole, 0) => format!("{whole} {}", large.1),
        (whole, rest) => format!("{whole} {} {rest} {}", large.1, small.1),
    }
}

/// Formats an amount of US dollars. A positive amount that rounds to no cent is `<$0.01`.
///
/// ```
/// use fulmen_durable::messages::money;
///
/// assert_eq!([money(1.2), money(12_345.6), money(1.52e-5)], ["$1.20", "$12,345.60", "<$0.01"]);
/// assert_eq!([money(-234.5), money(-0.0)], ["-$234.50", "$0.00"]);
/// ```
pub fn money(usd: f64) -> String {
    if usd > 0.0 && usd < 0.005 {
        return "<$0.01".to_owned();
    }
    if usd <= -0.005 {
        return format!("-{}", money(-usd));
    }
    let text = format!("{:.2}", usd.abs());
    let (whole, cents) = text.split_once('.').unwrap_or((&text, ""));
    format!("${}.{cents}", with_commas(whole))
}

/// Formats a number without decimals, with a comma between groups of three digits.
///
/// ```
/// use fulmen_durable::messages::grouped;
///
/// assert_eq!([grouped(999.4), grouped(2000.0), grouped(1_234_567.0)], ["999", "2,000", "1,234,567"]);
/// assert_eq!([grouped(-0.2), grouped(-166_513.0)], ["0", "-166,513"]);
/// ```
pub fn grouped(number: f64) -> String {
    let rounded = number.round();
    let sign = if rounded < 0.0 { "-" } else { "" };
    let digits = format!("{:.0}", rounded.abs());
    if rounded.is_finite() { format!("{sign}{}", with_commas(&digits)) } else { number.to_string() }
}

/// Puts a comma between groups of three digits.
fn with_commas(digits: &str) -> String {
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Parts of the names of variables and flags whose values may be secret.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY"];

/// Whether a variable or a flag has a name like those of passwords and tokens. Some other names are
/// like them too: `--tokens-per-batch`.
///
/// ```
/// use fulmen_durable::messages::may_be_secret;
///
/// assert!(may_be_secret("--hub-token") && may_be_secret("WANDB_API_KEY"));
/// assert!(!may_be_secret("--batch-size"));
/// ```
pub fn may_be_secret(name: &str) -> bool {
    let name = name.to_uppercase().replace('-', "_");
    SECRET.iter().any(|secret| name.contains(secret))
}

/// A URL without user and password. Other texts are returned unchanged.
///
/// ```
/// use fulmen_durable::messages::without_user;
///
/// assert_eq!(without_user("http://me:password@host/x"), "http://***@host/x");
/// assert_eq!(without_user("s3://bucket/a@b"), "s3://bucket/a@b");
/// ```
pub fn without_user(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => match rest.split_once('@') {
            Some((user, rest)) if !user.contains('/') => format!("{scheme}://***@{rest}"),
            _ => text.to_owned(),
        },
        None => text.to_owned(),
    }
}

/// A command line with `***` in place of what may be secret, to be shown or written.
///
/// ```
/// use fulmen_durable::messages::public_command;
///
/// let args = ["train", "--api-key", "k", "--hub-token=t", "--seed", "3"].map(str::to_owned);
/// let shown = ["train", "--api-key", "***", "--hub-token=***", "--seed", "3"];
/// assert_eq!(public_command(args), shown);
/// ```
pub fn public_command(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut hide_next = false;
    let shown = |arg: String| {
        if std::mem::take(&mut hide_next) {
            return "***".to_owned();
        }
        match arg.split_once('=') {
            Some((name, _)) if may_be_secret(name) => format!("{name}=***"),
            Some((name, value)) => format!("{name}={}", without_user(value)),
            None => {
                hide_next = arg.starts_with("--") && may_be_secret(&arg);
                without_user(&arg)
            }
        }
    };
    args.into_iter().map(shown).collect()
}

/// Quotes the text as one word for a POSIX shell.
///
/// ```
/// assert_eq!(fulmen_durable::messages::quote("it's"), r"'it'\''s'");
/// assert_eq!(fulmen_durable::messages::quote("--lr=0.1"), "--lr=0.1");
/// ```
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_quoted_words_as_they_were() {
        for word in ["a", "", "it's", "a b", "$HOME `x` \\ \"y\"\n*", "--lr=0.1"] {
            let output = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        let cases = [
            (0.0, "0 s"),
            (2.5e-9, "0.00 µs"),
            (65.53e-6, "65.5 µs"),
            (999.6e-6, "1.00 ms"),
            (0.412_855, "413 ms"),
            (0.999_6, "1.00 s"),
            (9.996, "10.0 s"),
            (59.9, "59.9 s"),
            (59.96, "1 min"),
            (119.6, "2 min"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h"),
            (7261.0, "2 h 1 min"),
            (86_399.0, "1 d"),
            (300_000.0, "3 d 11 h"),
            (-1.5, "-1.50 s"),
            (f64::INFINITY, "inf s"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn sizes_and_amounts_have_readable_units() {
        let memories = [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.00 KiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (16_909_332_480, "15.75 GiB"),
            (5 << 40, "5120.00 GiB"),
        ];
        for (bytes, text) in memories {
            assert_eq!(memory(bytes), text);
        }
        assert_eq!(
            [size(999_960), size(2_500), size(8_800_000_000_000)],
            ["1.0 MB", "2.5 kB", "8.8 TB"]
        );
        let amounts = [(999_996.0, "1.00 MFLOP"), (81e12, "81.00 TFLOP"), (2e21, "2000.00 EFLOP")];
        for (value, text) in amounts {
            assert_eq!(amount(value, "FLOP"), text);
        }
    }

    #[test]
    fn money_has_cents_and_groups_of_thousands() {
        let cases = [
            (0.0, "$0.00"),
            (0.004_9, "<$0.01"),
            (0.005_1, "$0.01"),
            (230.4, "$230.40"),
            (999.999, "$1,000.00"),
            (1_234_567.891, "$1,234,567.89"),
        ];
        for (usd, text) in cases {
            assert_eq!(money(usd), text);
        }
    }
}
