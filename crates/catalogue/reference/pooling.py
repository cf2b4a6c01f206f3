"""Pooling, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, distinct, draw, F32, Family, I32, integers


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
        # Padding counts, as in PyTorch's avg_pool2d by default.
        mean = lambda x: lax.reduce_window(x, 0.0, lax.add, size, step, pad) / np.prod(window).astype(F32)
        out.case("avg_pool", f"avg_pool_{label}", mean, draw(label, x_shape), **attrs)
    largest_2x2 = lambda x: lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    out.case("max_pool", "max_pool_ties", largest_2x2, np.ones((1, 1, 4, 4), F32), kink="the first of a tie has the derivative", window=[2, 2], stride=[2, 2], padding=[0, 0])
    # The number of windows along an axis, and the padding after it. `ceil` adds a window that begins within the input.
    def places(size, window, stride, padding, dilation, ceil):
        extent = (window - 1) * dilation + 1
        room = size + 2 * padding - extent
        count = (-(-room // stride) if ceil else room // stride) + 1
        count -= ceil and (count - 1) * stride >= size + padding
        return count, max(padding, (count - 1) * stride + extent - size - padding)

    for label, x_shape, window, stride, padding, dilation, ceil in [
        ("ceil", (1, 2, 5, 7), [2, 2], [2, 2], [0, 0], [1, 1], True), ("ceil_padded", (1, 1, 6, 5), [3, 3], [2, 2], [1, 1], [1, 1], True),
        ("ceil_outside", (1, 1, 4, 5), [2, 3], [3, 4], [1, 1], [1, 1], True), ("dilated", (2, 1, 6, 7), [2, 3], [1, 2], [0, 1], [2, 2], False),
        ("dilated_ceil", (1, 2, 8, 6), [3, 2], [2, 3], [2, 1], [2, 3], True), ("one_axis", (2, 2, 7), [3], [2], [1], [1], True),
        ("three_axes", (1, 2, 4, 3, 4), [2, 2, 3], [2, 1, 2], [1, 0, 1], [1, 2, 1], False),
    ]:  # fmt: skip
        n = len(window)
        fits = [places(x_shape[i + 2], window[i], stride[i], padding[i], dilation[i], ceil) for i in range(n)]
        size, step, spread = (1, 1, *window), (1, 1, *stride), (1, 1, *dilation)
        pad = [(0, 0), (0, 0), *((padding[i], fits[i][1]) for i in range(n))]
        attrs = {"window": window, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        x = distinct(label, x_shape)
        largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, size, step, pad, window_dilation=spread)
        assert jax.eval_shape(largest, x).shape[2:] == tuple(count for count, _ in fits), label

        def where(x):
            at = np.arange(np.prod(x_shape[2:]), dtype=I32).reshape(x_shape[2:])
            at = np.pad(np.broadcast_to(at, x_shape), pad, constant_values=2**31 - 1)
            wide = jnp.pad(x, pad, constant_values=-jnp.inf)
            cut = lambda v, offset: v[(..., *(slice(o * d, o * d + (c - 1) * s + 1, s) for o, d, s, (c, _) in zip(offset, dilation, stride, fits)))]
            values, numbers = (jnp.stack([cut(v, offset) for offset in np.ndindex(*window)], -1) for v in (wide, at))
            won = jnp.argmax(values, -1, keepdims=True)
            return jnp.take_along_axis(values, won, -1)[..., 0], jnp.take_along_axis(numbers, won, -1)[..., 0]

        # JAX has no derivative of dilated windows, so the maximum is written out.
        out.case("max_pool", f"max_pool_{label}", largest if dilation == [1] * n else lambda x: where(x)[0], x, **attrs)
        out.case("max_pool_with_indices", f"max_pool_with_indices_{label}", where, x, **attrs)
        total = lambda x: lax.reduce_window(x, 0.0, lax.add, size, step, pad, window_dilation=spread)
        if dilation == [1] * n:
            for include in (True, False):
                inside = np.ones((1, 1, *x_shape[2:]), F32)
                if include:
                    inside = np.pad(inside, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=1)
                    beyond = [(0, 0), (0, 0), *((0, fits[i][1] - padding[i]) for i in range(n))]
                else:
                    beyond = pad
                count = np.asarray(lax.reduce_window(jnp.asarray(inside), 0.0, lax.add, size, step, beyond))
                mean = lambda x, c=count: total(x) / c
                out.case("avg_pool", f"avg_pool_{label}_{include}", mean, draw(label, x_shape), count_include_pad=include, **attrs)
            divided = lambda x: total(x) / 5
            out.case("avg_pool", f"avg_pool_{label}_divisor", divided, draw(label, x_shape), divisor=5, **attrs)
    # Windows with ties next to padding. The first element gets the gradient.
    for window in ([2], [3], [2, 2], [3, 2], [4, 2], [2, 3], [3, 3], [2, 1, 2], [2, 2, 1], [3, 1, 2], [2, 2, 2]):
        n = len(window)
        padding, of = [k // 2 for k in window], (2, 2, *[5, 5, 4][:n])
        pad = [(0, 0), (0, 0), *((p, p) for p in padding)]
        for stride in (1, 2):
            largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, *window), (1, 1, *[stride] * n), pad)
            name = f"max_pool_padded_ties_{'x'.join(map(str, window))}_by_{stride}"
            kink = "the first of a tie has the derivative"
            out.case("max_pool", name, largest, integers(name, of, 0, 2).astype(F32), kink=kink, window=window, stride=[stride] * n, padding=padding)
    square = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), [(0, 0), (0, 0), (1, 1), (1, 1)])
    crossed = np.array([[[[0, 1], [1, 0]]]], F32)
    out.case("max_pool", "max_pool_padded_cross", square, crossed, kink=kink, window=[2, 2], stride=[1, 1], padding=[1, 1])
    half = distinct("half", (1, 1, 6, 6)).astype(BF16)
    plain = {"window": [2, 2], "stride": [2, 2], "padding": [0, 0]}
    out.case("max_pool", "max_pool_bf16", largest_2x2, half, **plain)
    out.case("max_pool", "max_pool_i32", lambda x: lax.reduce_window(x, I32(-(2**31)), lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), integers("pool", (1, 1, 4, 4)), **plain)
    mean = lambda x: (lax.reduce_window(x.astype(F32), 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4).astype(BF16)
    out.case("avg_pool", "avg_pool_bf16", mean, half, **plain)
    out.write()
