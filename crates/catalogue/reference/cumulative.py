"""Cumulative reductions, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, BOOL, distinct, draw, F32, Family, I32, INF, integers, NAN


def extreme(f, later):
    """PyTorch's cummax and cummin. JAX lacks the index. Of equal elements, the last one counts."""

    def run(x, axis):
        axis %= x.ndim
        place = lax.broadcasted_iota(I32, x.shape, axis)

        def choose(a, b):
            take = later(b[0], a[0]) | jnp.isnan(b[0])
            return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

        value, index = lax.associative_scan(choose, (x, place), axis=axis)
        assert f is None or np.array_equal(value, f(x, axis=axis), equal_nan=True) or isinstance(value, jax.core.Tracer)
        return value, index

    return run


def cumulative():
    out = Family("cumulative")
    cummax, cummin = extreme(lax.cummax, lambda b, a: b >= a), extreme(lax.cummin, lambda b, a: b <= a)
    functions = {
        "cumsum": lambda x, axis: jnp.cumsum(x, axis), "cumprod": lambda x, axis: jnp.cumprod(x, axis),
        "logcumsumexp": lambda x, axis: lax.cumlogsumexp(x, axis % x.ndim), "cummax": cummax, "cummin": cummin,
    }  # fmt: skip
    shapes = {
        "vector": ((7,), 0), "first": ((5, 3), 0), "last": ((3, 8), -1), "middle": ((2, 4, 3), -2), "one": ((3, 1), 1),
        "nothing": ((3, 0), 1), "rest_empty": ((0, 3), 1), "single": ((1,), -1), "odd": ((2, 33), 1),
    }  # fmt: skip
    for op, f in functions.items():
        for label, (shape, axis) in shapes.items():
            x = distinct(f"{op}_{label}", shape) if op in ("cummax", "cummin") else draw(f"{op}_{label}", shape)
            out.case(op, f"{op}_{label}", lambda x, f=f, a=axis: f(x, a), x, axis=axis)
        run = lambda x, f=f: f(x, 1)
        special = np.array([[1, NAN, 2, NAN, 0], [INF, 1, -INF, 2, 3], [-INF, -INF, 3, INF, INF], [0, -0.0, 0, 1, -1]], F32)
        out.case(op, f"{op}_special", run, special, gradient=False, axis=1)
        out.case(op, f"{op}_bf16", run, draw(f"{op}_bf16", (2, 9)).astype(BF16), gradient=op == "cumsum", axis=1)
        if op != "logcumsumexp":
            out.case(op, f"{op}_i32", run, integers(op, (3, 6), -4, 4), axis=1)
    ties = np.array([[1, 3, 3, 0, 3], [-2, -2, -2, -2, -2]], F32)
    for op in ("cummax", "cummin"):
        out.case(op, f"{op}_ties", lambda x, f=functions[op]: f(x, 1), ties, kink="one of equals is chosen", axis=1)
    zeros = np.array([[2, 0, -1.5, 0, 3], [0, 1, 2, 0.5, 1], [1, 2, 3, 4, 0]], F32)
    out.case("cumprod", "cumprod_zeros", lambda x: jnp.cumprod(x, 1), zeros, axis=1)
    large = np.array([[1000, 1000, -1000, 2000], [-1e30, 0, 1, 88]], F32)
    out.case("logcumsumexp", "logcumsumexp_large", lambda x: lax.cumlogsumexp(x, 1), large, gradient=False, axis=1)
    masked = np.array([[-INF, 1, -INF, 2], [0.5, -INF, 1, -INF]], F32)
    out.case("logcumsumexp", "logcumsumexp_masked", lambda x: lax.cumlogsumexp(x, 1), masked, axis=1)
    truth = np.array([[1, 0, 1, 1], [0, 0, 1, 0]], BOOL)
    for op, f in {"cumsum": jnp.cumsum, "cumprod": jnp.cumprod}.items():
        out.case(op, f"{op}_bool", lambda x, f=f: f(x, 1), truth, axis=1)
    long = draw("cumsum_long", (2, 300), 0, 2, digits=2)
    out.case("cumsum", "cumsum_long", lambda x: jnp.cumsum(x, 1), long, gradient=False, axis=1)
    out.write()
