"""Schedules other than one-cycle over 1,000 steps, with PyTorch. `generate.py` runs it."""

import torch
from torch.optim import lr_scheduler as S

from common import write


def plain(optimizer, op, a):
    """The scheduler of a row, or the factor of a step where PyTorch has none such."""
    match op:
        case "constant": return S.ConstantLR(optimizer, a["factor"], a["total_iters"])
        case "step": return S.StepLR(optimizer, a["step_size"], a["gamma"])
        case "multi_step": return S.MultiStepLR(optimizer, a["milestones"], a["gamma"])
        case "exponential": return S.ExponentialLR(optimizer, a["gamma"])
        case "linear": return S.LinearLR(optimizer, a["start_factor"], a["end_factor"], a["total_iters"])
        case "polynomial": return S.PolynomialLR(optimizer, a["total_iters"], a["power"])
        case "cosine_annealing": return S.CosineAnnealingLR(optimizer, a["t_max"], a["eta_min"])
        case "warm_restarts": return S.CosineAnnealingWarmRestarts(optimizer, a["t_0"], a["t_mult"], a["eta_min"])
        case "cyclic": return S.CyclicLR(optimizer, a["base_lr"], a["max_lr"], a["step_size_up"], a["step_size_down"], a["mode"], a["gamma"], cycle_momentum=False)
        case "inverse_sqrt": return S.LambdaLR(optimizer, lambda k: min((k + 1) / a["warmup_steps"], (a["warmup_steps"] / (k + 1)) ** 0.5))
        case "transformer": return S.LambdaLR(optimizer, lambda k: a["d_model"] ** -0.5 * min((k + 1) ** -0.5, (k + 1) * a["warmup_steps"] ** -1.5))
        case "warmup":
            first = S.LinearLR(optimizer, a["start_factor"], 1.0, a["steps"])
            return S.SequentialLR(optimizer, [first, S.CosineAnnealingLR(optimizer, a["t_max"], a["eta_min"])], [a["steps"]])
        case "sequential":
            parts = [S.ConstantLR(optimizer, 0.1, 50), S.ExponentialLR(optimizer, 0.99), S.LinearLR(optimizer, 0.5, 0.25, 100)]
            return S.SequentialLR(optimizer, parts, [100, 400])
        case "chained":
            return S.ChainedScheduler([S.ConstantLR(optimizer, 0.1, 20), S.ExponentialLR(optimizer, 0.995)], optimizer)
    raise ValueError(op)  # fmt: skip


def schedules_plain():
    """As schedules.json."""
    table = [
        ("constant", "", {"factor": 0.3, "total_iters": 50}), ("step", "", {"step_size": 30, "gamma": 0.8}), ("step", "defaults", {"step_size": 300, "gamma": 0.1}),
        ("multi_step", "", {"milestones": [100, 101, 500, 900], "gamma": 0.3}), ("exponential", "", {"gamma": 0.99}), ("exponential", "slow", {"gamma": 0.9999}),
        ("linear", "", {"start_factor": 1 / 3, "end_factor": 1.0, "total_iters": 700}), ("linear", "down", {"start_factor": 1.0, "end_factor": 0.01, "total_iters": 900}),
        ("polynomial", "", {"total_iters": 995, "power": 1.0}), ("polynomial", "power", {"total_iters": 1500, "power": 2.5}),
        ("cosine_annealing", "", {"t_max": 1000, "eta_min": 0.0}), ("cosine_annealing", "waves", {"t_max": 150, "eta_min": 0.001}),
        ("warm_restarts", "", {"t_0": 90, "t_mult": 1, "eta_min": 0.0}), ("warm_restarts", "longer", {"t_0": 30, "t_mult": 2, "eta_min": 1e-3}),
        ("warm_restarts", "thrice", {"t_0": 7, "t_mult": 3, "eta_min": 0.0}),
        ("cyclic", "", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 60, "step_size_down": 90, "mode": "triangular", "gamma": 1.0}),
        ("cyclic", "halves", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 70, "step_size_down": None, "mode": "triangular2", "gamma": 1.0}),
        ("cyclic", "exp_range", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 50, "step_size_down": 50, "mode": "exp_range", "gamma": 0.999}),
        ("inverse_sqrt", "", {"warmup_steps": 100}), ("transformer", "", {"d_model": 512, "warmup_steps": 400}),
        ("warmup", "", {"steps": 100, "start_factor": 0.05, "t_max": 900, "eta_min": 1e-4}), ("sequential", "", {}), ("chained", "", {}),
    ]  # fmt: skip
    cases = []
    for op, label, attrs in table:
        lr = 1.0 if op == "transformer" else 0.1
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        schedule = plain(optimizer, op, attrs)
        rates = []
        for _ in range(1000):
            rates.append(float(f"{optimizer.param_groups[0]['lr']:.8g}"))
            optimizer.step()
            schedule.step()
        name = f"{op}_{label}" if label else op
        cases.append({"op": op, "name": name, "attrs": {"lr": lr} | attrs, "lr": rates})
    for i in (0, 1):
        write("schedules_plain" if i == 0 else "schedules_plain_2", cases[i::2])
