"""The softmax family, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np

from common import draw, F32, Family, I32, INF, integers, NAN


def softmax():
    out = Family("softmax")
    big = np.array([[1000, 1000, -1000], [-1e30, 0, 1], [88, 89, -90]], F32)
    shapes = {"matrix": ((3, 5), -1), "first": ((3, 5), 0), "middle": ((2, 3, 4), 1), "vector": ((6,), -1), "one": ((4, 1), -1), "empty": ((0, 3), -1)}
    for op, f in {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}.items():
        for label, (shape_, axis) in shapes.items():
            out.case(op, f"{op}_{label}", lambda x, f=f, a=axis: f(x, axis=a), draw(label, shape_, -4, 4), axis=axis)
        out.case(op, f"{op}_large", lambda x, f=f: f(x, axis=-1), big, axis=-1)
        masked = np.array([[0.5, -INF, 1], [-INF, -INF, 2]], F32)
        infinite = np.array([[INF, 0, 1], [INF, INF, -INF], [INF, NAN, 0], [-INF, -INF, -INF]], F32)
        out.case(op, f"{op}_infinite", lambda x, f=f: f(x, axis=-1), infinite, gradient=False, axis=-1)
        out.case(op, f"{op}_masked", lambda x, f=f: f(x, axis=-1), masked, gradient=False, axis=-1)
    several = {"two": ((2, 3, 4), [0, -1]), "all": ((2, 3), [0, 1]), "unsorted": ((2, 3, 4), [2, 0]), "no_axis": ((2, 3), [])}
    for label, (shape_, axes) in ({k: (s, [a]) for k, (s, a) in shapes.items()} | several).items():
        for keepdims in (False, True):
            run = lambda x, a=axes, k=keepdims: jax.nn.logsumexp(x, axis=tuple(a), keepdims=k)
            name = f"logsumexp_{label}" + ("_keepdims" if keepdims else "")
            out.case("logsumexp", name, run, draw(label, shape_, -4, 4), axes=axes, keepdims=keepdims)
    run = lambda x: jax.nn.logsumexp(x, axis=-1)
    out.case("logsumexp", "logsumexp_large", run, big, axes=[-1], keepdims=False)
    infinite = np.array([[-INF, -INF, -INF], [INF, 0, 1], [-INF, 2, 3], [NAN, 0, 0]], F32)
    out.case("logsumexp", "logsumexp_infinite", run, infinite, gradient=False, axes=[-1], keepdims=False)

    # An index that is not a class gives a row of zeros.
    for label, indices, classes in [("vector", [0, 2, 1, 2], 3), ("matrix", [[1, 0], [3, 2]], 5), ("scalar", 1, 2), ("beyond", [-1, 3, 2], 3), ("one_class", [0, 0], 1)]:
        run = lambda i, c=classes: jax.nn.one_hot(i, c, dtype=F32)
        out.case("one_hot", f"one_hot_{label}", run, np.array(indices, I32), classes=classes)

    reductions = {"mean": jnp.mean, "sum": jnp.sum, "none": lambda v: v}
    for label, shape_, low in [("batch", (4, 10), -3), ("one", (1, 3), -3), ("sequence", (2, 3, 5), -3), ("confident", (3, 4), -200)]:
        logits = draw(label, shape_, low, -low)
        labels = integers(label, shape_[:-1], 0, shape_[-1])
        for reduction, last in reductions.items():
            pick = lambda x, i: jnp.take_along_axis(jax.nn.log_softmax(x), i[..., None], -1)[..., 0]
            run = lambda x, i, last=last: last(-pick(x, i))
            out.case("cross_entropy", f"cross_entropy_{label}_{reduction}", run, logits, labels, reduction=reduction)
    out.write()
