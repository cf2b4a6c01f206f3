"""Connectionist temporal classification, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F

from common import case, draw, write


def ctc():
    """The gradient is that of the logits: PyTorch's gradient of the log-probabilities holds only behind a softmax."""
    cases = []
    settings = {
        # Repeated labels, a full row, one label, none; inputs that end early; what stands after a target's end is nothing.
        "plain": ((12, 4, 5), [[1, 2, 3, 3], [4, 4, 4, 4], [2, 99, -1, 0], [0, 0, 0, 0]], [12, 12, 7, 5], [4, 4, 1, 0], 0),
        "blank_last": ((6, 2, 4), [[0, 1, 0], [2, 2, 0]], [6, 4], [3, 2], 3),
        "one_step": ((1, 2, 3), [[1], [2]], [1, 1], [1, 0], 0),
        # The second target needs five steps, the third has no step at all.
        "impossible": ((6, 3, 4), [[1, 2, 3], [1, 1, 1], [1, 2, 3]], [6, 4, 0], [3, 3, 0], 0),
        "long": ((40, 2, 6), [[1, 2, 3, 4, 5, 1, 2, 2], [5, 5, 4, 3, 0, 0, 0, 0]], [40, 33], [8, 4], 0),
    }
    for label, (shape, targets, input_lengths, target_lengths, blank) in settings.items():
        targets, input_lengths, target_lengths = (torch.tensor(v) for v in (targets, input_lengths, target_lengths))
        for reduction in ("mean", "sum", "none") if label in ("plain", "impossible") else ("mean",):
            for zero in (False, True) if label == "impossible" else (False,):
                run = lambda x, t, i, l: F.ctc_loss(x.log_softmax(-1), t.clamp(0, shape[2] - 1), i, l, blank=blank, reduction=reduction, zero_infinity=zero)
                inputs = (draw(f"ctc/{label}", shape), targets, input_lengths, target_lengths)
                # An infinite loss has no gradient there.
                gradient = label != "impossible" or zero
                cases.append(case("ctc_loss", f"ctc_{label}_{reduction}_{zero}", run, *inputs, gradient=gradient, reduction=reduction, blank=blank, zero_infinity=zero))
    write("ctc", cases)
