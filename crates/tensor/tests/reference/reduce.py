"""Reductions, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np

from common import distinct, draw, F32, Family, I32, INF, integers, NAN


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
    out.write()
