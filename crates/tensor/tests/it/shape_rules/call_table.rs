//! A table of calls with random attributes, for every family. The fuzzer in `fuzz/` uses the same
//! table.

use fulmen_tensor::{
    Combine, Convolution, DType, Interpolation, PadMode, Pooling, Scan, Tensor, TriangularSolve,
    checkpoint, cond, fori_loop, map, random, switch, while_loop,
};

use super::choices::Choices;

/// Records an operation on some of the tensors; there is at least one.
pub(crate) type Call = fn(&mut Choices<'_>, &[Tensor]) -> Vec<Tensor>;

/// Operations of one tensor without attributes.
macro_rules! of_one {
    ($($method:ident)*) => { [$((stringify!($method), |c, x| vec![c.pick(x).$method()])),*] };
}

/// Operations of two tensors without attributes.
macro_rules! of_two {
    ($($method:ident)*) => { [$((stringify!($method), |c, x| vec![c.pick(x).$method(c.pick(x))])),*] };
}

/// A reduction, or its variant that keeps the axes.
macro_rules! keepdim {
    ($c:expr, $t:ident.$method:ident | $kept:ident($($arg:expr),*)) => {
        if $c.bool() { $t.$kept($($arg),*) } else { $t.$method($($arg),*) }
    };
}

/// Reductions over several axes.
macro_rules! over_axes {
    ($($method:ident $kept:ident)*) => { [$((stringify!($method), |c, x| {
        let t = c.pick(x);
        vec![keepdim!(c, t.$method | $kept(&c.axes(t)))]
    })),*] };
}

const OF_ONE: &[(&str, Call)] = &of_one! {
    abs ceil exp expm1 erf erf_inv floor log log1p sigmoid neg not rsqrt sign sqrt tanh cos sin is_finite relu detach
    acos acosh angle asin asinh atan atanh cbrt cosh count_leading_zeros digamma erfc exp2 frac is_inf is_nan lgamma
    log10 log2 logit population_count reciprocal round round_half_away signbit sinc sinh square tan trunc cholesky
    real imag conj t sum_all mean_all zeros_like ones_like argmax_all argmin_all trace
};

const OF_TWO: &[(&str, Call)] = &of_two! {
    add sub mul div remainder maximum minimum pow and or xor shift_left shift_right_logical eq ne lt le gt ge matmul
    atan2 copysign floor_divide floor_mod hypot logaddexp logaddexp2 nextafter shift_right_arithmetic xlogy cholesky_solve
};

const OVER_AXES: &[(&str, Call)] = &over_axes! {
    sum sum_keepdim prod prod_keepdim max max_keepdim min min_keepdim mean mean_keepdim var var_keepdim std std_keepdim
    any any_keepdim all all_keepdim count_nonzero count_nonzero_keepdim
};

const ARRANGED: &[(&str, Call)] = &[
    ("reshape", |c, x| vec![c.pick(x).reshape(c.shape())]),
    ("flatten", |c, x| {
        let t = c.pick(x);
        vec![t.flatten(c.axis(t), c.axis(t))]
    }),
    ("unsqueeze", |c, x| {
        let t = c.pick(x);
        vec![t.unsqueeze(c.axis(t))]
    }),
    ("squeeze", |c, x| {
        let t = c.pick(x);
        vec![t.squeeze(c.axis(t))]
    }),
    ("permute", |c, x| {
        let t = c.pick(x);
        let axes = if c.bool() { c.axes(t) } else { c.order(t) };
        vec![t.permute(&axes)]
    }),
    ("transpose", |c, x| {
        let t = c.pick(x);
        vec![t.transpose(c.axis(t), c.axis(t))]
    }),
    ("broadcast_to", |c, x| {
        let t = c.pick(x);
        let mut shape = c.shape();
        shape.extend(t.shape().iter());
        vec![t.broadcast_to(if c.bool() { c.shape() } else { shape })]
    }),
    ("broadcast_in_dim", |c, x| {
        let t = c.pick(x);
        let axes: Vec<isize> = (0..t.rank()).map(|axis| (axis + c.below(2)) as isize).collect();
        vec![t.broadcast_in_dim(c.shape(), axes)]
    }),
    ("concatenate", |c, x| {
        let t = c.pick(x);
        vec![Tensor::concatenate(&[t, c.pick(x), t], c.axis(t))]
    }),
    ("stack", |c, x| {
        let t = c.pick(x);
        vec![Tensor::stack(&[t, c.pick(x)], c.axis(t))]
    }),
    ("slice", |c, x| {
        let t = c.pick(x);
        let start = c.within(t);
        let limit = c.within(t);
        let steps = c.sizes(t);
        vec![t.slice(&start, &limit, &steps)]
    }),
    ("narrow", |c, x| {
        let t = c.pick(x);
        vec![t.narrow(c.axis(t), c.size(), c.size())]
    }),
    ("pad", |c, x| {
        let t = c.pick(x);
        let value = if c.bool() { t.sum_all() } else { Tensor::full(t.dtype(), [], 1.0) };
        vec![t.pad(&value, &c.signs(t), &c.signs(t), &c.sizes(t))]
    }),
    ("pad_mode", |c, x| {
        let t = c.pick(x);
        let padding: Vec<(i64, i64)> = c.signs(t).into_iter().map(|low| (low, 1)).collect();
        let mode = c.one_of(&[
            PadMode::Reflect,
            PadMode::Replicate,
            PadMode::Circular,
            PadMode::Constant(1.0),
        ]);
        vec![t.pad_mode(&padding, mode)]
    }),
    ("flip", |c, x| {
        let t = c.pick(x);
        vec![t.flip(&c.axes(t))]
    }),
    ("roll", |c, x| {
        let t = c.pick(x);
        let axes = c.axes(t);
        let shifts: Vec<isize> = axes.iter().map(|_| c.signed() as isize).collect();
        vec![t.roll(&shifts, &axes)]
    }),
    ("tile", |c, x| {
        let t = c.pick(x);
        vec![t.tile(&c.sizes(t))]
    }),
    ("repeat_interleave", |c, x| {
        let t = c.pick(x);
        vec![t.repeat_interleave(c.size(), c.axis(t))]
    }),
    ("split", |c, x| {
        let t = c.pick(x);
        t.split(c.size(), c.axis(t))
    }),
    ("split_with_sizes", |c, x| {
        let t = c.pick(x);
        t.split_with_sizes(&[c.size(), c.size()], c.axis(t))
    }),
    ("unfold", |c, x| {
        let t = c.pick(x);
        vec![t.unfold(c.axis(t), c.size(), c.size())]
    }),
    ("chunk", |c, x| {
        let t = c.pick(x);
        t.chunk(c.size(), c.axis(t))
    }),
    ("unbind", |c, x| {
        let t = c.pick(x);
        t.unbind(c.axis(t))
    }),
    ("view", |c, x| {
        let t = c.pick(x);
        let sizes: Vec<isize> = c.signs(t).iter().map(|&n| n as isize).collect();
        vec![t.view(&sizes), t.expand(&sizes)]
    }),
    ("unflatten", |c, x| {
        let t = c.pick(x);
        vec![t.unflatten(c.axis(t), &[c.signed() as isize, c.size() as isize])]
    }),
    ("movedim", |c, x| {
        let t = c.pick(x);
        vec![t.movedim(&c.axes(t), &c.axes(t))]
    }),
    ("repeat", |c, x| {
        let t = c.pick(x);
        vec![t.repeat(&c.sizes(t))]
    }),
    ("slice_along", |c, x| {
        let t = c.pick(x);
        let start = c.signed() as isize;
        vec![t.slice_along(c.axis(t), start.., c.size()), t.slice_along(c.axis(t), ..start, 1)]
    }),
    ("index", |c, x| {
        let t = c.pick(x);
        vec![t.index(c.axis(t), c.signed() as isize)]
    }),
    ("to_dtype", |c, x| vec![c.pick(x).to_dtype(c.dtype())]),
    ("bitcast", |c, x| vec![c.pick(x).bitcast(c.dtype())]),
    ("clamp", |c, x| vec![c.pick(x).clamp(c.pick(x), c.number())]),
    ("lerp", |c, x| vec![c.pick(x).lerp(c.pick(x), c.number())]),
    ("polygamma", |c, x| vec![c.pick(x).polygamma(c.size().min(9) as u32)]),
    ("nan_to_num", |c, x| vec![c.pick(x).nan_to_num(c.number(), None, Some(c.number()))]),
    ("select", |c, x| vec![c.pick(x).select(c.pick(x), c.pick(x))]),
    ("number", |c, x| vec![c.pick(x) + c.number()]),
    ("optimization_barrier", |c, x| Tensor::optimization_barrier(&[c.pick(x), c.pick(x)])),
];

const INDEXED: &[(&str, Call)] = &[
    ("take", |c, x| {
        let t = c.pick(x);
        vec![t.take(c.axis(t), c.pick(x))]
    }),
    ("index_select", |c, x| {
        let t = c.pick(x);
        vec![t.index_select(c.axis(t), c.pick(x))]
    }),
    ("gather", |c, x| {
        let t = c.pick(x);
        vec![t.gather(c.axis(t), c.pick(x))]
    }),
    ("take_along_axis", |c, x| {
        let t = c.pick(x);
        vec![t.take_along_axis(c.axis(t), c.pick(x))]
    }),
    ("gather_nd", |c, x| vec![c.pick(x).gather_nd(c.pick(x))]),
    ("index_add", |c, x| {
        let t = c.pick(x);
        vec![t.index_add(c.axis(t), c.pick(x), c.pick(x))]
    }),
    ("index_copy", |c, x| {
        let t = c.pick(x);
        vec![t.index_copy(c.axis(t), c.pick(x), c.pick(x))]
    }),
    ("index_reduce", |c, x| {
        let t = c.pick(x);
        vec![t.index_reduce(c.axis(t), c.pick(x), c.pick(x), combine(c))]
    }),
    ("scatter", |c, x| {
        let t = c.pick(x);
        vec![t.scatter(c.axis(t), c.pick(x), c.pick(x))]
    }),
    ("scatter_add", |c, x| {
        let t = c.pick(x);
        vec![t.scatter_add(c.axis(t), c.pick(x), c.pick(x))]
    }),
    ("scatter_reduce", |c, x| {
        let t = c.pick(x);
        vec![t.scatter_reduce(c.axis(t), c.pick(x), c.pick(x), combine(c))]
    }),
    ("scatter_nd", |c, x| vec![c.pick(x).scatter_nd(c.pick(x), c.pick(x), combine(c))]),
    ("dynamic_slice", |c, x| {
        let t = c.pick(x);
        let start = c.pick(x).clone();
        vec![t.dynamic_slice(&vec![start; t.rank()], &c.within(t))]
    }),
    ("dynamic_update_slice", |c, x| {
        let t = c.pick(x);
        let start = c.pick(x).clone();
        vec![t.dynamic_update_slice(c.pick(x), &vec![start; t.rank()])]
    }),
    ("one_hot", |c, x| vec![c.pick(x).one_hot(c.size())]),
    ("tril", |c, x| vec![c.pick(x).tril(c.signed())]),
    ("triu", |c, x| vec![c.pick(x).triu(c.signed())]),
    ("argmax", |c, x| {
        let t = c.pick(x);
        vec![keepdim!(c, t.argmax | argmax_keepdim(c.axis(t)))]
    }),
    ("argmin", |c, x| {
        let t = c.pick(x);
        vec![keepdim!(c, t.argmin | argmin_keepdim(c.axis(t)))]
    }),
    ("masked_fill", |c, x| vec![c.pick(x).masked_fill(c.pick(x), c.number())]),
    ("nonzero_static", |c, x| vec![c.pick(x).nonzero_static(c.size(), -1)]),
    ("softmax", |c, x| {
        let t = c.pick(x);
        vec![
            t.softmax(c.axis(t)),
            t.log_softmax(c.axis(t)),
            keepdim!(c, t.logsumexp | logsumexp_keepdim(&c.axes(t))),
        ]
    }),
];

fn combine(c: &mut Choices<'_>) -> Combine {
    c.one_of(&[Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max])
}

/// Functions of one axis that return a tensor.
macro_rules! along {
    ($($method:ident)*) => { [$((stringify!($method), |c, x| {
        let t = c.pick(x);
        vec![t.$method(c.axis(t))]
    })),*] };
}

const RUNNING: &[(&str, Call)] = &along! { cumsum cumprod logcumsumexp };

const ORDERED: &[(&str, Call)] = &[
    ("cummax", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(t.cummax(c.axis(t))).into()
    }),
    ("cummin", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(t.cummin(c.axis(t))).into()
    }),
    ("sort", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(t.sort(c.axis(t), c.bool())).into()
    }),
    ("argsort", |c, x| {
        let t = c.pick(x);
        vec![t.argsort(c.axis(t), c.bool())]
    }),
    ("sort_together", |c, x| {
        let t = c.pick(x);
        Tensor::sort_together(&[t, c.pick(x), c.pick(x)], c.below(4), c.axis(t), c.bool())
    }),
    ("kthvalue", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(keepdim!(c, t.kthvalue | kthvalue_keepdim(c.size(), c.axis(t)))).into()
    }),
    ("median", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(keepdim!(c, t.median | median_keepdim(c.axis(t)))).into()
    }),
    ("topk", |c, x| {
        let t = c.pick(x);
        <[Tensor; 2]>::from(t.topk_along(c.size(), c.axis(t), c.bool())).into()
    }),
    ("norm", |c, x| {
        let t = c.pick(x);
        vec![keepdim!(c, t.norm | norm_keepdim(c.number(), &c.axes(t)))]
    }),
    ("var_corrected", |c, x| {
        let t = c.pick(x);
        vec![
            keepdim!(c, t.var_corrected | var_corrected_keepdim(&c.axes(t), c.number())),
            keepdim!(c, t.std_corrected | std_corrected_keepdim(&c.axes(t), c.number())),
        ]
    }),
    ("diagonal", |c, x| {
        let t = c.pick(x);
        vec![t.diagonal(c.signed(), c.axis(t), c.axis(t))]
    }),
    ("diag_embed", |c, x| vec![c.pick(x).diag_embed(c.signed())]),
    ("diag", |c, x| vec![c.pick(x).diag(c.signed())]),
];

