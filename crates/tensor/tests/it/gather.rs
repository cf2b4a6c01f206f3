//! Reading and adding by index: dtypes of indices and elements, indices out of range, and long
//! sums.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{
    Argument, Combine, DType, Function, Literal, Runtime, Tensor, TensorType, grad,
};

#[test]
fn indices_may_have_any_integer_dtype() {
    // More elements than 8 bits can count.
    let table = Tensor::arange(DType::F32, 300);
    for dtype in DType::all().filter(|d| d.is_integer()) {
        let indices = Tensor::from_slice(&[0i32, 127, 5], [3]).to_dtype(dtype);
        assert_eq!(table.take(0, &indices).eval().unwrap().to_f64(), [0.0, 127.0, 5.0], "{dtype}");
        let outside = if dtype.is_unsigned() {
            indices.zeros_like().not()
        } else {
            indices.zeros_like() - 1.0
        };
        // The largest u8, 255, is a valid index of the table.
        let values = table.take(0, &outside).eval().unwrap().to_f64();
        let expected = if dtype == DType::U8 { 255.0 } else { f64::NAN };
        assert!(
            values.iter().all(|v| *v == expected || (v.is_nan() && expected.is_nan())),
            "{dtype}: {values:?}"
        );
    }
}

/// XLA turned one update into a slice of the slice, merged both, and read an element after the first
/// slice where the index is out of range.
#[test]
fn an_update_outside_of_a_slice_changes_nothing() {
    const COMBINES: [Combine; 5] =
        [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];
    let x = [0.3f32, -0.5, 0.7, 1.1, 1.3, 1.7, -1.9, 2.3];
    let update = [0.25f32, -4.0];
    let types = [
        TensorType::new(DType::F32, [4, 2]),
        TensorType::scalar(DType::I32),
        TensorType::new(DType::I32, [1]),
        TensorType::new(DType::F32, [1, 2]),
    ];
    let function = Function::trace("update", types, |[table, start, index, row]| {
        let slice = table.dynamic_slice(&[&start, &Tensor::scalar(0i32)], &[2, 2]);
        let along = |combine| slice.index_reduce(0, &index, &row, combine);
        let at_point = |combine| slice.scatter_nd(index.reshape([1, 1]), &row, combine);
        COMBINES.map(|combine| (along(combine), at_point(combine))).to_vec()
    });
    let runtime = Runtime::global().unwrap();
    let compiled = runtime.compile(&function).unwrap();
    for start in 0..3 {
        for index in [-1, 0, 1, 2, 3, i32::MAX, i32::MIN] {
            let inputs = [
                Literal::from_slice(&x, [4, 2]).unwrap(),
                Literal::from_slice(&[start], []).unwrap(),
                Literal::from_slice(&[index], [1]).unwrap(),
                Literal::from_slice(&update, [1, 2]).unwrap(),
            ]
            .map(|input| runtime.to_device(&input).unwrap());
            let outputs = compiled.call(inputs.iter().map(Argument::Borrow).collect()).unwrap();
            let arrays: Vec<_> = outputs.arrays.iter().collect();
            let results = runtime.read(&arrays).unwrap().wait().unwrap();
            for (i, result) in results.iter().enumerate() {
                let mut expected = x[2 * start as usize..][..4].to_vec();
                let changed = usize::try_from(index).ok().filter(|&row| row < 2);
                for (column, &new) in update.iter().enumerate() {
                    let Some(row) = changed else { break };
                    let element = &mut expected[2 * row + column];
                    *element = match COMBINES[i / 2] {
                        Combine::Add => *element + new,
                        Combine::Mul => *element * new,
                        Combine::Min => element.min(new),
                        Combine::Max => element.max(new),
                        _ => new,
                    };
                }
                let actual = result.to_vec::<f32>().unwrap();
                assert_eq!(actual, expected, "{:?} at {start}, {index}", COMBINES[i / 2]);
            }
        }
    }
}

