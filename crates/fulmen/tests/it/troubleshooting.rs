//! Checks the chapter on messages: each heading must be part of a message in the sources.
//!
//! Out of scope: when the messages appear; see the tests of their crates.

use std::fs;
use std::path::Path;

use super::book::{read, repository};

/// Collects the sources of the crates, with string literals joined that span several lines.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path);
            let lines = text.split("\\\n").enumerate();
            let joined: String =
                lines.map(|(i, line)| if i == 0 { line } else { line.trim_start() }).collect();
            texts.push(joined.replace("\\\"", "\""));
        }
    }
}

/// Whether a text has these parts in this order.
fn has_in_order(text: &str, parts: &[&str]) -> bool {
    let mut rest = text;
    parts.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[test]
fn each_heading_is_part_of_a_message() {
    let mut texts = Vec::new();
    for krate in fs::read_dir(repository().join("crates")).unwrap() {
        sources(&krate.unwrap().path().join("src"), &mut texts);
    }
    let chapter = read(repository().join("docs/src/troubleshooting.md"));
    let messages = chapter.split("## Messages\n").nth(1).expect("the part about messages");
    let headings: Vec<&str> =
        messages.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    for heading in &headings {
        let parts: Vec<&str> =
            heading.split('…').map(str::trim).filter(|part| !part.is_empty()).collect();
        assert!(texts.iter().any(|text| has_in_order(text, &parts)), "no message has {heading:?}");
    }
    assert!(
        headings.len() >= 20 && messages.matches("### ").count() == headings.len(),
        "{headings:?}"
    );
    assert!(
        !texts
            .iter()
            .any(|text| has_in_order(text, &["the loss must be", "a floating-point tomato"]))
    );
}