const PRODUCTS: &[(&str, Call)] = &[
    ("complex", |c, x| vec![Tensor::complex(c.pick(x), c.pick(x))]),
    ("fft", |c, x| {
        let t = c.pick(x);
        vec![t.fft(&c.axes(t)), t.ifft(&c.axes(t)), t.rfft(&c.axes(t))]
    }),
    ("irfft", |c, x| {
        let t = c.pick(x);
        vec![t.irfft(&c.axes(t), c.size())]
    }),
    ("triangular_solve", |c, x| {
        let how =
            if c.bool() { TriangularSolve::lower() } else { TriangularSolve::upper().right() };
        let how = if c.bool() { how.unit_diagonal() } else { how };
        vec![c.pick(x).triangular_solve(c.pick(x), &how)]
    }),
    ("einsum", |c, x| {
        let equation = c.one_of(&[
            "ij,jk->ik",
            "bij,bjk->bik",
            "...i,...i->...",
            "ii->i",
            "ij->ji",
            "i,j",
            "ij,ij->",
            "zz",
        ]);
        let operands = [c.pick(x), c.pick(x)];
        vec![Tensor::einsum(equation, &operands[..1 + c.below(2)])]
    }),
    ("tensordot", |c, x| {
        let a = c.pick(x);
        let b = c.pick(x);
        vec![a.tensordot(b, (&c.axes(a), &c.axes(b)))]
    }),
    ("outer", |c, x| vec![c.pick(x).outer(c.pick(x))]),
    ("dot_general", |c, x| {
        let axis = |c: &mut Choices<'_>| {
            (0..c.below(3)).map(|_| c.below(6) as isize - 2).collect::<Vec<_>>()
        };
        let t = c.pick(x);
        let batch = axis(c);
        let contracting = axis(c);
        let same = c.bool();
        let other = (
            if same { batch.clone() } else { axis(c) },
            if same { contracting.clone() } else { axis(c) },
        );
        vec![t.dot_general(c.pick(x), (&batch, &other.0), (&contracting, &other.1))]
    }),
    ("convolution", |c, x| vec![c.pick(x).convolution(c.pick(x), &convolution(c))]),
    ("conv_transpose", |c, x| vec![c.pick(x).conv_transpose(c.pick(x), &convolution(c))]),
    ("max_pool", |c, x| vec![c.pick(x).max_pool(&pooling(c))]),
    ("max_pool_with_indices", |c, x| c.pick(x).max_pool_with_indices(&pooling(c)).into()),
    ("avg_pool", |c, x| vec![c.pick(x).avg_pool(&pooling(c))]),
    ("adaptive_avg_pool", |c, x| vec![c.pick(x).adaptive_avg_pool(&[c.size(), c.size()])]),
    ("adaptive_max_pool", |c, x| vec![c.pick(x).adaptive_max_pool(&[c.size()])]),
    ("interpolate", |c, x| vec![c.pick(x).interpolate(&[c.size(), c.size()], interpolation(c))]),
    ("interpolate_by", |c, x| vec![c.pick(x).interpolate_by(&[c.number()], interpolation(c))]),
];

