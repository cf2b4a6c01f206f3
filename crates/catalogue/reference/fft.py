"""Fourier transforms, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np

from common import draw, F64, Family
from complex_numbers import complex_of


def fft():
    out = Family("fft")
    for label, shape, axes in [
        ("vector", (8,), [0]), ("odd", (5,), [-1]), ("batch", (3, 4), [-1]), ("first", (4, 3), [0]), ("two", (3, 4), [-2, -1]), ("three", (2, 3, 4), [0, 1, 2]),
        ("middle", (2, 3, 2), [1]), ("outer", (3, 2, 4), [0, -1]), ("one", (1, 1), [1]), ("none", (0, 4), [1]),
    ]:  # fmt: skip
        z, x = complex_of(label, shape), draw(label + "/real", shape)
        out.case("fft", f"fft_{label}", lambda z: jnp.fft.fftn(z, axes=axes), z, axes=axes)
        out.case("ifft", f"ifft_{label}", lambda z: jnp.fft.ifftn(z, axes=axes), z, axes=axes)
        out.case("fft", f"fft_{label}_real", lambda x: jnp.fft.fftn(x.astype(np.complex64), axes=axes), x, axes=axes)
        out.case("rfft", f"rfft_{label}", lambda x: jnp.fft.rfftn(x, axes=axes), x, axes=axes)
        for n in {2 * (shape[axes[-1]] - 1), 2 * shape[axes[-1]] - 1} - {0}:
            sizes = [shape[a] for a in axes[:-1]] + [n]
            out.case("irfft", f"irfft_{label}_{n}", lambda z: jnp.fft.irfftn(z, s=sizes, axes=axes), z, axes=axes, n=n)
    out.case("rfft", "rfft_last_named", lambda x: jnp.fft.rfftn(x, axes=[1, 0]), draw("rfft_last_named", (4, 3)), axes=[1, 0])
    out.case("rfft", "rfft_f64", jnp.fft.rfft, draw("rfft_f64", (6,)).astype(F64), x64=True, axes=[0])
    out.write()
