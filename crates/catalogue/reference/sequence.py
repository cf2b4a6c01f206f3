"""Evenly spaced numbers and masks, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np

from common import BF16, BOOL, draw, F32, Family, I32, I64, integers, NAN, tensor, U8

KINDS = {"f32": F32, "i32": I32, "bf16": BF16, "u8": U8, "i8": np.int8, "i64": I64, "f64": np.float64, "u32": np.uint32}


def sequence():
    out = Family("sequence")
    for dtype, start, stop, step in [
        ("i32", 0, 7, 2), ("i32", 7, 0, -3), ("i32", 3, 3, 1), ("i32", 5, 2, 1), ("f32", 0, 1, 0.25), ("f32", 1, -1, -0.5), ("f32", -2, 2.1, 1),
        ("bf16", 0, 20, 3), ("u8", 250, 0, -50), ("i8", -100, 100, 40), ("i64", 0, 2**40, 2**38), ("u32", 4294967295, 0, -2147483648), ("f64", 0, 1, 0.1),
    ]:  # fmt: skip
        value = np.arange(start, stop, step, dtype=None if dtype in ("u8", "i8", "u32") else np.float64).astype(KINDS[dtype])
        out.add("arange_step", f"arange_step_{dtype}_{start}_{stop}_{step}", {"dtype": dtype, "start": start, "stop": stop, "step": step}, [], [tensor(value)])
    for dtype, start, stop, n in [("f32", 0, 1, 5), ("f32", -1, 2.5, 8), ("f32", 3, -3, 7), ("f32", 2, 5, 1), ("f32", 2, 5, 0), ("f32", 1, 1, 3), ("f32", 0.1, 0.7, 50), ("bf16", 0, 10, 11), ("f64", 0, 1, 7)]:
        run = lambda s=start, e=stop, n=n, t=KINDS[dtype]: jnp.linspace(s, e, n, dtype=t)
        out.case("linspace", f"linspace_{dtype}_{start}_{stop}_{n}", run, x64=dtype == "f64", dtype=dtype, start=start, stop=stop, n=n)
    for label, sizes in {"two": (2, 3), "three": (2, 1, 3), "one": (4,), "empty": (0, 2)}.items():
        xs = [draw(f"{label}{i}", (n,)) for i, n in enumerate(sizes)]
        out.case("meshgrid", f"meshgrid_{label}", lambda *xs: tuple(jnp.meshgrid(*xs, indexing="ij")), *xs)

    for label, shape, mask in [("same", (3, 4), (3, 4)), ("row", (3, 4), (4,)), ("column", (3, 4), (3, 1)), ("mask_larger", (4,), (2, 4)), ("scalar", (), ()), ("empty", (0, 3), (3,))]:
        run = lambda x, m: jnp.where(m, jnp.float32(-2.5), x)
        out.case("masked_fill", f"masked_fill_{label}", run, draw(label, shape), integers(label, mask, 0, 2).astype(BOOL), value=-2.5)
    special = np.array([1, NAN, 3], F32)
    out.case("masked_fill", "masked_fill_nan", lambda x, m: jnp.where(m, 0, x), special, np.isnan(special), gradient=False, value=0)
    for label, shape, size in [("vector", (9,), 4), ("vector_all", (9,), 9), ("beyond", (5,), 8), ("matrix", (3, 4), 5), ("rank_3", (2, 3, 2), 7), ("none", (4,), 0), ("empty", (0, 3), 2)]:
        run = lambda x, n=size: jnp.stack(jnp.nonzero(x, size=n, fill_value=-1), -1).astype(I32)
        out.case("nonzero_static", f"nonzero_static_{label}", run, integers(label, shape, 0, 2), size=size, fill=-1)
    out.case("nonzero_static", "nonzero_static_f32", lambda x: jnp.stack(jnp.nonzero(x, size=3, fill_value=7), -1).astype(I32), np.array([0, NAN, -0.0, 2], F32), gradient=False, size=3, fill=7)
    out.write()
