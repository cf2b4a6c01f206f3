//! Checks that each public function that records an operation has a row in the catalogue, or a
//! reason to have none, and a call with random arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fulmen_catalogue::families;

use crate::shape_rules::call_table::CALLS;

/// Functions that are called in the call of another one.
const CALLED_TOGETHER: [(&str, &str); 9] = [
    ("expand", "view"),
    ("ifft", "fft"),
    ("rfft", "fft"),
    ("log_softmax", "softmax"),
    ("logsumexp", "softmax"),
    ("std_corrected", "var_corrected"),
    ("topk_along", "topk"),
    ("random::fold_in", "random::fold_in_tensor"),
    ("random::key", "random::bits"),
];

/// Public functions that return tensors but have no row, with the reason.
const WITHOUT_A_ROW: &[(&str, &str)] = &[
    ("broadcast_in_dim", "broadcast_to covers the last axes"),
    ("mean_all", "mean over all axes"),
    ("sum_all", "sum over all axes"),
    ("flatten", "reshape"),
    ("unsqueeze", "reshape"),
    ("squeeze", "reshape"),
    ("transpose", "permute"),
    ("t", "permute"),
    ("narrow", "slice of one axis"),
    ("detach", "the identity, whose gradient is none by design: programs.rs"),
    ("iota", "no input: programs.rs"),
    ("arange", "no input: programs.rs"),
    ("with_sharding", "the identity on one device: sharding.rs"),
    ("all_gather", "the identity on one device: sharding.rs"),
    ("all_gather_to", "the identity on one device: sharding.rs"),
    ("gathered_from", "no operation: returns the operand of all_gather"),
    ("row_of", "no operation: returns the operand of index"),
    ("random::fold_in_tensor", "fold_in covers it for a number"),
    ("random::fold_in_name", "fold_in of a hash"),
    ("random::fold_in_each", "many fold_in; nn's random streams compare them"),
    ("random::fold_in_names", "many fold_in_name; nn's random streams compare them"),
    (
        "random::bernoulli_part",
        "for the crates of Fulmen: a part of bernoulli, nn's attention_blocks.rs",
    ),
    ("random::gamma", "differs from JAX: gamma.rs tests the distribution"),
    ("random::beta", "built on gamma: gamma.rs"),
    ("grad", "every gradient of this folder"),
    ("value_and_grad", "grad"),
    ("from_slice", "no operation: every constant of this folder"),
    ("full", "no operation: a constant"),
    (
        "to_dtype_on_host",
        "for the crates of Fulmen: to_dtype of a value on the host, stored_values.rs",
    ),
    ("check", "no operation: the tensor or its fault"),
    ("live", "no operation: the tensor or its fault"),
    ("cond", "has bodies: control_flow.rs"),
    ("switch", "has bodies: control_flow.rs"),
    ("while_loop", "has bodies: control_flow.rs"),
    ("fori_loop", "has bodies: control_flow.rs"),
    ("scan", "has bodies: control_flow.rs"),
    ("map", "has bodies: control_flow.rs"),
    ("checkpoint", "has bodies: control_flow.rs"),
    ("call", "has a body: programs.rs"),
    ("substitute", "records operations again: programs.rs"),
    ("custom_gradient", "has bodies: control_flow.rs"),
    ("kernel_call", "for the crates of Fulmen: has a body, the tests of kernels"),
    ("optimization_barrier", "the identity: control_flow.rs"),
    ("wide", "for the crates of Fulmen: a conversion"),
    ("gradients", "for the crates of Fulmen: grad"),
    ("check_indices", "for the crates of Fulmen: the identity, index_checks.rs"),
    ("check_masked_indices", "for the crates of Fulmen: check_indices"),
    ("with_mean_weight", "for the crates of Fulmen: the identity"),
    ("global_norm", "for the crates of Fulmen: large_norms.rs"),
    ("portable_program", "for the crates of Fulmen: the text of recorded operations, portable.rs"),
    ("take_rows", "for the crates of Fulmen: a gather with batches, nn's experts.rs"),
    ("add_rows", "for the crates of Fulmen: a scatter with batches, nn's experts.rs"),
    ("row_updates", "no operation: reads a gradient's expression"),
];

/// Constants and leaves, which record no operation.
const NO_OPERATIONS: [&str; 9] = [
    "scalar",
    "zeros",
    "ones",
    "zeros_like",
    "ones_like",
    "poison",
    "placeholder",
    "from_array",
    "from_stored",
];

/// Whether a return type contains a tensor.
fn returns_tensors(ty: &str) -> bool {
    ty.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "Tensor")
}

