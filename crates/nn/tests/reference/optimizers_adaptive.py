"""More optimizers over 20 steps, with PyTorch: what scales its steps by the gradients so far. `generate.py` runs it."""

import torch

from common import draw, write
from optimizers import gradients, walk


def optimizers_adaptive():
    """As optimizers.json; "attrs" are PyTorch's own, all of them."""
    o = torch.optim
    table = [
        ("adam", "amsgrad", o.Adam, {"lr": 0.1, "amsgrad": True}), ("adamw", "maximize", o.AdamW, {"lr": 0.05, "maximize": True}),
        ("nadam", "defaults", o.NAdam, {}), ("nadam", "large", o.NAdam, {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.02}),
        ("nadam", "decoupled", o.NAdam, {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
        ("radam", "defaults", o.RAdam, {}), ("radam", "large", o.RAdam, {"lr": 0.1, "betas": [0.8, 0.95], "weight_decay": 0.05}),
        ("radam", "decoupled", o.RAdam, {"lr": 0.1, "betas": [0.8, 0.8], "weight_decay": 0.05, "decoupled_weight_decay": True}),
        ("rmsprop", "defaults", o.RMSprop, {}), ("rmsprop", "momentum", o.RMSprop, {"momentum": 0.9, "weight_decay": 0.01}),
        ("rmsprop", "centered", o.RMSprop, {"centered": True, "alpha": 0.9}),
        ("rmsprop", "all", o.RMSprop, {"lr": 5e-3, "centered": True, "alpha": 0.9, "momentum": 0.5, "eps": 1e-3, "weight_decay": 0.1}),
        ("adagrad", "defaults", o.Adagrad, {}), ("adagrad", "all", o.Adagrad, {"lr": 0.3, "lr_decay": 0.05, "weight_decay": 0.1, "initial_accumulator_value": 0.2}),
        ("adadelta", "defaults", o.Adadelta, {}), ("adadelta", "all", o.Adadelta, {"lr": 2.0, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
        ("adafactor", "defaults", o.Adafactor, {}), ("adafactor", "all", o.Adafactor, {"lr": 0.3, "beta2_decay": -0.5, "eps": [1e-3, 1e-2], "d": 1.5, "weight_decay": 0.1}),
    ]  # fmt: skip
    cases = []
    for op, label, kind, how in table:
        first = {"weight": draw(label + "/w", (2, 3)), "bias": draw(label + "/b", (2,))}
        params = {k: v.clone().requires_grad_() for k, v in first.items()}
        others = {} if kind is o.Adafactor else {"foreach": False}
        optimizer = kind(params.values(), **others, **how)
        group = optimizer.param_groups[0]
        attrs = {k: v for k, v in group.items() if k != "params" and isinstance(v, (int, float, list, tuple))}

        def step():
            for key, p in params.items():
                p.grad = gradients(key, p)
            optimizer.step()
            return {k: p.grad for k, p in params.items()}, params

        cases.append(walk(op, label, attrs, first, step))
    write("optimizers_adaptive", cases)
