"""What the scripts of this folder share: how cases and tensors are written, and how inputs are drawn.

A tensor is {"dtype", "shape", "data"}: row-major, floats in the fewest digits that read back as the same number, NaN
and the infinities as strings. Inputs are drawn from a generator seeded by the case's name, so a new case changes no old
one. A case of a layer has "inputs", "parameters", "outputs", "cotangent", "gradients" (one an input, null for integers)
and "parameter_gradients"; what the other files hold is said at the functions that write them.
"""

import json
import math
import platform
import zlib
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent
MADE_WITH = {"torch": torch.__version__, "python": platform.python_version(), "device": "cpu"}
NAN, INF = float("nan"), float("inf")
DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i32", torch.bool: "bool"}  # targets are i32 on our side


def number(value):
    if isinstance(value, int):
        return int(value)  # a truth value is 0 or 1
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return float(str(np.float32(value)))


def tensor(value):
    value = value.detach()
    return {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data": [number(v) for v in value.flatten().tolist()]}


def tensors(named):
    return {name: tensor(value) for name, value in named}


def write(name, cases, **made_with):
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), names
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in cases)
    text = f'{{"made_with":{json.dumps(MADE_WITH | made_with)},"cases":[\n{lines}\n]}}\n'
    assert len(text) < 200_000, f"{name} is too large: {len(text)} bytes"
    (FOLDER / f"{name}.json").write_text(text)
    print(f"{name}.json: {len(cases)} cases, {len(text)} bytes")


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw(name, shape, low=-2.0, high=2.0, digits=3):
    return torch.tensor(np.round(rng(name).uniform(low, high, shape), digits), dtype=torch.float32)


def distinct(name, shape):
    """Values of which no two are equal, so that a maximum has no ties."""
    n = math.prod(shape)
    return torch.tensor(rng(name).permutation(n).reshape(shape) * 0.25 - n / 8, dtype=torch.float32)


def labels(name, shape, classes):
    return torch.tensor(rng(name).integers(0, classes, shape))


def fill(module, name):
    """Short numbers in all parameters, so that the files stay small."""
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(draw(f"{name}/{key}", parameter.shape, -1, 1, 2))
    return module


def case(op, name, f, *inputs, parameters=(), gradient=True, **attrs):
    """Runs `f` on the inputs, and its derivative under a drawn cotangent."""
    inputs = [v.clone().requires_grad_() if gradient and v.is_floating_point() else v for v in inputs]
    output = f(*inputs)
    made = {"op": op, "name": name, "attrs": attrs, "inputs": [tensor(v) for v in inputs], "outputs": [tensor(output)]}
    if parameters:
        made["parameters"] = tensors(parameters)
    if gradient:
        cotangent = draw(name + "/cotangent", output.shape, digits=2)
        for _, parameter in parameters:
            parameter.grad = None
        output.backward(cotangent)
        made["cotangent"] = tensor(cotangent)
        made["gradients"] = [None if v.grad is None else tensor(v.grad) for v in inputs]
        if parameters:
            made["parameter_gradients"] = tensors((key, p.grad) for key, p in parameters)
    else:
        made.update(cotangent=None, gradients=[None] * len(inputs))
    return made