/// Collects the names of methods in macro tables: the word below each doc comment.
fn collect_tables(text: &str, names: &mut BTreeSet<String>) {
    let mut in_table = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with(' ') && !line.is_empty() {
            in_table = line.ends_with("! {");
        }
        let Some(next) = lines.peek().filter(|_| in_table && line.starts_with("    /// ")) else {
            continue;
        };
        let rest = next.strip_prefix("    ").unwrap_or_default();
        let word =
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if !word.is_empty()
            && word != "static"
            && rest[word.len()..].starts_with([',', ' ', ';', '('])
        {
            names.insert(word.to_owned());
        }
    }
}

/// Collects the public functions of a source file that return tensors: methods of `Tensor` and free
/// functions.
fn collect_file(path: &Path, prefix: &str, names: &mut BTreeSet<String>) {
    let text = fs::read_to_string(path).unwrap();
    // Leave out the tests at the end of the file.
    let text = text.split("\n#[cfg(test)]").next().unwrap();
    collect_tables(text, names);
    let mut methods = false;
    let mut in_macro = false;
    let mut rest = text;
    while let Some(line) = rest.lines().next() {
        if !line.starts_with(' ') && line.ends_with('{') {
            methods = line == "impl Tensor {";
            in_macro = line.starts_with("macro_rules!");
        }
        let name = match (line.strip_prefix("pub fn "), line.trim_start().strip_prefix("pub fn ")) {
            (Some(name), _) => Some((name, prefix)),
            (None, Some(name)) if methods || in_macro => Some((name, "")),
            _ => None,
        };
        if let Some((name, prefix)) = name {
            let signature = rest.split(" {").next().unwrap();
            // A function with a body takes a tree, and returns one.
            let has_tensor = signature.contains("IntoTree")
                || signature.rsplit_once("->").is_some_and(|(_, ty)| returns_tensors(ty));
            match name.strip_prefix('$') {
                _ if !has_tensor => {}
                Some(_) => {}
                None => {
                    let end = name.find(['(', '<']).unwrap();
                    names.insert(format!("{prefix}{}", &name[..end]));
                }
            }
        }
        rest = &rest[(line.len() + 1).min(rest.len())..];
    }
}

fn collect_folder(folder: &Path, prefix: &str, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let prefix = if name == "random" { "random::" } else { prefix };
        if path.is_dir() {
            collect_folder(&path, prefix, names);
        } else if name != "tests" {
            collect_file(&path, prefix, names);
        }
    }
}

#[test]
fn every_public_operation_has_a_row_or_a_reason_to_have_none() {
    let mut names = BTreeSet::new();
    collect_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut names);
    for known in ["matmul", "exp", "lt", "maximum", "random::uniform", "grad"] {
        assert!(names.contains(known), "{known} is not among the public functions: {names:?}");
    }
    let families = families();
    let rows: BTreeSet<&str> =
        families.iter().flat_map(|f| &f.rows).flat_map(|row| row.methods.iter().copied()).collect();
    let mut exceptions: BTreeMap<&str, &str> = WITHOUT_A_ROW.iter().copied().collect();
    exceptions.extend(NO_OPERATIONS.map(|name| (name, "no operation")));
    let missing: Vec<&String> = names
        .iter()
        .filter(|n| !rows.contains(n.as_str()) && !exceptions.contains_key(n.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "these have no row in crates/catalogue and no reason in coverage.rs: {missing:?}"
    );
    let unknown: Vec<&&str> = rows.iter().filter(|name| !names.contains(**name)).collect();
    assert!(unknown.is_empty(), "these rows name no public function: {unknown:?}");
    for (name, reason) in exceptions {
        assert!(names.contains(name), "{name} is no longer a function ({reason})");
        assert!(!rows.contains(name), "{name} has a row, so it is not an exception ({reason})");
    }
}

#[test]
fn every_operation_is_called_with_random_arguments() {
    let called: BTreeSet<&str> =
        CALLS.iter().copied().flatten().map(|(name, _)| without_module(name)).collect();
    let together: BTreeMap<&str, &str> = CALLED_TOGETHER.iter().copied().collect();
    let families = families();
    let missing: Vec<&str> = families
        .iter()
        .flat_map(|family| &family.rows)
        .flat_map(|row| row.methods.iter().copied())
        .filter(|method| {
            let call = together.get(method).unwrap_or(method);
            !called.contains(without_module(call))
        })
        .collect();
    assert!(missing.is_empty(), "these have no call in shape_rules/call_table.rs: {missing:?}");
}

fn without_module(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

#[test]
fn operations_and_cases_are_named_once() {
    let mut ops = BTreeSet::new();
    let mut cases = BTreeSet::new();
    for family in families() {
        for row in &family.rows {
            assert!(ops.insert(row.op), "two rows are called {}", row.op);
        }
        for case in family.cases() {
            assert!(cases.insert(case.name.clone()), "two cases are called {}", case.name);
        }
    }
}
