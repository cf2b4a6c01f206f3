//! Truncates long values in messages. A value that a user wrote may be as long as a file, and its
//! beginning identifies it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Messages up to this many bytes are left as they are.
const MAX_UNCHANGED_BYTES: usize = 1000;

/// A quoted value of more than `MAX_VALUE_BYTES` bytes is truncated to about `CUT_VALUE_BYTES`.
const MAX_VALUE_BYTES: usize = 200;
const CUT_VALUE_BYTES: usize = 80;

/// A message that is still longer than this is truncated in the middle.
const MAX_BYTES: usize = 8000;

/// Returns the message with very long values, in backticks or quotes, truncated.
///
/// Call it for messages that are displayed and quote what a user wrote. Some constructors of
/// [`Error`](crate::Error) already do.
#[doc(hidden)]
pub fn shorten(message: &str) -> Cow<'_, str> {
    if message.len() <= MAX_UNCHANGED_BYTES {
        return Cow::Borrowed(message);
    }
    let mut short = String::with_capacity(MAX_UNCHANGED_BYTES);
    let mut copied = 0;
    let mut position = 0;
    let mut last = ' ';
    let mut unclosed = String::new();
    while let Some(letter) = message[position..].chars().next() {
        position += letter.len_utf8();
        // Within a word, a single quote is an apostrophe.
        let opens = matches!(letter, '`' | '"') || letter == '\'' && !last.is_alphanumeric();
        last = letter;
        if !opens || unclosed.contains(letter) {
            continue;
        }
        let Some(size) = closing(&message[position..], letter) else {
            unclosed.push(letter);
            continue;
        };
        short.push_str(&message[copied..position]);
        if size > MAX_VALUE_BYTES {
            push_cut(&mut short, &message[position..position + size])
        } else {
            short.push_str(&message[position..position + size])
        }
        copied = position + size;
        position = copied + letter.len_utf8();
    }
    short.push_str(&message[copied..]);
    if short.len() > MAX_BYTES {
        let head = beginning(&short, MAX_BYTES * 3 / 4);
        let tail = &short[beginning(&short, short.len() - MAX_BYTES / 8).len()..];
        let left_out = short.len() - head.len() - tail.len();
        short = format!("{head} … ({left_out} bytes left out) … {tail}");
    }
    Cow::Owned(short)
}

/// The end of a value that starts with this quote.
fn closing(text: &str, quote: char) -> Option<usize> {
    let closes = |end: usize| quote != '\'' || !text[end + 1..].starts_with(char::is_alphanumeric);
    text.match_indices(quote).map(|(end, _)| end).find(|&end| closes(end))
}

fn push_cut(short: &mut String, value: &str) {
    // Writing into a String cannot fail.
    let _ = write!(short, "{}… ({} bytes)", beginning(value, CUT_VALUE_BYTES), value.len());
}

/// At most this many bytes, cut at a character boundary.
fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_and_nothing_else() {
        let long = "x y\n".repeat(25_000);
        for quote in ['`', '\'', '"'] {
            let message =
                format!("run.toml:3: 'seed' isn't {quote}{long}{quote}; doesn't `x` say \"y\"?");
            let start = long[..80].to_owned();
            assert_eq!(
                shorten(&message),
                format!(
                    "run.toml:3: 'seed' isn't {quote}{start}… (100000 bytes){quote}; doesn't `x` say \"y\"?"
                )
            );
        }
        let sentences =
            "it's a sentence that doesn't end with `a` value of the user's. ".repeat(40);
        assert_eq!(shorten(&sentences), sentences);
        assert!(matches!(shorten("short"), Cow::Borrowed("short")));
    }

    #[test]
    fn no_message_is_longer_than_a_screen() {
        for message in [
            "é".repeat(100_000),
            "`a` b ".repeat(50_000),
            "`".repeat(100_001),
            "'ab ".repeat(9_999),
        ] {
            let short = shorten(&message);
            assert!(
                (4000..8100).contains(&short.len()) && short.contains(" bytes left out) … "),
                "{}",
                short.len()
            );
        }
    }
}
