"""Optimizers that PyTorch does not have, over 20 steps, with optax. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import optax
import torch

import common
from common import draw, write
from optimizers import gradients, walk


def optimizers_optax():
    """As optimizers.json; "attrs" are the arguments that are not optax's defaults."""
    table = [
        ("lion", "defaults", {"learning_rate": 1e-3}), ("lion", "all", {"learning_rate": 0.02, "b1": 0.8, "b2": 0.95, "weight_decay": 0.1}),
        ("lars", "defaults", {"learning_rate": 1.0}), ("lars", "nesterov", {"learning_rate": 2.0, "weight_decay": 0.1, "nesterov": True, "momentum": 0.8}),
        ("lars", "all", {"learning_rate": 0.3, "weight_decay": 0.01, "trust_coefficient": 0.1, "eps": 1e-2}),
        ("lars", "zeros", {"learning_rate": 0.1}),
        ("lamb", "defaults", {"learning_rate": 0.02}), ("lamb", "all", {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.1}),
        ("lamb", "zeros", {"learning_rate": 0.02}),
    ]  # fmt: skip
    cases = []
    for op, label, how in table:
        first = {"weight": draw(label + "/w", (2, 3)), "bias": draw(label + "/b", (2,))}
        if label == "zeros":
            first["bias"] = torch.zeros(2)
        optimizer = getattr(optax, op)(**how)
        state = {"p": {k: jnp.asarray(v.numpy()) for k, v in first.items()}}
        state["s"] = optimizer.init(state["p"])

        def step():
            grads = {k: gradients(k, torch.tensor(jax.device_get(v))) for k, v in state["p"].items()}
            updates, state["s"] = optimizer.update({k: jnp.asarray(g.numpy()) for k, g in grads.items()}, state["s"], state["p"])
            state["p"] = optax.apply_updates(state["p"], updates)
            return grads, {k: torch.tensor(jax.device_get(v)) for k, v in state["p"].items()}

        cases.append(walk(op, label, how, first, step))
    write("optimizers_optax", cases, optax=optax.__version__, jax=jax.__version__)
