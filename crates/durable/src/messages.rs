//! Numbers in messages.

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

/// Formats a number of bytes with the decimal units of disks: 1 GB is 10⁹ bytes.
///
/// ```
/// use fulmen_durable::messages::size;
///
/// assert_eq!([size(1), size(999), size(2_500_000)], ["1 byte", "999 bytes", "2.5 MB"]);
/// ```
pub fn size(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(unit, _)| bytes as f64 >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit),
        None => quantity(bytes, "byte"),
    }
}
