"""Splitting, repeating and moving elements, and padding modes, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
import torch

from common import BF16, BOOL, draw, Family, I32, integers


def arrange():
    out = Family("arrange")
    for label, of, to in [("last", (2, 6), [4, -1]), ("first", (2, 3, 2), [-1, 2]), ("known", (4,), [2, 2]), ("empty", (0, 3), [-1, 3]), ("scalar", (1,), []), ("of_scalar", (), [-1])]:
        out.case("view", f"view_{label}", lambda x, t=to: jnp.reshape(x, t), draw(label, of), shape=to)
    for label, of, axis, sizes, to in [
        ("last", (2, 6), -1, [3, -1], (2, 3, 2)), ("first", (4, 3), 0, [2, 2], (2, 2, 3)), ("one", (3, 1), 1, [1, 1, 1], (3, 1, 1, 1)),
        ("none", (1, 3), 0, [], (3,)), ("empty", (0, 2), 0, [-1, 5], (0, 5, 2)),
    ]:  # fmt: skip
        out.case("unflatten", f"unflatten_{label}", lambda x, t=to: jnp.reshape(x, t), draw(label, of), axis=axis, sizes=sizes)
    for label, of, source, to in [("one", (2, 3, 4), [0], [-1]), ("two", (2, 3, 4, 1), [3, 0], [0, 1]), ("same", (2, 3), [1], [1]), ("none", (), [], [])]:
        out.case("movedim", f"movedim_{label}", lambda x, s=source, t=to: jnp.moveaxis(x, s, t), draw(label, of), source=source, to=to)
    for label, of, sizes, to in [("new", (3, 1), [2, -1, 4], (2, 3, 4)), ("same", (2, 1), [-1, -1], (2, 1)), ("scalar", (), [2], (2,)), ("to_empty", (1, 2), [0, -1], (0, 2))]:
        out.case("expand", f"expand_{label}", lambda x, t=to: jnp.broadcast_to(x, t), draw(label, of), sizes=sizes)
    for label, of, sizes, axis in [("rows", (5, 2), [2, 0, 3], 0), ("last", (2, 4), [1, 3], -1), ("all", (3,), [3], 0), ("empty", (0, 2), [0, 0], 0)]:
        cuts = np.cumsum(sizes)[:-1].tolist()
        out.case("split_with_sizes", f"split_with_sizes_{label}", lambda x, c=cuts, a=axis: tuple(jnp.split(x, c, a)), draw(label, of), sizes=sizes, axis=axis)
    for label, of, size, axis in [("even", (4, 2), 2, 0), ("uneven", (2, 5), 2, 1), ("last", (3,), 2, -1), ("larger", (3,), 5, 0), ("empty", (0, 2), 3, 0)]:
        parts = lambda x, s=size, a=axis: tuple(jnp.split(x, list(range(s, x.shape[a], s)), a))
        x = draw(label, of)
        for ours, theirs in zip(parts(x), torch.from_numpy(x).split(size, axis), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        out.case("split_along", f"split_along_{label}", parts, x, size=size, axis=axis)
    for label, of, axis, size, step in [
        ("overlapping", (9,), 0, 4, 2), ("odd", (8, 2), 0, 3, 2), ("blocks", (2, 7), -1, 3, 3), ("gaps", (2, 7, 2), 1, 2, 4),
        ("one", (3, 2), 1, 2, 5), ("single", (3, 2), 0, 1, 1), ("frames", (2, 20), 1, 8, 4),
    ]:  # fmt: skip
        windows = lambda x, a=axis, z=size, s=step: jnp.stack(
            [jnp.moveaxis(x, a, -1)[..., i : i + z] for i in range(0, x.shape[a] - z + 1, s)], a % x.ndim
        )
        x = draw(label, of)
        np.testing.assert_array_equal(windows(x), torch.from_numpy(x).unfold(axis, size, step))
        out.case("unfold", f"unfold_{label}", windows, x, axis=axis, size=size, step=step)
    for label, of, chunks, axis, cuts in [("even", (6, 2), 3, 0, [2, 4]), ("uneven", (2, 5), 2, 1, [3]), ("fewer", (6,), 4, -1, [2, 4]), ("more", (2,), 5, 0, [1]), ("empty", (0,), 2, 0, [0])]:
        out.case("chunk", f"chunk_{label}", lambda x, c=cuts, a=axis: tuple(jnp.split(x, c, a)), draw(label, of), chunks=chunks, axis=axis)
    for label, of, axis in [("rows", (3, 2), 0), ("last", (2, 2, 2), -1), ("vector", (2,), 0)]:
        parts = lambda x, a=axis: tuple(jnp.moveaxis(x, a, 0)[i] for i in range(x.shape[a]))
        out.case("unbind", f"unbind_{label}", parts, draw(label, of), axis=axis)
    for label, of, axis, start, end, step in [
        ("inner", (6, 2), 0, 1, -1, 2), ("last", (2, 5), -1, -3, None, 1), ("to", (5,), 0, None, 3, 1), ("beyond", (4,), 0, -9, 9, 3),
        ("nothing", (4, 2), 0, 3, 1, 1), ("empty", (0, 2), 0, 0, 5, 1), ("all", (3,), 0, None, None, 1),
    ]:  # fmt: skip
        cut = lambda x, a=axis, s=slice(start, end, step): x[(slice(None),) * (a % x.ndim) + (s,)]
        out.case("slice_along", f"slice_along_{label}", cut, draw(label, of), axis=axis, start=start, end=end, step=step)
    for label, of, axis, index in [("first", (3, 2), 0, 0), ("last", (3, 2), 1, -1), ("vector", (4,), 0, 2)]:
        out.case("index", f"index_{label}", lambda x, a=axis, i=index: jnp.take(x, i, a), draw(label, of), axis=axis, index=index)
    for label, of, shifts, axes in [
        ("one", (5,), [2], [0]), ("back", (2, 3), [-1], [-1]), ("far", (3, 2), [7, -5], [0, 1]), ("twice", (4,), [1, 2], [0, 0]),
        ("none", (2, 2), [], []), ("empty", (0, 3), [1], [0]), ("whole", (3,), [3], [0]),
    ]:  # fmt: skip
        out.case("roll", f"roll_{label}", lambda x, s=shifts, a=axes: jnp.roll(x, s, a), draw(label, of), shifts=shifts, axes=axes)
    for label, of, copies in [("matrix", (2, 3), [2, 1]), ("more", (2,), [3, 2]), ("fewer", (2, 2), [2]), ("none", (2, 2), []), ("scalar", (), [2, 2]), ("zero", (2,), [0]), ("empty", (0, 2), [2, 1])]:
        out.case("tile", f"tile_{label}", lambda x, c=copies: jnp.tile(x, c), draw(label, of), copies=copies)
    for label, of, copies, axis in [("rows", (2, 3), 2, 0), ("last", (2, 2), 3, -1), ("once", (3,), 1, 0), ("never", (3,), 0, 0), ("empty", (0, 2), 2, 0)]:
        out.case("repeat_interleave", f"repeat_interleave_{label}", lambda x, c=copies, a=axis: jnp.repeat(x, c, a), draw(label, of), copies=copies, axis=axis)
    for label, shapes, axis in [("first", [(2, 3)] * 3, 0), ("last", [(2,)] * 2, -1), ("scalars", [()] * 3, 0), ("one", [(2, 1)], 1), ("empty", [(0,)] * 2, 1)]:
        xs = [draw(f"{label}{i}", s) for i, s in enumerate(shapes)]
        out.case("stack", f"stack_{label}", lambda *xs, a=axis: jnp.stack(xs, a), *xs, axis=axis)
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "zeros": "constant"}
    for mode, called in modes.items():
        cases = [("last", (2, 4), [(2, 1)]), ("two", (2, 4, 5), [(1, 3), (2, 0)]), ("none", (3,), [(0, 0)]), ("rank_1", (3,), [(2, 2)])]
        for label, of, padding in cases:
            full = [(0, 0)] * (len(of) - len(padding)) + padding
            run = lambda x, p=full, m=called: jnp.pad(x, p, mode=m)
            out.case("pad_mode", f"pad_{mode}_{label}", run, draw(label, of), padding=padding, mode=mode)
        cropped = lambda x, m=called: jnp.pad(x, [(0, 3)], mode=m)[1:]
        out.case("pad_mode", f"pad_{mode}_cropped", cropped, draw("cropped", (5,)), padding=[(-1, 3)], mode=mode)
    out.case("pad_mode", "pad_replicate_far", lambda x: jnp.pad(x, [(5, 4)], mode="edge"), draw("far", (1,)), padding=[(5, 4)], mode="replicate")
    out.case("pad_mode", "pad_circular_whole", lambda x: jnp.pad(x, [(3, 3)], mode="wrap"), draw("whole", (3,)), padding=[(3, 3)], mode="circular")
    out.case("pad_mode", "pad_constant", lambda x: jnp.pad(x, [(1, 2)], constant_values=2.5), draw("constant", (3,)), padding=[(1, 2)], mode="constant", value=2.5)
    for label, x in {"i32": integers("pad", (4,)), "bool": np.array([True, False, True], BOOL), "bf16": draw("pad", (4,)).astype(BF16)}.items():
        out.case("pad_mode", f"pad_reflect_{label}", lambda x: jnp.pad(x, [(2, 1)], mode="reflect"), x, padding=[(2, 1)], mode="reflect")
        out.case("roll", f"roll_{label}", lambda x: jnp.roll(x, 1), x, shifts=[1], axes=[0])
        out.case("tile", f"tile_{label}", lambda x: jnp.tile(x, 2), x, copies=[2])
    out.write()
