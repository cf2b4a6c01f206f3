"""Muon over 20 steps, with PyTorch: as it is, and with its iteration in f64. `generate.py` runs it."""

from unittest import mock

import torch
from torch.optim import _muon

from common import draw, write
from optimizers import gradients, walk

SETTINGS = [
    ("defaults", {}),
    ("large", {"lr": 0.02, "weight_decay": 0.05}),
    ("plain_momentum", {"lr": 0.02, "momentum": 0.8, "nesterov": False}),
    ("match_rms_adamw", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}),
    ("spectral_unclamped", {"lr": 0.02, "adjust_lr_fn": "spectral_unclamped"}),
    ("cubic", {"lr": 0.02, "ns_coefficients": (1.5, -0.5, 0.0), "ns_steps": 8, "eps": 0.5}),
]


def exact(grad, coefficients, steps, eps):
    """PyTorch's iteration without the rounding to bf16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def cases(settings, dtype):
    """As optimizers.json, with a wide and a tall matrix."""
    for label, how in settings:
        first = {"wide": draw(label + "/wide", (3, 5)).to(dtype), "tall": draw(label + "/tall", (4, 2)).to(dtype)}
        params = {k: v.clone().requires_grad_() for k, v in first.items()}
        optimizer = torch.optim.Muon(params.values(), **how)
        attrs = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}

        def step():
            for key, p in params.items():
                p.grad = gradients(key, p)
            optimizer.step()
            return {k: p.grad for k, p in params.items()}, params

        yield walk("muon", label, attrs, first, step)


def muon():
    write("muon", list(cases(SETTINGS[:3], torch.float32)))
    with mock.patch.object(_muon, "_zeropower_via_newtonschulz", exact):
        write("muon_f64", list(cases(SETTINGS, torch.float64)))
