"""Writes the reference values of this folder with JAX: what each operation gives, and its derivative.

Not run by the tests: they read the JSON files that this wrote, which are committed. To write them again:

    pip install jax==0.12.0.1 && python generate.py

A case is {"op", "name", "attrs", "inputs", "outputs", "cotangent", "gradients"}. A tensor is {"dtype", "shape", "data"}
with the data in row-major order, floats in the fewest digits that read back as the same number, and NaN and the
infinities as strings. "gradients" has one entry an input, null where the input is no float; with a null cotangent the
case is about values only. Inputs are drawn from a generator seeded by the case's name, so a new case changes no old one.
"""

import json
import platform
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FOLDER = Path(__file__).parent
F32, I32, BOOL = np.float32, np.int32, np.bool_
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int32": "i32", "uint32": "u32", "uint8": "u8", "bool": "bool"}
NAN, INF = float("nan"), float("inf")
MADE_WITH = {
    "jax": jax.__version__,
    "jaxlib": __import__("jaxlib").__version__,
    "numpy": np.__version__,
    "python": platform.python_version(),
    "backend": jax.default_backend(),
}


def number(value):
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, np.integer):
        return str(int(value))
    if np.isnan(value):
        return '"nan"'
    if np.isinf(value):
        return '"inf"' if value > 0 else '"-inf"'
    # Through f32, whose printed form is the shortest; bf16 and f16 are exact in it.
    text = str(np.float32(value))
    return text.removesuffix(".0") if text != "-0.0" else text


def tensor(value):
    value = np.asarray(value)
    data = ",".join(number(v) for v in value.ravel())
    return f'{{"dtype":"{DTYPES[value.dtype.name]}","shape":{json.dumps(list(value.shape), separators=(",", ":"))},"data":[{data}]}}'


def is_float(value):
    return jnp.issubdtype(value.dtype, jnp.floating)


class Family:
    """The cases of one file."""

    def __init__(self, name):
        self.name, self.lines, self.names = name, [], set()

    def case(self, op, name, f, *inputs, gradient=True, **attrs):
        assert name not in self.names, name
        self.names.add(name)
        inputs = [np.asarray(v) for v in inputs]
        output = jax.jit(f)(*inputs)
        cotangent, gradients = "null", ["null"] * len(inputs)
        at = [i for i, v in enumerate(inputs) if is_float(v)]
        if gradient and at and is_float(output):

            def of_floats(*floats):
                full = list(inputs)
                for i, v in zip(at, floats):
                    full[i] = v
                return f(*full)

            seed = draw(name + "/cotangent", output.shape, digits=2).astype(output.dtype)
            pull = jax.jit(lambda floats, g: jax.vjp(of_floats, *floats)[1](g))
            for i, g in zip(at, pull([inputs[i] for i in at], seed)):
                gradients[i] = tensor(g)
            cotangent = tensor(seed)
        self.add(op, name, attrs, [tensor(v) for v in inputs], [tensor(output)], cotangent, gradients)

    def add(self, op, name, attrs, inputs, outputs, cotangent="null", gradients=()):
        self.lines.append(
            f'{{"op":"{op}","name":"{name}","attrs":{json.dumps(attrs)},"inputs":[{",".join(inputs)}],'
            f'"outputs":[{",".join(outputs)}],"cotangent":{cotangent},"gradients":[{",".join(gradients)}]}}'
        )

    def write(self):
        body = ",\n".join(self.lines)
        text = f'{{"made_with":{json.dumps(MADE_WITH)},"cases":[\n{body}\n]}}\n'
        count = len(json.loads(text)["cases"])
        path = FOLDER / f"{self.name}.json"
        path.write_text(text)
        assert len(text) < 200_000, f"{path.name} is too large: {len(text)} bytes"
        print(f"{path.name}: {count} cases, {len(text)} bytes")


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw(name, shape, low=-2.0, high=2.0, digits=3):
    return np.round(rng(name).uniform(low, high, shape), digits).astype(F32)


