"""Batch normalization, with its running statistics, with PyTorch. `generate.py` runs it."""

from torch import nn

from common import case, draw, fill, tensor, write


def batch_norm():
    """Three training steps, each with its own input and cotangent and with the running statistics after it; then one
    case of evaluation with those statistics, under "eval"."""
    cases = []
    for label, shape, how in [
        ("plain", (4, 3, 2, 3), {}), ("not_affine", (3, 2, 2, 2), {"affine": False}), ("momentum", (2, 2, 3, 3), {"momentum": 0.3, "eps": 1e-3}),
        ("one_channel", (5, 1, 1, 1), {}), ("untracked", (3, 2, 2, 2), {"track_running_stats": False}),
        ("features", (5, 3), {}), ("length", (2, 3, 4), {"momentum": 0.2}),
    ]:  # fmt: skip
        attrs = {"features": shape[1], "eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True} | how
        op, kind = ("batch_norm2d", nn.BatchNorm2d) if len(shape) == 4 else ("batch_norm1d", nn.BatchNorm1d)
        name = f"{op}_{label}"
        module = fill(kind(shape[1], **how), name)
        parameters = list(module.named_parameters())
        steps = []
        for i in range(3):
            x = draw(f"{name}/{i}", shape) * (i + 1) + i
            step = case(op, f"{name}_step_{i}", module, x, parameters=parameters)
            steps.append(step | {"buffers": {k: int(v) if k == "num_batches_tracked" else tensor(v) for k, v in module.named_buffers()}})
        module.eval()
        evaluated = case(op, f"{name}_eval", module, draw(f"{name}/eval", shape), parameters=parameters)
        cases.append({"op": op, "name": name, "attrs": attrs, "steps": steps, "eval": evaluated})
    write("batch_norm", cases)
