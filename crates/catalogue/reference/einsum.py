"""Einstein notation and diagonals, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np

from common import BF16, BOOL, draw, F32, Family, I32, integers


def einsum():
    out = Family("einsum")
    jax.config.update("jax_default_matmul_precision", "highest")
    for label, equation, *shapes in [
        ("matmul", "ij,jk->ik", (2, 3), (3, 4)), ("implicit", "ij,jk", (2, 3), (3, 4)), ("implicit_order", "cb,ba", (2, 3), (3, 4)),
        ("transpose", "ij->ji", (2, 3)), ("implicit_transpose", "ba", (2, 3)), ("sum", "ijk->j", (2, 3, 4)), ("total", "ij->", (2, 3)),
        ("identity", "ij->ij", (2, 3)), ("trace", "ii", (3, 3)), ("diagonal", "ii->i", (3, 3)), ("batch_diagonal", "bii->bi", (2, 3, 3)),
        ("inner_diagonal", "iji->ij", (3, 2, 3)), ("triple_diagonal", "iii->i", (3, 3, 3)), ("two_diagonals", "iijj->ij", (2, 2, 3, 3)),
        ("dot", "i,i->", (4,), (4,)), ("outer", "i,j->ij", (2,), (3,)), ("elementwise", "ij,ij->ij", (2, 3), (2, 3)),
        ("batch", "bij,bjk->bik", (2, 3, 4), (2, 4, 2)), ("attention", "bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
        ("ellipsis", "...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)), ("ellipsis_broadcast", "...ij,...jk->...ik", (5, 1, 2, 3), (2, 3, 4)),
        ("ellipsis_one_side", "...ij,jk->...ik", (2, 3, 4), (4, 2)), ("ellipsis_implicit", "...ij,jk", (2, 3, 4), (4, 2)), ("ellipsis_last", "i...->...i", (2, 3, 4)),
        ("ellipsis_of_nothing", "...ij,...jk->...ik", (2, 3), (3, 4)), ("ellipsis_middle", "i...j->j...i", (2, 3, 4)),
        ("three", "ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("three_share", "ij,ij,ij->i", (2, 3), (2, 3), (2, 3)), ("bilinear", "bi,ijk,bk->bj", (2, 3), (3, 4, 2), (2, 2)),
        ("four", "a,ab,bc,c->", (2,), (2, 3), (3, 4), (4,)), ("unshared_sum", "ij,k->i", (2, 3), (4,)), ("scalar", ",ij->ij", (), (2, 3)),
        ("scalars", ",->", (), ()), ("blanks", " i j , j k -> i k ", (2, 3), (3, 4)), ("capitals", "aB,Bc", (2, 3), (3, 4)),
        ("diagonal_times", "ii,ij->j", (3, 3), (3, 2)), ("empty", "ij,jk->ik", (0, 3), (3, 2)), ("over_nothing", "ij,jk->ik", (2, 0), (0, 2)), ("size_1", "ij,jk->ik", (1, 1), (1, 1)),
        ("kept_and_shared", "ij,jk->ijk", (2, 3), (3, 4)),
    ]:  # fmt: skip
        xs = [draw(f"{label}{i}", s) for i, s in enumerate(shapes)]
        out.case("einsum", f"einsum_{label}", lambda *xs, e=equation: jnp.einsum(e.replace(" ", ""), *xs), *xs, equation=equation)
    # A labeled axis of size 1 broadcasts, as in PyTorch.
    a, b = draw("broadcast/a", (2, 1)), draw("broadcast/b", (3, 4))
    out.case("einsum", "einsum_broadcast_label", lambda a, b: jnp.einsum("ij,jk->ik", jnp.broadcast_to(a, (2, 3)), b), a, b, equation="ij,jk->ik")
    ints = integers("einsum", (3, 3)), integers("einsum/b", (3, 2))
    out.case("einsum", "einsum_i32", lambda a, b: jnp.einsum("ij,jk->ik", a, b), *ints, equation="ij,jk->ik")
    out.case("einsum", "einsum_i32_diagonal", lambda a: jnp.einsum("ii->i", a), ints[0], equation="ii->i")
    # Sums that only the common dtype of all operands can hold.
    narrow = np.array([1, -2], np.int8), np.array([200, 100], np.uint8)
    out.case("einsum", "einsum_narrow", lambda a, b: jnp.einsum("a,b->a", a, b), *narrow, equation="a,b->a")
    bytes_ = np.full(100, 100, np.int8), np.full(100, 100, np.int8), np.array(1, I32)
    out.case("einsum", "einsum_narrow_three", lambda *xs: jnp.einsum("i,i,->", *xs), *bytes_, equation="i,i,->")
    bytes_ = np.array([[100, 100], [1, 2]], np.int8), np.array([3, 1], np.int8), np.array([0.5, 2], F32)
    out.case("einsum", "einsum_narrow_float", lambda *xs: jnp.einsum("ij,i,i->i", *xs), *bytes_, equation="ij,i,i->i")
    half = draw("einsum/bf16", (3, 5)).astype(BF16), draw("einsum/bf16b", (5, 2)).astype(BF16)
    out.case("einsum", "einsum_bf16", lambda a, b: jnp.einsum("ij,jk->ik", a, b), *half, equation="ij,jk->ik")

    for label, a, b, axes in [("matmul", (2, 3), (3, 4), [[1], [0]]), ("two", (2, 3, 4), (4, 3, 5), [[1, 2], [1, 0]]), ("negative", (2, 3), (4, 3), [[-1], [-1]]), ("none", (2,), (3,), [[], []]), ("all", (2, 3), (2, 3), [[0, 1], [0, 1]]), ("empty", (2, 0), (0, 3), [[1], [0]])]:
        out.case("tensordot", f"tensordot_{label}", lambda x, y, s=axes: jnp.tensordot(x, y, s), draw(label + "/a", a), draw(label + "/b", b), left=axes[0], right=axes[1])
    for label, n, m in [("odd", 3, 5), ("one", 1, 1), ("empty", 0, 3)]:
        out.case("outer", f"outer_{label}", jnp.outer, draw(label + "/a", (n,)), draw(label + "/b", (m,)))
    diagonals(out)
    out.write()


def diagonals(out):
    for label, shape, row, column in [("square", (3, 3), 0, 1), ("wide", (2, 5), 0, 1), ("tall", (5, 2), 0, 1), ("swapped", (3, 4), 1, 0), ("stack", (2, 3, 4), -2, -1), ("apart", (3, 2, 3), 0, -1), ("empty", (0, 3), 0, 1), ("one", (1, 1), 0, 1)]:
        for offset in (0, 1, -1, -3, 9):
            run = lambda x, o=offset, r=row, c=column: jnp.diagonal(x, o, r, c)
            out.case("diagonal", f"diagonal_{label}_{offset}", run, draw(label, shape), offset=offset, row=row, column=column)
    run = lambda x: jnp.diagonal(x, 1)
    for label, x in {"i32": integers("diagonal", (3, 4)), "bool": integers("diagonal", (3, 4), 0, 2).astype(BOOL), "bf16": draw("diagonal", (3, 4)).astype(BF16)}.items():
        out.case("diagonal", f"diagonal_{label}", run, x, offset=1, row=0, column=1)

    def embed(x, offset):
        flat = x.reshape(-1, x.shape[-1])
        n = x.shape[-1] + abs(offset)
        many = jnp.stack([jnp.diag(v, offset) for v in flat]) if len(flat) else jnp.zeros((0, n, n), x.dtype)
        return many.reshape(*x.shape[:-1], n, n)

    for label, shape in {"vector": (3,), "matrix": (2, 3), "rank_3": (2, 1, 2), "one": (1,), "empty": (0, 2)}.items():
        for offset in (0, 1, -2):
            out.case("diag_embed", f"diag_embed_{label}_{offset}", lambda x, o=offset: embed(x, o), draw(label, shape), offset=offset)
    out.case("diag_embed", "diag_embed_bool", lambda x: embed(x, 1), np.array([True, False, True]), offset=1)
    for label, shape in {"vector": (3,), "matrix": (2, 3), "nothing": (0,)}.items():
        for offset in (0, 1, -1):
            out.case("diag", f"diag_{label}_{offset}", lambda x, o=offset: jnp.diag(x, o), draw(label, shape), offset=offset)
    for label, shape in {"square": (3, 3), "wide": (2, 4), "stack": (2, 3, 2), "empty": (0, 0)}.items():
        out.case("trace", f"trace_{label}", lambda x: jnp.trace(x, axis1=-2, axis2=-1), draw(label, shape))
    out.case("trace", "trace_i32", lambda x: jnp.trace(x), integers("trace", (4, 3)))
    for dtype, rows, columns in [("f32", 3, 3), ("i32", 2, 4), ("bf16", 3, 1), ("bool", 2, 2), ("f32", 0, 2)]:
        kind = {"f32": F32, "i32": I32, "bf16": BF16, "bool": BOOL}[dtype]
        out.case("eye", f"eye_{dtype}_{rows}x{columns}", lambda r=rows, c=columns, t=kind: jnp.eye(r, c, dtype=t), dtype=dtype, rows=rows, columns=columns)
