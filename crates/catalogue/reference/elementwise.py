"""Elementwise operations, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BOOL, broadcasting, BROADCASTS, draw, F32, Family, I32, INF, integers, NAN, rng, SHAPES, SPECIAL


def elementwise():
    out = Family("elementwise")
    # "remainder" is StableHLO's, with the sign of the dividend, as in C. "divide" of integers rounds toward zero.
    binary = {
        "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "maximum": lax.max,
        "minimum": lax.min, "power": lax.pow, "remainder": lax.rem,
    }  # fmt: skip
    for op, f in binary.items():
        f = broadcasting(f)

        def right(name, shape):
            if op in ("divide", "remainder"):  # far from 0, of both signs
                value = draw(name, shape, 0.5, 2.5)
                return value * np.where(rng(name + "/sign").random(shape) < 0.5, -1, 1).astype(F32)
            return draw(name, shape)

        bounds = (0.2, 3.0) if op == "power" else (-3.0, 3.0)
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name + "/a", shape, *bounds), right(name + "/b", shape))
        for label, (a, b) in BROADCASTS.items():
            name = f"{op}_broadcast_{label}"
            out.case(op, name, f, draw(name + "/a", a, *bounds), right(name + "/b", b))
        pairs = np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
        if op not in ("remainder", "power"):  # corner cases of XLA that differ between backends
            out.case(op, f"{op}_special", f, *[p.ravel() for p in pairs], gradient=False)
        if op != "power":
            b = integers(op + "/b", (4, 1), 1, 9) * np.array([[1], [-1], [1], [-1]], I32)
            out.case(op, f"{op}_i32", f, integers(op + "/a", (4, 6)), b)
    whole = np.array([[2, -3, 0, 1, -1, 7]], I32), np.array([[0], [1], [2], [5], [40]], I32)
    out.case("power", "power_i32", broadcasting(jnp.power), *whole)
    bytes_ = np.array([2, 3, 200, 0, 255], np.uint8), np.array([7, 5, 2, 0, 3], np.uint8)
    out.case("power", "power_u8", jnp.power, *bytes_)
    ties = np.array([1, 2, -1, 0], F32), np.array([1, 3, -1, -2], F32)
    for op in ("maximum", "minimum"):
        out.case(op, f"{op}_ties", binary[op], *ties, kink="the derivative of a tie is shared")

    unary = {
        "negate": (lax.neg, -2, 2), "abs": (lax.abs, -2, 2), "sign": (lax.sign, -2, 2), "exp": (lax.exp, -4, 4),
        "expm1": (lax.expm1, -2, 2), "log": (lax.log, 0.05, 9), "log1p": (lax.log1p, -0.9, 4),
        "sqrt": (lax.sqrt, 0.05, 9), "rsqrt": (lax.rsqrt, 0.05, 9), "tanh": (lax.tanh, -4, 4),
        "logistic": (lax.logistic, -6, 6), "floor": (lax.floor, -5, 5), "ceil": (lax.ceil, -5, 5),
        "sin": (lax.sin, -6, 6), "cos": (lax.cos, -6, 6), "erf_inv": (lax.erf_inv, -0.99, 0.99), "erf": (lax.erf, -4, 4),
    }  # fmt: skip
    small = np.array([1e-3, -1e-3, 1e-5, -1e-5, 1e-7, -1e-7], F32)
    for op, (f, low, high) in unary.items():
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name, shape, low, high))
        if op in ("expm1", "log1p", "tanh", "erf_inv", "erf"):
            out.case(op, f"{op}_near_0", f, small)
        if op not in ("sin", "cos"):
            out.case(op, f"{op}_special", f, SPECIAL, gradient=False)
    for op in ("negate", "abs", "sign"):
        out.case(op, f"{op}_i32", unary[op][0], integers(op, (7,)))
    for op in ("abs", "sign"):
        out.case(op, f"{op}_at_0", unary[op][0], np.zeros(2, F32), kink="the slope changes at 0")

    for direction, f in {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}.items():
        f, name = broadcasting(f), f"compare_{direction}"
        values = np.array([-1, 0, 1, 2], F32)
        out.case("compare", name, f, values[:, None], values, direction=direction)
        special = np.array([NAN, INF, -INF, 0.0, -0.0], F32)
        out.case("compare", name + "_special", f, special[:, None], special, direction=direction)
        out.case("compare", name + "_i32", f, integers(name, (3, 4), -2, 3), np.array(0, I32), direction=direction)
        out.case("compare", name + "_bool", f, np.array([0, 0, 1, 1], BOOL), np.array([0, 1, 0, 1], BOOL), direction=direction)
        out.case("compare", name + "_empty", f, np.zeros((0, 2), F32), np.zeros((2,), F32), direction=direction)

    where = {
        "same": ((3, 4), (3, 4), (3, 4)), "broadcast": ((3, 1), (4,), ()), "scalar": ((), (), ()), "empty": ((0,), (0,), (1,)),
        "one_predicate": ((), (2, 3), (3,)),
    }  # fmt: skip
    for label, (p, a, b) in where.items():
        name = f"select_{label}"
        out.case("select", name, jnp.where, rng(name).random(p) < 0.5, draw(name + "/a", a), draw(name + "/b", b))
    mask = rng("select_numbers").random((2, 3)) < 0.5
    out.case("select", "select_number_or_tensor", lambda p, b: jnp.where(p, 1.5, b), mask, draw("select_number", (3,)), on_true=1.5)
    out.case("select", "select_tensor_or_number", lambda p, a: jnp.where(p, a, -2), mask, integers("select_number", (2, 1)), on_false=-2)
    out.case("select", "select_numbers", lambda p: jnp.where(p, F32(1), F32(0)), mask, on_true=1, on_false=0)
    out.write()
