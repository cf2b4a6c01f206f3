//! The named values that made up a cache's key, so that a message can explain how two keys differ.
//!
//! Out of scope: the key itself, a hash of all values in order (`Fingerprint`).

use fulmen_durable::messages::quantity;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checksum::hex;

/// Longer values are truncated in messages.
const MAX_CHARS: usize = 300;

/// All values by name, in the order in which each name first appeared.
#[derive(Clone, Debug, Default)]
pub struct KeyParts(Vec<OpenPart>);

#[derive(Clone, Debug)]
struct OpenPart {
    name: String,
    first: String,
    count: u64,
    hash: Sha256,
}

impl KeyParts {
    pub fn add(&mut self, name: &str, value: &[u8]) {
        let index = self.0.iter().position(|part| part.name == name).unwrap_or_else(|| {
            self.0.push(OpenPart {
                name: name.to_owned(),
                first: readable(value),
                count: 0,
                hash: Sha256::new(),
            });
            self.0.len() - 1
        });
        let part = &mut self.0[index];
        part.count += 1;
        part.hash.update((value.len() as u64).to_le_bytes());
        part.hash.update(value);
    }

    /// The form that a manifest stores.
    pub fn finish(self) -> Vec<KeyPart> {
        let finish = |part: OpenPart| KeyPart {
            name: part.name,
            first: part.first,
            count: part.count,
            hash: hex(&part.hash.finalize()),
        };
        self.0.into_iter().map(finish).collect()
    }
}

/// The values with one name: how many there are, the first one, and a hash of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPart {
    pub name: String,
    pub first: String,
    pub count: u64,
    pub hash: String,
}

/// Lists the differences between two keys, one line per name.
pub fn differences(was: &[KeyPart], is: &[KeyPart]) -> Vec<String> {
    let find =
        |parts: &'_ [KeyPart], name: &str| parts.iter().find(|part| part.name == name).cloned();
    let mut lines = Vec::new();
    for part in is {
        match find(was, &part.name) {
            Some(old) if old == *part => {}
            Some(old) if old.count == 1 && part.count == 1 => {
                lines.push(format!("{}: was {}, is {}", part.name, old.first, part.first));
            }
            Some(old) if old.count == part.count => {
                lines.push(format!("{}: some of the {} values differ", part.name, part.count));
            }
            Some(old) => {
                let was = quantity(old.count, "value");
                lines.push(format!("{}: was {was}, is {}", part.name, part.count))
            }
            None => lines.push(format!("{}: is {}, was not there", part.name, described(part))),
        }
    }
    for old in was.iter().filter(|old| find(is, &old.name).is_none()) {
        lines.push(format!("{}: was {}, is not there", old.name, described(old)));
    }
    if lines.is_empty() && was != is {
        lines.push("only the order of the values differs".to_owned());
    }
    lines
}

fn described(part: &KeyPart) -> String {
    if part.count == 1 { part.first.clone() } else { quantity(part.count, "value") }
}

/// Formats a value for a message: text unchanged, up to 16 bytes as a little-endian number, and
/// longer values in hexadecimal.
fn readable(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains(char::is_control) => {
            let mut text: String = text.chars().take(MAX_CHARS + 1).collect();
            if text.chars().count() > MAX_CHARS {
                text.pop();
                text.push('…');
            }
            format!("`{text}`")
        }
        _ if value.len() <= 16 => {
            let mut number = [0; 16];
            number[..value.len()].copy_from_slice(value);
            u128::from_le_bytes(number).to_string()
        }
        _ => format!("{}…", hex(&value[..16])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(pairs: &[(&str, &[u8])]) -> Vec<KeyPart> {
        let mut parts = KeyParts::default();
        pairs.iter().for_each(|(name, value)| parts.add(name, value));
        parts.finish()
    }

    #[test]
    fn differences_are_said_name_by_name() {
        let was = parts(&[
            ("resize", &224u64.to_le_bytes()),
            ("file", b"a"),
            ("file", b"b"),
            ("crop", b"centre"),
        ]);
        assert!(differences(&was, &was).is_empty());
        let is = parts(&[
            ("resize", &256u64.to_le_bytes()),
            ("file", b"a"),
            ("file", b"c"),
            ("flip", b"0.5"),
        ]);
        assert_eq!(
            differences(&was, &is),
            [
                "resize: was 224, is 256",
                "file: some of the 2 values differ",
                "flip: is `0.5`, was not there",
                "crop: was `centre`, is not there"
            ]
        );
        let fewer =
            parts(&[("resize", &224u64.to_le_bytes()), ("file", b"a"), ("crop", b"centre")]);
        assert_eq!(differences(&was, &fewer), ["file: was 2 values, is 1"]);
        let turned = parts(&[
            ("file", b"a"),
            ("resize", &224u64.to_le_bytes()),
            ("file", b"b"),
            ("crop", b"centre"),
        ]);
        assert_eq!(differences(&was, &turned), ["only the order of the values differs"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_numbers() {
        assert_eq!(readable(b"v1"), "`v1`");
        assert_eq!(readable(&7u32.to_le_bytes()), "7");
        assert_eq!(readable(&[0xff; 20]), format!("{}…", "ff".repeat(16)));
        assert_eq!(readable(&[b'x'; 400]).chars().count(), MAX_CHARS + 3);
    }
}