def distinct(name, shape):
    """Values of which no two are equal, so that a maximum has no ties."""
    n = int(np.prod(shape))
    return (rng(name).permutation(n).reshape(shape) * 0.25 - n / 8).astype(F32)


def integers(name, shape, low=-20, high=20):
    return rng(name).integers(low, high, shape).astype(I32)


def broadcasting(f):
    return lambda *xs: f(*jnp.broadcast_arrays(*xs))


SHAPES = {"matrix": (3, 5), "scalar": (), "empty": (0, 3), "one": (1, 1)}
BROADCASTS = {
    "row": ((3, 4), (4,)),
    "column": ((3, 1), (1, 4)),
    "scalar_left": ((), (2, 3)),
    "rank_4": ((2, 1, 3, 1), (4, 1, 2)),
    "size_0": ((2, 0, 3), (1, 1, 3)),
    "size_0_by_1": ((1, 3), (0, 3)),
    "same_1": ((1,), (1,)),
}
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, 0.5, -2.5], F32)


def elementwise():
    out = Family("elementwise")
    # "remainder" is StableHLO's: the sign is that of the dividend, as in C; "divide" of integers rounds towards zero.
    binary = {
        "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "maximum": lax.max,
        "minimum": lax.min, "power": lax.pow, "remainder": lax.rem,
    }  # fmt: skip
    for op, f in binary.items():
        f = broadcasting(f)

        def right(name, shape):
            if op in ("divide", "remainder"):  # far from 0, of either sign
                value = draw(name, shape, 0.5, 2.5)
                return value * np.where(rng(name + "/sign").random(shape) < 0.5, -1, 1).astype(F32)
            return draw(name, shape)

        bounds = (0.2, 3.0) if op == "power" else (-3.0, 3.0)
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name + "/a", shape, *bounds), right(name + "/b", shape))
        for label, (a, b) in BROADCASTS.items():
            name = f"{op}_broadcast_{label}"
            out.case(op, name, f, draw(name + "/a", a, *bounds), right(name + "/b", b))
        pairs = np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
        if op not in ("remainder", "power"):  # XLA's own corner cases there differ from one backend to the next
            out.case(op, f"{op}_special", f, *[p.ravel() for p in pairs], gradient=False)
        if op != "power":
            b = integers(op + "/b", (4, 1), 1, 9) * np.array([[1], [-1], [1], [-1]], I32)
            out.case(op, f"{op}_i32", f, integers(op + "/a", (4, 6)), b)
    ties = np.array([1, 2, -1, 0], F32), np.array([1, 3, -1, -2], F32)
    for op in ("maximum", "minimum"):
        out.case(op, f"{op}_ties", binary[op], *ties)

    unary = {
        "negate": (lax.neg, -2, 2), "abs": (lax.abs, -2, 2), "sign": (lax.sign, -2, 2), "exp": (lax.exp, -4, 4),
        "expm1": (lax.expm1, -2, 2), "log": (lax.log, 0.05, 9), "log1p": (lax.log1p, -0.9, 4),
        "sqrt": (lax.sqrt, 0.05, 9), "rsqrt": (lax.rsqrt, 0.05, 9), "tanh": (lax.tanh, -4, 4),
        "logistic": (lax.logistic, -6, 6), "floor": (lax.floor, -5, 5), "ceil": (lax.ceil, -5, 5),
        "sin": (lax.sin, -6, 6), "cos": (lax.cos, -6, 6), "erf_inv": (lax.erf_inv, -0.99, 0.99), "erf": (lax.erf, -4, 4),
    }  # fmt: skip
    small = np.array([1e-3, -1e-3, 1e-5, -1e-5, 1e-7, -1e-7], F32)
    for op, (f, low, high) in unary.items():
        for label, shape in SHAPES.items():
            name = f"{op}_{label}"
            out.case(op, name, f, draw(name, shape, low, high))
        if op in ("expm1", "log1p", "tanh", "erf_inv", "erf"):
            out.case(op, f"{op}_near_0", f, small)
        if op not in ("sin", "cos"):
            out.case(op, f"{op}_special", f, SPECIAL, gradient=False)
    for op in ("negate", "abs", "sign"):
        out.case(op, f"{op}_i32", unary[op][0], integers(op, (7,)))
    for op in ("abs", "sign"):
        out.case(op, f"{op}_at_0", unary[op][0], np.zeros(2, F32))

    for direction, f in {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}.items():
        f, name = broadcasting(f), f"compare_{direction}"
        values = np.array([-1, 0, 1, 2], F32)
        out.case("compare", name, f, values[:, None], values, direction=direction)
        special = np.array([NAN, INF, -INF, 0.0, -0.0], F32)
        out.case("compare", name + "_special", f, special[:, None], special, direction=direction)
        out.case("compare", name + "_i32", f, integers(name, (3, 4), -2, 3), np.array(0, I32), direction=direction)
        out.case("compare", name + "_bool", f, np.array([0, 0, 1, 1], BOOL), np.array([0, 1, 0, 1], BOOL), direction=direction)
        out.case("compare", name + "_empty", f, np.zeros((0, 2), F32), np.zeros((2,), F32), direction=direction)

    where = {
        "same": ((3, 4), (3, 4), (3, 4)), "broadcast": ((3, 1), (4,), ()), "scalar": ((), (), ()), "empty": ((0,), (0,), (1,)),
        "one_predicate": ((), (2, 3), (3,)),
    }  # fmt: skip
    for label, (p, a, b) in where.items():
        name = f"select_{label}"
        out.case("select", name, jnp.where, rng(name).random(p) < 0.5, draw(name + "/a", a), draw(name + "/b", b))
    out.write()


