"""Optimizers over 20 steps, with PyTorch. `generate.py` runs it."""

import torch

from common import draw, tensors, write


def gradients(key, p):
    """The gradient of a sum of parabolas and cosines."""
    p = p.detach().clone().requires_grad_()
    centre, curve = draw(f"{key}/centre", p.shape), draw(f"{key}/curve", p.shape, 0.2, 3.0)
    (0.5 * curve * (p - centre) ** 2 + 0.5 * torch.cos(3.0 * p)).sum().backward()
    return p.grad


def walk(op, label, attrs, first, step):
    """A case of 20 steps, of which each gives the gradients and the parameters after it."""
    steps = []
    for _ in range(20):
        grads, params = step()
        steps.append({"gradients": tensors(grads.items()), "parameters": tensors(params.items())})
    return {"op": op, "name": f"{op}_{label}", "attrs": attrs, "parameters": tensors(first.items()), "steps": steps}


def optimizers():
    """Each case: the first parameters, and for each of 20 steps the gradients, the learning rate and momentum where a
    schedule moves them, and the parameters after it. The gradients are those of a sum of parabolas and cosines along
    the optimizer's own path; they are in the file, so whoever reads it needs no derivatives to go the same way."""
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    table = [
        ("sgd", "plain", sgd, {"lr": 0.1}), ("sgd", "momentum", sgd, {"lr": 0.1, "momentum": 0.9}),
        ("sgd", "nesterov", sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}), ("sgd", "weight_decay", sgd, {"lr": 0.1, "weight_decay": 0.05}),
        ("sgd", "dampening", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        ("sgd", "momentum_weight_decay", sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
        ("sgd", "nesterov_weight_decay", sgd, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01, "nesterov": True}),
        ("sgd", "dampening_weight_decay", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
        ("adamw", "defaults", adamw, {}), ("adamw", "large", adamw, {"lr": 0.1, "weight_decay": 0.1}),
        ("adamw", "betas", adamw, {"lr": 0.05, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.0}),
        ("adam", "defaults", adam, {}), ("adam", "large", adam, {"lr": 0.1}), ("adam", "weight_decay", adam, {"lr": 0.05, "weight_decay": 0.1}),
        ("adam", "betas", adam, {"lr": 0.05, "betas": [0.5, 0.9], "eps": 1e-4}),
        ("sgd", "one_cycle", sgd, {"lr": 0.1, "momentum": 0.9}), ("adamw", "one_cycle", adamw, {"lr": 0.1}),
    ]  # fmt: skip
    cases = []
    for op, label, kind, how in table:
        first = {"weight": draw(label + "/w", (2, 3)), "bias": draw(label + "/b", (2,))}
        params = {k: v.clone().requires_grad_() for k, v in first.items()}
        optimizer = kind(params.values(), foreach=False, **how)
        group = optimizer.param_groups[0]
        keys = ["lr", "momentum", "dampening", "weight_decay", "nesterov"] if kind is sgd else ["lr", "betas", "eps", "weight_decay"]
        attrs = {k: group[k] for k in keys}
        schedule = None
        if label == "one_cycle":
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
            attrs["one_cycle"] = {"max_lr": 0.1, "total_steps": 20, "base_momentum": 0.85, "max_momentum": 0.95}
        steps = []
        for _ in range(20):
            used = {"lr": group["lr"], "momentum": group["momentum"] if kind is sgd else group["betas"][0]}
            optimizer.zero_grad()
            loss = 0.0
            for key, p in params.items():
                centre, curve = draw(f"{key}/centre", p.shape), draw(f"{key}/curve", p.shape, 0.2, 3.0)
                loss = loss + (0.5 * curve * (p - centre) ** 2 + 0.5 * torch.cos(3.0 * p)).sum()
            loss.backward()
            step = {"gradients": tensors((k, p.grad) for k, p in params.items())}
            optimizer.step()
            step["parameters"] = tensors(params.items())
            if schedule:
                step |= used
                schedule.step()
            steps.append(step)
        cases.append({"op": op, "name": f"{op}_{label}", "attrs": attrs, "parameters": tensors(first.items()), "steps": steps})
    write("optimizers", cases)
