//! Compares shape rules with those of the plugin. A recorded call must compile with the types of
//! its rule. A call that a rule rejects must be rejected by the plugin too, unless it is in
//! [`OURS`].

pub(crate) mod call_table;
pub(crate) mod choices;
mod compiler_process;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fulmen_tensor::internal::{RefusedOperation, watch};
use fulmen_tensor::{DType, Function, Tensor, TensorType};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use call_table::{CALLS, Call};
use choices::Choices;
use compiler_process::CompilerProcess;

/// Rejections of programs that the plugin accepts: the start of the operation's debug text, a part
/// of the message, and the reason.
const OURS: &[(&str, &str, &str)] = &[
    (
        "",
        "convert with to_dtype() first",
        "StableHLO counts with bools; here a user says that they are numbers",
    ),
    (
        "",
        "takes real numbers, not c",
        "chlo has some of these for complex numbers, without a derivative here",
    ),
    ("Convert", "cannot convert", "StableHLO takes the real part; here a user says which part"),
    (
        "Reduce",
        "has no element along the axes",
        "StableHLO gives the infinity that a maximum starts from",
    ),
    ("Sort", "have no order", "XLA does not look at the comparison of a sort without elements"),
    ("Fft", "has no element along axis", "XLA gives no elements"),
    ("Fft", "n must be at least 1", "XLA gives no elements"),
];

/// Larger tensors are not compiled: the compiler computes constants while it compiles.
const LARGE: usize = 1 << 16;

/// The program with these results. `None` if there are no results, or if tensors are large.
fn program(parameters: &[Tensor], results: Vec<Tensor>) -> Option<String> {
    let function = Function::new("call", parameters.to_vec(), results);
    let small = function
        .recorded()
        .ok()?
        .iter()
        .all(|r| r.types.iter().all(|ty| ty.shape.num_elements() < LARGE));
    let parameters_small = parameters.iter().all(|p| p.shape().num_elements() < LARGE);
    if function.results().is_empty() || !small || !parameters_small {
        return None;
    }
    Some(function.stablehlo().unwrap())
}

/// The type in `tensor<2x3xf32>`.
fn parse(text: &str) -> Option<TensorType> {
    let inner = text.strip_prefix("tensor<")?.strip_suffix('>')?;
    let (sizes, dtype) = inner.rsplit_once('x').unwrap_or(("", inner));
    let dtype =
        DType::all().find(|&d| TensorType::scalar(d).stablehlo() == format!("tensor<{dtype}>"))?;
    let sizes: Option<Vec<usize>> =
        sizes.split('x').filter(|s| !s.is_empty()).map(|s| s.parse().ok()).collect();
    Some(TensorType::new(dtype, sizes?))
}

/// Possible result types of a rejected operation: the types of its inputs, or, if an attribute is
/// the shape or dtype of the result, that type.
fn candidates(refused: &RefusedOperation) -> Vec<Vec<TensorType>> {
    let inputs = refused.inputs().to_vec();
    let printed = refused.operation();
    let Some(first) = inputs.first() else { return Vec::new() };
    if let Some((_, to)) = printed.split_once("to: ") {
        let word = to.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        let dtype = DType::all().find(|d| format!("{d:?}") == word);
        let numbers =
            to.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inner, _)| inner);
        let shape =
            numbers.map(|n| n.split(", ").filter_map(|n| n.parse().ok()).collect::<Vec<usize>>());
        return match (dtype, shape) {
            (Some(dtype), _) => vec![vec![TensorType::new(dtype, &first.shape)]],
            (None, Some(shape)) => vec![vec![TensorType::new(first.dtype, shape)]],
            (None, None) => Vec::new(),
        };
    }
    let mut candidates: Vec<Vec<TensorType>> = vec![vec![first.clone()]];
    if inputs.len() > 1 {
        candidates.push(inputs);
    }
    candidates
}

/// The result types and the program with which the plugin accepts a rejected operation, if there
/// are any.
fn taken(compiler: &mut CompilerProcess, refused: &RefusedOperation) -> Option<String> {
    let mut pending = candidates(refused);
    let mut tried = BTreeSet::new();
    while let Some(outputs) = pending.pop() {
        if !tried.insert(format!("{outputs:?}")) || tried.len() > 4 {
            continue;
        }
        let parameters: Vec<Tensor> =
            refused.inputs().iter().map(|ty| Tensor::placeholder("x", ty.clone())).collect();
        let result = refused.record_unchecked(&parameters, &outputs);
        // Invalid attributes may have no text; then there is nothing to compare.
        let text = catch_unwind(AssertUnwindSafe(|| program(&parameters, vec![result])));
        let Ok(Some(text)) = text else { continue };
        let Some(why) = compiler.refuses(&text) else {
            return Some(format!("{outputs:?}\n{text}"));
        };
        // `inferred type(s) 'tensor<2xf32>' are incompatible with return type(s)` means that only
        // the result types are wrong.
        if let Some((_, rest)) = why.split_once("inferred type(s) ") {
            let inferred = rest.split(" are incompatible").next().unwrap_or_default();
            let types: Option<Vec<TensorType>> =
                inferred.split(", ").map(|ty| parse(ty.trim_matches('\''))).collect();
            pending.extend(types);
        }
    }
    None
}

/// The numbers of recorded and rejected calls.
#[derive(Default)]
struct Count {
    accepted: usize,
    refused: usize,
}

/// Records one call with the choices that the bytes give, and compares with the plugin.
fn check_call(
    compiler: &mut CompilerProcess,
    name: &str,
    call: Call,
    bytes: &[u8],
    count: &mut Count,
) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let x: Vec<Tensor> =
        choices.types().into_iter().map(|ty| Tensor::placeholder("x", ty)).collect();
    let (results, refusals) = watch(|| call(&mut choices, &x));
    let sound: Vec<Tensor> = results.into_iter().filter(|y| y.fault().is_none()).collect();
    if let Some(text) = program(&x, sound) {
        count.accepted += 1;
        if let Some(why) = compiler.refuses(&text) {
            return Err(format!("{name}: recorded, and the plugin refuses it: {why}\n{text}"));
        }
    }
    for refused in refusals {
        let printed = refused.operation();
        if OURS
            .iter()
            .any(|(op, piece, _)| printed.starts_with(op) && refused.message().contains(piece))
        {
            continue;
        }
        count.refused += 1;
        if let Some(text) = taken(compiler, &refused) {
            return Err(format!(
                "{name}: {printed} was refused ({}), and the plugin takes it: {text}",
                refused.message()
            ));
        }
    }
    Ok(())
}

#[test]
fn shape_rules_and_the_plugin_agree() {
    let compiler = RefCell::new(CompilerProcess::new());
    let count = RefCell::new(Count::default());
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let mut wrong = Vec::new();
    for (i, (name, call)) in CALLS.iter().copied().flatten().enumerate() {
        let config =
            Config { cases, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(
            config,
            TestRng::from_seed(RngAlgorithm::ChaCha, &[i as u8; 32]),
        );
        let result = runner.run(&vec(proptest::num::u8::ANY, 48), |bytes| {
            check_call(&mut compiler.borrow_mut(), name, *call, &bytes, &mut count.borrow_mut())
                .map_err(TestCaseError::fail)
        });
        if let Err(TestError::Fail(reason, _)) = result {
            wrong.push(reason.message().to_owned());
        }
    }
    let count = count.into_inner();
    println!("{} accepted and {} refused operations were checked", count.accepted, count.refused);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(count.accepted > 100 && count.refused > 20, "too few were checked");
}
