//! The compiled rules of a normalization, SentencePiece's `precompiled_charsmap`: a double array of
//! the texts to replace, as darts-clone writes it, and the replacements, each ended by NUL.
//!
//! Out of scope: spaces and prefixes (`normalizer`).

/// Rules that replace texts.
#[derive(Clone, Debug)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

/// The text that the longest rule replaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replacement<'a> {
    /// The number of bytes that are replaced.
    pub(super) length: usize,
    pub(super) text: &'a str,
}

impl Charsmap {
    pub(super) fn parse(bytes: &[u8]) -> Result<Charsmap, String> {
        let damaged = |what: &str| format!("the precompiled_charsmap is damaged: {what}");
        let (length, rest) =
            bytes.split_first_chunk::<4>().ok_or_else(|| damaged("it has no length"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (array, replacements) = rest
            .split_at_checked(length)
            .ok_or_else(|| damaged("its double array is longer than the rest"))?;
        let (array, odd) = array.as_chunks::<4>();
        if array.is_empty() || !odd.is_empty() {
            return Err(damaged("the length of its double array is not a multiple of 4"));
        }
        let units: Vec<u32> = array.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements =
            std::str::from_utf8(replacements).map_err(|error| damaged(&error.to_string()))?;
        if !replacements.ends_with('\0') {
            return Err(damaged("its last replacement has no end"));
        }
        let is_start = |unit: &u32| replacements.is_char_boundary(value(*unit));
        if !units.iter().filter(|unit| is_value(**unit)).all(is_start) {
            return Err(damaged("a rule has no replacement"));
        }
        Ok(Charsmap { units, replacements: replacements.to_owned() })
    }

    /// The longest rule for the beginning of a text.
    pub(super) fn longest(&self, text: &[u8]) -> Option<Replacement<'_>> {
        let mut found = None;
        let mut position = offset(*self.units.first()?);
        for (number, &byte) in text.iter().enumerate() {
            position ^= usize::from(byte);
            let Some(&unit) = self.units.get(position) else { break };
            if label(unit) != u32::from(byte) {
                break;
            }
            position ^= offset(unit);
            if has_value(unit)
                && let Some(&leaf) = self.units.get(position)
            {
                found = Some((number + 1, value(leaf)));
            }
        }
        let (length, start) = found?;
        let text = self.replacements.get(start..)?.split('\0').next()?;
        Some(Replacement { length, text })
    }
}

/// Whether the unit is the value of a text, and not a byte of texts.
fn is_value(unit: u32) -> bool {
    unit >> 31 == 1
}

fn value(unit: u32) -> usize {
    (unit & 0x7fff_ffff) as usize
}

/// Whether a text ends after the byte of this unit.
fn has_value(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

/// The byte of the unit. The bit of a value is included, because a value has no byte.
fn label(unit: u32) -> u32 {
    unit & 0x8000_00ff
}

/// What leads, with the exclusive or, from a unit to the units of the next bytes.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit >> 9 & 1) << 3)) as usize
}
