"""Cross-entropy of the logits of a linear layer, with PyTorch: the formula with all logits at once, in f64. `generate.py`
runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, labels, write


def linear_cross_entropy():
    """The inputs are the features, the weight, the targets and perhaps the bias. The z-loss is PaLM's; "mean" divides it
    by what it divides the losses by."""
    cases = []
    flat, deep, one = (7, 3), (2, 5, 4), (1, 3)
    for label, shape, classes, how in [
        ("flat", flat, 6, {}),
        ("deep", deep, 7, {"bias": True}),
        ("one", one, 4, {"bias": True}),
        ("smooth", deep, 5, {"label_smoothing": 0.1, "ignore_index": -100}),
        ("capped", deep, 6, {"softcap": 1.5, "z_loss": 0.1, "bias": True}),
        ("weighted", flat, 5, {"weight": True, "ignore_index": 2, "label_smoothing": 0.2}),
        ("z", flat, 5, {"z_loss": 0.3, "ignore_index": -100}),
    ]:  # fmt: skip
        name = f"linear_cross_entropy_{label}"
        x, weight = draw(f"{name}/x", shape), draw(f"{name}/weight", (classes, shape[-1]))
        target = labels(name, shape[:-1], classes)
        attrs = {key: how[key] for key in ["label_smoothing", "ignore_index", "softcap", "z_loss"] if key in how}
        if "ignore_index" in how:
            target.view(-1)[1] = target.view(-1)[-2] = how["ignore_index"]
        counts = None
        if "weight" in how:
            counts = draw(f"{name}/counts", (classes,), 0.1, 2)
            attrs["weight"] = counts.tolist()
        for reduction in ("mean", "sum", "none"):

            def run(x, weight, target, bias=None):
                logits = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
                if "softcap" in how:
                    logits = torch.tanh(logits / how["softcap"]) * how["softcap"]
                logits, ignored = logits.flatten(0, -2), how.get("ignore_index", -100)
                flat = target.flatten()
                wide = None if counts is None else counts.double()
                plain = dict(ignore_index=ignored, label_smoothing=how.get("label_smoothing", 0.0), weight=wide)
                losses = F.cross_entropy(logits, flat, reduction="none", **plain)
                z = torch.where(flat == ignored, 0.0, how.get("z_loss", 0.0) * logits.logsumexp(-1) ** 2)
                if reduction == "none":
                    return (losses + z).reshape(target.shape).float()
                total = F.cross_entropy(logits, flat, reduction=reduction, **plain)
                return (total + z.sum() / ((flat != ignored).sum() if reduction == "mean" else 1)).float()

            inputs = [x, weight, target] + ([draw(f"{name}/bias", (classes,))] if "bias" in how else [])
            cases.append(case("linear_cross_entropy", f"{name}_{reduction}", run, *inputs, reduction=reduction, **attrs))
    write("linear_cross_entropy", cases)
