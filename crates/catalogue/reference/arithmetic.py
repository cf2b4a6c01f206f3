"""Elementwise arithmetic beyond the four basic operations, with JAX: rounding, division that rounds down, clamping, and the
representation of floats. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, broadcasting, BROADCASTS, draw, F32, F64, Family, I32, INF, integers, NAN, rng, SHAPES, SPECIAL, U8

F16 = np.float16
TIES = np.array([0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.4999998, -0.2, 8388609.0, -0.0], F32)


def away_from_0(name, shape):
    sign = np.where(rng(name + "/sign").random(shape) < 0.5, -1, 1).astype(F32)
    return draw(name, shape, 0.5, 2.5) * sign


def signs(name, shape):
    """Nonzero integers of both signs."""
    return integers(name, shape, 1, 9) * np.where(rng(name + "/sign").random(shape) < 0.5, -1, 1).astype(I32)


def arithmetic():
    out = Family("arithmetic")
    unary = {
        "square": (jnp.square, -3, 3), "reciprocal": (lambda x: 1 / x, 0.2, 4), "cbrt": (lax.cbrt, 0.1, 9),
        "trunc": (jnp.trunc, -5, 5), "frac": (lambda x: x - jnp.trunc(x), -5, 5),
        "round": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), -5, 5),
        "round_half_away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), -5, 5),
        "relu": (lambda x: jnp.where(x <= 0, jnp.zeros_like(x), x), -2, 2),
    }  # fmt: skip
    for op, (f, low, high) in unary.items():
        for label, shape in SHAPES.items():
            out.case(op, f"{op}_{label}", f, draw(f"{op}_{label}", shape, low, high))
        for dtype in (BF16, F16):
            name = f"{op}_{np.dtype(dtype).name}"
            out.case(op, name, f, draw(name, (5,), low, high).astype(dtype))
        out.case(op, f"{op}_f64", f, draw(f"{op}_f64", (5,), low, high).astype(F64), x64=True)
        out.case(op, f"{op}_special", f, SPECIAL, gradient=False)
    for op in ("trunc", "frac", "round", "round_half_away"):
        out.case(op, f"{op}_ties", unary[op][0], TIES, gradient=False)
    out.case("square", "square_i32", jnp.square, integers("square_i32", (5,)))
    out.case("cbrt", "cbrt_negative", lax.cbrt, np.array([-8, -27, -0.125], F32))

    hypot = lambda a, b: jnp.sqrt(a * a + b * b)
    binary = {"hypot": (hypot, draw), "copysign": (jnp.copysign, draw), "floor_mod": (jnp.mod, away_from_0)}
    binary |= {"floor_divide": (jnp.floor_divide, away_from_0)}
    for op, (f, right) in binary.items():
        differentiable = op != "floor_divide"  # JAX differentiates the quotient, but differences are 0
        f = broadcasting(f)
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name + "/a", shape, -5, 5), right(name + "/b", shape), gradient=differentiable)
        for label, (a, b) in BROADCASTS.items():
            name = f"{op}_broadcast_{label}"
            out.case(op, name, f, draw(name + "/a", a, -5, 5), right(name + "/b", b), gradient=differentiable)
        for dtype in (BF16, F16):
            name = f"{op}_{np.dtype(dtype).name}"
            a, b = draw(name + "/a", (5,), -5, 5).astype(dtype), right(name + "/b", (5,)).astype(dtype)
            out.case(op, name, f, a, b, gradient=differentiable)
    infinite = np.array([INF, NAN, -INF, NAN, INF], F32), np.array([NAN, -INF, 3, 1, -INF], F32)
    out.case("hypot", "hypot_infinite", jnp.hypot, *infinite, gradient=False)
    zeros = np.array([0.0, -0.0, 0.0, -0.0, -2, -0.0], F32), np.array([3, 3, -3, -3, -0.0, 0.0], F32)
    out.case("copysign", "copysign_at_0", jnp.copysign, *zeros, kink="the slope of a magnitude changes at 0")
    large = np.array([3e30, 3e-30, INF, 0, -3], F32), np.array([4e30, 4e-30, 1, 0, INF], F32)
    out.case("hypot", "hypot_far", jnp.hypot, *large, gradient=False)
    bits = np.array([0.0, -0.0, INF, -INF, 2.5, -2.5, NAN], F32)
    out.case("copysign", "copysign_special", jnp.copysign, bits[:, None], np.array([0.0, -0.0, -INF, 3], F32), gradient=False)
    for op, f in {"floor_mod": jnp.mod, "floor_divide": jnp.floor_divide}.items():
        out.case(op, f"{op}_i32", f, integers(op + "/a", (4, 6)), signs(op + "/b", (4, 1)))
        for dtype in (np.int8, np.int64):
            name, x64 = f"{op}_{np.dtype(dtype).name}", dtype == np.int64
            a, b = integers(name + "/a", (9,)).astype(dtype), signs(name + "/b", (9,)).astype(dtype)
            out.case(op, name, f, a, b, x64=x64)
        out.case(op, f"{op}_u8", f, integers(op + "/ua", (9,), 0, 255).astype(U8), integers(op + "/ub", (9,), 1, 9).astype(U8))
        exact = np.array([6, -6, 6, -6, 0, 7.5, -7.5], F32), np.array([3, 3, -3, -3, 2, 0.1, 0.1], F32)
        out.case(op, f"{op}_exact", f, *exact, gradient=False)

    for label, (x, low, high) in {
        "matrix": ((3, 5), (3, 5), (3, 5)), "numbers": ((7,), (), ()), "row": ((2, 3), (3,), (2, 1)), "empty": ((0, 3), (), (3,)),
        "one": ((1, 1), (1, 1), (1, 1)), "scalar": ((), (), ()), "wider": ((3,), (2, 1), ()),
    }.items():  # fmt: skip
        name = f"clamp_{label}"
        clamp = lambda x, low, high: lax.clamp(*jnp.broadcast_arrays(low, x, high))
        tensors = draw(name, x, -3, 3), draw(name + "/low", low, -2, -0.5), draw(name + "/high", high, 0.5, 2)
        out.case("clamp", name, clamp, *tensors)
        if label in ("matrix", "numbers"):
            out.case("clamp", f"{name}_bf16", clamp, *[t.astype(BF16) for t in tensors])
    full = lambda x, low, high: lax.clamp(jnp.full_like(x, low), x, jnp.full_like(x, high))
    edges = np.array([-1, 1, 0, NAN, INF, -INF, 2, -2], F32)
    kink = "the bounds themselves"
    out.case("clamp", "clamp_edges", full, edges, np.array(-1, F32), np.array(1, F32), gradient=False)
    out.case("clamp", "clamp_ties", lambda x, a, b: lax.clamp(a, x, b), edges[:2], -np.ones(2, F32), np.ones(2, F32), kink=kink)
    out.case("clamp", "clamp_i32", full, integers("clamp_i32", (9,)), np.array(-3, I32), np.array(4, I32))

    for label, (a, b, w) in {
        "matrix": ((3, 5), (3, 5), (3, 5)), "number": ((4,), (4,), ()), "broadcast": ((3, 1), (4,), (2, 1, 1)), "empty": ((0,), (0,), ()),
        "scalar": ((), (), ()),
    }.items():  # fmt: skip
        name = f"lerp_{label}"
        tensors = draw(name + "/a", a), draw(name + "/b", b), draw(name + "/w", w, 0, 1)
        out.case("lerp", name, lambda a, b, w: a + w * (b - a), *tensors)
        if label == "matrix":
            out.case("lerp", f"{name}_bf16", lambda a, b, w: a + w * (b - a), *[t.astype(BF16) for t in tensors])

    special = np.array([NAN, INF, -INF, 1.5, -0.0, 0.0, -2.0], F32)
    to_num = lambda x, nan=0.0, posinf=None, neginf=None: jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)
    for dtype in (F32, BF16, F16):
        name = np.dtype(dtype).name
        values = special.astype(dtype)
        out.case("nan_to_num", f"nan_to_num_{name}", to_num, values, nan=0.0)
        some = lambda x: to_num(x, 2.0, 3.0, -4.0)
        out.case("nan_to_num", f"nan_to_num_{name}_given", some, values, nan=2.0, posinf=3.0, neginf=-4.0)
        for op, f in {"is_nan": jnp.isnan, "is_inf": jnp.isinf, "is_finite": jnp.isfinite, "signbit": jnp.signbit}.items():
            out.case(op, f"{op}_{name}", f, values)
            out.case(op, f"{op}_{name}_empty", f, np.zeros((2, 0), dtype))
        if dtype != F16:
            ends = np.array([1, -1, 0, -0.0, 5, 1, INF, 3], F32).astype(dtype), np.array([2, 2, 1, 1, 5, -INF, 0, NAN], F32).astype(dtype)
            out.case("nextafter", f"nextafter_{name}", lax.nextafter, *ends, gradient=False)
    out.case("is_nan", "is_nan_scalar", jnp.isnan, np.array(NAN, F32))
    out.case("signbit", "signbit_i32", jnp.signbit, np.array([3, -3, 0], I32))
    out.case("nextafter", "nextafter_f64", lax.nextafter, np.ones((1, 2)), np.array([[2.0, 0.0]]), gradient=False, x64=True)
    out.write()
