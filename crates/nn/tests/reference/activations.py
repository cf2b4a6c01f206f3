"""Activations, with PyTorch. `generate.py` runs it."""

import re

import torch
import torch.nn.functional as F

from torch import nn

from common import case, draw, fill, INF, NAN, write


def activations():
    functions = {
        "relu": (F.relu, {}), "gelu": (F.gelu, {"approximate": "none"}), "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
        "tanh": (torch.tanh, {}), "sigmoid": (torch.sigmoid, {}), "silu": (F.silu, {}),
        "leaky_relu": (F.leaky_relu, {"slope": 0.01}), "leaky_relu_steep": (lambda x: F.leaky_relu(x, 0.3), {"slope": 0.3}),
        "elu": (F.elu, {"alpha": 1.0}), "elu_alpha": (lambda x: F.elu(x, 0.5), {"alpha": 0.5}),
        "softplus": (F.softplus, {"beta": 1.0, "threshold": 20.0}),
        "softplus_beta": (lambda x: F.softplus(x, 2.0, 5.0), {"beta": 2.0, "threshold": 5.0}),
        "relu6": (F.relu6, {}), "celu": (F.celu, {"alpha": 1.0}), "celu_alpha": (lambda x: F.celu(x, 2.0), {"alpha": 2.0}),
        "selu": (F.selu, {}), "mish": (F.mish, {}), "softsign": (F.softsign, {}), "tanhshrink": (F.tanhshrink, {}),
        "log_sigmoid": (F.logsigmoid, {}), "hardtanh": (F.hardtanh, {"low": -1.0, "high": 1.0}),
        "hardtanh_bounds": (lambda x: F.hardtanh(x, -0.5, 2.5), {"low": -0.5, "high": 2.5}),
        "hardsigmoid": (F.hardsigmoid, {}), "hardswish": (F.hardswish, {}), "hardshrink": (F.hardshrink, {"lambda": 0.5}),
        "hardshrink_lambda": (lambda x: F.hardshrink(x, 1.5), {"lambda": 1.5}), "softshrink": (F.softshrink, {"lambda": 0.5}),
        "softshrink_lambda": (lambda x: F.softshrink(x, 1.5), {"lambda": 1.5}),
        "threshold": (lambda x: F.threshold(x, 0.5, -2.0), {"threshold": 0.5, "value": -2.0}),
        "rrelu": (lambda x: F.rrelu(x, training=False), {}),
    }  # fmt: skip
    cases = []
    for name, (f, attrs) in functions.items():
        op = re.sub("_(steep|alpha|beta|bounds|lambda)$", "", name)
        far = torch.tensor([0.0, -0.001, 0.001, 8, -8, 25, -25, 90, -90, 1000, -1000])
        cases.append(case(op, f"{name}_plain", f, draw(name, (3, 7), -5, 5), **attrs))
        cases.append(case(op, f"{name}_far", f, far, **attrs))
        cases.append(case(op, f"{name}_empty", f, torch.zeros(0, 3), **attrs))
        cases.append(case(op, f"{name}_special", f, torch.tensor([INF, -INF, NAN]), gradient=False, **attrs))
        if name in CORNERS:
            cases.append(case(op, f"{name}_corners", f, torch.tensor(CORNERS[name]), **attrs))
    along = {"softmax": F.softmax, "log_softmax": F.log_softmax, "softmin": F.softmin, "glu": F.glu}
    for name, f in along.items():
        for axis in (-1, 1):
            cases.append(case(name, f"{name}_axis_{axis}", lambda x: f(x, axis), draw(name, (2, 4, 6), -5, 5), axis=axis))
    for label, channels, shape in [("one", 1, (3, 4)), ("scalar", 1, ()), ("channels", 3, (2, 3, 4)), ("features", 5, (2, 5))]:
        module = fill(nn.PReLU(channels), f"prelu_{label}")
        x = draw(f"prelu_{label}/x", shape)
        cases.append(case("prelu", f"prelu_{label}", module, x, parameters=list(module.named_parameters()), channels=channels))
    write("activations", cases)


# Where a derivative jumps.
CORNERS = {
    "relu6": [0.0, 6.0], "hardtanh": [-1.0, 1.0], "hardsigmoid": [-3.0, 3.0], "hardswish": [-3.0, 3.0], "hardshrink": [-0.5, 0.5],
    "softshrink": [-0.5, 0.5], "threshold": [0.5], "softplus_beta": [2.5], "celu_alpha": [0.0], "selu": [0.0], "leaky_relu": [0.0],
}  # fmt: skip