def reduce():
    out = Family("reduce")
    functions = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "mean": jnp.mean, "var": jnp.var}
    wheres = {
        "all": ((3, 4), [0, 1]), "first": ((3, 4), [0]), "last": ((3, 4), [-1]), "outer": ((2, 3, 4), [0, 2]),
        "negative": ((2, 3, 4), [-2, -1]), "of_size_1": ((3, 1, 2), [1]), "none": ((2, 3), []), "scalar": ((), []),
        "rest_empty": ((0, 3), [1]),
    }  # fmt: skip
    for op, f in functions.items():
        for label, (shape, axes) in wheres.items():
            for keepdims in (False, True):
                name = f"{op}_{label}" + ("_keepdims" if keepdims else "")
                x = distinct(name, shape) if op in ("max", "min") else draw(name, shape)
                run = lambda x, f=f, axes=axes, k=keepdims: f(x, axis=tuple(axes), keepdims=k)
                out.case(op, name, run, x, axes=axes, keepdims=keepdims)
    for op in ("sum", "mean"):
        run = lambda x, f=functions[op]: f(x, axis=0)
        out.case(op, f"{op}_over_nothing", run, np.zeros((0, 3), F32), axes=[0], keepdims=False)
    for op in ("max", "min"):
        run = lambda x, f=functions[op]: f(x, axis=1)
        ties = np.array([[1, 3, 3, 0], [-2, -2, -2, -2], [0, 0, 5, 1]], F32)
        out.case(op, f"{op}_ties", run, ties, axes=[1], keepdims=False)
        special = np.array([[1, NAN, 2], [INF, 1, -INF], [-INF, -INF, -INF]], F32)
        out.case(op, f"{op}_special", run, special, gradient=False, axes=[1], keepdims=False)
    for op in ("sum", "max", "min"):
        run = lambda x, f=functions[op]: f(x, axis=0)
        out.case(op, f"{op}_i32", run, integers(op, (5, 3)), axes=[0], keepdims=False)
    far = (draw("var_far", (4, 6)) + 1000).astype(F32)
    out.case("var", "var_far_from_0", lambda x: jnp.var(x, axis=1), far, axes=[1], keepdims=False)
    long = draw("sum_long", (3000,), digits=2)
    out.case("sum", "sum_long", lambda x: jnp.sum(x, axis=0), long, gradient=False, axes=[0], keepdims=False)

    for op, f in {"argmax": jnp.argmax, "argmin": jnp.argmin}.items():
        inputs = {
            "matrix": distinct(op, (4, 5)), "ties": np.array([[1, 3, 3], [2, 2, 2], [0, -1, -1]], F32),
            "special": np.array([[1, NAN, NAN], [INF, -INF, 0], [-INF, -INF, -INF]], F32),
            "i32": integers(op, (4, 5)), "rank_3": distinct(op + "/3", (2, 3, 4)),
        }  # fmt: skip
        for label, x in inputs.items():
            for axis in (0, -1):
                for keepdims in (False, True):
                    name = f"{op}_{label}_axis_{axis}".replace("-", "minus_") + ("_keepdims" if keepdims else "")
                    run = lambda x, f=f, axis=axis, k=keepdims: f(x, axis=axis, keepdims=k).astype(I32)
                    out.case(op, name, run, x, axis=axis, keepdims=keepdims)
    out.write()


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
    # The value that is put in is the second input, a scalar, with its own gradient.
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
        # 1 + 2^-8 and 1 + 3*2^-8 lie half-way between two bf16 numbers: ties go to the even one.
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
    ]:  # fmt: skip
        run = lambda a, b, c=contracting, s=batch: lax.dot_general(a, b, (c, s))
        out.case("dot_general", f"dot_general_{label}", run, draw(label + "/a", a), draw(label + "/b", b), batch=batch, contracting=contracting)
    out.write()


