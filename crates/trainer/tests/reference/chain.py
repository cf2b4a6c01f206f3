"""Rules around an optimizer: `python3 chain.py`, with torch and numpy.

Gradient centralization (Yong et al. 2020, algorithm 1) before AdamW or SGD, after clipping by the norm, and Lookahead
(Zhang et al. 2019, algorithm 1) around the optimizer. chain.json holds the loss of each step. Weights and batches are
computed from integers, so that a test has the same values, bit for bit.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
STEPS, BATCH, NORM, EVERY, ALPHA = 12, 8, 0.5, 3, 0.5


def numbers(start, *shape):
    """Numbers from -1 to 1, exact in f32."""
    k = np.arange(start, start + int(np.prod(shape)), dtype=np.uint64)
    hashed = (k * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(256)
    return torch.tensor((hashed.astype(np.float64) / 2**23 - 1).reshape(shape), dtype=torch.float64)


def train(kind, dtype):
    first, head = nn.Linear(6, 8), nn.Linear(8, 2)
    parameters = [parameter for layer in (first, head) for parameter in layer.parameters()]
    for i, parameter in enumerate(parameters):
        parameter.data = numbers(i * 1_000_003, *parameter.shape).to(dtype) / 2
    x, y = numbers(9_000_000, STEPS, BATCH, 6).to(dtype), numbers(10_000_000, STEPS, BATCH, 2).to(dtype)
    if kind == "adamw":
        optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    slow = [parameter.detach().clone() for parameter in parameters]
    losses, norms = [], []
    for step in range(STEPS):
        loss = ((head(torch.tanh(first(x[step]))) - y[step]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(parameters, NORM).item())
        for parameter in parameters:
            if parameter.dim() > 1:
                axes = tuple(range(1, parameter.dim()))
                parameter.grad -= parameter.grad.mean(dim=axes, keepdim=True)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                for parameter, outer in zip(parameters, slow):
                    outer += ALPHA * (parameter - outer)
                    parameter.copy_(outer)
        losses.append(loss.item())
    return {"losses": losses, "norms": norms}


def rounded(values):
    return {name: [float(f"{value:.9g}") for value in column] for name, column in values.items()}


cases = {}
for kind in ("adamw", "sgd"):
    single, double = train(kind, torch.float32), train(kind, torch.float64)
    apart = max(abs(s / d - 1) for s, d in zip(single["losses"], double["losses"]))
    print(f"{kind}: f32 and f64 differ by at most {apart:.1e} of the loss")
    assert apart < 1e-4
    cases[kind] = rounded(double)
text = json.dumps({"made_with": {"torch": torch.__version__}, "cases": cases}, separators=(",", ":"))
(HERE / "chain.json").write_text(text.replace(',"', ',\n"') + "\n")
