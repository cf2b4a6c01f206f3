//! Operations with operands sharded over eight CPU devices give the same results and gradients as
//! on one device. Random bits and counts along an axis are equal bit by bit.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{
    Accelerator, Argument, Convolution, DType, Devices, Function, Literal, Pooling, Runtime,
    Sharding, Tensor, TensorType, grad, random,
};

fn cpu(devices: usize) -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap()
}

/// Shards the axis over the devices.
fn split(axis: usize) -> Sharding {
    let axes = (0..=axis).map(|a| (a == axis).then_some("data"));
    Sharding::new(axes.collect::<Vec<_>>())
}

type Operation = fn(&[Tensor]) -> Tensor;

/// The name of an operation, the shapes of its operands, and the operation.
type Row = (&'static str, &'static [&'static [usize]], Operation);

/// Indices of a table of 16 rows: some repeat, and one is out of range.
fn rows() -> Tensor {
    Tensor::from_slice(&[3i32, 15, 3, 8, 0, 99, 7, 7, 1, 2, 4, 14, 13, 12, 3, 3], [16])
}

/// Every axis that can be sharded has a multiple of 8 elements.
const OPERATIONS: &[Row] = &[
    ("prod and norm", &[&[16, 8]], |x| x[0].prod(0) + x[0].norm(2.0, 0) * x[0].std(0)),
    ("cumsum", &[&[16, 8]], |x| x[0].cumsum(0) * x[0].cumsum(1)),
    // Cumulative reductions with windows of one size, but different initial values.
    ("cumprod and cummax", &[&[16, 8]], |x| {
        x[0].cumprod(0) + x[0].cummax(0).0 * x[0].logcumsumexp(1)
    }),
    ("cummin", &[&[16, 8]], |x| x[0].cummin(0).0 + x[0].cummin(0).1),
    ("sort", &[&[16, 8]], |x| x[0].sort(0, false).0 * x[0].sort(1, true).0),
    ("topk", &[&[16, 16]], |x| {
        x[0].topk_along(8, 0, true).0.matmul(&x[0].topk_along(8, 1, false).0)
    }),
    ("einsum", &[&[8, 16, 3], &[3, 16, 8]], |x| Tensor::einsum("aib,bic->ca", &[&x[0], &x[1]])),
    ("diagonal", &[&[16, 16]], |x| {
        x[0].diagonal(0, 0, 1).diag_embed(0) + x[0].diagonal(-8, 0, 1).diag(8)
    }),
    ("sum over the split axis", &[&[16, 8]], |x| x[0].sum(0)),
    ("mean and var", &[&[16, 8]], |x| x[0].mean_keepdim(0) * x[0].var_keepdim(1)),
    ("max", &[&[16, 8]], |x| x[0].max(0) * x[0].max_keepdim(1)),
    ("argmax", &[&[16, 8]], |x| x[0].argmax(0) + x[0].argmin_keepdim(1)),
    ("softmax", &[&[16, 8]], |x| x[0].softmax(0) * x[0].log_softmax(1)),
    ("matmul", &[&[16, 8], &[8, 24]], |x| x[0].matmul(&x[1])),
    ("products of stacks", &[&[8, 8, 3], &[8, 3, 8]], |x| x[0].matmul(&x[1])),
    ("concatenate", &[&[8, 8], &[16, 8]], |x| Tensor::concatenate(&[&x[0], &x[1]], 0)),
    ("stack", &[&[8, 8], &[8, 8]], |x| Tensor::stack(&[&x[0], &x[1]], 0)),
    ("slice", &[&[16, 16]], |x| x[0].slice(&[3, 1], &[16, 14], &[2, 1])),
    ("pad", &[&[8, 8]], |x| x[0].pad(&Tensor::scalar(2.0f32), &[1, -2], &[2, 3], &[1, 0])),
    ("flip", &[&[16, 8]], |x| x[0].flip([0, 1])),
    ("reshape", &[&[16, 8]], |x| x[0].reshape([8, 4, 4])),
    ("permute", &[&[8, 16, 3]], |x| x[0].permute([2, 1, 0])),
    ("broadcast", &[&[1, 8], &[16, 1]], |x| &x[0] * &x[1]),
    ("iota", &[&[16, 8]], |x| {
        &x[0] * Tensor::iota(DType::F32, [16, 8], 0) + Tensor::iota(DType::F32, [16, 8], 1)
    }),
    ("one_hot", &[&[16, 8]], |x| x[0].argmax(1).one_hot(8).select(&x[0], &(&x[0] * 0.5))),
    ("tril", &[&[16, 8]], |x| x[0].tril(1) - x[0].triu(-2)),
    ("take", &[&[16, 8]], |x| x[0].take(0, &rows())),
    ("take columns", &[&[8, 16]], |x| x[0].take(1, &rows())),
    ("index_add", &[&[16, 8], &[16, 8]], |x| x[0].index_add(0, &rows(), &x[1])),
    ("convolution", &[&[8, 8, 8, 6], &[16, 8, 3, 3]], |x| {
        x[0].convolution(&x[1], &Convolution::new(2).padding([(1, 1), (1, 1)]))
    }),
    ("strided convolution", &[&[8, 8, 9, 7], &[8, 8, 3, 3]], |x| {
        x[0].convolution(&x[1], &Convolution::new(2).stride([2, 2]))
    }),
    // Wide enough for a CPU to compute it and its derivatives as products.
    ("wide convolution", &[&[8, 32, 4, 4], &[32, 32, 3, 3]], |x| {
        x[0].convolution(&x[1], &Convolution::new(2).padding([(1, 1), (1, 1)]))
    }),
    // A CPU computes it as a product of matrices.
    ("product over two leading axes", &[&[8, 16, 6], &[8, 16, 5]], |x| {
        x[0].dot_general(&x[1], ([], []), ([0, 1], [0, 1]))
    }),
    ("grouped convolution", &[&[8, 16, 6, 6], &[16, 1, 3, 3]], |x| {
        x[0].convolution(&x[1], &Convolution::new(2).groups(16))
    }),
    ("max_pool", &[&[8, 8, 6, 6]], |x| {
        x[0].max_pool(&Pooling::new([3, 3]).stride([2, 2]).padding([1, 1]))
    }),
    ("avg_pool", &[&[8, 8, 6, 6]], |x| x[0].avg_pool(&Pooling::new([2, 2]))),
    ("dropout", &[&[16, 8]], |x| {
        let kept = random::bernoulli(&random::fold_in(&random::key(5), 3), 0.5, x[0].shape());
        kept.select(&(&x[0] * 2.0), &x[0].zeros_like())
    }),
];

fn numbers(shape: &[usize], seed: usize) -> Literal {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| ((i * 7 + seed * 13) as f32 * 0.618_034).fract() * 2.0 - 0.9;
    Literal::from_slice(&(0..count).map(value).collect::<Vec<_>>(), shape).unwrap()
}

/// The results of all operations and their gradients. Operands and results are sharded along `axis`
/// where 8 divides it.
fn run(devices: usize, axis: usize) -> Vec<(String, Vec<f64>)> {
    let runtime = cpu(devices);
    let fits = |shape: &[usize]| shape.get(axis).is_some_and(|size| size % 8 == 0);
    let place = |shape: &[usize]| if fits(shape) { split(axis) } else { Sharding::replicated() };
    let shapes: Vec<&[usize]> = OPERATIONS.iter().flat_map(|row| row.1.iter().copied()).collect();
    let types: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(DType::F32, *s)).collect();
    let mut names = Vec::new();
    let mut function = Function::trace("operations", &types, |parameters| {
        let mut rest = &parameters[..];
        let mut results = Vec::new();
        for (name, shapes, operation) in OPERATIONS {
            let (x, later) = rest.split_at(shapes.len());
            rest = later;
            let y = operation(x);
            let y = y.with_sharding(&place(y.shape()));
            names.push((*name).to_owned());
            results.push(y.clone());
            if y.dtype().is_float() {
                let weights = (Tensor::arange(DType::F32, y.shape().num_elements()) * 0.37)
                    .cos()
                    .reshape(y.shape());
                let known = y.is_finite().select(&y, &y.zeros_like());
                let gradients = grad(&(known * weights).sum_all(), x);
                names.extend((0..x.len()).map(|i| format!("gradient {i} of {name}")));
                results.extend(gradients);
            }
        }
        results
    });
    for (i, shape) in shapes.iter().enumerate() {
        function = function.shard_parameter(i, place(shape));
    }
    let compiled = runtime.compile(&function).unwrap();
    assert_eq!(compiled.executable().devices().len(), devices);
    let parameters: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| runtime.to_devices(&numbers(shape, i), &place(shape)).unwrap())
        .collect();
    let outputs = compiled.call(parameters.iter().map(Argument::Borrow).collect()).unwrap();
    let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    names.into_iter().zip(values.iter().map(Literal::to_f64)).collect()
}

