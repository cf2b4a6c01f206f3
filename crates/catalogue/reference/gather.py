"""Reading and adding rows by index, and triangles, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np

from common import BOOL, draw, Family, I32, integers, rng


def gather():
    out = Family("gather")
    cases = {
        "rows": ((5, 3), (4,), 0), "embedding": ((7, 4), (2, 3), 0), "columns": ((3, 5), (2,), -1), "middle": ((2, 4, 3), (2, 2), 1),
        "scalar_index": ((4, 2), (), 0), "vector": ((6,), (3, 2), 0), "one_row": ((1, 3), (4,), 0), "nothing": ((3, 2), (0,), 0),
        "empty_rows": ((3, 0), (2,), 0), "batches": ((3, 2), (2, 1, 2), 0),
    }  # fmt: skip
    for label, (of, indices, axis) in cases.items():
        i = integers(label, indices, 0, of[axis])
        x = draw(label, of)
        out.case("take", f"take_{label}", lambda x, i, a=axis: jnp.take(x, i, a), x, i, axis=axis)
        at = (slice(None),) * (axis % len(of))
        add = lambda x, i, u, at=at: x.at[(*at, i)].add(u)
        updates = draw(label + "/updates", jnp.take(x, i, axis).shape)
        out.case("index_add", f"index_add_{label}", add, x, i, updates, axis=axis)
    table, often = draw("often", (4, 3), digits=2), integers("often", (50,), 0, 4)
    out.case("take", "take_often", lambda x, i: jnp.take(x, i, 0), table, often, axis=0)
    outside = np.array([0, 7, 2, 3, 1000000, -1000000], I32)
    out.case("take", "take_outside", lambda x, i: jnp.take(x, i, 0), draw("outside", (3, 2)), outside, axis=0)
    drop = lambda x, i, u: x.at[i].add(u, mode="drop")
    out.case("index_add", "index_add_outside", drop, draw("outside", (3, 2)), outside, draw("outside/updates", (6, 2)), axis=0)
    for name, values in {"i32": integers("i32", (3, 2)), "u8": rng("u8").integers(0, 255, (3, 2)).astype(np.uint8), "bool": rng("bool").random((3, 2)) < 0.5}.items():
        out.case("take", f"take_of_{name}", lambda x, i: jnp.take(x, i, 0), values, outside, axis=0)
    half = draw("half", (4, 3)).astype(jnp.bfloat16)
    out.case("take", "take_of_bf16", lambda x, i: jnp.take(x, i, 0), half, np.array([3, 0, 9], I32), axis=0)

    for op, f in {"tril": jnp.tril, "triu": jnp.triu}.items():
        shapes = {"square": (4, 4), "wide": (2, 5), "tall": (5, 2), "stack": (2, 3, 3), "empty": (0, 3)}
        for label, of in shapes.items():
            for k in (-9, -1, 0, 2, 9):
                name = f"{op}_{label}_{k}".replace("-", "minus_")
                out.case(op, name, lambda x, f=f, k=k: f(x, k), draw(name, of), diagonal=k)
        out.case(op, f"{op}_bool", f, np.ones((3, 3), BOOL), diagonal=0)
    out.write()