def convolution():
    out = Family("convolution")
    numbers = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}

    def case(label, x, k, stride=None, padding=None, dilation=None, groups=1):
        n = len(x) - 2
        how = {"stride": stride or [1] * n, "padding": padding or [[0, 0]] * n, "dilation": dilation or [1] * n, "groups": groups}
        run = lambda x, k: lax.conv_general_dilated(
            x, k, how["stride"], how["padding"], rhs_dilation=how["dilation"], feature_group_count=groups, dimension_numbers=numbers[n]
        )
        op = f"conv{n}d"
        out.case(op, f"{op}_{label}", run, draw(label + "/x", x, digits=2), draw(label + "/k", k, digits=2), **how)

    case("plain", (2, 3, 5, 6), (4, 3, 3, 3))
    case("one_by_one", (2, 3, 4, 3), (2, 3, 1, 1))
    case("same", (1, 2, 5, 5), (3, 2, 3, 3), padding=[[1, 1], [1, 1]])
    case("stride", (1, 2, 7, 8), (2, 2, 3, 3), stride=[2, 2])
    case("stride_uneven", (1, 2, 8, 9), (2, 2, 3, 2), stride=[2, 3], padding=[[1, 1], [0, 0]])
    case("stride_over_kernel", (1, 1, 7, 7), (2, 1, 2, 2), stride=[3, 3])
    case("padding_uneven", (1, 2, 4, 4), (2, 2, 3, 3), padding=[[0, 1], [2, 1]])
    case("padding_negative", (1, 2, 6, 6), (2, 2, 3, 3), padding=[[-1, 0], [0, -1]])
    case("padding_wide", (1, 1, 3, 3), (1, 1, 2, 2), padding=[[3, 3], [2, 4]])
    case("dilation", (1, 2, 7, 7), (2, 2, 3, 3), dilation=[2, 2])
    case("dilation_uneven", (1, 1, 6, 8), (2, 1, 2, 3), dilation=[3, 2], padding=[[1, 1], [2, 2]], stride=[1, 2])
    case("groups", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=[[1, 1], [1, 1]])
    case("depthwise", (1, 3, 6, 6), (3, 1, 3, 3), groups=3, stride=[2, 2], padding=[[1, 1], [1, 1]])
    case("depthwise_twice", (1, 3, 5, 5), (6, 1, 3, 3), groups=3)
    case("groups_dilation", (1, 4, 7, 7), (4, 2, 3, 3), groups=2, dilation=[2, 2], stride=[2, 1], padding=[[2, 2], [2, 2]])
    case("kernel_is_input", (2, 2, 3, 4), (3, 2, 3, 4))
    case("one_pixel", (1, 1, 1, 1), (1, 1, 1, 1))
    case("stem", (1, 3, 9, 9), (4, 3, 7, 7), stride=[2, 2], padding=[[3, 3], [3, 3]])
    case("plain", (2, 3, 8), (4, 3, 3), stride=[2], padding=[[1, 1]])
    case("causal", (1, 2, 7), (2, 2, 3), padding=[[4, 0]], dilation=[2])
    case("plain", (1, 2, 4, 4, 3), (2, 2, 2, 3, 2), stride=[2, 1, 1], padding=[[0, 0], [1, 1], [0, 1]])
    out.write()


