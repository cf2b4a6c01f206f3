//! `FULMEN_PASSES`: which passes are on.

use super::PASSES;
use crate::{Error, Result};

const VARIABLE: &str = "FULMEN_PASSES";

/// Whether the pass of this name is on, by the environment.
///
/// # Errors
/// The variable names a pass that does not exist.
pub(super) fn from_environment() -> Result<impl Fn(&'static str) -> bool> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    let off = passes_off(&text.to_string_lossy()).map_err(Error::usage)?;
    Ok(move |name| !off.contains(&name))
}

/// The names of the passes that a text turns off: `-NAME` for each, separated by commas, or `none`
/// for all.
fn passes_off(text: &str) -> Result<Vec<&'static str>, String> {
    let names = PASSES.iter().map(|pass| pass.name);
    let mut off = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if word == "none" {
            off.extend(names.clone());
            continue;
        }
        let known =
            word.strip_prefix('-').and_then(|word| names.clone().find(|&name| name == word));
        let Some(name) = known else {
            let all: Vec<&str> = names.collect();
            return Err(format!(
                "{VARIABLE} has `{word}`, but takes `none`, or `-NAME` for each pass to turn off, separated by commas; the \
                 passes are {}",
                all.join(", ")
            ));
        };
        off.push(name);
    }
    Ok(off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_turned_off_by_name() {
        assert_eq!(passes_off("").unwrap(), [""; 0]);
        assert_eq!(passes_off("-axis-order, -updates").unwrap(), ["axis-order", "updates"]);
        assert_eq!(passes_off("none").unwrap().len(), PASSES.len());
        for wrong in ["axis-order", "-axes", "all"] {
            let message = passes_off(wrong).unwrap_err();
            let expected = format!("FULMEN_PASSES has `{wrong}`, but takes");
            assert!(message.starts_with(&expected), "{message}");
            assert!(message.ends_with("axis-order, product-axes"), "{message}");
        }
    }

    #[test]
    fn the_book_lists_the_passes_in_their_order() {
        let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/performance.md");
        let book = std::fs::read_to_string(book).unwrap();
        let table = book.split("| pass | for |").nth(1).unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let names: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let expected: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn each_pass_has_a_name_of_its_own() {
        for (i, pass) in PASSES.iter().enumerate() {
            assert!(PASSES[..i].iter().all(|other| other.name != pass.name), "{}", pass.name);
        }
    }
}
