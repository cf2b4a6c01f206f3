"""What the scripts of this folder share: how cases and tensors are written, and how inputs are drawn.

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