def pooling():
    out = Family("pooling")
    cases = [
        ("halve", (2, 3, 4, 6), [2, 2], [2, 2], [0, 0]), ("odd", (1, 2, 5, 7), [2, 2], [2, 2], [0, 0]),
        ("overlapping", (1, 2, 6, 5), [3, 3], [1, 1], [0, 0]), ("resnet", (1, 2, 7, 7), [3, 3], [2, 2], [1, 1]),
        ("uneven", (1, 1, 7, 8), [2, 3], [1, 2], [1, 0]), ("skipping", (1, 1, 8, 8), [2, 2], [3, 3], [0, 0]),
        ("global", (2, 2, 3, 4), [3, 4], [3, 4], [0, 0]), ("one", (1, 2, 3, 3), [1, 1], [1, 1], [0, 0]), ("padded", (1, 1, 4, 4), [2, 2], [2, 2], [1, 1]),
    ]  # fmt: skip
    for label, x_shape, window, stride, padding in cases:
        size, step, pad = (1, 1, *window), (1, 1, *stride), [(0, 0), (0, 0), *[(p, p) for p in padding]]
        attrs = {"window": window, "stride": stride, "padding": padding}
        x = distinct(label, x_shape)
        largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, size, step, pad)
        out.case("max_pool", f"max_pool_{label}", largest, x, **attrs)
        # Padding counts, as in PyTorch's avg_pool2d unless told otherwise.
        mean = lambda x: lax.reduce_window(x, 0.0, lax.add, size, step, pad) / np.prod(window).astype(F32)
        out.case("avg_pool", f"avg_pool_{label}", mean, draw(label, x_shape), **attrs)
    largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    out.case("max_pool", "max_pool_ties", largest, np.ones((1, 1, 4, 4), F32), window=[2, 2], stride=[2, 2], padding=[0, 0])
    out.write()


def nn():
    out = Family("nn")
    big = np.array([[1000, 1000, -1000], [-1e30, 0, 1], [88, 89, -90]], F32)
    shapes = {"matrix": ((3, 5), -1), "first": ((3, 5), 0), "middle": ((2, 3, 4), 1), "vector": ((6,), -1), "one": ((4, 1), -1), "empty": ((0, 3), -1)}
    for op, f in {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}.items():
        for label, (shape_, axis) in shapes.items():
            out.case(op, f"{op}_{label}", lambda x, f=f, a=axis: f(x, axis=a), draw(label, shape_, -4, 4), axis=axis)
        out.case(op, f"{op}_large", lambda x, f=f: f(x, axis=-1), big, axis=-1)
        masked = np.array([[0.5, -INF, 1], [-INF, -INF, 2]], F32)
        out.case(op, f"{op}_masked", lambda x, f=f: f(x, axis=-1), masked, gradient=False, axis=-1)
    for label, (shape_, axis) in shapes.items():
        for keepdims in (False, True):
            run = lambda x, a=axis, k=keepdims: jax.nn.logsumexp(x, axis=a, keepdims=k)
            name = f"logsumexp_{label}" + ("_keepdims" if keepdims else "")
            out.case("logsumexp", name, run, draw(label, shape_, -4, 4), axis=axis, keepdims=keepdims)
    run = lambda x: jax.nn.logsumexp(x, axis=-1)
    out.case("logsumexp", "logsumexp_large", run, big, axis=-1, keepdims=False)
    infinite = np.array([[-INF, -INF, -INF], [INF, 0, 1], [-INF, 2, 3], [NAN, 0, 0]], F32)
    out.case("logsumexp", "logsumexp_infinite", run, infinite, gradient=False, axis=-1, keepdims=False)

    # An index that is no class gives a row of zeros.
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


