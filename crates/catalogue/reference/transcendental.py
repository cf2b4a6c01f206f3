"""Trigonometric, hyperbolic and special functions, exponentials and logarithms to other bases, with JAX. `generate.py` runs
it."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from common import BF16, broadcasting, BROADCASTS, draw, F32, F64, Family, INF, NAN, SHAPES, SPECIAL

F16 = np.float16


def transcendental():
    out = Family("transcendental")
    unary = {
        "tan": (lax.tan, -1.4, 1.4), "asin": (lax.asin, -0.95, 0.95), "acos": (lax.acos, -0.95, 0.95), "atan": (lax.atan, -5, 5),
        "sinh": (lax.sinh, -4, 4), "cosh": (lax.cosh, -4, 4), "asinh": (lax.asinh, -5, 5), "acosh": (lax.acosh, 1.1, 9),
        "atanh": (lax.atanh, -0.95, 0.95), "exp2": (jnp.exp2, -4, 4), "log2": (jnp.log2, 0.05, 9), "log10": (jnp.log10, 0.05, 9),
        "logit": (lambda x: jnp.log(x) - jnp.log1p(-x), 0.02, 0.98), "erfc": (lax.erfc, -3, 3), "lgamma": (lax.lgamma, 0.1, 9),
        "digamma": (lax.digamma, 0.1, 9), "sinc": (jnp.sinc, -3, 3),
    }  # fmt: skip
    # JAX's derivative of sinc has few digits near 0: the case near 0 is of f64, and 16 bits are computed as f32.
    of_f32 = lambda f: lambda x: f(x.astype(F32)).astype(x.dtype)
    for op, (f, low, high) in unary.items():
        for label, shape in SHAPES.items():
            out.case(op, f"{op}_{label}", f, draw(f"{op}_{label}", shape, low, high))
        for dtype in (BF16, F16):
            name = f"{op}_{np.dtype(dtype).name}"
            out.case(op, name, of_f32(f) if op == "sinc" else f, draw(name, (5,), low, high).astype(dtype))
        out.case(op, f"{op}_f64", f, draw(f"{op}_f64", (5,), low, high).astype(F64), x64=True)
        if op not in ("tan", "digamma"):
            out.case(op, f"{op}_special", f, SPECIAL, gradient=False)
    small = np.array([1e-3, -1e-3, 1e-5, -1e-5, 1e-7, -1e-7], F32)
    for op in ("tan", "asin", "atan", "sinh", "asinh", "atanh"):
        out.case(op, f"{op}_near_0", unary[op][0], small)
    out.case("sinc", "sinc_near_0", jnp.sinc, np.array([0, 1e-2, -0.1, 0.2, 0.31, 0.32, -0.33], F64), x64=True)
    out.case("erfc", "erfc_far", lax.erfc, np.array([4, 5, 8], F32))
    # Subnormal numbers.
    subnormal = np.array([1e-40, 1e-45, -1e-40, 3e-39, 1e-38, 1.2e-38, -1e-45, 0, -0.0], F32)
    out.case("lgamma", "lgamma_subnormal", lax.lgamma, subnormal, gradient=False)
    out.case("lgamma", "lgamma_subnormal_bf16", lambda x: lax.lgamma(x.astype(F32)).astype(BF16), subnormal.astype(BF16), gradient=False)
    out.case("lgamma", "lgamma_subnormal_f16", lambda x: lax.lgamma(x.astype(F32)).astype(F16), np.array([6e-8, 1e-6, -3e-5, 7e-5], F16), gradient=False)
    negative = np.array([-0.5, -1.25, -2.75], F32)
    out.case("lgamma", "lgamma_negative", lax.lgamma, negative, gradient=False)
    out.case("digamma", "digamma_negative", lax.digamma, negative, gradient=False)
    for n in (1, 2, 3):
        for label, shape in {"vector": (5,), "scalar": (), "empty": (0,)}.items():
            name = f"polygamma_{n}_{label}"
            out.case("polygamma", name, lambda x: special.polygamma(n, x), draw(name, shape, 0.3, 5), order=n)
    out.case("polygamma", "polygamma_0", lambda x: lax.digamma(x), draw("polygamma_0", (4,), 0.3, 5), order=0)

    positive = lambda name, shape: draw(name, shape, 0.1, 4)
    binary = {"atan2": (lax.atan2, draw), "logaddexp": (jnp.logaddexp, draw), "logaddexp2": (jnp.logaddexp2, draw)}
    binary |= {"xlogy": (special.xlogy, positive)}
    for op, (f, right) in binary.items():
        f = broadcasting(f)
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name + "/a", shape), right(name + "/b", shape))
        for label, (a, b) in BROADCASTS.items():
            name = f"{op}_broadcast_{label}"
            out.case(op, name, f, draw(name + "/a", a), right(name + "/b", b))
        for dtype in (BF16, F16):
            name = f"{op}_{np.dtype(dtype).name}"
            out.case(op, name, f, draw(name + "/a", (5,)).astype(dtype), right(name + "/b", (5,)).astype(dtype))
    for op in ("logaddexp", "logaddexp2"):
        far = np.array([1000, -1000, INF, -INF, -INF, NAN, 2, 0], F32), np.array([1, -1000, INF, -INF, 3, 1, 2, 0], F32)
        out.case(op, f"{op}_far", binary[op][0], *far, gradient=False)
        ends = np.array([500, -500, -INF, 1], F32), np.array([1, -500, 3, 1], F32)
        out.case(op, f"{op}_ends", binary[op][0], *ends, kink="an infinite operand")
    zeros = np.array([0, 0, 0, 2, 0], F32), np.array([0, 2, 0.5, 3, -1], F32)
    out.case("xlogy", "xlogy_zeros", lambda x, y: special.xlogy(x, y), *zeros, gradient=False)
    signs = np.array([0.0, -0.0, 1, -1, INF, -INF], F32)
    out.case("atan2", "atan2_special", broadcasting(lax.atan2), signs[:, None], signs, gradient=False)
    out.write()
