"""Linear algebra, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, draw, F32, F64, Family


def definite(name, batch, n):
    """Symmetric positive definite matrices."""
    a = draw(name, (*batch, n, n), -1, 1).astype(F64)
    return np.round(a @ np.swapaxes(a, -1, -2) + 0.5 * np.eye(n), 3).astype(F32)


def triangle(name, batch, n):
    """Matrices with a diagonal far from 0. Either triangle can be used."""
    return draw(name, (*batch, n, n), -1, 1) + 2 * np.eye(n, dtype=F32)


def linalg():
    out = Family("linalg")
    cholesky = lambda a: jnp.linalg.cholesky(a)
    for label, batch, n in [("small", (), 3), ("batch", (2, 3), 2), ("one", (), 1), ("larger", (), 7), ("no_batch", (0,), 2)]:
        out.case("cholesky", f"cholesky_{label}", cholesky, definite(f"cholesky_{label}", batch, n))
    out.case("cholesky", "cholesky_f64", cholesky, definite("cholesky_f64", (), 3).astype(F64), x64=True)
    out.case("cholesky", "cholesky_not_symmetric", cholesky, definite("not_symmetric", (), 3) + np.triu(np.full((3, 3), 0.1, F32)))
    indefinite = np.array([[[1, 2], [2, 1]], [[4, 2], [2, 5]]], F32)
    out.case("cholesky", "cholesky_indefinite", cholesky, indefinite, gradient=False)

    def solve(lower, transpose, right, unit):
        how = dict(lower=lower, transpose_a=transpose, left_side=not right, unit_diagonal=unit)

        def f(a, b):
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            a, b = jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])
            return lax.linalg.triangular_solve(a, b, **how)

        return f

    for lower in (True, False):
        for transpose in (True, False):
            for right in (True, False):
                for unit in (True, False):
                    how = dict(lower=lower, transpose=transpose, right=right, unit=unit)
                    name = "triangular_solve_" + "_".join(key for key, value in how.items() if value)
                    b = draw(name + "/b", (2, 3) if right else (3, 2))
                    out.case("triangular_solve", name, solve(**how), triangle(name, (), 3), b, **how)
    plain = dict(lower=True, transpose=False, right=False, unit=False)
    for label, a, n, b in [
        ("batch", (2, 1), 2, (3, 2, 4)), ("one", (), 1, (1, 1)), ("larger", (), 6, (6, 3)), ("no_columns", (), 3, (3, 0)), ("shared", (), 3, (2, 3, 1)),
    ]:  # fmt: skip
        name = f"triangular_solve_{label}"
        out.case("triangular_solve", name, solve(**plain), triangle(name, a, n), draw(name + "/b", b), **plain)
    wide = triangle("solve_f64", (), 3).astype(F64), draw("solve_f64/b", (3, 2)).astype(F64)
    out.case("triangular_solve", "triangular_solve_f64", solve(**plain), *wide, x64=True, **plain)

    def cholesky_solve(b, l):
        half = lax.linalg.triangular_solve(l, b, left_side=True, lower=True)
        return lax.linalg.triangular_solve(l, half, left_side=True, lower=True, transpose_a=True)

    for label, batch, n, columns in [("small", (), 3, 2), ("batch", (2,), 2, 1), ("one", (), 1, 1)]:
        name = f"cholesky_solve_{label}"
        out.case("cholesky_solve", name, cholesky_solve, draw(name + "/b", (*batch, n, columns)), triangle(name, batch, n))
    out.write()