fn convolution(c: &mut Choices<'_>) -> Convolution {
    let n = c.below(4);
    let list = |c: &mut Choices<'_>| (0..n).map(|_| c.size()).collect::<Vec<_>>();
    let how = Convolution::new(n);
    let how = if c.bool() {
        let padding: Vec<(i64, i64)> = (0..n).map(|_| (c.signed(), c.signed())).collect();
        how.padding(padding)
    } else {
        how
    };
    if c.bool() {
        how.stride(list(c)).dilation(list(c)).groups(c.size())
    } else {
        how.output_padding(list(c))
    }
}

fn interpolation(c: &mut Choices<'_>) -> Interpolation {
    let align_corners = c.bool();
    c.one_of(&[
        Interpolation::Nearest,
        Interpolation::NearestExact,
        Interpolation::Linear { align_corners },
    ])
}

fn pooling(c: &mut Choices<'_>) -> Pooling {
    let n = c.below(3);
    let list = |c: &mut Choices<'_>| (0..n).map(|_| c.size()).collect::<Vec<_>>();
    let how = Pooling::new(list(c));
    let how = if c.bool() { how.stride(list(c)).dilation(list(c)) } else { how };
    let how = if c.bool() {
        how.divisor(c.size())
    } else {
        how.ceil_mode(c.bool()).count_include_pad(c.bool())
    };
    if c.bool() { how.padding(list(c)) } else { how }
}

