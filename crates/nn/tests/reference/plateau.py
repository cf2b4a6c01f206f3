"""ReduceLROnPlateau, with PyTorch. `generate.py` runs it."""

import torch

from common import rng, write


def plateau():
    """"metrics" holds one number an epoch, "lr" the rate after each of them."""
    table = [
        ("defaults", {}), ("patience", {"patience": 2, "factor": 0.5}), ("max", {"mode": "max", "patience": 1, "factor": 0.3}),
        ("abs", {"threshold_mode": "abs", "threshold": 0.05, "patience": 1}), ("max_abs", {"mode": "max", "threshold_mode": "abs", "threshold": 0.02, "patience": 0, "factor": 0.9}),
        ("cooldown", {"patience": 1, "cooldown": 3, "factor": 0.5}), ("min_lr", {"patience": 0, "factor": 0.1, "min_lr": 1e-3}),
        ("rel", {"patience": 1, "threshold": 0.1, "factor": 0.7}), ("eps", {"patience": 0, "factor": 0.5, "eps": 0.02}),
    ]  # fmt: skip
    cases = []
    for name, how in table:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **how)
        falling = [1.0 / (1 + 0.2 * min(i, 12)) for i in range(40)]
        metrics = [round(m + d, 4) for m, d in zip(falling, rng(name).uniform(-0.05, 0.05, 40).tolist())]
        if how.get("mode") == "max":
            metrics = [round(1 - m, 4) for m in metrics]
        rates = []
        for metric in metrics:
            schedule.step(metric)
            rates.append(optimizer.param_groups[0]["lr"])
        cases.append({"name": name, "attrs": how, "metrics": metrics, "lr": rates})
    write("plateau", cases)