def random():
    """Threefry-2x32 in its partitionable form. Element i (row-major, 64-bit) of a draw hashes the two words of i, high
    word first, under the key; 32 random bits are the xor of both result words. fold_in hashes (0, data) and the result
    words are the new key. A uniform f32 takes the upper 23 bits as the mantissa of a number in [1, 2), less 1; a normal
    one is sqrt(2) * erf_inv of a uniform one over [nextafter(-1, 0), 1)."""
    assert jax.config.jax_threefry_partitionable
    out = Family("random")
    data = jax.random.key_data
    keys = {}

    def key_case(name, key, op, source, **attrs):
        keys[name] = key
        out.add(op, name, attrs, source, [tensor(data(key))])

    for seed in (0, 42):
        key_case(f"key_{seed}", jax.random.key(seed), "key", [], seed=seed)
        for number_ in (7, 123456789):
            folded = jax.random.fold_in(keys[f"key_{seed}"], number_)
            key_case(f"key_{seed}_fold_{number_}", folded, "fold_in", [tensor(data(keys[f"key_{seed}"]))], data=number_)
    twice = jax.random.fold_in(keys["key_42_fold_7"], 2**32 - 1)
    key_case("key_42_fold_7_fold_max", twice, "fold_in", [tensor(data(keys["key_42_fold_7"]))], data=2**32 - 1)
    with jax.enable_x64(True):  # without it JAX cuts a seed to 32 bits
        for seed in (2**40 + 5, 2**63 - 1):
            out.add("key", f"key_{seed}", {"seed": seed}, [], [tensor(data(jax.random.key(seed)))])
    keys["key_raw"] = jax.random.wrap_key_data(np.array([0x12345678, 0x9ABCDEF0], np.uint32))

    for name, key in keys.items():
        source = [tensor(data(key))]
        for label, s in {"8": [8], "3x5": [3, 5], "scalar": [], "2x3x4": [2, 3, 4], "empty": [0, 2]}.items():
            out.add("bits", f"bits_{name}_{label}", {"shape": s}, source, [tensor(jax.random.bits(key, s))])
        for low, high in ((0.0, 1.0), (-2.0, 3.0)):
            value = jax.random.uniform(key, (3, 5), minval=low, maxval=high)
            label = "unit" if high == 1 else "range"
            out.add("uniform", f"uniform_{name}_{label}", {"shape": [3, 5], "minval": low, "maxval": high}, source, [tensor(value)])
        out.add("normal", f"normal_{name}", {"shape": [3, 5]}, source, [tensor(jax.random.normal(key, (3, 5)))])
        out.add("bernoulli", f"bernoulli_{name}", {"p": 0.3, "shape": [4, 6]}, source, [tensor(jax.random.bernoulli(key, 0.3, (4, 6)))])
        out.add("split", f"split_{name}", {"n": 3}, source, [tensor(data(jax.random.split(key, 3)))])
        value = jax.random.randint(key, (8,), -3, 10)
        out.add("randint", f"randint_{name}", {"shape": [8], "minval": -3, "maxval": 10}, source, [tensor(value)])
    # Enough draws that the tails, where erf_inv takes its other branch (|x| > 0.9966), are reached.
    out.add("normal", "normal_long", {"shape": [3000]}, [tensor(data(keys["key_0"]))], [tensor(jax.random.normal(keys["key_0"], (3000,)))])
    out.write()


if __name__ == "__main__":
    for family in (elementwise, reduce, shape, gather, dot, convolution, pooling, nn, random):
        family()
