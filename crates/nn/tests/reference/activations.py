"""Activations, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, INF, NAN, write


def activations():
    functions = {
        "relu": (F.relu, {}), "gelu": (F.gelu, {"approximate": "none"}), "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
        "tanh": (torch.tanh, {}), "sigmoid": (torch.sigmoid, {}), "silu": (F.silu, {}),
        "leaky_relu": (F.leaky_relu, {"slope": 0.01}), "leaky_relu_steep": (lambda x: F.leaky_relu(x, 0.3), {"slope": 0.3}),
        "elu": (F.elu, {"alpha": 1.0}), "elu_alpha": (lambda x: F.elu(x, 0.5), {"alpha": 0.5}),
        "softplus": (F.softplus, {"beta": 1.0, "threshold": 20.0}),
        "softplus_beta": (lambda x: F.softplus(x, 2.0, 5.0), {"beta": 2.0, "threshold": 5.0}),
    }  # fmt: skip
    cases = []
    for name, (f, attrs) in functions.items():
        op = name.removesuffix("_steep").removesuffix("_alpha").removesuffix("_beta")
        far = torch.tensor([0.0, -0.001, 0.001, 8, -8, 25, -25, 90, -90, 1000, -1000])
        cases.append(case(op, f"{name}_plain", f, draw(name, (3, 7), -5, 5), **attrs))
        cases.append(case(op, f"{name}_far", f, far, **attrs))
        cases.append(case(op, f"{name}_empty", f, torch.zeros(0, 3), **attrs))
        cases.append(case(op, f"{name}_special", f, torch.tensor([INF, -INF, NAN]), gradient=False, **attrs))
    write("activations", cases)
