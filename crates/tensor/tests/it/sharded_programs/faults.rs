//! Small programs that XLA's partitioner computed wrongly or refused before they had another form.
//! The search found most of them. jaxlib compiles most of the texts to the same wrong numbers or
//! errors.

use fulmen_tensor::{
    Argument, Combine, Convolution, DType, Function, Literal, Mesh, Pooling, Sharding, Tensor,
    TensorType, TriangularSolve, grad,
};

use super::run::runtime;

/// A parameter: its sizes and the mesh axes that split each of them.
type Parameter<'a> = (&'a [usize], &'a [&'a str]);

/// Splits each axis over the mesh axes in one string, such as `a`, `ab` or nothing.
fn split(axes: &[&str]) -> Sharding {
    let names = |axes: &str| -> Vec<&'static str> {
        ["a", "b", "c"].into_iter().filter(|name| axes.contains(name)).collect()
    };
    Sharding::over(axes.iter().map(|axes| names(axes)))
}

/// The results on one device, and on eight as this mesh.
fn run(
    dtype: DType,
    mesh: &[(&str, usize)],
    parameters: &[Parameter<'_>],
    f: &dyn Fn(&[Tensor]) -> Vec<Tensor>,
) -> [Vec<Vec<f64>>; 2] {
    let of = |devices: usize| {
        let mesh = if devices == 1 { &[("a", 1)] } else { mesh };
        let mesh = Mesh::new(mesh.iter().copied()).unwrap();
        let runtime = runtime(devices).with_mesh(&mesh).unwrap();
        let types: Vec<TensorType> =
            parameters.iter().map(|(dims, _)| TensorType::new(dtype, *dims)).collect();
        let mut function = Function::trace("fault", &types, |x| f(&x));
        let mut arrays = Vec::new();
        for (i, (dims, axes)) in parameters.iter().enumerate() {
            let sharding = if devices == 1 { Sharding::replicated() } else { split(axes) };
            function = function.shard_parameter(i, sharding.clone());
            let count = dims.iter().product::<usize>();
            let numbers: Vec<f32> =
                (0..count).map(|k| ((k * 7 + i * 3) as f32 * 0.618).sin()).collect();
            let literal = Literal::from_slice(&numbers, *dims).unwrap().to_dtype(dtype).unwrap();
            arrays.push(runtime.to_devices(&literal, &sharding).unwrap());
        }
        let compiled = runtime.compile(&function).unwrap();
        let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
        let values =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        values.iter().map(Literal::to_f64).collect()
    };
    [of(1), of(8)]
}

fn same(
    mesh: &[(&str, usize)],
    parameters: &[Parameter<'_>],
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
) {
    same_in(DType::F32, mesh, parameters, f);
}

fn same_in(
    dtype: DType,
    mesh: &[(&str, usize)],
    parameters: &[Parameter<'_>],
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
) {
    let [one, eight] = run(dtype, mesh, parameters, &f);
    for (i, (one, eight)) in one.iter().zip(&eight).enumerate() {
        let largest = one.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        for (a, b) in one.iter().zip(eight) {
            assert!(
                (a - b).abs() <= 1e-5 * largest,
                "result {i} of {parameters:?}: {eight:?}, on one device {one:?}"
            );
        }
    }
}

/// A loss with constant weights, and its gradients.
fn weighted(y: &Tensor, wrt: &[Tensor]) -> Vec<Tensor> {
    let count = y.shape().num_elements();
    let weights: Vec<f32> = (0..count).map(|i| 0.5 + i as f32).collect();
    let loss = (y * Tensor::from_slice(&weights, y.shape())).sum_all();
    let mut results = grad(&loss, wrt);
    results.push(y.clone());
    results
}

const GRID: [(&str, usize); 2] = [("a", 4), ("b", 2)];
const CUBE: [(&str, usize); 3] = [("a", 2), ("b", 2), ("c", 2)];

/// The kernel's gradient was too large by the number of devices with the same part of the batch.
#[test]
fn a_grouped_convolution_whose_batch_is_split_over_a_part_of_the_mesh() {
    let kernel: &[usize] = &[4, 1, 3];
    let options = Convolution::new(1).padding([(1, 1)]).groups(4);
    let gradients = |x: &[Tensor]| weighted(&x[0].convolution(&x[1], &options), x);
    for batch in [8, 4, 6] {
        let input = [batch, 4, 6];
        for of_input in ["a", "b", "ab"].map(|axes| [axes]) {
            if batch == 6 && of_input != ["b"] {
                continue;
            }
            if batch == 4 && of_input == ["ab"] {
                continue;
            }
            same(&GRID, &[(&input, &of_input), (kernel, &[])], gradients);
        }
        for of_input in ["a", "c"].map(|axes| [axes]) {
            same(&CUBE, &[(&input, &of_input), (kernel, &[])], gradients);
        }
    }
    // The channels are split too.
    same(&GRID, &[(&[8, 4, 6], &["a", "b"]), (kernel, &["b"])], gradients);
    same(&CUBE, &[(&[8, 4, 6], &["a", "b"]), (kernel, &["bc"])], gradients);
}

#[test]
fn a_grouped_convolution_whose_channels_are_split() {
    let splits: [(&[&str], &[&str], &[&str]); 7] = [
        (&[], &["ab"], &[]),
        (&[], &["a"], &[]),
        (&[], &["b"], &[]),
        (&["", "b"], &[], &[]),
        (&["", "ab"], &["ab"], &[]),
        (&["a"], &[], &["", "b"]),
        (&["a", "b"], &["", "b"], &["", "ab"]),
    ];
    for (groups, inputs, outputs) in [(2, 8, 8), (4, 8, 8), (8, 8, 8), (8, 16, 16), (2, 2, 8)] {
        let options = Convolution::new(1).padding([(1, 1)]).groups(groups);
        for (of_input, of_kernel, of_result) in splits {
            let input: &[usize] = &[8, inputs, 6];
            let kernel: &[usize] = &[outputs, inputs / groups, 3];
            let has_parts = |dims: &[usize], axes: &[&str]| {
                let parts =
                    |axes: &str| axes.chars().map(|c| if c == 'a' { 4 } else { 2 }).product();
                axes.iter().zip(dims).all(|(axes, size)| size.is_multiple_of(parts(axes)))
            };
            if !has_parts(input, of_input) || !has_parts(kernel, of_kernel) {
                continue;
            }
            same(&GRID, &[(input, of_input), (kernel, of_kernel)], |x| {
                let y = x[0].convolution(&x[1], &options).with_sharding(&split(of_result));
                weighted(&y, x)
            });
        }
    }
}

#[test]
fn a_convolution_split_along_a_spatial_axis() {
    let options = Convolution::new(2).padding([(1, 1), (1, 1)]);
    let input: &[usize] = &[4, 4, 8, 8];
    let kernel: &[usize] = &[8, 4, 3, 3];
    let splits: [(&[&str], &[&str], &[&str]); 6] = [
        (&["", "", "a"], &["b"], &["", "", "a"]),
        (&[], &["b"], &["", "", "a"]),
        (&["b"], &["", "b"], &["", "", "a"]),
        (&["", "", "", "ab"], &[], &[]),
        (&["", "", "a", "b"], &[], &["", "b", "a"]),
        (&[], &["a", "b"], &["", "", "b", "a"]),
    ];
    for (of_input, of_kernel, of_result) in splits {
        same(&GRID, &[(input, of_input), (kernel, of_kernel)], |x| {
            let y = x[0].convolution(&x[1], &options).with_sharding(&split(of_result));
            weighted(&y, x)
        });
    }
    let strided = Convolution::new(2).stride([2, 1]);
    same(&CUBE, &[(&[2, 4, 4, 8], &["", "", "", "ab"]), (&[8, 4, 3, 3], &[])], |x| {
        weighted(&x[0].convolution(&x[1], &strided), x)
    });
    same(&GRID, &[(&[4, 4, 4, 4], &["", "", "b", "a"]), (&[4, 2, 3, 3], &["", "b"])], |x| {
        weighted(&x[0].conv_transpose(&x[1], &Convolution::new(2).stride([2, 2])), x)
    });
}

#[test]
fn a_product_of_stacks_on_three_mesh_axes() {
    let parameters: [Parameter<'_>; 2] = [(&[24, 3], &["ac"]), (&[8, 24, 3], &["bc", "a"])];
    same(&CUBE, &parameters, |x| {
        let y = x[0].dot_general(&x[1], (0, 1), (1, 2));
        let mut results = weighted(&y.with_sharding(&split(&["", "bc"])), x);
        results[0] = results[0].with_sharding(&split(&["ac"]));
        results
    });
    same(&CUBE, &[(&[4, 4, 4], &["", "a", "c"]), (&[4, 4, 4], &["b", "c"])], |x| {
        weighted(&x[0].matmul(&x[1]).with_sharding(&split(&["ab", "c"])), x)
    });
}

#[test]
fn a_product_of_matrices_on_three_mesh_axes() {
    let splits: [[&[&str]; 3]; 3] = [
        [&["ab", "c"], &["b", "c"], &["b", "ac"]],
        [&["c", "b"], &["b", "ac"], &["b", "ac"]],
        [&["c", "a"], &["c", "ab"], &["bc", "a"]],
    ];
    for [of_lhs, of_rhs, of_result] in splits {
        same(&CUBE, &[(&[8, 8], of_lhs), (&[8, 8], of_rhs)], |x| {
            weighted(&x[0].matmul(&x[1]).with_sharding(&split(of_result)), x)
        });
        // The sharding comes from a later value.
        same(&CUBE, &[(&[8, 8], of_lhs), (&[8, 8], of_rhs)], |x| {
            weighted(&x[0].matmul(&x[1]).exp().with_sharding(&split(of_result)), x)
        });
    }
}

#[test]
fn a_product_over_several_axes_on_three_mesh_axes() {
    let parameters: [Parameter<'_>; 2] = [(&[4, 2, 2, 3], &["a", "", "b", ""]), (&[3, 16], &[])];
    // Products of f64 keep their axes on CPUs, as all products do on TPUs.
    same_in(DType::F64, &CUBE, &parameters, |x| {
        let product = (x[0].matmul(&x[1]) * 0.3).with_sharding(&split(&["", "c", "", "b"]));
        grad(&(product * Tensor::ones(DType::F64, [4, 2, 2, 16])).sum_all(), &[&x[1]])
    });
    // With batches, and with contracting axes that are neither together nor in order.
    let parameters: [Parameter<'_>; 2] =
        [(&[2, 4, 6, 4], &["a", "b", "", "c"]), (&[4, 4, 2, 8], &["c", "", "a", "b"])];
    same_in(DType::F64, &CUBE, &parameters, |x| {
        let product = x[0].dot_general(&x[1], (0, 2), ([3, 1], [0, 1]));
        let mut results = grad(&product.square().sum_all(), &[&x[0], &x[1]]);
        results.push(product);
        results
    });
}

#[test]
fn a_convolution_on_three_mesh_axes() {
    let parameters: [Parameter<'_>; 2] = [(&[4, 6, 16], &["a", "c"]), (&[8, 6, 2], &["bc", "a"])];
    same(&CUBE, &parameters, |x| {
        let mut results = weighted(&x[0].convolution(&x[1], &Convolution::new(1)), x);
        results[1] = results[1].with_sharding(&split(&["bc", "a"]));
        results
    });
}

#[test]
fn one_update_along_a_split_axis() {
    let mesh = [("a", 2), ("b", 4)];
    let index = Tensor::from_slice(&[3i32], [1]);
    let parameters: [Parameter<'_>; 2] = [(&[8], &["b"]), (&[1], &[])];
    // The gradient is the constant weights with one update, and each device takes its part. JAX has
    // the fault too: `jit(lambda: w.at[i].set(0.0), out_shardings=P("b"))` on this mesh, for an
    // array `w` of NumPy.
    same(&mesh, &parameters, |x| {
        let mut results = weighted(&x[0].index_copy(0, &index, &x[1]), x);
        results[0] = results[0].with_sharding(&split(&["b"]));
        results
    });
    for combine in [Combine::Set, Combine::Add, Combine::Mul, Combine::Max] {
        same(&mesh, &parameters, |x| weighted(&x[0].scatter_reduce(0, &index, &x[1], combine), x));
        let point = Tensor::from_slice(&[3i32, 1], [1, 2]);
        same(&mesh, &[(&[8, 4], &["b", "a"]), (&[1], &[])], |x| {
            weighted(&x[0].scatter_nd(&point, &x[1], combine), x)
        });
        same(&mesh, &[(&[4, 8], &["", "b"]), (&[4, 1], &["a"])], |x| {
            weighted(&x[0].index_reduce(1, &index, &x[1], combine), x)
        });
        let scalar = Tensor::scalar(5i32);
        same(&mesh, &[(&[8, 4], &["b"]), (&[4], &["a"])], |x| {
            weighted(&x[0].index_reduce(0, &scalar, &x[1], combine), x)
        });
    }
}

#[test]
fn a_number_of_updates_that_the_devices_do_not_divide() {
    for count in [1, 2, 3, 6] {
        let indices: Vec<i32> = (0..count).map(|i| (3 * i + 2) as i32 % 8).collect();
        let indices = Tensor::from_slice(&indices, [count]);
        for combine in [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max] {
            // The first element is positive or negative in all of them.
            for sign in [1.0, -1.0] {
                same(&GRID, &[(&[16], &["a"]), (&[8], &[])], |x| {
                    let updates = (x[0].abs() + 1.0) * sign;
                    let updates = updates.slice(&[16 - count], &[16], &[1]);
                    let to = (x[1].abs() + 1.0) * sign;
                    weighted(&to.index_reduce(0, &indices, &updates, combine), x)
                });
            }
        }
    }
}

#[test]
fn points_whose_components_are_split() {
    let points = |x: &Tensor| (x.abs() * 2.9).to_dtype(DType::I32);
    let parameters: [Parameter<'_>; 3] =
        [(&[16, 4, 5, 2], &["", "bc"]), (&[3, 2], &["", "b"]), (&[3, 5, 2], &[])];
    same(&CUBE, &parameters, |x| {
        let y = x[0].scatter_nd(points(&x[1]), &x[2], Combine::Mul);
        [weighted(&y, &[x[0].clone(), x[2].clone()]), vec![x[0].gather_nd(points(&x[1]))]].concat()
    });
}

#[test]
fn a_least_update_after_a_triangular_solve() {
    let parameters: [Parameter<'_>; 2] =
        [(&[1, 8, 2], &["", "bc", "a"]), (&[1, 8, 8], &["", "", "ac"])];
    let first = Tensor::from_slice(&[0i32], [1, 1]);
    same(&CUBE, &parameters, |x| {
        let matrix = &x[1] * 0.2 + Tensor::eye(DType::F32, 8, 8) * 2.0;
        let solved = matrix.triangular_solve(&x[0], &TriangularSolve::lower());
        let y = solved.scatter_nd(&first, &x[0], Combine::Min);
        weighted(&y.with_sharding(&split(&["", "c", "b"])), x)
    });
}

#[test]
fn a_slice_with_a_stride_and_its_derivative() {
    same(&GRID, &[(&[8, 4], &["b", "a"])], |x| weighted(&x[0].slice(&[3, 3], &[8, 4], &[2, 3]), x));
    let images: [Parameter<'_>; 2] = [(&[8, 2, 3, 5], &[]), (&[2, 2, 2, 3], &[])];
    same(&[("a", 8)], &images, |x| {
        let options = Convolution::new(2).padding([(1, 1), (2, 2)]);
        let y = x[0].conv_transpose(&x[1], &options).with_sharding(&split(&["a"]));
        weighted(&y.slice(&[0, 1, 1, 1], &[8, 2, 2, 3], &[3, 1, 1, 3]), x)
    });
    let zero = || Tensor::scalar(0.0f32);
    same(&GRID, &[(&[8, 8], &["a", "b"])], |x| {
        weighted(&x[0].pad(&zero(), &[-1, -2], &[3, 0], &[1, 2]), x)
    });
}

/// XLA ended the process when it compiled the derivative, on one device too.
#[test]
fn a_convolution_whose_derivative_looks_like_one_with_groups() {
    let options = Convolution::new(2).stride([2, 2]).padding([(1, 1), (1, 1)]);
    let parameters: [Parameter<'_>; 2] = [(&[4, 8, 4, 4], &["b", "a"]), (&[4, 8, 2, 3], &[])];
    same(&GRID, &parameters, |x| weighted(&x[0].convolution(&x[1], &options), x));
    let parameters: [Parameter<'_>; 2] = [(&[4, 8, 3, 2], &["b", "a"]), (&[8, 4, 2, 3], &[])];
    same(&GRID, &parameters, |x| weighted(&x[0].conv_transpose(&x[1], &options), x));
}

#[test]
fn a_gather_whose_windows_and_indices_are_split() {
    let splits: [(&[&str], &[&str], &[&str]); 3] = [
        (&["", "a"], &["c"], &["bc", "a"]),
        (&["", "b"], &["a"], &["ac", "b"]),
        (&["", "a"], &["b"], &["bc", "a"]),
    ];
    for (of_operand, of_index, of_result) in splits {
        same(&CUBE, &[(&[5, 6], of_operand), (&[8], of_index)], |x| {
            let rows = x[0].take(0, (x[1].abs() * 4.9).to_dtype(DType::I32));
            weighted(&rows.with_sharding(&split(of_result)), &x[..1])
        });
    }
}

#[test]
fn a_scatter_along_an_axis_in_batches() {
    let index = |x: &Tensor, below: f64| (x.abs() * below).to_dtype(DType::I32);
    let splits: [[&[&str]; 3]; 3] = [
        [&["bc"], &["c", "ab"], &[]],
        [&["ab"], &["a", "b"], &["", "b"]],
        [&[], &["b", "ac"], &["", "a"]],
    ];
    for [of_operand, of_index, of_updates] in splits {
        let parameters: [Parameter<'_>; 3] =
            [(&[8, 24], of_operand), (&[8, 8], of_index), (&[8, 8], of_updates)];
        same(&CUBE, &parameters, |x| {
            let indices = index(&x[1], 23.9);
            let combine = |how| x[0].scatter_reduce(1, &indices, &x[2], how);
            let sums = weighted(&combine(Combine::Add), &[x[0].clone(), x[2].clone()]);
            [sums, vec![combine(Combine::Min), combine(Combine::Mul)]].concat()
        });
    }
    // Only the updates are split along the axis, or only the operand or the result.
    let parameters: [Parameter<'_>; 3] =
        [(&[5, 4, 8], &["", "b", "a"]), (&[2, 4, 8], &[]), (&[2, 4, 8], &["b", "a"])];
    same(&GRID, &parameters, |x| {
        vec![x[0].scatter_reduce(0, index(&x[1], 4.9), &x[2], Combine::Max)]
    });
    let parameters: [Parameter<'_>; 3] =
        [(&[8, 6, 4], &["", "", "a"]), (&[8, 6, 8], &["a"]), (&[8, 6, 8], &["", "", "b"])];
    same(&GRID, &parameters, |x| {
        vec![x[0].scatter_reduce(2, index(&x[1], 3.9), &x[2], Combine::Add)]
    });
    let parameters: [Parameter<'_>; 3] =
        [(&[4, 2, 6, 6], &[]), (&[4, 8, 6, 6], &["bc", "", "", "a"]), (&[4, 8, 6, 6], &[])];
    same(&CUBE, &parameters, |x| {
        let y = x[0].scatter_reduce(1, index(&x[1], 1.9), &x[2], Combine::Min);
        weighted(&y.with_sharding(&split(&["c", "a"])), &[x[0].clone(), x[2].clone()])
    });
    // The axis has one element.
    let parameters: [Parameter<'_>; 3] =
        [(&[4, 1, 6], &["", "", "b"]), (&[4, 8, 6], &["a", "b"]), (&[4, 8, 6], &[])];
    same(&GRID, &parameters, |x| {
        vec![x[0].scatter_reduce(1, index(&x[1], 0.9), &x[2], Combine::Add)]
    });
}

/// The axis may stay split, as the classes of a language model are.
#[test]
fn one_index_in_each_batch_along_a_split_axis() {
    let index = |x: &Tensor| (x.abs() * 7.9).to_dtype(DType::I32);
    let splits: [[&[&str]; 2]; 6] = [
        [&["", "ab"], &[]],
        [&["a", "bc"], &["a"]],
        [&["b", "a"], &["ac"]],
        [&["", "c"], &["abc"]],
        [&["ac", "b"], &["b"]],
        [&["abc"], &["c"]],
    ];
    for [of_operand, of_index] in splits {
        let parameters: [Parameter<'_>; 3] =
            [(&[8, 8], of_operand), (&[8, 1], of_index), (&[8, 1], of_index)];
        same(&CUBE, &parameters, |x| {
            let at = index(&x[1]);
            let mut results = weighted(&x[0].gather(1, &at), &x[..1]);
            for combine in [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max] {
                let y = x[0].scatter_reduce(1, &at, &x[2], combine);
                results.extend(weighted(&y, &[x[0].clone(), x[2].clone()]));
            }
            results
        });
    }
}

/// Each of four devices has a column with one update of its own.
#[test]
fn one_update_of_each_batch_of_a_split_value() {
    same(&GRID, &[(&[16, 4], &["", ""]), (&[1, 4], &["", ""])], |x| {
        let y = x[0].sin().with_sharding(&split(&["b", "a"]));
        let positions = Tensor::from_slice(&[3, 8, 12, 5], [1, 4]);
        let all = [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];
        let changed = all.map(|combine| y.scatter_reduce(0, &positions, &x[1], combine));
        let gradients = changed.iter().flat_map(|changed| weighted(changed, x));
        gradients.chain(changed.clone()).collect()
    });
}

#[test]
fn a_largest_element_of_windows_along_a_split_axis() {
    let pool = |x: &Tensor, stride, last| {
        let windows = Pooling::new([3]).stride([stride]).padding([1]);
        let y = x.max_pool(&windows);
        let y = if last { y.max_pool(&Pooling::new([2]).stride([1]).padding([1])) } else { y };
        weighted(&y, std::slice::from_ref(x))
    };
    same(&CUBE, &[(&[6, 6, 8], &["", "", "a"])], |x| pool(&x[0], 1, false));
    same(&CUBE, &[(&[3, 8, 8], &["", "", "c"])], |x| pool(&x[0], 3, true));
}

/// XLA took the slice for the whole value where another user needed that on each device.
#[test]
fn a_slice_from_the_start_of_a_value_with_another_user() {
    same(&CUBE, &[(&[8, 4, 8], &["", "", "abc"])], |x| {
        let rolled = x[0].roll(5, 2).with_sharding(&split(&["a"]));
        let first = x[0].narrow(2, 0, 3).with_sharding(&split(&[]));
        let whole = x[0].reshape([4, 2, 4, 8]).with_sharding(&split(&[]));
        vec![rolled.sin(), whole.cos(), first.tanh()]
    });
}

/// Each kind of transform over each set of axes, with its gradient.
#[test]
fn fourier_transforms_between_splits() {
    let splits: [(&[&str], &[&str]); 5] = [
        (&["ab"], &["", "ab"]),
        (&["a", "b"], &["", "", "ab"]),
        (&["", "ab"], &["a", "b"]),
        (&["b", "", "a"], &["", "a", "b"]),
        (&[], &["", "", "ab"]),
    ];
    for (of_input, of_result) in splits {
        same(&GRID, &[(&[8, 8, 8], of_input)], |x| {
            let mut results = Vec::new();
            for axes in [&[0isize][..], &[1], &[2], &[0, 1], &[1, 2], &[2, 0], &[0, 1, 2]] {
                let half = x[0].rfft(axes);
                let transformed = [
                    x[0].fft(axes),
                    x[0].ifft(axes) * 8.0,
                    (&half * &half).irfft(axes, 8).to_dtype(DType::C64),
                ];
                results.extend(transformed.map(|y| {
                    let y = y.real() + y.imag();
                    y.with_sharding(&split(of_result))
                }));
            }
            let sum = results.iter().fold(x[0].zeros_like(), |sum, y| sum + y);
            [results, weighted(&sum, x)].concat()
        });
    }
}

/// XLA forgets how the start of the first slice is clamped, on one device too.
#[test]
fn a_dynamic_slice_of_a_dynamic_slice() {
    let start = |x: &Tensor| x.to_dtype(DType::I32);
    let parameters: [Parameter<'_>; 1] = [(&[8], &["ab"])];
    let [one, eight] = run(DType::F32, &GRID, &parameters, &|x| {
        let six = start(&(x[0].abs().sum_all() * 0.0 + 6.0));
        let numbers = Tensor::arange(DType::F32, 8) + x[0].sum_all() * 0.0;
        let first = numbers.dynamic_slice(std::slice::from_ref(&six), &[4]);
        vec![first.dynamic_slice(&[&six - 5.0], &[2]), first.with_sharding(&split(&["a"]))]
    });
    assert_eq!(one, [vec![5.0, 6.0], vec![4.0, 5.0, 6.0, 7.0]]);
    assert_eq!(eight, one);
}

#[test]
fn running_minima_of_integers_have_their_positions() {
    same(&CUBE, &[(&[4, 6], &["a", ""])], |x| {
        let integers = (&x[0] * 10.0).to_dtype(DType::I32);
        let (smallest, smallest_at) = integers.cummin(1);
        let (largest, largest_at) = integers.cummax(1);
        vec![smallest, smallest_at, largest, largest_at]
    });
}

#[test]
fn positions_of_the_largest_in_windows() {
    let windows = Pooling::new([3]).stride([2]).padding([1]);
    for mesh in [&GRID[..], &CUBE] {
        for (sizes, axes) in [
            ([2, 2, 7], ["b", "", ""]),
            ([2, 2, 7], ["", "b", ""]),
            ([8, 2, 7], ["ab", "", ""]),
            ([2, 2, 8], ["", "", "a"]),
            ([2, 2, 8], ["b", "", "a"]),
        ] {
            same(mesh, &[(&sizes, &axes)], |x| {
                let [largest, positions] = x[0].max_pool_with_indices(&windows);
                let gradient = grad(&largest.sum_all(), &[&x[0]]);
                vec![largest, positions, gradient[0].clone()]
            });
            same(mesh, &[(&sizes, &axes)], |x| {
                vec![x[0].max_pool_with_indices(&windows)[0].clone()]
            });
        }
    }
}

/// Without a position, XLA splits these windows well.
#[test]
fn positions_of_the_largest_in_windows_of_one_element() {
    let windows = Pooling::new([1, 1]).stride([3, 2]);
    same(&GRID, &[(&[4, 4, 16, 8], &["", "b", "", ""])], |x| {
        let [largest, positions] = x[0].max_pool_with_indices(&windows);
        let chosen = x[0].flatten(2, -1).take_along_axis(-1, positions.flatten(2, -1));
        let chosen = chosen.reshape(positions.shape());
        let sum = (&largest + &chosen).with_sharding(&split(&["", "", "", "b"]));
        let gradient = grad(&sum.sum_all(), &[&x[0]]);
        vec![sum, positions, gradient[0].clone()]
    });
    same(&GRID, &[(&[4, 4, 16, 8], &["", "b", "", ""])], |x| {
        let largest = x[0].max_pool(&windows).with_sharding(&split(&["", "", "", "b"]));
        let gradient = grad(&largest.sum_all(), &[&x[0]]);
        vec![largest, gradient[0].clone()]
    });
}
