//! The cost of each line of the user's code in a compiled program.

use std::collections::BTreeMap;

use fulmen_pjrt::hlo::{Cost, Module, Source};

/// The cost of one run of a compiled program on one device, by lines of the user's code:
/// operations, and bytes between the device and its main memory. Two kinds of operations have no
/// line: those recorded in files for which `is_internal` returns true, and those that the compiler
/// added.
pub fn cost_by_line(
    module: &Module,
    is_internal: fn(&str) -> bool,
) -> BTreeMap<Option<String>, Cost> {
    let mut costs: BTreeMap<Option<String>, Cost> = BTreeMap::new();
    for (source, cost) in module.cost_by_line() {
        let sum = costs.entry(line(source, is_internal)).or_default();
        *sum = Cost { flops: sum.flops + cost.flops, bytes: sum.bytes + cost.bytes };
    }
    costs
}

/// The user's line of a source, if it has one.
pub(crate) fn line(source: Option<Source>, is_internal: fn(&str) -> bool) -> Option<String> {
    source
        .filter(|source| source.file != "-" && !is_internal(&source.file))
        .map(|source| source.to_string())
}