const DRAWN: &[(&str, Call)] = &[
    ("random::bits", |c, _| vec![random::bits(&random::key(7), c.shape())]),
    ("random::uniform", |c, _| {
        vec![random::uniform(&random::key(7), c.dtype(), c.shape(), c.number(), c.number())]
    }),
    ("random::randint", |c, _| {
        vec![random::randint(&random::key(7), c.dtype(), c.shape(), c.signed(), c.signed())]
    }),
    ("random::categorical", |c, x| {
        let t = c.pick(x);
        vec![random::categorical(&random::key(7), t, c.axis(t))]
    }),
    ("random::choice", |c, x| {
        let p = if c.bool() { Some(c.pick(x)) } else { None };
        vec![random::choice(&random::key(7), c.size().min(9), c.shape(), c.bool(), p)]
    }),
    ("random::permutation", |c, _| vec![random::permutation(&random::key(7), c.size().min(9))]),
    ("random::shuffle", |c, x| {
        let t = c.pick(x);
        vec![random::shuffle(&random::key(7), t, c.axis(t))]
    }),
    ("random::gamma", |c, x| vec![random::gamma(&random::key(7), c.dtype(), c.shape(), c.pick(x))]),
    ("random::beta", |c, _| {
        vec![random::beta(&random::key(7), c.dtype(), c.shape(), c.number(), c.number())]
    }),
    ("random::exponential", |c, _| {
        vec![random::exponential(&random::key(7), c.dtype(), c.shape())]
    }),
    ("random::gumbel", |c, _| vec![random::gumbel(&random::key(7), c.dtype(), c.shape())]),
    ("random::truncated_normal", |c, _| {
        vec![random::truncated_normal(
            &random::key(7),
            c.dtype(),
            c.shape(),
            c.number(),
            c.number(),
        )]
    }),
    ("random::normal", |c, _| vec![random::normal(&random::key(7), c.dtype(), c.shape())]),
    ("random::bernoulli", |c, _| vec![random::bernoulli(&random::key(7), c.number(), c.shape())]),
    ("random::fold_in_tensor", |c, x| vec![random::fold_in_tensor(&random::key(7), c.pick(x))]),
    ("iota", |c, _| vec![Tensor::iota(c.dtype(), c.shape(), c.signed() as isize)]),
    ("arange", |c, _| vec![Tensor::arange(c.dtype(), c.size())]),
    ("eye", |c, _| vec![Tensor::eye(c.dtype(), c.size(), c.size())]),
    ("arange_step", |c, _| {
        vec![Tensor::arange_step(c.dtype(), c.number(), c.number(), c.number())]
    }),
    ("linspace", |c, _| vec![Tensor::linspace(c.dtype(), c.number(), c.number(), c.size())]),
    ("meshgrid", |c, x| Tensor::meshgrid(&[c.pick(x), c.pick(x)])),
    ("full", |c, _| vec![Tensor::full(c.dtype(), c.shape(), c.number())]),
];

