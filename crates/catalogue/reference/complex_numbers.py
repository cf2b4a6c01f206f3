"""Complex numbers, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import broadcasting, draw, F32, Family, I32


def complex_of(name, shape, low=-2.0, high=2.0):
    return (draw(name, shape, low, high) + 1j * draw(name + "/imaginary", shape, low, high)).astype(np.complex64)


def complex_numbers():
    out = Family("complex_numbers")
    shapes = {"matrix": (2, 3), "scalar": (), "empty": (0, 2), "one": (1, 1)}
    for label, shape in shapes.items():
        name = f"complex_{label}"
        out.case("complex", name, lax.complex, draw(name + "/re", shape), draw(name + "/im", shape))
    out.case("complex", "complex_broadcast", broadcasting(lax.complex), draw("cb/re", (2, 1)), draw("cb/im", (3,)))
    wide = draw("c128/re", (3,)).astype(np.float64), draw("c128/im", (3,)).astype(np.float64)
    out.case("complex", "complex_f64", lax.complex, *wide, x64=True)
    unary = {
        "real": lax.real, "imag": lax.imag, "conj": jnp.conj, "angle": jnp.angle, "abs": lax.abs, "neg": lax.neg, "exp": lax.exp,
        "expm1": lax.expm1, "log": lax.log, "log1p": lax.log1p, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "sin": lax.sin,
        "cos": lax.cos, "tanh": lax.tanh, "sigmoid": lax.logistic, "square": jnp.square, "reciprocal": lambda z: 1 / z,
    }  # fmt: skip
    for function, f in unary.items():
        for label, shape in shapes.items():
            name = f"complex_{function}_{label}"
            # Away from the branch cut of logarithms and roots.
            z = complex_of(name, shape, 0.2, 1.8) * np.complex64(1j if function in ("sin", "cos") else 1)
            out.case("of_complex", name, f, z, function=function)
    for function in ("abs", "exp", "log"):
        name = f"complex128_{function}"
        out.case("of_complex", name, unary[function], complex_of(name, (3,), 0.2, 1.8).astype(np.complex128), x64=True, function=function)
    binary = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "pow": lax.pow}
    for function, f in binary.items():
        for label, (a, b) in {"matrix": ((2, 3), (2, 3)), "broadcast": ((2, 1), (3,)), "scalar": ((), ()), "empty": ((0, 2), (2,))}.items():
            name = f"complex_{function}_{label}"
            out.case("of_two_complex", name, broadcasting(f), complex_of(name + "/a", a, 0.3, 1.7), complex_of(name + "/b", b, 0.3, 1.7), function=function)
    a, b = np.array([1 + 2j, 1 - 2j, 0, 3], np.complex64), np.array([1 + 2j, 1 + 2j, -0.0, 3j], np.complex64)
    for function, f in {"eq": lax.eq, "ne": lax.ne}.items():
        out.case("of_two_complex", f"complex_{function}", f, a, b, function=function)
    for label, value in {
        "f32": draw("to/f32", (3,)), "i32": np.array([1, -2], I32), "bool": np.array([True, False]), "empty": np.zeros((0, 1), F32),
    }.items():  # fmt: skip
        out.case("to_complex", f"to_complex_{label}", lambda x: lax.convert_element_type(x, np.complex64), value)
    name = "complex_sum"
    out.case("of_complex", name, jnp.sum, complex_of(name, (2, 3)), function="sum")
    name = "complex_matmul"
    out.case("of_two_complex", name, jnp.matmul, complex_of(name + "/a", (2, 3)), complex_of(name + "/b", (3, 2)), function="matmul")
    mask = np.array([True, False, True])
    out.case("select_complex", "select_complex", jnp.where, mask, complex_of("select/a", (2, 3)), complex_of("select/b", (3,)))
    out.write()
