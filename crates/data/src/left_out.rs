//! What a reader leaves out, in one line.
//!
//! Out of scope: samples that cannot be read (`on_error`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use fulmen_durable::messages::quantity;

/// The lines that were printed. A folder may be opened several times.
static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The limit on the lines that are remembered.
const MAX_NOTED: usize = 1000;

/// Counts of what a reader leaves out, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<String, usize>);

impl LeftOut {
    /// Counts one more of a kind, such as `.bmp`.
    pub fn add(&mut self, kind: impl Into<String>) {
        *self.0.entry(kind.into()).or_default() += 1;
    }

    /// Counts a file by the extension of its name.
    pub fn add_file(&mut self, name: &str) {
        let name = name.rsplit('/').next().unwrap_or(name);
        match name.rsplit_once('.') {
            Some((_, extension)) => self.add(format!(".{}", extension.to_lowercase())),
            None => self.add("without an extension"),
        }
    }

    /// The counts by kind.
    pub fn counts(&self) -> &BTreeMap<String, usize> {
        &self.0
    }

    /// Notes what was left out of `source`, once. `reason` says what is read, or why the rest is
    /// not.
    pub fn note(&self, source: impl Display, reason: &str) {
        if let Some(line) = self.line(source, reason) {
            note_once(line);
        }
    }

    fn line(&self, source: impl Display, reason: &str) -> Option<String> {
        const MAX_SHOWN: usize = 8;
        let total: usize = self.0.values().sum();
        let kinds: Vec<String> =
            self.0.iter().take(MAX_SHOWN).map(|(kind, count)| format!("{count} {kind}")).collect();
        let more = if self.0.len() > MAX_SHOWN { ", …" } else { "" };
        let files = quantity(total, "file");
        (total > 0)
            .then(|| format!("{source}: left out {files} ({}{more}): {reason}", kinds.join(", ")))
    }
}

/// Notes a line, unless it was noted before.
fn note_once(line: String) {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if noted.len() < MAX_NOTED && noted.insert(line.clone()) {
        drop(noted);
        fulmen_tensor::note!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_what_was_left_out_by_kind() {
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.line("x", "why"), None);
        for name in ["cat/a.BMP", "b.bmp", "c.tif", "a.b/README"] {
            left_out.add_file(name);
        }
        assert_eq!(
            left_out.line("data", "images are .png").unwrap(),
            "data: left out 4 files (2 .bmp, 1 .tif, 1 without an extension): images are .png"
        );
    }
}