const FLOW: &[(&str, Call)] = &[
    ("cond", |c, x| {
        let p = c.pick(x);
        let a = c.pick(x);
        let b = c.pick(x);
        let p = if c.bool() { p.clone() } else { p.eq(p).to_dtype(DType::I32).sum_all().gt(0.0) };
        cond(&p, &[a, b], |v| vec![&v[0] + &v[1]], |v| vec![&v[0] - &v[1]])
    }),
    ("switch", |c, x| {
        let i = c.pick(x);
        let a = c.pick(x);
        vec![switch(i, a, |v| v, &[&|v| &v * &v])]
    }),
    ("while_loop", |c, x| {
        let a = c.pick(x);
        let b = c.pick(x);
        let start = Tensor::scalar(0i32);
        while_loop(&[&start, a], |v| v[0].lt(3.0), |v| vec![&v[0] + 1.0, &v[1] + b])
    }),
    ("fori_loop", |c, x| {
        let a = c.pick(x);
        let b = c.pick(x);
        fori_loop(0, c.size().min(9) as i64, &[a], |_, v| vec![&v[0] * b])
    }),
    ("scan", |c, x| {
        let a = c.pick(x);
        let b = c.pick(x);
        let (carry, ys) = Scan::new()
            .reverse(c.bool())
            .run(&[a], &[b], |v, x| (vec![&v[0] + x[0].sum_all()], x.to_vec()));
        [carry, ys].concat()
    }),
    ("map", |c, x| map(|x| vec![x[0].tanh()], &[c.pick(x)])),
    ("checkpoint", |c, x| checkpoint(|v| vec![v[0].exp().sin()], &[c.pick(x)])),
    ("call", |c, x| {
        let a = c.pick(x);
        let b = c.pick(x);
        fulmen_tensor::call("f", &[a], |v| vec![&v[0] + b.exp(), v[0].sin()])
    }),
];

/// All calls, with their names.
pub(crate) const CALLS: &[&[(&str, Call)]] =
    &[OF_ONE, OF_TWO, OVER_AXES, ARRANGED, INDEXED, RUNNING, ORDERED, PRODUCTS, DRAWN, FLOW];
