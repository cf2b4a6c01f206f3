"""Groups of batches whose losses are means over other things than samples, by PyTorch: `python3 accumulation.py`, with torch.

A linear classifier of tokens trains by SGD. A step's gradient is that of one batch with all samples of a group: its mean is
over what counts in the whole group (transformers' `num_items_in_batch`). accumulation.json holds, for each case, the loss of
each step, the mean of the losses of the epoch, the weights at the end, and the mean over all batches then. Data and weights
are computed from integers, so that a test has the same values, bit for bit.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
FEATURES, CLASSES, TOKENS, BATCH, GROUP, RATE, IGNORED = 4, 3, 3, 8, 4, 0.5, -100
# The tokens that count in each batch. One batch has none.
COUNTED = [1, 7, 2, 8, 0, 5, 3]
CLASS_WEIGHTS = torch.tensor([0.125, 0.5, 0.03125], dtype=torch.float64)

torch.set_default_dtype(torch.float64)


def numbers(start, *shape):
    """Numbers from -1 to 1, exact in f32."""
    k = torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.int64)
    return (((k * 2654435761) % 2**32 // 256).double() / 2**23 - 1).reshape(shape)


def samples(count):
    """Tokens [count, TOKENS, FEATURES] and their classes [count, TOKENS], with a class for ignored ones too."""
    x = numbers(7, count, TOKENS, FEATURES)
    target = (torch.arange(count * TOKENS) * 7 % 11 % CLASSES).reshape(count, TOKENS)
    counts = torch.zeros(count * TOKENS, dtype=torch.bool)
    for batch, number in enumerate(COUNTED):
        counts[batch * BATCH * TOKENS :][:number] = True
    return x, target, counts.reshape(count, TOKENS)


def cross_entropy(logits, target, counts, weight=None):
    target = torch.where(counts, target, IGNORED)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight=weight, ignore_index=IGNORED)


def weighted(logits, target, counts):
    return cross_entropy(logits, target, counts, CLASS_WEIGHTS)


def of_weight(loss, target, counts):
    """What the mean was divided by."""
    return CLASS_WEIGHTS[target][counts].sum() if loss is weighted else counts.sum()


def train(loss, count):
    """Trains for an epoch of `count` samples."""
    x, target, counts = samples(count)
    parameters = [numbers(1, CLASSES, FEATURES).requires_grad_(), numbers(2, CLASSES).requires_grad_()]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses, weights = [], []
    for rows in torch.arange(count).split(BATCH * GROUP):
        value = loss(F.linear(x[rows], *parameters), target[rows], counts[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
        weights.append(of_weight(loss, target[rows], counts[rows]).item())
    validation = loss(F.linear(x, *parameters), target, counts).item()
    epoch = sum(loss * weight for loss, weight in zip(losses, weights)) / sum(weights)
    trained = [number for parameter in parameters for number in parameter.flatten().tolist()]
    return {"steps": losses, "epoch": epoch, "weights": trained, "validation": validation}


def gan():
    """Two optimizers, which step after each group, as in a loop with `if last: optimizer.step()`.

    The second loss of a batch depends on what the first optimizer trains, and sees its latest values.
    """
    x, target, counts = samples(6 * BATCH)
    a, b = numbers(1, CLASSES, FEATURES).requires_grad_(), numbers(3, CLASSES, CLASSES).requires_grad_()
    of_a, of_b = torch.optim.SGD([a], lr=RATE), torch.optim.SGD([b], lr=RATE)
    losses = {"a": [], "b": []}
    batches = torch.arange(6 * BATCH).split(BATCH)
    for group in (batches[:GROUP], batches[GROUP:]):
        totals = [sum(counts[rows].sum() for rows in group), len(group) * BATCH * TOKENS]
        means = [0.0, 0.0]
        for rows in group:
            hidden = F.linear(x[rows], a)
            wanted = torch.where(counts[rows], target[rows], IGNORED).flatten()
            first = F.cross_entropy(hidden.flatten(0, 1), wanted, ignore_index=IGNORED, reduction="sum") / totals[0]
            gradient = torch.autograd.grad(first, a)[0]
            a.grad = gradient if a.grad is None else a.grad + gradient
            if rows is group[-1]:
                of_a.step()
                of_a.zero_grad()
            second = (F.linear(F.linear(x[rows], a), b) - 1).square().mean(-1).sum() / totals[1]
            gradient = torch.autograd.grad(second, b)[0]
            b.grad = gradient if b.grad is None else b.grad + gradient
            if rows is group[-1]:
                of_b.step()
                of_b.zero_grad()
            means = [means[0] + first.item(), means[1] + second.item()]
        losses["a"].append(means[0])
        losses["b"].append(means[1])
    return losses | {"weights": a.flatten().tolist() + b.flatten().tolist()}


cases = {
    "ignored": train(cross_entropy, 6 * BATCH),
    "class_weights": train(weighted, 6 * BATCH),
    # The last batch has four samples, so it is padded.
    "padded": train(cross_entropy, 6 * BATCH + 4),
    "two_optimizers": gan(),
}
lines = [json.dumps({name: case})[1:-1] for name, case in ({"made_with": {"torch": torch.__version__}} | cases).items()]
(HERE / "accumulation.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
