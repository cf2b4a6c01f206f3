"""Reading and writing single elements, points and slices by index, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, BOOL, distinct, draw, F32, Family, I32, I64, integers, rng

COMBINE = ["Set", "Add", "Mul", "Min", "Max"]
AT = {"Set": "set", "Add": "add", "Mul": "multiply", "Min": "min", "Max": "max"}


def different(name, shape, size, axis):
    """Indices along an axis without duplicates in a line, so that the order of writes does not matter."""
    lines = np.moveaxis(np.zeros(shape, I32), axis, -1)
    drawn = rng(name)
    for at in np.ndindex(lines.shape[:-1]):
        lines[at] = drawn.permutation(size)[: lines.shape[-1]]
    return np.moveaxis(lines, -1, axis)


def where(shape, axis, i):
    """The positions of elementwise indices, for `x.at`. Negative indices move out of range, since JAX counts them from the end."""
    at = list(jnp.indices(shape, sparse=True))
    at[axis] = jnp.where(i < 0, 2**30, i)
    return tuple(at)


def scatter():
    out = Family("scatter")
    for label, of, indices, axis in [
        ("rows", (4, 3), (2, 3), 0), ("last", (3, 5), (3, 2), -1), ("middle", (2, 4, 3), (2, 3, 3), 1), ("part", (4, 5), (2, 3), 1),
        ("vector", (6,), (4,), 0), ("one", (1, 1), (1, 1), 1), ("nothing", (3, 2), (0, 2), 0), ("empty_rows", (3, 0), (2, 0), 0),
        ("more", (2, 3), (5, 3), 0),
    ]:  # fmt: skip
        size, flat = of[axis], axis % len(of)
        i = integers(label, indices, 0, size)
        find = lambda x, i, a=flat: x.at[where(i.shape, a, i)].get(mode="fill", fill_value=np.nan)
        out.case("gather", f"gather_{label}", find, draw(label, of), i, axis=axis)
        for combine in COMBINE:
            once = combine == "Set" and indices[flat] <= size
            if combine == "Set" and not once:
                continue
            at = different(label, indices, size, flat) if once else i
            write = lambda x, i, u, a=flat, c=combine: getattr(x.at[where(i.shape, a, i)], AT[c])(u, mode="drop", unique_indices=c == "Mul")
            # JAX differentiates products only for indices that are declared unique.
            at = different(label, indices, size, flat) if combine == "Mul" and indices[flat] <= size else at
            gradient = combine != "Mul" or indices[flat] <= size
            updates = distinct(f"{label}/updates", indices) + F32(0.1)
            out.case("scatter", f"scatter_{combine}_{label}", write, draw(label, of), at, updates, axis=axis, combine=combine, gradient=gradient)
    outside = np.array([[0, 7, 2], [-1, 2, 1000000], [1, 0, -1000000]], I32)
    find = lambda x, i: x.at[where(i.shape, 1, i)].get(mode="fill", fill_value=np.nan)
    out.case("gather", "gather_outside", find, draw("outside", (3, 4)), outside, axis=1)
    for combine in COMBINE:
        write = lambda x, i, u, c=combine: getattr(x.at[where(i.shape, 1, i)], AT[c])(u, mode="drop", unique_indices=c == "Mul")
        updates = distinct("outside/updates", (3, 3)) + F32(0.1)
        out.case("scatter", f"scatter_{combine}_outside", write, draw("outside", (3, 4)), outside, updates, axis=1, combine=combine)
    ties = np.array([3.0, 1.0], F32), np.array([0, 0, 0, 1], I32), np.array([3.0, 3.0, 2.0, 1.0], F32)
    for combine in ("Min", "Max"):
        write = lambda x, i, u, c=combine: getattr(x.at[i], AT[c])(u)
        out.case("index_reduce", f"index_reduce_{combine}_ties", write, *ties, axis=0, combine=combine, kink="elements that tie share")
    nan = np.array([np.nan, 1.0, 2.0], F32), np.array([0, 1, 2], I32), np.array([3.0, np.nan, 2.5], F32)
    for combine in COMBINE:
        write = lambda x, i, u, c=combine: getattr(x.at[i], AT[c])(u)
        out.case("index_reduce", f"index_reduce_{combine}_nan", write, *nan, axis=0, combine=combine, gradient=False)
        for label, of, indices, axis in [("rows", (5, 3), (4,), 0), ("columns", (3, 5), (2, 2), -1), ("scalar_index", (4, 2), (), 0)]:
            i = different(f"{label}/{combine}", (int(np.prod(indices)),), of[axis], 0).reshape(indices)
            place = (slice(None),) * (axis % len(of))
            write = lambda x, i, u, p=place, c=combine: getattr(x.at[(*p, i)], AT[c])(u, unique_indices=True)
            updates = distinct(f"{label}/updates", np.take(np.zeros(of), i, axis).shape) + F32(0.1)
            out.case("index_reduce", f"index_reduce_{combine}_{label}", write, draw(label, of), i, updates, axis=axis, combine=combine)
        often = integers("often", (30,), 0, 4), draw("often/updates", (30, 2), 0.5, 1.5)
        write = lambda x, i, u, c=combine: getattr(x.at[i], AT[c])(u)
        if combine not in ("Set", "Mul"):
            out.case("index_reduce", f"index_reduce_{combine}_often", write, draw("often", (4, 2)), *often, axis=0, combine=combine)
        for dtype in (I32, np.uint8, BF16):
            x, u = (rng(f"{k}{combine}").integers(1, 9, (4, 2)).astype(dtype) for k in "xu")
            name = f"index_reduce_{combine}_{np.dtype(dtype).name}"
            out.case("index_reduce", name, write, x, np.array([3, 1, 0, 2], I32), u, axis=0, combine=combine, gradient=combine != "Mul")
    # JAX does not differentiate products for repeated indices, so they are written out.
    multiply = lambda x, i, u: x * jnp.prod(jnp.where((i[:, None] == jnp.arange(4))[..., None], u[:, None], 1), 0)
    out.case("index_reduce", "index_reduce_Mul_often", multiply, draw("often", (4, 2)), *often, axis=0, combine="Mul")
    zeros = np.array([[0, 1, 2], [2, 0, 3], [3, 0, 0], [0, 0.5, 2], [1, 2, 0]], F32)
    at = np.array([0, 0, 1, 1, 3], I32)
    out.case("index_reduce", "index_reduce_Mul_zeros", multiply, draw("zeros", (4, 3)), at, zeros, axis=0, combine="Mul")
    for label, x in {"bool": rng("bool").random((3, 2)) < 0.5, "i64": integers("i64", (3, 2)).astype(I64)}.items():
        copy = lambda x, i, u: x.at[i].set(u, mode="drop")
        out.case("index_copy", f"index_copy_{label}", copy, x, np.array([2, 9], I32), ~x[:2], axis=0, x64=label == "i64")
    out.case("index_copy", "index_copy_rows", lambda x, i, u: x.at[i].set(u), draw("copy", (4, 3)), np.array([2, 0], I32), draw("copy/updates", (2, 3)), axis=0)

    for label, of, indices, axis in [
        ("same", (3, 4), (3, 2), 1), ("of_broadcast", (1, 4), (3, 2), 1), ("indices_broadcast", (3, 4), (1, 2), -1),
        ("both", (2, 1, 4), (1, 3, 2), 2), ("first", (4, 3), (2, 3), -2), ("nothing", (2, 3), (2, 0), 1),
    ]:  # fmt: skip
        i = integers(label, indices, 0, of[axis])
        find = lambda x, i, a=axis: jnp.take_along_axis(x, i, a)
        out.case("take_along_axis", f"take_along_axis_{label}", find, draw(label, of), i, axis=axis)
    whole = integers("whole", (3, 4), -9, 9)
    out.case("take_along_axis", "take_along_axis_of_i32", lambda x, i: jnp.take_along_axis(x, i, 1), whole, integers("of_i32", (3, 2), 0, 9), axis=1)

    for label, of, points in [
        ("points", (3, 4), (5, 2)), ("rows", (3, 4), (2, 2, 1)), ("one", (3, 4, 2), (3,)), ("boxes", (3, 4, 2), (4, 2)),
        ("nothing", (3, 2), (0, 2)), ("whole", (2, 3), (2, 0)), ("scalar", (), (2, 0)),
    ]:  # fmt: skip
        k = points[-1]
        i = np.stack([integers(f"{label}{a}", points[:-1], 0, of[a]) for a in range(k)], -1) if k else np.zeros(points, I32)
        places = lambda i, k=k: tuple(i[..., a] for a in range(k)) if k else (jnp.newaxis,)
        if k:
            find = lambda x, i, f=places: x[f(i)]
        else:
            find = lambda x, i, of=of: jnp.broadcast_to(x, (i.shape[0], *of))
        out.case("gather_nd", f"gather_nd_{label}", find, draw(label, of), i)
        if k:
            write = lambda x, i, u, f=places: x.at[f(i)].add(u)
            out.case("scatter_nd", f"scatter_nd_{label}", write, draw(label, of), i, draw(f"{label}/updates", find(np.zeros(of, F32), i).shape), combine="Add")
            largest = lambda x, i, u, f=places: x.at[f(i)].max(u)
            u = distinct(f"{label}/updates", find(np.zeros(of, F32), i).shape) + F32(0.1)
            out.case("scatter_nd", f"scatter_nd_max_{label}", largest, draw(label, of), i, u, combine="Max")
    beyond = np.array([[0, 1], [3, 0], [2, 9], [2, 3]], I32)
    find = lambda x, i: x.at[i[:, 0], i[:, 1]].get(mode="fill", fill_value=np.nan)
    out.case("gather_nd", "gather_nd_outside", find, draw("beyond", (3, 4)), beyond)
    for combine in COMBINE:
        write = lambda x, i, u, c=combine: getattr(x.at[i[:, 0], i[:, 1]], AT[c])(u, mode="drop", unique_indices=True)
        out.case("scatter_nd", f"scatter_nd_{combine}_outside", write, draw("beyond", (3, 4)), beyond, draw("beyond/updates", (4,)), combine=combine)

    for label, of, starts, sizes in [
        ("inner", (4, 5), (1, 2), [2, 2]), ("clamped", (4, 5), (3, -7), [2, 3]), ("far", (3,), (2147483647,), [2]), ("all", (2, 3), (1, 1), [2, 3]),
        ("nothing", (4, 2), (9, 0), [0, 2]), ("scalar", (), (), []), ("empty", (0, 2), (3, 1), [0, 1]), ("one", (1, 3), (0, 2), [1, 1]),
    ]:  # fmt: skip
        starts = np.array(starts, I32)
        cut = lambda x, s, z=sizes: lax.dynamic_slice(x, list(s), z)
        out.case("dynamic_slice", f"dynamic_slice_{label}", cut, draw(label, of), starts, sizes=sizes)
        write = lambda x, u, s: lax.dynamic_update_slice(x, u, list(s))
        out.case("dynamic_update_slice", f"dynamic_update_slice_{label}", write, draw(label, of), draw(f"{label}/update", sizes), starts)
    for label, x in {"bool": np.ones((3,), BOOL), "bf16": draw("bf16", (4,)).astype(BF16)}.items():
        cut = lambda x, s: lax.dynamic_slice(x, list(s), [2])
        out.case("dynamic_slice", f"dynamic_slice_{label}", cut, x, np.array([1], I32), sizes=[2])
    out.write()
