//! The source line of a node: the line of the user's call into the library, or the user's own line
//! within a closure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fulmen_tensor::internal::Library;
use fulmen_tensor::{
    DType, Function, Scope, Tensor, checkpoint, cond, custom_gradient, fori_loop, grad, map, scan,
    while_loop,
};

use crate::shape_rules::call_table::CALLS;
use crate::shape_rules::choices::Choices;

/// A library of layers like `fulmen-nn`, whose sources are outside of this file.
const ELSEWHERE: Library = Library::new("elsewhere/src/lib.rs");

#[track_caller]
fn twice(x: &Tensor) -> Tensor {
    Tensor::record("twice", || {
        let parts: Vec<Tensor> = (0..2).map(|_| x.exp()).collect();
        Ok(&parts[0] + &parts[1])
    })
}

/// Calls a user's layer, like a container of layers.
#[track_caller]
fn call(library: Library, layer: &dyn Fn(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
    let _scope = library.open();
    let inner = twice(x);
    let _user = Scope::leave();
    layer(&inner)
}

/// The lines of all operations that compute this tensor, in the order of recording.
fn lines(y: &Tensor, x: &Tensor) -> Vec<u32> {
    let recorded = Function::new("f", vec![x.clone()], vec![y.clone()]).recorded().unwrap();
    recorded.iter().filter(|r| r.operation.is_some()).map(|r| r.location.line()).collect()
}

fn placeholder() -> Tensor {
    Tensor::placeholder("x", fulmen_tensor::TensorType::new(DType::F32, [2]))
}

#[test]
fn a_scope_gives_its_line_to_all_that_is_recorded_in_it() {
    let x = placeholder();
    let line = line!() + 1;
    let y = twice(&x);
    assert_eq!(lines(&y, &x), [line; 2]);
    let of_grad = line!() + 1;
    let dx = grad(y.sum_all(), &[&x]).remove(0);
    // The nodes of a derivative carry the line of the differentiated node.
    assert!(lines(&dx, &x).iter().all(|&l| l == line || l == of_grad));
    assert!(lines(&dx, &x).contains(&line));
}

#[test]
fn a_fault_of_an_earlier_line_keeps_its_line() {
    let line = line!() + 1;
    let wrong = placeholder() + Tensor::zeros(DType::F32, [3]);
    let fault = twice(&wrong).fault().unwrap().clone();
    assert_eq!((fault.operation(), fault.location().line()), ("add", line));
    assert_eq!(twice(&wrong).location().line(), line);
}

#[test]
fn a_users_code_within_a_library_carries_its_own_lines() {
    let x = placeholder();
    let own = line!() + 1;
    let layer = |x: &Tensor| x.sin();
    let line = line!() + 1;
    let y = call(ELSEWHERE, &layer, &x);
    assert_eq!(lines(&y, &x), [line, line, own]);
    // The nodes of a layer of the library carry the line of the user's call.
    let line = line!() + 1;
    let y = call(Library::new(file!()), &layer, &x);
    assert_eq!(lines(&y, &x), [line; 3]);
}

#[test]
fn bodies_carry_their_own_lines() {
    let x = placeholder();
    let wrong = |x: &Tensor| x.matmul(&Tensor::zeros(DType::F32, [9, 9]));
    let line = line!() - 1;
    let _scope = Scope::open();
    let bad = [
        scan(&[&x], (), |c, ()| (vec![wrong(&c[0])], ())).0,
        fulmen_tensor::Scan::new().length(2).run(&[&x], (), |c, ()| (vec![wrong(&c[0])], ())).0,
        map(|x| vec![wrong(&x[0])], &[&x.unsqueeze(0)]),
        fori_loop(0, 3, &[&x], |_, c| vec![wrong(&c[0])]),
        fori_loop(0, Tensor::scalar(3i32), &[&x], |_, c| vec![wrong(&c[0])]),
        while_loop(&[&x], |c| wrong(&c[0]), |c| c.to_vec()),
        while_loop(&[&x], |c| c[0].sum_all().lt(1.0), |c| vec![wrong(&c[0])]),
        cond(Tensor::scalar(true), &[&x], |x| vec![wrong(&x[0])], |x| x),
        cond(Tensor::scalar(true), &[&x], |x| x, |x| vec![wrong(&x[0])]),
        checkpoint(|x| vec![wrong(&x[0])], &[&x]),
        fulmen_tensor::call("f", &[&x], |x| vec![wrong(&x[0])]),
        custom_gradient(&[&x], |x| vec![wrong(&x[0])], |_, _, c| c.to_vec()),
    ];
    for (i, results) in bad.iter().enumerate().skip(1) {
        let fault = results[0].fault().unwrap();
        assert_eq!((fault.operation(), fault.location().line()), ("matmul", line), "{i}: {fault}");
    }
}

#[test]
fn a_panic_ends_the_scopes_it_leaves() {
    let x = placeholder();
    let panics = || {
        Tensor::record("panics", || -> Result<Tensor, fulmen_tensor::Refusal> {
            let _user = Scope::leave();
            panic!("in a user's code")
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let line = line!() + 1;
    let y = x.exp();
    assert_eq!(lines(&y, &x), [line]);
}

#[test]
fn every_call_and_its_derivative_carry_the_callers_file() {
    for (name, call) in CALLS.iter().copied().flatten() {
        for seed in 0..8u8 {
            let bytes: Vec<u8> = (0..48u8)
                .map(|i| i.wrapping_mul(37).wrapping_add(seed.wrapping_mul(101)) % 97)
                .collect();
            let mut choices = Choices(&bytes);
            let x: Vec<Tensor> =
                choices.types().into_iter().map(|ty| Tensor::placeholder("x", ty)).collect();
            let mut results = call(&mut choices, &x);
            let wrt: Vec<&Tensor> = x.iter().filter(|x| x.dtype().is_float()).collect();
            for y in results.clone().iter().filter(|y| y.fault().is_none() && y.dtype().is_float())
            {
                results.extend(grad(y.to_dtype(DType::F32).sum_all(), &wrt));
            }
            for fault in results.iter().filter_map(Tensor::fault) {
                assert!(is_own(fault.location().file()), "{name}: {fault}");
            }
            let sound = results.into_iter().filter(|y| y.fault().is_none()).collect();
            for one in Function::new("call", x, sound).recorded().unwrap() {
                assert!(is_own(one.location.file()), "{name}: {one:?}");
            }
        }
    }
}

/// Whether a file is one of these tests.
fn is_own(file: &str) -> bool {
    file.contains("tests/it/")
}
