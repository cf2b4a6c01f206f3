//! What each line of the user's code costs in a compiled program.

use std::collections::BTreeMap;

use fulmen_pjrt::hlo::{Cost, Module, Source};

/// What a run of a compiled program costs on one device, by the lines of the user's code: operations, and the bytes that
/// move between the device and its main memory. Operations of files that `is_internal` names, and those that the
/// compiler has added, have no line.
pub fn cost_by_line(module: &Module, is_internal: fn(&str) -> bool) -> BTreeMap<Option<String>, Cost> {
    let mut costs: BTreeMap<Option<String>, Cost> = BTreeMap::new();
    for (source, cost) in module.cost_by_line() {
        let sum = costs.entry(line(source, is_internal)).or_default();
        *sum = Cost { flops: sum.flops + cost.flops, bytes: sum.bytes + cost.bytes };
    }
    costs
}

/// The line of the user's code that a source is, if it is one.
pub(crate) fn line(source: Option<Source>, is_internal: fn(&str) -> bool) -> Option<String> {
    source.filter(|at| at.file != "-" && !is_internal(&at.file)).map(|at| at.to_string())
}