#[test]
fn operations_on_eight_devices_give_what_they_give_on_one() {
    let one = run(1, 0);
    assert!(one.iter().all(|(_, values)| values.iter().any(|v| *v != 0.0)));
    for axis in 0..2 {
        for ((name, expected), (_, found)) in one.iter().zip(run(8, axis)) {
            let largest =
                expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
            for (i, (a, b)) in expected.iter().zip(&found).enumerate() {
                let same =
                    (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * a.abs() + 1e-6 * largest;
                assert!(
                    same,
                    "{name}, split along axis {axis}: element {i} is {b}, on one device {a}"
                );
            }
        }
    }
}

#[test]
fn random_numbers_are_the_same_bit_for_bit_however_they_are_split() {
    let draws = |devices: usize, axis: usize| {
        let runtime = cpu(devices);
        // The key is an argument, as in a training step.
        let function = Function::trace("draws", TensorType::new(DType::U32, [2]), |key| {
            let step = random::fold_in_tensor(&key, &Tensor::scalar(9u32));
            let layer = random::fold_in_name(&step, "dropout");
            let on = |t: Tensor| t.with_sharding(&split(axis));
            vec![
                on(random::bits(&layer, [16, 24])),
                on(random::uniform(&layer, DType::F32, [16, 24], -1.0, 3.0)).bitcast(DType::U32),
                on(random::normal(&layer, DType::F32, [16, 24])).bitcast(DType::U32),
                on(random::bernoulli(&layer, 0.3, [16, 24])).to_dtype(DType::U32),
                on(random::randint(&layer, DType::U32, [16, 24], 10, 1000)),
                on(random::truncated_normal(&layer, DType::F32, [16, 24], -1.0, 2.0))
                    .bitcast(DType::U32),
                on(random::exponential(&layer, DType::F32, [16, 24])).bitcast(DType::U32),
                on(random::gumbel(&layer, DType::F32, [16, 24])).bitcast(DType::U32),
                on(random::permutation(&layer, 384).reshape([16, 24])).to_dtype(DType::U32),
                on(random::choice(&layer, 500, [16, 24], true, None)).to_dtype(DType::U32),
                on(random::categorical(&layer, &Tensor::zeros(DType::F32, [16, 24, 8]), -1))
                    .to_dtype(DType::U32),
                on(Tensor::iota(DType::U32, [16, 24], 1) + Tensor::iota(DType::U32, [16, 24], 0)),
            ]
        });
        let compiled = runtime.compile(&function).unwrap();
        let key = runtime.to_device(&Literal::from_slice(&[7u32, 11], [2]).unwrap()).unwrap();
        let outputs = compiled.call(vec![Argument::Borrow(&key)]).unwrap();
        let values =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        values.iter().map(|v| v.to_vec::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let one = draws(1, 0);
    let kept = one[3].iter().sum::<u32>();
    assert!((80..160).contains(&kept), "{kept} of 384 at a probability of 0.3");
    for (devices, axis) in [(2, 0), (8, 0), (8, 1)] {
        assert_eq!(draws(devices, axis), one, "{devices} devices, split along axis {axis}");
    }
}
