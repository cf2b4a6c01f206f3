"""Reductions, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np

from common import BF16, BOOL, distinct, draw, F32, F64, Family, I32, INF, integers, NAN, tensor


def reduce():
    out = Family("reduce")
    functions = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "mean": jnp.mean, "var": jnp.var}
    wheres = {
        "all": ((3, 4), [0, 1]), "first": ((3, 4), [0]), "last": ((3, 4), [-1]), "outer": ((2, 3, 4), [0, 2]),
        "negative": ((2, 3, 4), [-2, -1]), "of_size_1": ((3, 1, 2), [1]), "none": ((2, 3), []), "scalar": ((), []),
        "rest_empty": ((0, 3), [1]),
    }  # fmt: skip
    for op, f in functions.items():
        for label, (shape, axes) in wheres.items():
            for keepdims in (False, True):
                name = f"{op}_{label}" + ("_keepdims" if keepdims else "")
                x = distinct(name, shape) if op in ("max", "min") else draw(name, shape)
                run = lambda x, f=f, axes=axes, k=keepdims: f(x, axis=tuple(axes), keepdims=k)
                out.case(op, name, run, x, axes=axes, keepdims=keepdims)
    for op in ("sum", "mean"):
        run = lambda x, f=functions[op]: f(x, axis=0)
        out.case(op, f"{op}_over_nothing", run, np.zeros((0, 3), F32), axes=[0], keepdims=False)
    for op in ("max", "min"):
        run = lambda x, f=functions[op]: f(x, axis=1)
        ties = np.array([[1, 3, 3, 0], [-2, -2, -2, -2], [0, 0, 5, 1]], F32)
        out.case(op, f"{op}_ties", run, ties, kink="the derivative of a tie is shared", axes=[1], keepdims=False)
        special = np.array([[1, NAN, 2], [INF, 1, -INF], [-INF, -INF, -INF]], F32)
        out.case(op, f"{op}_special", run, special, gradient=False, axes=[1], keepdims=False)
    for op in ("sum", "max", "min"):
        run = lambda x, f=functions[op]: f(x, axis=0)
        out.case(op, f"{op}_i32", run, integers(op, (5, 3)), axes=[0], keepdims=False)
    far = (draw("var_far", (4, 6)) + 1000).astype(F32)
    out.case("var", "var_far_from_0", lambda x: jnp.var(x, axis=1), far, axes=[1], keepdims=False)
    long = draw("sum_long", (3000,), digits=2)
    out.case("sum", "sum_long", lambda x: jnp.sum(x, axis=0), long, gradient=False, axes=[0], keepdims=False)

    for op, f in {"argmax": jnp.argmax, "argmin": jnp.argmin}.items():
        inputs = {
            "matrix": distinct(op, (4, 5)), "ties": np.array([[1, 3, 3], [2, 2, 2], [0, -1, -1]], F32),
            "special": np.array([[1, NAN, NAN], [INF, -INF, 0], [-INF, -INF, -INF]], F32),
            "i32": integers(op, (4, 5)), "rank_3": distinct(op + "/3", (2, 3, 4)),
        }  # fmt: skip
        for label, x in inputs.items():
            for axis in (0, -1):
                for keepdims in (False, True):
                    name = f"{op}_{label}_axis_{axis}".replace("-", "minus_") + ("_keepdims" if keepdims else "")
                    run = lambda x, f=f, axis=axis, k=keepdims: f(x, axis=axis, keepdims=k).astype(I32)
                    out.case(op, name, run, x, axis=axis, keepdims=keepdims)
        for label in ("matrix", "ties", "rank_3"):
            run = lambda x, f=f: f(x).astype(I32)
            out.case(f"{op}_all", f"{op}_all_{label}", run, inputs[label])
    products(out, wheres)
    narrow(out)
    counts(out, wheres)
    deviations(out)
    norms(out)
    out.write()


def products(out, wheres):
    for label, (shape, axes) in wheres.items():
        run = lambda x, axes=axes: jnp.prod(x, axis=tuple(axes))
        out.case("prod", f"prod_{label}", run, draw(f"prod_{label}", shape), axes=axes, keepdims=False)
    run = lambda x: jnp.prod(x, axis=1, keepdims=True)
    zeros = np.array([[2, 0, -1.5, 0.5, 3], [0, 1, 2, 0, 1], [0, 0, 0, 1, 1], [1, -2, 3, 0.5, 0.25]], F32)
    out.case("prod", "prod_zeros", run, zeros, axes=[1], keepdims=True)
    out.case("prod", "prod_bf16", run, draw("prod_bf16", (3, 4)).astype(BF16), axes=[1], keepdims=True)
    out.case("prod", "prod_i32", run, integers("prod", (2, 5)), axes=[1], keepdims=True)
    out.case("prod", "prod_nan", run, np.array([[NAN, 0, 1], [INF, 1, 2]], F32), gradient=False, axes=[1], keepdims=True)
    out.case("prod", "prod_over_nothing", lambda x: jnp.prod(x, axis=0), np.zeros((0, 3), F32), axes=[0], keepdims=False)
    out.case("sum", "sum_bf16", lambda x: jnp.sum(x, axis=0), draw("sum_bf16", (300, 2)).astype(BF16), axes=[0], keepdims=False)
    out.case("max", "max_bf16", lambda x: jnp.max(x, axis=0), distinct("max_bf16", (5, 4)).astype(BF16), axes=[0], keepdims=False)


def narrow(out):
    """Integers and booleans."""
    functions = {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min, "mean": jnp.mean, "var": jnp.var, "std": jnp.std}
    truth = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0]], BOOL)
    for op, f in functions.items():
        for axes in ([1], [0, 1]):
            run = lambda x, f=f, axes=axes: f(x, axis=tuple(axes))
            out.case(op, f"{op}_bool_{len(axes)}", run, truth, axes=axes, keepdims=False)
        if op in ("mean", "var", "std"):
            for dtype in (np.int8, np.uint8, I32):
                x = integers(f"{op}_{np.dtype(dtype).name}", (3, 50), 0, 120).astype(dtype)
                out.case(op, f"{op}_{np.dtype(dtype).name}", lambda x, f=f: f(x, axis=1), x, axes=[1], keepdims=False)
    out.case("mean", "mean_over_no_integers", lambda x: jnp.mean(x, axis=0), np.zeros((0, 2), I32), axes=[0], keepdims=False)
    for op, f in {"argmax": jnp.argmax, "argmin": jnp.argmin}.items():
        out.case(op, f"{op}_bool", lambda x, f=f: f(x, axis=1).astype(I32), truth, axis=1, keepdims=False)


def counts(out, wheres):
    count = lambda x, axis, keepdims=False: jnp.count_nonzero(x, axis=axis, keepdims=keepdims).astype(I32)
    for op, f in {"any": jnp.any, "all": jnp.all, "count_nonzero": count}.items():
        for label, (shape, axes) in wheres.items():
            x = integers(f"{op}_{label}", shape, 0, 2) == (op != "all")
            run = lambda x, f=f, axes=axes: f(x, axis=tuple(axes), keepdims=True)
            out.case(op, f"{op}_{label}", run, x, axes=axes, keepdims=True)
        run = lambda x, f=f: f(x, axis=(0,))
        out.case(op, f"{op}_over_nothing", run, np.zeros((0, 3), BOOL), axes=[0], keepdims=False)
        out.case(op, f"{op}_f32", run, np.array([[0, NAN, 1], [-0.0, 0, 2]], F32), gradient=False, axes=[0], keepdims=False)
        out.case(op, f"{op}_i32", run, np.array([[0, 3, 1], [0, 0, 2]], I32), axes=[0], keepdims=False)


def deviations(out):
    wheres = {"rows": ((3, 4), [1]), "all": ((2, 3), [0, 1]), "two": ((2, 3, 4), [0, -1]), "rest_empty": ((0, 3), [1])}
    for label, (shape, axes) in wheres.items():
        for keepdims in (False, True):
            x, name = draw(f"std_{label}", shape), label + ("_keepdims" if keepdims else "")
            run = lambda x, axes=axes, k=keepdims: jnp.std(x, axis=tuple(axes), keepdims=k)
            out.case("std", f"std_{name}", run, x, axes=axes, keepdims=keepdims)
            for correction in (1, 2.5):
                more = {"axes": axes, "correction": correction, "keepdims": keepdims}
                for op, f in {"var_corrected": jnp.var, "std_corrected": jnp.std}.items():
                    run = lambda x, f=f, axes=axes, k=keepdims, c=correction: f(x, axis=tuple(axes), keepdims=k, correction=c)
                    if not keepdims or correction == 1:
                        out.case(op, f"{op}_{name}_by_{correction}", run, x, **more)
    # All elements are equal: the derivative of the root at 0 is 0 in PyTorch, and NaN in JAX.
    equal = np.full((2, 3), 1.5, F32)
    zero, g = tensor(np.zeros((2,), F32)), tensor(np.ones((2,), F32))
    kink = "the root has no derivative at 0"
    more = {"axes": [1], "keepdims": False}
    out.add("std", "std_of_equals", more, [tensor(equal)], [zero], [g], [tensor(np.zeros((2, 3), F32))], kink)
    out.case("std", "std_bf16", lambda x: jnp.std(x, axis=1), draw("std_bf16", (3, 8)).astype(BF16), axes=[1], keepdims=False)
    one = np.array([[2.0], [3.0]], F32)
    run = lambda x: jnp.var(x, axis=1, correction=1)
    out.case("var_corrected", "var_corrected_of_one", run, one, gradient=False, axes=[1], correction=1, keepdims=False)


def norms(out):
    vector = lambda x, p, axes, k=False: jnp.linalg.vector_norm(x, axis=tuple(axes), keepdims=k, ord=p)
    words = {INF: "inf", -INF: "-inf"}
    for p in (2, 1, INF, -INF, 0, 3, 0.5, 1.5, -2):
        for label, shape, axes, keepdims in [("rows", (3, 4), [1], False), ("two", (2, 3, 2), [0, -1], True), ("all", (5,), [0], False)]:
            x = distinct(f"norm_{label}", shape) + np.float32(0.0625)
            run = lambda x, p=p, axes=axes, k=keepdims: vector(x, p, axes, k)
            more = {"p": words.get(p, p), "axes": axes, "keepdims": keepdims}
            out.case("norm", f"norm_{label}_{p}", run, x, gradient=p != 0, **more)
    # PyTorch's derivative is 0 where the norm or the element is 0. JAX has NaN for some of these.
    zeros, some = np.zeros((2, 3), F32), np.array([[0, 3, -4], [0, 0, -2]], F32)
    kink = "a magnitude has no derivative at 0"
    ones = np.ones((2,), F32)
    slopes = {1: [[0, 1, -1], [0, 0, -1]], 2: [[0, 0.6, -0.8], [0, 0, -1]], 3: np.array([[0, 9, -16], [0, 0, -4]]) / np.array([[91 ** (2 / 3)], [4]])}
    for p, slope in slopes.items():
        more = {"p": p, "axes": [1], "keepdims": False}
        size = np.sum(np.abs(some.astype(F64)) ** p, 1) ** (1 / p)
        out.add("norm", f"norm_of_zeros_{p}", more, [tensor(zeros)], [tensor(0 * ones)], [tensor(ones)], [tensor(zeros)], kink)
        gradient = tensor(np.array(slope, F32))
        out.add("norm", f"norm_of_some_zeros_{p}", more, [tensor(some)], [tensor(size.astype(F32))], [tensor(ones)], [gradient], kink)
    out.case("norm", "norm_over_nothing", lambda x: vector(x, 2, [0]), np.zeros((0, 3), F32), p=2, axes=[0], keepdims=False)
    out.case("norm", "norm_bf16", lambda x: vector(x.astype(F32), 2, [1]).astype(BF16), draw("norm_bf16", (3, 5)).astype(BF16), p=2, axes=[1], keepdims=False)
