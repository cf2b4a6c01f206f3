//! Marks of indices: they are found wherever they are recorded, and programs do not contain them.

use fulmen_tensor::internal::{IndexChecks, IndexRule, check_indices, place};
use fulmen_tensor::{
    DType, Function, Shape, Tensor, TensorType, call, checkpoint, cond, custom_gradient, map, scan,
    switch,
};

fn rule(size: usize) -> IndexRule {
    IndexRule::below("f", "an index", size, format!("there are {size}"))
}

#[track_caller]
fn marked(indices: &Tensor, rule: IndexRule) -> Tensor {
    Tensor::record("f", || check_indices(indices, rule))
}

/// Integers that only the device knows.
fn unknown(elements: &[i64], dtype: DType) -> Tensor {
    (Tensor::from_slice(elements, [elements.len()]) * 1.0).to_dtype(dtype)
}

/// The position and the value of the first invalid index that `results` depend on.
fn first(results: &[Tensor], not_finite: bool) -> Option<(i32, i64)> {
    let words = IndexChecks::find(results).first(&Tensor::scalar(not_finite))?;
    let words = words.eval().unwrap().to_vec::<i32>().unwrap();
    let value = (i64::from(words[3]) << 32) | i64::from(words[2] as u32);
    (words[0] != 0).then_some((words[1], value))
}

#[test]
fn the_first_invalid_index_is_found_in_every_dtype() {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    for dtype in [I8, I16, I32, I64, U8, U16, U32, U64] {
        let found = |x: &[i64]| first(&[marked(&unknown(x, dtype), rule(100))], false);
        assert_eq!(found(&[0, 99, 5]), None, "{dtype}");
        assert_eq!(found(&[0, 100, 101]), Some((1, 100)), "{dtype}");
        if !dtype.is_unsigned() {
            assert_eq!(found(&[7, 3, -2]), Some((2, -2)), "{dtype}");
        }
    }
    // A dtype that cannot hold the size has no invalid index.
    assert_eq!(first(&[marked(&unknown(&[255], U8), rule(256))], false), None);
    let far = (1 << 40) + 3;
    assert_eq!(first(&[marked(&unknown(&[1, far], I64), rule(9))], false), Some((1, far)));
    assert_eq!(first(&[marked(&unknown(&[1, -far], I64), rule(9))], false), Some((1, -far)));
    let big = i64::from(u32::MAX);
    assert_eq!(first(&[marked(&unknown(&[1, big], U32), rule(9))], false), Some((1, big)));
    // A scalar, and no element at all.
    let scalar = unknown(&[9], I32).squeeze(0);
    assert_eq!(first(&[marked(&scalar, rule(9))], false), Some((0, 9)));
    assert_eq!(first(&[marked(&unknown(&[], I32), rule(9))], false), None);
    // Positions are row-major.
    let cube = unknown(&(0..24).collect::<Vec<_>>(), I32).reshape([2, 3, 4]);
    assert_eq!(first(&[marked(&cube, rule(17))], false), Some((17, 17)));
    assert_eq!(place(&Shape::from([2, 3, 4]), 17).unwrap(), "row 1, position [1, 1]");
    assert_eq!(place(&Shape::from([2, 3]), 4).unwrap(), "row 1, position 1");
    assert_eq!(place(&Shape::from([7]), 4).unwrap(), "row 4");
    assert_eq!(place(&Shape::from([0usize; 0]), 0), None);
}

#[test]
fn rules_ignore_exclude_and_wait_for_a_nan() {
    let x = unknown(&[1, -100, 0], DType::I32);
    let ignoring = IndexRule { ignored: Some(-100), ..rule(3) };
    assert_eq!(first(&[marked(&x, ignoring.clone())], false), None);
    let excluding = IndexRule { excluded: Some((0, "the blank")), ..ignoring };
    assert_eq!(excluding.message(0), "an index is 0, which is the blank");
    assert_eq!(first(&[marked(&x, excluding)], false), Some((2, 0)));
    let waiting = IndexRule { needs_nan: true, ..rule(3) };
    assert_eq!(first(&[marked(&x, waiting.clone())], false), None);
    assert_eq!(first(&[marked(&x, waiting)], true), Some((1, -100)));
    // An ignored index that the dtype cannot hold ignores nothing.
    let narrow = IndexRule { ignored: Some(-100), ..rule(3) };
    assert_eq!(first(&[marked(&unknown(&[3], DType::U8), narrow)], false), Some((0, 3)));
}

