"""Writes sparse_tables.json: tables with sparse gradients, trained by PyTorch's lazy optimizers beside a dense weight.

    pip install torch && python sparse_tables.py
"""

import json
from pathlib import Path

import torch
from torch import nn

ROWS, WIDTH, BATCH, LENGTH, STEPS = 24, 4, 8, 3, 6

torch.manual_seed(0)
INDICES = torch.randint(0, ROWS // 2, (STEPS * BATCH, LENGTH))  # Half of the rows are never looked up.
TARGETS = torch.randn(STEPS * BATCH, LENGTH, WIDTH)
TABLE, WEIGHT = torch.randn(ROWS, WIDTH), torch.randn(WIDTH)


def train(lazy, dense):
    table, weight = nn.Embedding(ROWS, WIDTH, sparse=True, _weight=TABLE.clone()), nn.Parameter(WEIGHT.clone())
    optimizers = [lazy([table.weight]), dense([weight])]
    for indices, targets in zip(INDICES.split(BATCH), TARGETS.split(BATCH)):
        loss = ((table(indices) * weight - targets) ** 2).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"table": table.weight.flatten().tolist(), "weight": weight.tolist()}


def main():
    optim = torch.optim
    adagrad = {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.1}
    cases = {
        "sgd": train(lambda p: optim.SGD(p, 0.5), lambda p: optim.SGD(p, 0.5)),
        "adagrad": train(lambda p: optim.Adagrad(p, **adagrad), lambda p: optim.Adagrad(p, **adagrad)),
        "adam": train(lambda p: optim.SparseAdam(p, 0.05), lambda p: optim.Adam(p, 0.05)),
        "adam_eps": train(lambda p: optim.SparseAdam(p, 0.05, eps=1e-2), lambda p: optim.Adam(p, 0.05, eps=1e-2)),
    }
    inputs = {"indices": INDICES.flatten().tolist(), "targets": TARGETS.flatten().tolist()}
    first = {"table": TABLE.flatten().tolist(), "weight": WEIGHT.tolist()}
    made_with = {"torch": torch.__version__}
    everything = {"made_with": made_with, "inputs": inputs, "first": first, "cases": cases}
    Path(__file__).with_suffix(".json").write_text(json.dumps(everything) + "\n")


main()