#[test]
fn an_index_outside_gives_what_no_element_is_and_adds_nothing() {
    let outside = Tensor::from_slice(&[1i64, -1, 3, i64::MAX, i64::MIN], [5]);
    // Complex numbers are listed as two parts; keep the real one.
    let numbers = |t: &Tensor| -> Vec<f64> {
        let parts = if t.dtype().is_complex() { 2 } else { 1 };
        t.eval().unwrap().to_f64().into_iter().step_by(parts).collect()
    };
    for dtype in DType::all() {
        let table = Tensor::from_slice(&[0i32, 1, 0], [3]).to_dtype(dtype);
        let bits = 8 * dtype.size_in_bytes() as i32;
        let invalid = match dtype {
            DType::Bool => 1.0,
            _ if dtype.is_inexact() => f64::NAN,
            _ if dtype.is_unsigned() => 2f64.powi(bits) - 1.0,
            _ => -(2f64.powi(bits - 1)),
        };
        let values = numbers(&table.take(0, &outside));
        assert_eq!(values[0], 1.0, "{dtype}");
        assert!(
            values[1..].iter().all(|v| *v == invalid || (v.is_nan() && invalid.is_nan())),
            "{dtype}: {values:?}"
        );
        if dtype != DType::Bool && !dtype.is_complex() {
            let added = numbers(&table.index_add(0, &outside, &Tensor::ones(dtype, [5])));
            assert_eq!(added, [0.0, 2.0, 0.0], "{dtype}");
        }
    }
    // The loss is NaN, so that the mistake is visible. The gradients of the other rows are not
    // affected.
    let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
    let loss = table.take(0, &outside).sum_all();
    assert!(loss.eval().unwrap().to_f64()[0].is_nan());
    assert_eq!(grad(&loss, &[&table])[0].eval().unwrap().to_f64(), [0.0, 1.0, 0.0]);
}

#[test]
fn a_row_of_16_bits_that_is_taken_often_gets_the_whole_gradient() {
    for dtype in [DType::Bf16, DType::F16] {
        let table = Tensor::zeros(dtype, [2, 1]);
        let rows = Tensor::ones(DType::I32, [4096]);
        let gradient = &grad(&table.take(0, &rows).sum_all(), &[&table])[0];
        assert_eq!(gradient.dtype(), dtype);
        assert_eq!(gradient.eval().unwrap().to_f64(), [0.0, 4096.0]);
        let added = table.index_add(0, &rows, &Tensor::ones(dtype, [4096, 1]));
        assert_eq!((added.dtype(), added.eval().unwrap().to_f64()), (dtype, vec![0.0, 4096.0]));
    }
}

#[test]
fn an_embedding_and_its_gradient_are_a_gather_and_a_scatter() {
    let types = [TensorType::new(DType::F32, [100, 8]), TensorType::new(DType::I32, [4, 5])];
    let function = Function::trace("embedding", types, |[x, indices]| {
        let y = x.take(0, &indices);
        grad(&(&y * &y).sum_all(), &[&x]).remove(0)
    });
    let text = function.stablehlo().unwrap();
    let count = |operation: &str| text.matches(&format!("\"stablehlo.{operation}\"")).count();
    assert_eq!((count("gather"), count("scatter")), (1, 1), "{text}");
    assert!(!text.contains("i64>, tensor") && !text.contains("dot_general"), "{text}");
}

#[test]
fn all_that_is_written_to_an_axis_without_elements_is_dropped() {
    let rows = Tensor::from_slice(&[0i32, 1], [2]);
    let updates = Tensor::ones(DType::F32, [2, 3]);
    let nothing = Tensor::zeros(DType::F32, [0, 3]);
    let grid = Tensor::zeros(DType::I32, [2, 3]);
    let points = Tensor::zeros(DType::I32, [2, 1]);
    let written = [
        nothing.index_add(0, &rows, &updates),
        nothing.index_copy(0, &rows, &updates),
        nothing.index_reduce(0, &rows, &updates, Combine::Max),
        nothing.scatter(0, &grid, &updates),
        nothing.scatter_add(0, &grid, &updates),
        nothing.scatter_nd(&points, &updates, Combine::Mul),
    ];
    for y in written {
        assert_eq!(y.eval().unwrap().ty().to_string(), "f32[0, 3]");
        let gradient = grad(&y.sum_all(), &[&updates]).remove(0);
        assert_eq!(gradient.eval().unwrap().to_f64(), [0.0; 6]);
    }
}
