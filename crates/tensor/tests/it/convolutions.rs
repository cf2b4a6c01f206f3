//! Wide convolutions in f32 against the same in f64. A CPU computes most of those in f32 as products
//! of matrices. XLA computes those in f64 as convolutions.

use fulmen_tensor::{Convolution, DType, Function, Literal, Runtime, Tensor, TensorType, grad};

/// A convolution or its transpose, the shapes of the input and the kernel, and the options.
struct Case {
    transposed: bool,
    input: &'static [usize],
    kernel: &'static [usize],
    how: Convolution,
}

/// Numbers between -1 and 1 in no order.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 10_007) as f64 / 5003.5 - 1.0).collect()
}

/// The convolution and its derivatives for both operands and a cotangent, computed with this dtype.
fn compute(case: &Case, dtype: DType) -> Vec<Vec<f64>> {
    let shape = |shape: &[usize]| TensorType::new(DType::F64, shape.to_vec());
    let value = |ty: &TensorType, seed| {
        let numbers = numbers(ty.shape.num_elements(), seed);
        Tensor::from_slice(&numbers, ty.shape.clone()).to_dtype(DType::F32).to_dtype(dtype)
    };
    let x = value(&shape(case.input), 1);
    let w = value(&shape(case.kernel), 2);
    let y = if case.transposed {
        x.conv_transpose(&w, &case.how)
    } else {
        x.convolution(&w, &case.how)
    };
    let loss = (&y * value(y.ty(), 3)).sum_all();
    let mut results = vec![y];
    results.extend(grad(&loss, &[&x, &w]));
    let function = Function::new("convolutions", Vec::new(), results);
    let runtime = Runtime::global().unwrap();
    let outputs = runtime.compile(&function).unwrap().call(Vec::new()).unwrap();
    let literals =
        runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    literals.iter().map(Literal::to_f64).collect()
}

#[test]
fn wide_convolutions_equal_those_in_f64() {
    let two = || Convolution::new(2);
    let cases = [
        Case {
            transposed: false,
            input: &[2, 32, 16, 12],
            kernel: &[40, 32, 3, 3],
            how: two().padding([(1, 1), (1, 1)]),
        },
        Case {
            transposed: false,
            input: &[3, 40, 4, 4],
            kernel: &[32, 40, 3, 3],
            how: two().padding([(1, 1), (1, 1)]),
        },
        Case {
            transposed: false,
            input: &[2, 32, 7, 6],
            kernel: &[33, 32, 3, 2],
            how: two().padding([(0, 2), (1, 0)]).stride([2, 2]),
        },
        Case {
            transposed: false,
            input: &[2, 32, 5, 6],
            kernel: &[32, 32, 2, 3],
            how: two().dilation([2, 1]),
        },
        Case {
            transposed: false,
            input: &[2, 32, 5, 10],
            kernel: &[32, 32, 2, 3],
            how: two().dilation([1, 2]).stride([1, 2]),
        },
        Case {
            transposed: false,
            input: &[2, 32, 4, 4],
            kernel: &[32, 32, 3, 3],
            how: two().padding([(1, 2), (-1, 2)]),
        },
        Case { transposed: false, input: &[2, 20, 12, 11], kernel: &[40, 20, 5, 4], how: two() },
        Case {
            transposed: false,
            input: &[2, 20, 12, 11],
            kernel: &[40, 20, 3, 4],
            how: two().dilation([2, 1]).padding([(0, 0), (1, 0)]),
        },
        Case { transposed: false, input: &[2, 3, 4, 4], kernel: &[64, 3, 4, 4], how: two() },
        Case { transposed: false, input: &[2, 48, 8, 8], kernel: &[32, 48, 1, 1], how: two() },
        Case {
            transposed: false,
            input: &[2, 48, 9, 8],
            kernel: &[32, 48, 1, 1],
            how: two().stride([2, 2]),
        },
        Case { transposed: false, input: &[2, 32, 4, 4], kernel: &[32, 32, 4, 4], how: two() },
        Case {
            transposed: false,
            input: &[2, 32, 16],
            kernel: &[32, 32, 3],
            how: Convolution::new(1).padding([(1, 1)]),
        },
        Case {
            transposed: false,
            input: &[2, 32, 4, 3, 5],
            kernel: &[32, 32, 3, 2, 3],
            how: Convolution::new(3).padding([(1, 1); 3]),
        },
    ];
    let transposed = [
        Case {
            transposed: true,
            input: &[2, 40, 4, 5],
            kernel: &[40, 32, 4, 4],
            how: two().stride([2; 2]),
        },
        Case {
            transposed: true,
            input: &[2, 33, 8, 8],
            kernel: &[33, 3, 4, 3],
            how: two().stride([2, 3]).padding([(1, 1), (2, 0)]).output_padding([1, 2]),
        },
        Case { transposed: true, input: &[2, 40, 1, 1], kernel: &[40, 32, 4, 4], how: two() },
    ];
    for case in cases.iter().chain(&transposed) {
        let actual = compute(case, DType::F32);
        let expected = compute(case, DType::F64);
        for (name, (actual, expected)) in
            ["result", "input", "kernel"].iter().zip(actual.iter().zip(&expected))
        {
            assert_eq!(actual.len(), expected.len());
            let scale = expected.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let error =
                actual.iter().zip(expected).fold(0.0, |m: f64, (a, e)| m.max((a - e).abs()));
            assert!(scale > 1.0, "{name}: {:?}", case.input);
            let bound = 2e-6 * scale;
            assert!(
                error < bound,
                "{name} of {:?} by {:?}: {error}, more than {bound}",
                case.input,
                case.kernel
            );
        }
    }
}
