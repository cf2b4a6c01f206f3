"""Rules of initial values, with PyTorch. `generate.py` runs it."""

import math

import torch
from torch import nn

from common import tensor, write


class Recorder(torch.Tensor):
    """A tensor that keeps what it was asked to be filled with."""

    def uniform_(self, low, high, **_):
        self.asked = high
        assert low == -high
        return self

    def normal_(self, mean, std, **_):
        self.asked = std
        assert mean == 0
        return self


def initial_values():
    """"spread" is the bound of a uniform rule or the standard deviation of a normal one, in f64: what PyTorch asks its
    generator for. "default_…" are the layers' own rules. "quantiles" are those at 0.1, 0.3, … 0.9 of a million numbers."""
    shapes = [[5, 3], [512, 784], [1, 1], [8, 3, 3, 3], [6, 2, 5, 3], [16, 1, 3, 3], [4, 7, 9], [2, 3, 2, 2, 2]]
    gains = [("linear", None), ("tanh", None), ("relu", None), ("leaky_relu", 0.2), ("selu", None)]
    cases = []

    def add(op, shape, spread, **attrs):
        name = "_".join([op, "x".join(map(str, shape)), *(str(v) for v in attrs.values())])
        cases.append({"op": op, "name": name, "shape": shape, "attrs": attrs, "spread": spread})

    def blank(shape):
        return torch.Tensor._make_subclass(Recorder, torch.zeros(shape))

    for shape in shapes:
        for op in ("kaiming_uniform", "kaiming_normal"):
            for nonlinearity, slope in gains:
                for mode in ("fan_in", "fan_out"):
                    it = blank(shape)
                    getattr(nn.init, op + "_")(it, a=slope or 0, mode=mode, nonlinearity=nonlinearity)
                    add(op, shape, it.asked, nonlinearity=nonlinearity, slope=slope, mode=mode)
        for op in ("xavier_uniform", "xavier_normal"):
            for gain in (1.0, nn.init.calculate_gain("tanh"), 0.5):
                it = blank(shape)
                getattr(nn.init, op + "_")(it, gain=gain)
                add(op, shape, it.asked, gain=gain)
        it = blank(shape)
        nn.init.kaiming_uniform_(it, a=math.sqrt(5))  # as in Linear and the convolutions
        add("default_weight", shape, it.asked)
    for nonlinearity, slope in gains:
        cases.append({"op": "gain", "name": f"gain_{nonlinearity}", "attrs": {"nonlinearity": nonlinearity, "slope": slope}, "gain": nn.init.calculate_gain(nonlinearity, slope)})
    for shape, groups in [([4, 3, 3], 1), ([3, 5, 2], 1), ([4, 2, 3, 4], 2), ([6, 1, 1, 2, 3], 3)]:
        value = nn.init.dirac_(torch.ones(shape), groups)
        cases.append({"op": "dirac", "name": f"dirac_{'x'.join(map(str, shape))}_{groups}", "shape": shape, "attrs": {"groups": groups}, "value": tensor(value)})
    for shape in ([3, 3], [2, 4], [4, 2]):
        cases.append({"op": "eye", "name": f"eye_{shape[0]}_{shape[1]}", "shape": shape, "attrs": {}, "value": tensor(nn.init.eye_(torch.ones(shape)))})
    torch.manual_seed(0)
    for label, how in [("plain", {"mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0}), ("skewed", {"mean": 0.5, "std": 2.0, "a": -1.0, "b": 4.0})]:
        value = nn.init.trunc_normal_(torch.empty(1_000_000, dtype=torch.float64), **how)
        quantiles = [float(value.quantile(q)) for q in (0.1, 0.3, 0.5, 0.7, 0.9)]
        cases.append({"op": "trunc_normal", "name": f"trunc_normal_{label}", "attrs": how, "quantiles": quantiles})
    # The bias' bound is computed inside of reset_parameters, from the weight's fan.
    asked = []
    real = nn.init.uniform_
    for label, module in {"linear": nn.Linear(7, 3), "conv2d": nn.Conv2d(4, 6, (3, 5), groups=2)}.items():
        nn.init.uniform_ = lambda t, low, high: asked.append(high)
        module.reset_parameters()
        nn.init.uniform_ = real
        cases.append({"op": "default_bias", "name": f"default_bias_{label}", "shape": list(module.weight.shape), "attrs": {}, "spread": asked[-1]})
    write("initial_values", cases)
