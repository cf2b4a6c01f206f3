"""Losses of vectors and of pairs, and of a GAN's networks, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, labels, write

REDUCTIONS = ("mean", "sum", "none")


def reduced(losses, reduction):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def losses_vectors():
    """The games of a GAN are written out here as its papers have them."""
    cases = []

    def add(op, label, f, *inputs, **attrs):
        for reduction in REDUCTIONS:
            run = lambda *all: f(*all, reduction=reduction)
            cases.append(case(op, f"{op}_{label}_{reduction}", run, *inputs, reduction=reduction, **attrs))

    signs = lambda name, shape: labels(name, shape, 2) * 2 - 1
    for margin in (1.0, 0.25):
        run = lambda x, t, **r: F.hinge_embedding_loss(x, t, margin=margin, **r)
        add("hinge_embedding_loss", f"{margin}", run, draw("hinge", (3, 4)), signs("hinge", (3, 4)), margin=margin)
    for margin in (0.0, 0.7):
        run = lambda a, b, t, **r: F.margin_ranking_loss(a, b, t, margin=margin, **r)
        add("margin_ranking_loss", f"{margin}", run, draw("rank/a", (7,)), draw("rank/b", (7,)), signs("rank", (7,)), margin=margin)
    vectors = [draw(f"triplet/{name}", (4, 5)) for name in "apn"]
    for label, attrs in {"plain": {}, "margin": {"margin": 0.3}, "p1": {"p": 1.0}, "p3": {"p": 3.0}, "swap": {"swap": True, "margin": 3.0}}.items():
        add("triplet_margin_loss", label, lambda a, p, n, **r: F.triplet_margin_loss(a, p, n, **attrs, **r), *vectors, **attrs)
    same = [torch.ones(1, 3), torch.ones(1, 3), torch.zeros(1, 3)]
    add("triplet_margin_loss", "same", lambda a, p, n, **r: F.triplet_margin_loss(a, p, n, margin=2.0, **r), *same, margin=2.0)
    a, b = draw("cosine/a", (6, 5)), draw("cosine/b", (6, 5))
    for margin in (0.0, 0.3):
        run = lambda a, b, t, **r: F.cosine_embedding_loss(a, b, t, margin=margin, **r)
        add("cosine_embedding_loss", f"{margin}", run, a, b, signs("cosine", (6,)), margin=margin)
    # Just as far as the margin: a tie of the maximum with 0, whose derivative is 0.
    plus, minus = torch.ones(2, dtype=torch.int64), -torch.ones(2, dtype=torch.int64)
    one, three = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.0])
    add("hinge_embedding_loss", "tie", lambda x, t, **r: F.hinge_embedding_loss(x, t, margin=1.0, **r), torch.tensor([1.0, 0.5]), minus, margin=1.0)
    add("margin_ranking_loss", "tie", lambda a, b, t, **r: F.margin_ranking_loss(a, b, t, margin=2.0, **r), three, one, plus, margin=2.0)
    line = [torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 4.0]])]
    add("triplet_margin_loss", "tie", lambda a, p, n, **r: F.triplet_margin_loss(a, p, n, margin=1.0, p=1.0, eps=0.0, **r), *line, margin=1.0, p=1.0, eps=0.0)
    right_angle = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])]
    add("cosine_embedding_loss", "tie", lambda a, b, t, **r: F.cosine_embedding_loss(a, b, t, margin=0.0, **r), *right_angle, minus[:1], margin=0.0)
    with_zero = torch.cat([a[:2], torch.zeros(1, 5)])
    for label, axis, x, y in [("last", -1, a, b), ("first", 0, a, b), ("zero", -1, with_zero, b[:3])]:
        cases.append(case("cosine_similarity", f"cosine_similarity_{label}", lambda x, y: F.cosine_similarity(x, y, dim=axis), x, y, axis=axis))

    games = {
        "non_saturating": (lambda r: F.softplus(-r), F.softplus, lambda f: F.softplus(-f)),
        "hinge": (lambda r: F.relu(1 - r), lambda f: F.relu(1 + f), lambda f: -f),
        "least_squares": (lambda r: (r - 1) ** 2 / 2, lambda f: f**2 / 2, lambda f: (f - 1) ** 2 / 2),
        "wasserstein": (lambda r: -r, lambda f: f, lambda f: -f),
    }
    for game, (real, fake, generator) in games.items():
        run = lambda r, f, reduction: reduced(real(r), reduction) + reduced(fake(f), reduction)
        add("discriminator", game, run, draw(game + "/real", (6, 1)), draw(game + "/fake", (6, 1)), game=game)
        add("generator", game, lambda f, reduction: reduced(generator(f), reduction), draw(game + "/generated", (6, 1)), game=game)
    write("losses_vectors", cases)
