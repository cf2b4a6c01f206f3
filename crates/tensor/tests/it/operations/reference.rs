//! Compares values and gradients with JAX. The cases of one operation form one program.

use std::collections::BTreeMap;

use fulmen_catalogue::{Array, Case, Row, Tolerance, compare, family};
use fulmen_tensor::{Argument, Function, Literal, Runtime, TensorType};

/// Records the cases, each with its own parameters, runs all as one program, and returns the
/// differences from the expected values.
fn run(row: &Row, cases: &[&Case]) -> Vec<String> {
    let types: Vec<TensorType> = cases.iter().flat_map(|case| case.types()).collect();
    let function = Function::trace(row.op, &types, |x| {
        let mut rest = &x[..];
        let mut results = Vec::new();
        for case in cases {
            let (x, later) = rest.split_at(case.inputs.len());
            rest = later;
            results.extend(case.record(row, x, &case.attrs, Array::tensor).unwrap());
        }
        results
    });
    let runtime = Runtime::global().unwrap();
    let compiled = runtime.compile(&function).unwrap_or_else(|e| panic!("{}: {e}", row.op));
    let inputs: Vec<_> = cases
        .iter()
        .flat_map(|case| &case.inputs)
        .map(|a| runtime.to_device(&a.literal()).unwrap())
        .collect();
    let outputs = compiled.call(inputs.iter().map(Argument::Borrow).collect()).unwrap();
    let values: Vec<Literal> =
        runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    let all: Vec<_> = cases.iter().flat_map(|case| case.expected()).collect();
    assert_eq!(values.len(), all.len());
    let wrong = values.iter().zip(all).filter_map(|(ours, (what, expected))| {
        let tolerance = Tolerance::of(expected.ty().dtype);
        let difference = compare(ours, &expected.literal(), tolerance).difference?;
        Some(format!("{what}: {difference}"))
    });
    wrong.collect()
}

/// Checks that every case of the family has a row, that every row has cases, and that all results
/// agree.
pub(crate) fn check(name: &str) {
    let family = family(name).unwrap();
    let cases = family.cases();
    let mut by_op: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        by_op.entry(&case.op).or_default().push(case);
    }
    let mut wrong = Vec::new();
    for row in &family.rows {
        let Some(mut cases) = by_op.remove(row.op) else {
            panic!("the row `{}` has no case in reference/{}.json", row.op, family.name);
        };
        for (name, reason) in row.unlike {
            let before = cases.len();
            cases.retain(|case| case.name != *name);
            assert_eq!(
                cases.len() + 1,
                before,
                "{}: there is no case {name} to be unlike JAX: {reason}",
                row.op
            );
        }
        wrong.extend(run(row, &cases));
    }
    assert!(
        by_op.is_empty(),
        "these operations of reference/{}.json have no row: {:?}",
        family.name,
        by_op.keys()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
