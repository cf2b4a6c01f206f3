"""Fine-tuning with Adam, as Lightning's BaseFinetuning and BackboneFinetuning do it: `python3 finetuning.py`, with torch and
numpy.

The head trains from the beginning. `second` is unfrozen after epoch 1 with the full rate, and `first` after epoch 2 with a
tenth of it, which doubles each epoch until it is the full rate. PyTorch's Adam counts the steps of each parameter.
finetuning.json holds the loss of each step. Weights and batches are computed from integers, so that a test has the same
values, bit for bit.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
EPOCHS, BATCHES, BATCH, RATE = 7, 3, 4, 0.05


def numbers(start, *shape):
    """Numbers from -1 to 1, exact in f32."""
    k = np.arange(start, start + int(np.prod(shape)), dtype=np.uint64)
    hashed = (k * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(256)
    return torch.tensor((hashed.astype(np.float64) / 2**23 - 1).reshape(shape), dtype=torch.float64)


def train(dtype):
    first, second, head = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)
    parameters = [parameter for layer in (first, second, head) for parameter in layer.parameters()]
    for i, parameter in enumerate(parameters):
        parameter.data = numbers(i * 1_000_003, *parameter.shape).to(dtype) / 2
    x, y = numbers(9_000_000, BATCHES, BATCH, 6).to(dtype), numbers(10_000_000, BATCHES, BATCH, 2).to(dtype)
    for layer in (first, second):
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE)
    losses = []
    for epoch in range(EPOCHS):
        for start, layer in ((1, second), (2, first)):
            if epoch == start:
                layer.requires_grad_(True)
                optimizer.add_param_group({"params": layer.parameters(), "lr": RATE if layer is second else RATE / 10})
        if epoch > 2:
            rate = optimizer.param_groups[2]["lr"] * 2
            optimizer.param_groups[2]["lr"] = min(rate, optimizer.param_groups[0]["lr"])
        for batch in range(BATCHES):
            predicted = head(torch.tanh(second(torch.tanh(first(x[batch])))))
            loss = ((predicted - y[batch]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


single, double = train(torch.float32), train(torch.float64)
apart = max(abs(s / d - 1) for s, d in zip(single, double))
print(f"f32 and f64 differ by at most {apart:.1e} of the loss")
assert apart < 1e-4
rounded = [float(f"{loss:.9g}") for loss in double]
text = json.dumps({"made_with": {"torch": torch.__version__}, "losses": rounded}, separators=(",", ":"))
(HERE / "finetuning.json").write_text(text.replace(',"', ',\n"') + "\n")
