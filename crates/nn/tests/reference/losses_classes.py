"""Losses of classes, with PyTorch: weights, probabilities as targets, log-likelihoods. `generate.py` runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, labels, write

REDUCTIONS = ("mean", "sum", "none")


def losses_classes():
    """The class axis is 1, as in PyTorch. A weight stands in the attributes."""
    cases = []
    for label, shape, attrs in [
        ("weighted", (5, 4), {}), ("weighted_pixels", (2, 3, 2, 2), {}), ("weighted_smooth", (5, 4), {"label_smoothing": 0.2}),
        ("weighted_ignored", (5, 4), {"ignore_index": 1}), ("weighted_smooth_ignored", (6, 4), {"ignore_index": -100, "label_smoothing": 0.1}),
    ]:  # fmt: skip
        logits, target = draw(label, shape, -3, 3), labels(label, (shape[0], *shape[2:]), shape[1])
        weight = draw(label + "/weight", (shape[1],), 0.1, 2, 2)
        if "ignore_index" in attrs:
            target[1], target[3] = attrs["ignore_index"], attrs["ignore_index"]
        for reduction in REDUCTIONS:
            run = lambda x, t: F.cross_entropy(x, t, weight=weight, reduction=reduction, **attrs)
            extra = {"weight": [round(w, 2) for w in weight.tolist()], "reduction": reduction, **attrs}
            cases.append(case("cross_entropy", f"cross_entropy_{label}_{reduction}", run, logits, target, **extra))
            if "label_smoothing" not in attrs:
                log_p = logits.log_softmax(1)
                run = lambda x, t: F.nll_loss(x, t, weight=weight, reduction=reduction, **attrs)
                cases.append(case("nll_loss", f"nll_loss_{label}_{reduction}", run, log_p, target, **extra))
    for label, shape, weighted, attrs in [
        ("soft", (4, 5), False, {}), ("soft_pixels", (2, 3, 2, 2), False, {}), ("soft_smooth", (4, 5), False, {"label_smoothing": 0.1}),
        ("soft_weighted", (4, 5), True, {}), ("soft_weighted_smooth", (4, 5), True, {"label_smoothing": 0.3}),
    ]:  # fmt: skip
        logits, target = draw(label, shape, -3, 3), draw(label + "/target", shape, -2, 2).softmax(1)
        weight = draw(label + "/weight", (shape[1],), 0.1, 2, 2) if weighted else None
        extra = {"weight": [round(w, 2) for w in weight.tolist()]} if weighted else {}
        for reduction in REDUCTIONS:
            run = lambda x, t: F.cross_entropy(x, t, weight=weight, reduction=reduction, **attrs)
            cases.append(case("cross_entropy", f"cross_entropy_{label}_{reduction}", run, logits, target, reduction=reduction, **extra, **attrs))
    for reduction in REDUCTIONS:
        run = lambda x, t: F.nll_loss(x, t, reduction=reduction)
        cases.append(case("nll_loss", f"nll_loss_{reduction}", run, draw("nll", (3, 4)).log_softmax(1), labels("nll", (3,), 4), reduction=reduction))
    write("losses_classes", cases)
