"""Interpolation and adaptive pooling, with PyTorch. `jax.image.resize` has other modes: no aligned corners, another rounding
of the nearest element, and a filter for shrinking. `generate.py` runs it."""

import numpy as np
import torch
import torch.nn.functional as F

from common import BF16, distinct, draw, Family, MADE_WITH, tensor


def interpolation():
    MADE_WITH["torch"] = torch.__version__
    out = Family("interpolation")

    def case(op, name, f, x, exact=False, **attrs):
        # PyTorch computes positions in the dtype of the values: in f32 they are inexact for long axes.
        half, wide = x.dtype == BF16, torch.float64 if exact else torch.float32
        to = (lambda v: v.detach().float().numpy().astype(BF16)) if half else (lambda v: v.detach().float().numpy())
        inner = torch.tensor(x.astype(np.float32), dtype=torch.bfloat16 if half else wide, requires_grad=True)
        y = f(inner)
        seed = torch.tensor(draw(name + "/cotangent", tuple(y.shape), digits=2)).to(y.dtype)
        (g,) = torch.autograd.grad(y, inner, seed)
        out.add(op, name, attrs, [tensor(x)], [tensor(to(y))], [tensor(to(seed))], [tensor(to(g))])

    linear, cubic = {1: "linear", 2: "bilinear", 3: "trilinear"}, {2: "bicubic"}
    grids = [
        ("double", (1, 2, 3, 4), [6, 8]), ("uneven", (2, 1, 5, 4), [7, 3]), ("halve", (1, 1, 6, 8), [3, 4]), ("third", (1, 1, 9, 7), [3, 2]),
        ("same", (1, 1, 3, 4), [3, 4]), ("one", (1, 2, 3, 3), [1, 1]), ("of_one", (1, 1, 1, 1), [2, 3]), ("one_axis", (2, 3, 5), [8]),
        ("three_axes", (1, 1, 2, 3, 2), [3, 2, 4]), ("large", (1, 1, 13, 2), [29, 2]),
    ]  # fmt: skip
    for label, of, size in grids:
        n = len(size)
        for mode in ("nearest", "nearest-exact", "area"):
            run = lambda x, m=mode: F.interpolate(x, size=size, mode=m)
            case("interpolate", f"interpolate_{mode}_{label}", run, draw(label, of), size=size, mode=mode)
        for mode, modes in {"linear": linear, "cubic": cubic}.items():
            for corners in (False, True):
                if n in modes:
                    run = lambda x, m=modes[n], c=corners: F.interpolate(x, size=size, mode=m, align_corners=c)
                    name = f"interpolate_{mode}_{label}_{corners}"
                    case("interpolate", name, run, draw(label, of), size=size, mode=mode, align_corners=corners)
    for label, of, scale in [("double", (1, 2, 3, 2), [2.0, 2.0]), ("fraction", (1, 1, 5, 7), [1.5, 0.7]), ("third", (1, 1, 7, 4), [1 / 3, 2.6]), ("one_axis", (1, 2, 5), [2.3])]:
        n = len(scale)
        for mode in ("nearest", "nearest-exact"):
            run = lambda x, m=mode: F.interpolate(x, scale_factor=scale, mode=m)
            case("interpolate_by", f"interpolate_by_{mode}_{label}", run, draw(label, of), scale=scale, mode=mode)
        for corners in (False, True):
            run = lambda x, c=corners: F.interpolate(x, scale_factor=scale, mode=linear[n], align_corners=c)
            case("interpolate_by", f"interpolate_by_linear_{label}_{corners}", run, draw(label, of), scale=scale, mode="linear", align_corners=corners)
    half = draw("half", (1, 1, 3, 3)).astype(BF16)
    case("interpolate", "interpolate_bf16", lambda x: F.interpolate(x, size=[5, 6], mode="bilinear", align_corners=False), half, size=[5, 6], mode="linear", align_corners=False)

    # Enough positions that a gather is used, and many that repeat.
    for label, of, size, corners in [("far", (1, 1, 70, 2), [67, 3], False), ("corners", (1, 1, 64, 3), [128, 3], True), ("repeats", (1, 1, 7, 40), [28, 10], False)]:
        run = lambda x: F.interpolate(x, size=size, mode="bilinear", align_corners=corners)
        case("interpolate", f"interpolate_linear_{label}", run, draw(label, of), exact=True, size=size, mode="linear", align_corners=corners)
    run = lambda x: F.interpolate(x, size=[67, 2], mode="bicubic", align_corners=False)
    case("interpolate", "interpolate_cubic_far", run, draw("far", (1, 1, 70, 2)), exact=True, size=[67, 2], mode="cubic", align_corners=False)

    def values(op, name, f, x, **attrs):
        out.add(op, name, attrs, [tensor(x)], [tensor(f(torch.tensor(x).double()).float().numpy())])

    # An infinity or a NaN affects only the elements that depend on it.
    row = np.array([[[1, 2, 3, np.inf]]], np.float32)
    long = draw("long", (1, 2, 70))
    long[0, 0, 5], long[0, 1, 40] = np.inf, np.nan
    for label, x, size in [("row", row, 3), ("row", row, 8), ("row", row, 7), ("long", long, 67), ("long", long, 101), ("long", long, 35)]:
        for mode in ("linear", "area"):
            more = {"mode": mode} | ({"align_corners": False} if mode == "linear" else {})
            values("interpolate", f"interpolate_{mode}_infinite_{label}_{size}", lambda x: F.interpolate(x, size=size, **more), x, size=[size], **more)
        values("adaptive_avg_pool", f"adaptive_avg_pool_infinite_{label}_{size}", lambda x: F.adaptive_avg_pool1d(x, size), x, size=[size])

    average = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
    largest = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
    for label, of, size in [
        ("divides", (2, 2, 6, 4), [3, 2]), ("overlaps", (1, 2, 5, 7), [3, 4]), ("one", (2, 3, 4, 5), [1, 1]), ("grows", (1, 1, 3, 2), [5, 4]),
        ("one_axis", (2, 2, 7), [3]), ("far", (1, 1, 70), [67]), ("repeats", (1, 1, 12, 10), [8, 4]), ("three_axes", (1, 2, 3, 4, 5), [2, 4, 3]), ("same", (1, 1, 2, 3), [2, 3]),
    ]:  # fmt: skip
        n = len(size)
        case("adaptive_avg_pool", f"adaptive_avg_pool_{label}", lambda x: average[n](x, size), draw(label, of), size=size)
        case("adaptive_max_pool", f"adaptive_max_pool_{label}", lambda x: largest[n](x, size), distinct(label, of), size=size)
    out.write()
    del MADE_WITH["torch"]
