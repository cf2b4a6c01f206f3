"""Schedules over all steps, with PyTorch. `generate.py` runs it."""

import torch

from common import number, write


def schedules():
    """"lr" (and "momentum") hold one number a step, in f64: element k is what step k, counted from 0, uses."""
    table = [
        ("defaults", {"max_lr": 0.1, "total_steps": 1000}, True), ("linear", {"max_lr": 0.1, "total_steps": 1000, "anneal": "linear"}, True),
        ("factors", {"max_lr": 3e-3, "total_steps": 1000, "pct_start": 0.45, "div_factor": 10.0, "final_div_factor": 100.0}, False),
        ("three_phase", {"max_lr": 0.1, "total_steps": 1000, "three_phase": True}, False),
        ("three_phase_linear", {"max_lr": 0.1, "total_steps": 120, "three_phase": True, "anneal": "linear", "pct_start": 0.4}, True),
        ("ten_steps", {"max_lr": 1.0, "total_steps": 10}, True), ("seven_steps_linear", {"max_lr": 1.0, "total_steps": 7, "anneal": "linear"}, True),
        ("rest_of_a_step", {"max_lr": 0.5, "total_steps": 101, "pct_start": 0.333}, True),
    ]  # fmt: skip
    cases = []
    for label, how, with_momentum in table:
        attrs = {"pct_start": 0.3, "anneal": "cos", "div_factor": 25.0, "final_div_factor": 1e4, "three_phase": False} | how
        if with_momentum:
            attrs |= {"base_momentum": 0.85, "max_momentum": 0.95}
        arguments = {"anneal_strategy" if k == "anneal" else k: v for k, v in attrs.items()}
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cycle_momentum=with_momentum, **arguments)
        rates, momenta = [], []
        for step in range(attrs["total_steps"]):
            rates.append(optimizer.param_groups[0]["lr"])
            momenta.append(optimizer.param_groups[0]["momentum"])
            optimizer.step()
            if step + 1 < attrs["total_steps"]:
                schedule.step()
        made = {"op": "one_cycle", "name": f"one_cycle_{label}", "attrs": attrs, "lr": rates}
        cases.append(made | ({"momentum": momenta} if with_momentum else {}))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    rates = []
    for _ in range(1000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    cases.append({"op": "constant", "name": "constant", "attrs": {"lr": 0.1}, "lr": rates})
    write("schedules", cases)
