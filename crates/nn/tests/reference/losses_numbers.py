"""Losses that compare element by element, with PyTorch and torchvision. `generate.py` runs it."""

import torch
import torch.nn.functional as F
import torchvision
from torchvision.ops import sigmoid_focal_loss

from common import MADE_WITH, case, draw, labels, write

REDUCTIONS = ("mean", "sum", "none")


def losses_numbers():
    """Where a loss has a kink, a drawn input does not stand on it; where it is at its limits, one does."""
    cases = []

    def add(op, label, f, *inputs, **attrs):
        for reduction in REDUCTIONS:
            run = lambda *all: f(*all, reduction=reduction)
            cases.append(case(op, f"{op}_{label}_{reduction}", run, *inputs, reduction=reduction, **attrs))

    pair = lambda name, shape=(3, 4), low=-3.0, high=3.0: (draw(name + "/x", shape, low, high), draw(name + "/t", shape, low, high))
    add("l1_loss", "plain", F.l1_loss, *pair("l1"))
    add("l1_loss", "equal", F.l1_loss, torch.ones(3), torch.ones(3))
    for delta in (1.0, 0.3, 2.0):
        add("huber_loss", f"{delta}", lambda x, t, **r: F.huber_loss(x, t, delta=delta, **r), *pair("huber"), delta=delta)
    for beta in (1.0, 0.0, 0.5, 2.0):
        add("smooth_l1_loss", f"{beta}", lambda x, t, **r: F.smooth_l1_loss(x, t, beta=beta, **r), *pair("smooth"), beta=beta)

    p, t = draw("bce/p", (3, 4), 0.05, 0.95), draw("bce/t", (3, 4), 0, 1)
    weight = draw("bce/weight", (4,), 0.1, 2, 2)
    add("bce", "plain", F.binary_cross_entropy, p, t)
    add("bce", "weighted", lambda p, t, **r: F.binary_cross_entropy(p, t, weight=weight.expand(3, 4), **r), p, t, weight=[round(w, 2) for w in weight.tolist()])
    # At the ends the logarithm is cut at -100. The target's gradient is left out: there PyTorch's is another formula.
    ends, sure = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-7, 0.5]), torch.tensor([0, 1, 1, 0, 1, 0])
    add("bce", "ends", lambda p, t, **r: F.binary_cross_entropy(p, t.float(), **r), ends, sure)
    x, t = draw("logits/x", (3, 4), -5, 5), draw("logits/t", (3, 4), 0, 1)
    positive = draw("logits/pos", (4,), 0.1, 5, 2)
    spell = lambda w: [round(v, 2) for v in w.tolist()]
    add("bce_with_logits", "plain", F.binary_cross_entropy_with_logits, x, t)
    add("bce_with_logits", "far", F.binary_cross_entropy_with_logits, torch.tensor([0.0, 300.0, -300.0, 40.0]), torch.tensor([0.0, 0.25, 0.25, 1.0]))
    run = lambda x, t, **r: F.binary_cross_entropy_with_logits(x, t, weight=weight, pos_weight=positive, **r)
    add("bce_with_logits", "weighted", run, x, t, weight=spell(weight), pos_weight=spell(positive))
    hard = labels("focal", (3, 4), 2).float()
    for alpha, gamma in ((0.25, 2.0), (-1.0, 3.0), (0.7, 0.0)):
        run = lambda x, t, **r: sigmoid_focal_loss(x, t, alpha=alpha, gamma=gamma, **r)
        add("focal", f"{alpha}_{gamma}", run, x, hard, alpha=None if alpha < 0 else alpha, gamma=gamma)

    log_p, q = draw("kl/x", (3, 4)).log_softmax(1), draw("kl/t", (3, 4)).softmax(1)
    for reduction in (*REDUCTIONS, "batchmean"):
        for log_target, target in ((False, q), (True, q.log())):
            run = lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=log_target)
            cases.append(case("kl_div", f"kl_div_{log_target}_{reduction}", run, log_p, target, reduction=reduction, log_target=log_target))
    # An integer target has no gradient: at a probability of 0 PyTorch's is NaN.
    run = lambda x, t: F.kl_div(x, t.float(), reduction="none")
    cases.append(case("kl_div", "kl_div_sure", run, draw("kl/sure", (2, 3)).log_softmax(1), torch.eye(3)[:2].long(), reduction="none", log_target=False))

    x, t = pair("gaussian")
    for label, variance, full in (("plain", draw("var", (3, 4), 0.1, 3), False), ("full", draw("var", (3, 4), 0.1, 3), True), ("row", draw("var", (3, 1), 0.1, 3), False), ("short", draw("var", (3,), 0.1, 3), False), ("small", draw("var", (3, 4), 0, 1e-6, 8), False)):  # fmt: skip
        run = lambda x, t, v, **r: F.gaussian_nll_loss(x, t, v, full=full, **r)
        add("gaussian_nll_loss", label, run, x, t, variance, full=full)
    counts = labels("poisson/t", (3, 4), 5).float()
    for log_input, full in ((True, False), (False, False), (True, True), (False, True)):
        x = draw("poisson/x", (3, 4), -1 if log_input else 0.2, 2)
        run = lambda x, t, **r: F.poisson_nll_loss(x, t, log_input=log_input, full=full, **r)
        # Stirling's term has a jump that a target's gradient would stand on.
        run_fixed = lambda x, t, **r: F.poisson_nll_loss(x, t.float(), log_input=log_input, full=full, **r)
        add("poisson_nll_loss", f"{log_input}_{full}", run_fixed if full else run, x, counts.long() if full else counts, log_input=log_input, full=full)
    MADE_WITH["torchvision"] = torchvision.__version__
    write("losses_numbers", cases)
    del MADE_WITH["torchvision"]