#[test]
fn marks_within_bodies_are_found() {
    let x = unknown(&[1, 2, 8, 3], DType::I32);
    let zero = Tensor::scalar(0i32);
    let yes = unknown(&[1], DType::I32).squeeze(0).gt(0.0);
    let sum = |x: &Tensor| marked(x, rule(5)).sum_all();
    let nested = |x: Vec<Tensor>| checkpoint(|x| vec![sum(&x[0])], &x);
    let steps = [
        scan(&[&zero], x.reshape([2, 2]), |c, x| (vec![&c[0] + sum(&x)], ())).0,
        map(|x| vec![sum(&x[0])], &[&x.reshape([2, 2])]),
    ];
    // The position is that within the body.
    for results in &steps {
        assert_eq!(first(results, false), Some((0, 8)));
    }
    let outside = scan(&[&zero], &x, |c, _| (vec![&c[0] + sum(&x)], ())).0;
    let bodies = [
        outside,
        checkpoint(|x| vec![sum(&x[0])], &[&x]),
        call("g", &[&x], |x| vec![sum(&x[0])]),
        call("g", &[&x], nested),
        cond(&yes, &[&x], |x| vec![sum(&x[0])], |_| vec![zero.clone()]),
        cond(&yes, &[&x], nested, |_| vec![zero.clone()]),
        switch(&Tensor::scalar(1i32), &[&x], |_| vec![zero.clone()], &[&nested]),
    ];
    for (i, results) in bodies.iter().enumerate() {
        assert_eq!(first(results, false), Some((2, 8)), "{i}");
    }
    // The branch that does not run is not checked.
    let other = cond(&yes.not(), &[&x], |x| vec![sum(&x[0])], |_| vec![zero.clone()]);
    assert_eq!(first(&other, false), None);
    let forward =
        |x: Vec<Tensor>| vec![marked(&x[1], rule(5)).to_dtype(DType::F32).sum_all() * &x[0]];
    let y = custom_gradient(&[&Tensor::scalar(2.0f32), &x], forward, |x, _, g| {
        vec![g[0].clone(), x[1].zeros_like()]
    });
    assert_eq!(first(&y, false), Some((2, 8)));
}

#[test]
fn the_first_of_several_checks_counts() {
    let x = unknown(&[1, 2, 8, 3], DType::I32);
    let results = [marked(&x, rule(9)), marked(&(&x + 1.0), rule(9)), marked(&(&x * 2.0), rule(9))];
    assert_eq!(first(&results, false), Some((2, 9)));
    assert_eq!(first(&results[..1], false), None);
    assert_eq!(first(&[x], false), None);
}

#[test]
fn a_program_does_not_contain_marks() {
    let table = TensorType::new(DType::F32, [5, 2]);
    let ids = TensorType::new(DType::I32, [4]);
    let text = |marks: bool| {
        let f = Function::trace("f", (&table, &ids), |(x, indices)| {
            let indices = if marks { marked(&indices, rule(5)) } else { indices };
            x.take(0, &indices)
        });
        f.stablehlo().unwrap()
    };
    let without_lines = |text: String| -> Vec<String> {
        text.lines().map(|line| line.split("loc(").next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(without_lines(text(true)), without_lines(text(false)));
}

#[test]
fn what_the_host_knows_is_an_error_at_its_line() {
    let known = Tensor::from_slice(&[1i32, 5], [2]);
    let line = line!() + 1;
    let mark = marked(&known, rule(5));
    let fault = mark.fault().unwrap();
    assert_eq!(fault.message(), "an index is 5, but there are 5 (row 1)");
    assert_eq!(fault.location().line(), line);
    assert!(marked(&known, IndexRule { ignored: Some(5), ..rule(5) }).is(&known));
    // `take` returns NaN, as it says.
    let taken = Tensor::from_slice(&[0.5f32; 5], [5]).take(0, &known);
    assert!(taken.eval().unwrap().to_vec::<f32>().unwrap()[1].is_nan());
}
