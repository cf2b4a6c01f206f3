"""Losses, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, labels, write


def losses():
    """The logits' class axis is 1, as in PyTorch. "mean" over targets that are all ignored is NaN."""
    cases = []
    for label, shape, attrs, scale in [
        ("plain", (4, 10), {}, 3), ("one", (1, 2), {}, 3), ("smooth", (4, 5), {"label_smoothing": 0.1}, 3), ("confident", (3, 4), {}, 200),
        ("smooth_confident", (3, 4), {"label_smoothing": 0.1}, 100), ("pixels", (2, 3, 2, 2), {}, 3), ("ignored", (5, 4), {"ignore_index": -100}, 3),
        ("smooth_ignored", (5, 4), {"ignore_index": 2, "label_smoothing": 0.1}, 3),
    ]:  # fmt: skip
        logits = draw(label, shape, -scale, scale)
        target = labels(label, (shape[0], *shape[2:]), shape[1])
        if "ignore_index" in attrs:
            target[1], target[3] = attrs["ignore_index"], attrs["ignore_index"]
        for reduction in ("mean", "sum", "none"):
            run = lambda x, t: F.cross_entropy(x, t, reduction=reduction, **attrs)
            cases.append(case("cross_entropy", f"cross_entropy_{label}_{reduction}", run, logits, target, reduction=reduction, **attrs))
    nobody = torch.full((3,), -100)
    for reduction in ("mean", "sum", "none"):
        run = lambda x, t: F.cross_entropy(x, t, reduction=reduction)
        name = f"cross_entropy_all_ignored_{reduction}"
        cases.append(case("cross_entropy", name, run, draw(name, (3, 4)), nobody, gradient=False, reduction=reduction, ignore_index=-100))
    for reduction in ("mean", "sum", "none"):
        run = lambda x, t: F.mse_loss(x, t, reduction=reduction)
        x, t = draw("mse/x", (3, 4)), draw("mse/t", (3, 4))
        cases.append(case("mse_loss", f"mse_loss_{reduction}", run, x, t, reduction=reduction))
    write("losses", cases)
