"""Pooling, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import distinct, draw, F32, Family


def pooling():
    out = Family("pooling")
    cases = [
        ("halve", (2, 3, 4, 6), [2, 2], [2, 2], [0, 0]), ("odd", (1, 2, 5, 7), [2, 2], [2, 2], [0, 0]),
        ("overlapping", (1, 2, 6, 5), [3, 3], [1, 1], [0, 0]), ("resnet", (1, 2, 7, 7), [3, 3], [2, 2], [1, 1]),
        ("uneven", (1, 1, 7, 8), [2, 3], [1, 2], [1, 0]), ("skipping", (1, 1, 8, 8), [2, 2], [3, 3], [0, 0]),
        ("global", (2, 2, 3, 4), [3, 4], [3, 4], [0, 0]), ("one", (1, 2, 3, 3), [1, 1], [1, 1], [0, 0]), ("padded", (1, 1, 4, 4), [2, 2], [2, 2], [1, 1]),
    ]  # fmt: skip
    for label, x_shape, window, stride, padding in cases:
        size, step, pad = (1, 1, *window), (1, 1, *stride), [(0, 0), (0, 0), *[(p, p) for p in padding]]
        attrs = {"window": window, "stride": stride, "padding": padding}
        x = distinct(label, x_shape)
        largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, size, step, pad)
        out.case("max_pool", f"max_pool_{label}", largest, x, **attrs)
        # Padding counts, as in PyTorch's avg_pool2d unless told otherwise.
        mean = lambda x: lax.reduce_window(x, 0.0, lax.add, size, step, pad) / np.prod(window).astype(F32)
        out.case("avg_pool", f"avg_pool_{label}", mean, draw(label, x_shape), **attrs)
    largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    out.case("max_pool", "max_pool_ties", largest, np.ones((1, 1, 4, 4), F32), kink="the first of a tie has the derivative", window=[2, 2], stride=[2, 2], padding=[0, 0])
    out.write()
