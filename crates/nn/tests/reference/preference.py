"""DPO's losses and the rewards that TRL logs, by TRL's formulas in PyTorch, in f64. `generate.py` runs it.

The formulas are those of TRL 1.16's `DPOTrainer`; `label_smoothing` of the sigmoid loss is that of TRL 0.x, which 1.x no
longer has.
"""

import torch
import torch.nn.functional as F

from common import case, draw, labels, write


def log_probs(logits, targets):
    counted = targets != -100
    picked = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return torch.where(counted, picked, 0.0).sum(-1), counted.sum(-1).clamp(min=1)


def ratios(inputs):
    chosen_logits, rejected_logits, chosen, rejected, reference_chosen, reference_rejected = inputs
    (chosen_sum, chosen_tokens) = log_probs(chosen_logits.double(), chosen)
    (rejected_sum, rejected_tokens) = log_probs(rejected_logits.double(), rejected)
    return (chosen_sum - reference_chosen.double().detach(), chosen_tokens), (rejected_sum - reference_rejected.double().detach(), rejected_tokens)


def loss(inputs, loss_type, beta, label_smoothing, reduction):
    (chosen, chosen_tokens), (rejected, rejected_tokens) = ratios(inputs)
    delta = chosen - rejected
    if loss_type == "sigmoid":
        losses = -F.logsigmoid(beta * delta) * (1 - label_smoothing) - F.logsigmoid(-beta * delta) * label_smoothing
    elif loss_type == "hinge":
        losses = torch.relu(1 - beta * delta)
    else:
        losses = (chosen / chosen_tokens - rejected / rejected_tokens - 1 / (2 * beta)) ** 2
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]().float()


def preference():
    cases = []
    shape = (4, 6, 5)

    def drawn(name):
        targets = [labels(f"{name}/{answer}", shape[:2], shape[2]) for answer in ("chosen", "rejected")]
        targets[0][:, :2] = -100  # the prompt
        targets[1][:, :2] = -100
        targets[0][1, 4:] = -100  # padding
        targets[1][2, 3:] = -100
        logits = [draw(f"{name}/{answer}_logits", shape, -3, 3) for answer in ("chosen", "rejected")]
        references = [draw(f"{name}/reference_{answer}", shape[:1], -14, -4) for answer in ("chosen", "rejected")]
        return (*logits, *targets, *references)

    for loss_type, beta, label_smoothing in [
        ("sigmoid", 0.1, 0.0), ("sigmoid", 5.0, 0.0), ("sigmoid", 0.5, 0.2), ("hinge", 0.3, 0.0), ("ipo", 0.1, 0.0), ("ipo", 2.0, 0.0),
    ]:  # fmt: skip
        attrs = {"loss_type": loss_type, "beta": beta, "label_smoothing": label_smoothing}
        for reduction in ("mean", "none"):
            run = lambda *inputs: loss(inputs, **attrs, reduction=reduction)
            name = f"{loss_type}_{beta}_{label_smoothing}"
            cases.append(case("dpo_loss", f"{name}_{reduction}", run, *drawn(name), reduction=reduction, **attrs))
    attrs = {"loss_type": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "reduction": "mean"}
    metrics = {
        "chosen": lambda chosen, rejected: chosen,
        "rejected": lambda chosen, rejected: rejected,
        "margins": lambda chosen, rejected: chosen - rejected,
        "accuracies": lambda chosen, rejected: (chosen > rejected).double(),
    }
    for name, metric in metrics.items():
        def run(*inputs):
            (chosen, _), (rejected, _) = ratios(inputs)
            return metric(0.1 * chosen, 0.1 * rejected).float()

        cases.append(case(f"rewards/{name}", f"rewards_{name}", run, *drawn("rewards"), gradient=False, **attrs))
    write("preference", cases)
