"""Sorting, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, BOOL, distinct, draw, F32, Family, I32, INF, integers, NAN, SPECIAL, tensor, U8


def indices(x, axis, descending):
    return jnp.argsort(x, axis=axis, descending=descending, stable=True).astype(I32)


def both(x, axis, descending):
    i = indices(x, axis, descending)
    return jnp.take_along_axis(x, i, axis), i


def sort():
    out = Family("sort")
    shapes = {"vector": ((7,), 0), "first": ((5, 3), 0), "last": ((3, 4), -1), "middle": ((2, 4, 3), -2), "one": ((3, 1), 1), "nothing": ((2, 0), 1), "rest_empty": ((0, 3), 1)}
    for descending in (False, True):
        end = "_descending" if descending else ""
        run = lambda x, d=descending: both(x, -1, d)
        only = lambda x, d=descending: indices(x, -1, d)
        more = {"axis": -1, "descending": descending}
        for label, (shape, axis) in shapes.items():
            at = lambda x, a=axis, d=descending: both(x, a, d)
            out.case("sort", f"sort_{label}{end}", at, distinct(label, shape), axis=axis, descending=descending)
        ties = np.array([[1, 3, 3, 0, 3], [-0.0, 0, -1, 0, -0.0]], F32)
        out.case("sort", f"sort_ties{end}", run, ties, kink="equals change places", **more)
        out.case("argsort", f"argsort_ties{end}", only, ties, **more)
        for label, x in {"special": SPECIAL, "i32": integers("sort", (3, 6)), "bool": integers("bool", (2, 7), 0, 2).astype(BOOL), "u8": integers("u8", (9,), 0, 255).astype(U8), "bf16": draw("sort", (2, 9)).astype(BF16)}.items():
            out.case("sort", f"sort_{label}{end}", run, x, gradient=False, **more)
            out.case("argsort", f"argsort_{label}{end}", only, x, gradient=False, **more)
        keys = [integers("first", (2, 8), 0, 3), integers("second", (2, 8), 0, 2).astype(F32), draw("third", (2, 8))]
        back = (lambda x: -x) if descending else (lambda x: x)
        several = lambda a, b, c, back=back: tuple(back(y) for y in lax.sort((back(a), back(b), back(c)), num_keys=2))
        if not descending:
            out.case("sort_together", "sort_together_two_keys", several, *keys, kink="equals change places", keys=2, **more)
        else:
            x = [keys[0], distinct("unique", (2, 8)), keys[2]]
            out.case("sort_together", "sort_together_descending", several, *x, keys=2, **more)
    one = lambda a, b: lax.sort((a, b), dimension=0, num_keys=1)
    out.case("sort_together", "sort_together_axis_0", one, distinct("key", (5, 2)), draw("value", (5, 2)), keys=1, axis=0, descending=False)

    for label, shape, axis, k in [("vector", (9,), 0, 3), ("last", (3, 6), -1, 2), ("first", (5, 3), 0, 2), ("all", (2, 4), 1, 4), ("none", (2, 4), 1, 0), ("many", (80,), 0, 70), ("middle", (2, 6, 2), 1, 3), ("rest_empty", (0, 3), 1, 2)]:
        for largest in (True, False):
            run = lambda x, a=axis, k=k, d=largest: tuple(lax.slice_in_dim(y, 0, k, axis=a % x.ndim) for y in both(x, a, d))
            out.case("topk", f"topk_{label}" + ("" if largest else "_smallest"), run, distinct(label, shape), k=k, axis=axis, largest=largest)
    for label, x in {"ties": np.array([[1, 3, 3, 0, 3], [2, 2, 2, 2, 2]], F32), "i32": integers("topk", (3, 6)), "bf16": distinct("topk", (2, 9)).astype(BF16), "u8": integers("top", (9,), 0, 255).astype(U8), "nan": np.array([1, NAN, INF, -INF, 2], F32)}.items():
        run = lambda x: tuple(lax.top_k(x, 3))
        out.case("topk", f"topk_of_{label}", run, x, gradient=False, k=3, axis=-1, largest=True)
    # JAX uses the total order, in which 0 is larger than −0.
    signs = np.array([[1, -0.0, 0, -0.0, 0, -1], [-0.0, 0, -NAN, 1, NAN, 2]], F32)
    run = lambda x: tuple(v[:, :4] for v in both(x, -1, True))
    out.case("topk", "topk_of_signs", run, signs, gradient=False, k=4, axis=-1, largest=True)
    kink = "equals change places"
    out.case("topk", "topk_of_zeros", run, signs[:1], kink=kink, k=4, axis=-1, largest=True)

    for label, shape, axis, k in [("rows", (3, 5), 1, 2), ("first", (4, 3), 0, 4), ("vector", (6,), -1, 1)]:
        for keepdims in (False, True):
            end = "_keepdims" if keepdims else ""

            def at(x, a=axis, k=k, keep=keepdims):
                parts = [lax.slice_in_dim(y, k - 1, k, axis=a % x.ndim) for y in both(x, a, False)]
                return tuple(y if keep else jnp.squeeze(y, a) for y in parts)

            def median(x, a=axis, keep=keepdims):
                return at(x, a, (x.shape[a] + 1) // 2, keep)

            out.case("kthvalue", f"kthvalue_{label}{end}", at, distinct(label, shape), k=k, axis=axis, keepdims=keepdims)
            out.case("median", f"median_{label}{end}", median, distinct(label, shape), axis=axis, keepdims=keepdims)

    # In PyTorch, the first NaN gets the gradient.
    seed = np.array([2, -3, 0.5], F32)
    rows = np.array([[1, NAN, 2], [NAN, NAN, 0], [3, 1, 2]], F32)
    slope = np.array([[0, 2, 0], [-3, 0, 0], [0, 0, 0.5]], F32)
    first = [tensor(np.array([NAN, NAN, 2], F32)), tensor(np.array([1, 0, 2], I32))]
    attrs = {"axis": 1, "keepdims": False}
    out.add("median", "median_nan_gradient", attrs, [tensor(rows)], first, [tensor(seed), "null"], [tensor(slope)], "a NaN")

    def torch_median(x):
        value, index = (y[:, 1] for y in both(x, 1, False))
        nan = jnp.isnan(x)
        return jnp.where(nan.any(1), NAN, value), jnp.where(nan.any(1), jnp.argmax(nan, 1), index).astype(I32)

    out.case("median", "median_nan", torch_median, np.array([[1, NAN, 2], [NAN, NAN, 0], [3, 1, 2]], F32), gradient=False, axis=1, keepdims=False)
    out.write()
