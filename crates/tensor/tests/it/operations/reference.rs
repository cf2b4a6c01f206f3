//! Compares values and gradients with JAX. The cases of one operation form one program.

use std::collections::BTreeMap;

use fulmen_tensor::{Argument, Function, Literal, Runtime, Tensor, TensorType, grad};

use crate::operations::case::{Array, Case, difference};
use crate::operations::catalogue::{Family, Row};

/// The outputs, and the gradients that JAX has too.
fn record(row: &Row, case: &Case, x: &[Tensor]) -> Vec<Tensor> {
    let outputs = row.record(x, &case.attrs);
    assert_eq!(outputs.len(), case.outputs.len(), "{}: the number of outputs", case.name);
    let mut results = outputs.clone();
    let weighted =
        outputs.iter().zip(&case.cotangents).filter_map(|(y, c)| Some(weigh(y, c.as_ref()?)));
    if let Some(loss) = weighted.reduce(|a, b| a + b) {
        let wrt: Vec<&Tensor> =
            x.iter().zip(&case.gradients).filter(|(_, g)| g.is_some()).map(|(x, _)| x).collect();
        results.extend(grad(&loss, &wrt));
    }
    for result in &results {
        assert!(result.fault().is_none(), "{}: {result:?}", case.name);
    }
    results
}

/// The contribution of an output to the loss.
fn weigh(output: &Tensor, cotangent: &Array) -> Tensor {
    // For complex numbers, the real part: this is the meaning of JAX's cotangents.
    (output * cotangent.tensor()).real().sum_all()
}

/// The names and expected values of the results of `record`.
fn expected(case: &Case) -> Vec<(String, &Array)> {
    let outputs =
        case.outputs.iter().enumerate().map(|(i, y)| (format!("{}, output {i}", case.name), y));
    let gradients = case
        .gradients
        .iter()
        .enumerate()
        .filter_map(|(i, g)| Some((format!("{}, gradient {i}", case.name), g.as_ref()?)));
    outputs.chain(gradients).collect()
}

/// Records the cases, each with its own parameters, runs all as one program, and returns the
/// differences from the expected values.
fn run(row: &Row, cases: &[&Case]) -> Vec<String> {
    let types: Vec<TensorType> = cases.iter().flat_map(|case| case.types()).collect();
    let function = Function::trace(row.op, &types, |mut rest| {
        let mut results = Vec::new();
        for case in cases {
            let (x, later) = rest.split_at(case.inputs.len());
            rest = later;
            results.extend(record(row, case, x));
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
    let all: Vec<_> = cases.iter().flat_map(|case| expected(case)).collect();
    assert_eq!(values.len(), all.len());
    let wrong = values
        .iter()
        .zip(all)
        .filter_map(|(ours, (what, y))| Some(format!("{what}: {}", difference(ours, y)?)));
    wrong.collect()
}

/// Checks that every case of the family has a row, that every row has cases, and that all results
/// agree.
pub(crate) fn check(family: &Family) {
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
