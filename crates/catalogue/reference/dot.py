"""Matrix products, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
from jax import lax

from common import draw, Family


def dot():
    out = Family("dot")
    for label, a, b in [
        ("square", (3, 3), (3, 3)), ("odd", (5, 7), (7, 3)), ("dot_product", (4,), (4,)), ("vector_matrix", (3,), (3, 5)),
        ("matrix_vector", (4, 3), (3,)), ("batch", (2, 3, 4), (2, 4, 5)), ("batch_broadcast", (2, 1, 3, 4), (5, 4, 2)),
        ("batch_by_matrix", (2, 3, 4), (4, 5)), ("matrix_by_batch", (3, 4), (2, 4, 5)), ("vector_by_batch", (4,), (2, 4, 3)),
        ("batch_by_vector", (2, 3, 4), (4,)), ("outer", (3, 1), (1, 4)), ("size_1", (1, 1), (1, 1)), ("sum_over_nothing", (2, 0), (0, 3)),
        ("empty", (0, 3), (3, 2)), ("empty_batch", (0, 2, 3), (0, 3, 2)), ("rank_4", (2, 2, 3, 2), (2, 2, 2, 3)),
    ]:  # fmt: skip
        out.case("matmul", f"matmul_{label}", jnp.matmul, draw(label + "/a", a), draw(label + "/b", b))
    long = draw("long/a", (2, 500)), draw("long/b", (500, 3))
    out.case("matmul", "matmul_long", jnp.matmul, *long)
    for label, a, b, batch, contracting in [
        ("matmul", (3, 4), (4, 5), [[], []], [[1], [0]]), ("transposed", (4, 3), (5, 4), [[], []], [[0], [1]]),
        ("two_axes", (2, 3, 4), (4, 3, 5), [[], []], [[1, 2], [1, 0]]), ("batch_in_the_middle", (3, 2, 4), (4, 5, 2), [[1], [2]], [[2], [0]]),
        ("two_batch_axes", (2, 3, 4), (3, 2, 4, 5), [[0, 1], [1, 0]], [[2], [2]]), ("outer", (2,), (3,), [[], []], [[], []]),
        ("all", (2, 3), (2, 3), [[], []], [[0, 1], [0, 1]]), ("batch_only", (3, 2), (3, 4), [[0], [0]], [[], []]),
        ("empty", (2, 0), (0, 3), [[], []], [[1], [0]]), ("scalars", (), (), [[], []], [[], []]),
        ("attention", (2, 5, 3, 4), (2, 6, 3, 4), [[0, 2], [0, 2]], [[3], [3]]),
        ("two_leading_axes", (2, 3, 4), (2, 3, 5), [[], []], [[0, 1], [0, 1]]), ("leading_axes_of_two_ranks", (3, 2, 2, 4), (3, 2, 5), [[], []], [[0, 1], [0, 1]]),
    ]:  # fmt: skip
        run = lambda a, b, c=contracting, s=batch: lax.dot_general(a, b, (c, s))
        out.case("dot_general", f"dot_general_{label}", run, draw(label + "/a", a), draw(label + "/b", b), batch=batch, contracting=contracting)
    out.write()
