//! Numbers in messages, and command lines without secrets.

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
