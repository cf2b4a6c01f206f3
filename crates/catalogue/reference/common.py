"""Shared by the scripts of this folder: the format of cases and tensors, and random inputs.

A case is {"op", "name", "attrs", "inputs", "outputs", "cotangents", "gradients", "kink"}. A tensor is {"dtype", "shape",
"data"}. The data are in row-major order, with floats in the fewest digits that parse to the same number. NaN and the
infinities are strings, and a complex element is two numbers. "cotangents" has one entry for each output and "gradients" one
for each input, null if it is not a float. Both are empty if the case is about values only. "kink" is the reason why a
derivative at this point is not a limit of differences, if it is not. Inputs are drawn from a generator seeded by the name
of the case, so a new case does not change others. A case that was added by other versions than the file's has its own
"made_with".
"""

import json
import platform
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FOLDER = Path(__file__).parent
F32, I32, BOOL = np.float32, np.int32, np.bool_
F64, I64, U8, BF16 = np.float64, np.int64, np.uint8, jnp.bfloat16
DTYPES = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "complex64": "c64", "complex128": "c128",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "bool": "bool",
}  # fmt: skip
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
    # f32 prints in the fewest digits and holds every bf16 and f16 exactly.
    text = repr(float(value)) if value.dtype == np.float64 else str(np.float32(value))
    return text.removesuffix(".0") if text != "-0.0" else text


def tensor(value):
    value = np.asarray(value)
    parts = value.ravel()
    if np.iscomplexobj(value):
        parts = np.stack([parts.real, parts.imag], -1).ravel()
    data = ",".join(number(v) for v in parts)
    return f'{{"dtype":"{DTYPES[value.dtype.name]}","shape":{json.dumps(list(value.shape), separators=(",", ":"))},"data":[{data}]}}'


def differentiable(value):
    return jnp.issubdtype(value.dtype, jnp.inexact)


class Family:
    """The cases of one file."""

    def __init__(self, name):
        self.name, self.lines, self.names = name, [], set()

    def case(self, op, name, f, *inputs, gradient=True, kink=None, x64=False, **attrs):
        """Adds a call of f, which returns an array or a tuple of arrays. With x64, JAX keeps i64, f64 and complex128."""
        inputs = [np.asarray(v) for v in inputs]
        with jax.enable_x64(x64):
            several = lambda *xs: y if isinstance(y := f(*xs), (tuple, list)) else (y,)
            outputs = jax.jit(several)(*inputs)
            at = [i for i, v in enumerate(inputs) if differentiable(v)]
            to = [i for i, v in enumerate(outputs) if differentiable(v)]
            cotangents, gradients = [], []
            if gradient and at and to:

                def of_floats(*floats):
                    full = list(inputs)
                    for i, v in zip(at, floats):
                        full[i] = v
                    return [y for y in several(*full) if differentiable(y)]

                suffix = lambda i: f"/cotangent{i}" if len(outputs) > 1 else "/cotangent"
                seeds = [seed(name + suffix(i), outputs[i]) for i in to]
                pull = jax.jit(lambda floats, g: jax.vjp(of_floats, *floats)[1](g))
                pulled = pull([inputs[i] for i in at], seeds)
                cotangents, gradients = ["null"] * len(outputs), ["null"] * len(inputs)
                for i, g in zip(to, seeds):
                    cotangents[i] = tensor(g)
                for i, g in zip(at, pulled):
                    gradients[i] = tensor(g)
            self.add(op, name, attrs, [tensor(v) for v in inputs], [tensor(y) for y in outputs], cotangents, gradients, kink)

    def add(self, op, name, attrs, inputs, outputs, cotangents=(), gradients=(), kink=None):
        assert name not in self.names, name
        self.names.add(name)
        self.lines.append(
            f'{{"op":"{op}","name":"{name}","attrs":{json.dumps(attrs)},"inputs":[{",".join(inputs)}],'
            f'"outputs":[{",".join(outputs)}],"cotangents":[{",".join(cotangents)}],"gradients":[{",".join(gradients)}]'
            + (f',"kink":{json.dumps(kink)}' if kink else "")
            + "}"
        )

    def keep_old(self, path):
        """Takes the cases that the file has from it, and returns the versions that made it."""
        old = path.read_text().splitlines()
        made_with = json.loads(old[0] + "]}")["made_with"]
        kept = {json.loads(line.rstrip(","))["name"]: line.rstrip(",") for line in old[1:-1]}
        for i, line in enumerate(self.lines):
            name = json.loads(line)["name"]
            if name in kept:
                self.lines[i] = kept[name]
            elif made_with != MADE_WITH:
                self.lines[i] = f'{line[:-1]},"made_with":{json.dumps(MADE_WITH)}}}'
        return made_with

    def write(self):
        path = FOLDER / f"{self.name}.json"
        made_with = self.keep_old(path) if "--new" in sys.argv and path.exists() else MADE_WITH
        body = ",\n".join(self.lines)
        text = f'{{"made_with":{json.dumps(made_with)},"cases":[\n{body}\n]}}\n'
        count = len(json.loads(text)["cases"])
        path.write_text(text)
        assert len(text) < 200_000, f"{path.name} is too large: {len(text)} bytes"
        print(f"{path.name}: {count} cases, {len(text)} bytes")


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw(name, shape, low=-2.0, high=2.0, digits=3):
    return np.round(rng(name).uniform(low, high, shape), digits).astype(F32)


def seed(name, output):
    """A random cotangent of an output."""
    drawn = draw(name, output.shape, digits=2)
    if jnp.iscomplexobj(output):
        drawn = drawn + 1j * draw(name + "/imaginary", output.shape, digits=2)
    return drawn.astype(output.dtype)


def distinct(name, shape):
    """Distinct values, so that a maximum has no ties."""
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
