//! [`compare`]: the differences of two reports.

use std::collections::BTreeSet;

use fulmen_durable::messages::duration;

use crate::{Measurement, PartReport, Report};

/// The differences of two reports, a line each: outcomes, failures, facts and measurements.
pub fn compare(before: &Report, after: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if before.fulmen != after.fulmen {
        lines.push(format!("Fulmen: {} → {}", before.fulmen, after.fulmen));
    }
    if before.options != after.options {
        lines.push("the options differ, so the parts did not do the same".to_owned());
    }
    for part in &before.parts {
        match after.parts.iter().find(|other| other.name == part.name) {
            Some(other) => lines.extend(of_part(part, other)),
            None => lines.push(format!("{}: only in the first report", part.name)),
        }
    }
    let is_new = |part: &&PartReport| before.parts.iter().all(|other| other.name != part.name);
    for part in after.parts.iter().filter(is_new) {
        lines.push(format!("{}: only in the second report", part.name));
    }
    lines
}

fn of_part(before: &PartReport, after: &PartReport) -> Vec<String> {
    let name = &before.name;
    let mut lines = Vec::new();
    let state = |part: &PartReport| if part.passed { "passed" } else { "FAILED" };
    if before.passed != after.passed {
        lines.push(format!("{name}: {} → {}", state(before), state(after)));
    }
    let failures = |part: &PartReport| -> BTreeSet<String> {
        part.failures.iter().map(|f| format!("{} ({})", f.name, f.setting)).collect()
    };
    let first = failures(before);
    let second = failures(after);
    lines.extend(first.difference(&second).map(|what| format!("{name}: no longer fails: {what}")));
    lines.extend(second.difference(&first).map(|what| format!("{name}: now fails: {what}")));
    let names: BTreeSet<&String> = before.facts.keys().chain(after.facts.keys()).collect();
    for fact in names {
        let values = [before, after].map(|part| part.facts.get(fact).map_or("—", String::as_str));
        if values[0] != values[1] {
            lines.push(format!("{name}: {fact}: {} → {}", values[0], values[1]));
        }
    }
    for old in &before.measurements {
        if let Some(new) = after.measurements.iter().find(|new| new.name == old.name) {
            let ratio = new.value / old.value;
            let values = [old, new].map(Measurement::text);
            lines.push(format!(
                "{name}: {}: {} → {} (× {ratio:.2})",
                old.name, values[0], values[1]
            ));
        }
    }
    lines.push(format!("{name}: {} → {}", duration(before.seconds), duration(after.seconds)));
    lines
}
