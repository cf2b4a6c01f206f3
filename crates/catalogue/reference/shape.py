"""Operations on shapes, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BOOL, draw, F32, Family, I32, INF, NAN


def shape():
    out = Family("shape")
    for label, a, b in [
        ("matrix", (3, 4), [2, 6]), ("flat", (2, 3, 2), [12]), ("scalar", (1, 1), []), ("from_scalar", (), [1, 1, 1]),
        ("empty", (0, 3), [3, 0, 2]), ("same", (2, 3), [2, 3]),
    ]:  # fmt: skip
        out.case("reshape", f"reshape_{label}", lambda x, b=b: jnp.reshape(x, b), draw(label, a), shape=b)
    for label, a, axes in [
        ("matrix", (3, 4), [1, 0]), ("rank_3", (2, 3, 4), [2, 0, 1]), ("negative", (2, 3, 4), [0, -1, 1]), ("same", (2, 3), [0, 1]),
        ("scalar", (), []), ("empty", (0, 2, 3), [2, 0, 1]), ("rank_4", (2, 1, 3, 2), [3, 1, 0, 2]),
    ]:  # fmt: skip
        out.case("transpose", f"transpose_{label}", lambda x, p=axes: jnp.transpose(x, p), draw(label, a), axes=axes)
    for label, a, b in [
        ("row", (3,), [2, 3]), ("column", (2, 1), [2, 3]), ("scalar", (), [2, 2]), ("same", (2, 3), [2, 3]),
        ("size_1_to_0", (1, 3), [0, 3]), ("inner", (2, 1, 3), [4, 2, 2, 3]), ("scalar_to_scalar", (), []),
    ]:  # fmt: skip
        out.case("broadcast_to", f"broadcast_to_{label}", lambda x, b=b: jnp.broadcast_to(x, b), draw(label, a), shape=b)
    for label, shapes, axis in [
        ("rows", [(2, 3), (1, 3), (3, 3)], 0), ("last", [(2, 3), (2, 2)], -1), ("one", [(2, 3)], 1),
        ("with_empty", [(2, 0), (2, 3), (2, 0)], 1), ("middle", [(2, 1, 2), (2, 2, 2)], -2), ("all_empty", [(0,), (0,)], 0),
    ]:  # fmt: skip
        xs = [draw(f"{label}{i}", s) for i, s in enumerate(shapes)]
        out.case("concatenate", f"concatenate_{label}", lambda *xs, a=axis: jnp.concatenate(xs, a), *xs, axis=axis)
    for label, a, start, limit, strides in [
        ("inner", (4, 5), [1, 2], [3, 5], [1, 1]), ("strided", (7, 6), [1, 0], [7, 6], [2, 3]), ("all", (2, 3), [0, 0], [2, 3], [1, 1]),
        ("nothing", (4, 3), [2, 0], [2, 3], [1, 1]), ("uneven", (8,), [1], [8], [3]), ("beyond", (5,), [3], [4], [9]),
        ("empty", (0, 3), [0, 1], [0, 3], [1, 1]), ("scalar", (), [], [], []),
    ]:  # fmt: skip
        run = lambda x, s=start, l=limit, t=strides: lax.slice(x, s, l, t)
        out.case("slice", f"slice_{label}", run, draw(label, a), start=start, limit=limit, strides=strides)
    # The padding value is the second input, a scalar, with its own gradient.
    for label, a, low, high, interior in [
        ("edges", (2, 3), [1, 0], [2, 3], [0, 0]), ("interior", (2, 3), [0, 0], [0, 0], [1, 2]), ("both", (3,), [2], [1], [1]),
        ("crop", (4, 5), [-1, 0], [-1, -2], [0, 0]), ("crop_interior", (3, 3), [-1, 1], [1, -2], [1, 0]),
        ("nothing", (2, 2), [0, 0], [0, 0], [0, 0]), ("empty", (0, 2), [1, 1], [2, 0], [0, 0]), ("scalar", (), [], [], []),
        ("one_interior", (1, 2), [0, 0], [0, 1], [3, 1]),
    ]:  # fmt: skip
        run = lambda x, v, c=list(zip(low, high, interior)): lax.pad(x, v, c)
        value = draw(label + "/value", ())
        out.case("pad", f"pad_{label}", run, draw(label, a), value, low=low, high=high, interior=interior)
    for label, a, axes in [
        ("rows", (3, 2), [0]), ("both", (3, 4), [0, 1]), ("last", (2, 3, 2), [-1]), ("none", (3,), []), ("empty", (0, 3), [0]), ("one", (1, 3), [0]),
    ]:  # fmt: skip
        out.case("reverse", f"reverse_{label}", lambda x, a=axes: jnp.flip(x, a), draw(label, a), axes=axes)

    inputs = {
        # 1 + 2^-8 and 1 + 3*2^-8 are halfway between two bf16 numbers: ties round to even.
        "f32": np.array([0.0, -0.0, 1.5, -1.5, 2.999, -2.999, 0.1, 1 + 2**-8, 1 + 3 * 2**-8, 65519, 1e9, -1e9], F32),
        "i32": np.array([0, 1, -1, 16777217, -16777219, 2147483647, -2147483648, 200], I32),
        "bool": np.array([True, False, True], BOOL),
        "u8": np.array([0, 1, 127, 128, 255], np.uint8),
    }
    targets = {"f32": F32, "bf16": jnp.bfloat16, "f16": np.float16, "i32": I32, "bool": BOOL}
    for source, x in inputs.items():
        for to, dtype in targets.items():
            if source != to:
                run = lambda x, d=dtype: lax.convert_element_type(x, d)
                out.case("convert", f"convert_{source}_to_{to}", run, x, to=to)
    special = np.array([NAN, INF, -INF, 3e38, 3.4e38, 65520.0, 1e-30], F32)
    for to in ("bf16", "f16", "bool"):
        run = lambda x, d=targets[to]: lax.convert_element_type(x, d)
        out.case("convert", f"convert_special_to_{to}", run, special, gradient=False, to=to)
    for through in ("bf16", "f16"):
        run = lambda x, d=targets[through]: x.astype(d).astype(F32)
        x = draw(through, (3, 4)) * 10
        out.case("convert_through", f"convert_through_{through}", run, x, through=through)
    out.write()
